"""An output is its tokens: what decodes them is no part of it."""

from dataclasses import replace

from paged_attention.outputs import Output


class Tokenizer:
    def __repr__(self):
        return "vocabulary " * 500

    def decode(self, token_ids, *, skip_special_tokens):
        return " ".join(map(str, token_ids))


OUTPUT = Output(7, 0, [3, 4], "length", Tokenizer())


def test_an_output_shows_its_tokens_and_not_its_tokenizer():
    shown = "Output(request_id=7, index=0, token_ids=[3, 4], finish_reason='length')"
    assert repr(OUTPUT) == shown


def test_equal_outputs_are_equal_whoever_decodes_them_and_stand_once_in_a_set():
    other = replace(OUTPUT, token_ids=[3, 4], tokenizer=Tokenizer())
    assert other == OUTPUT
    assert len({other, OUTPUT}) == 1
    for changes in ({"token_ids": [3]}, {"finish_reason": None}, {"index": 1}):
        assert replace(OUTPUT, **changes) not in {OUTPUT}


def test_text_is_decoded_when_it_is_asked_for():
    assert OUTPUT.text == "3 4"
    assert replace(OUTPUT, tokenizer=None).text == ""
