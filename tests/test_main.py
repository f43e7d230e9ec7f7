"""`python -m paged_attention`: answers stream, the pool is drawn, Ctrl-C is clean."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from tiny_models import VOCAB, config_of, make_model

import paged_attention.__main__ as program
from paged_attention import model_files, watch
from paged_attention.engine import Engine
from paged_attention.params import SamplingParams

pytest.importorskip("transformers", reason="not verified: transformers is missing")

TEMPLATE = (
    "w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 "
    "{{ messages[0]['content'] }}"
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny model whose tokens are the words w0 … w127; all prompts begin alike."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w0"))
    words.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w2")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def answers(folder):
    engine = Engine.from_pretrained(folder, device="cpu")
    outputs = engine.generate(["w20 w21", "w30"], SamplingParams(12))
    return [output.text for output in outputs]


def run(folder, *options):
    prompts = ["w20 w21", "w30"]
    return program.main([*prompts, "--model", folder, "--max-tokens", "12", *options])


def test_answers_come_in_the_order_of_the_prompts(folder, answers, capsys):
    assert run(folder) == 0
    shown = capsys.readouterr()
    first, second = answers
    assert shown.out == f"> w20 w21\n{first}\n\n> w30\n{second}\n\n"
    assert "loading" in shown.err and "steps" in shown.err


def test_an_answer_is_shown_while_it_grows(folder, capsys, monkeypatch):
    seen = []
    step = Engine.step

    def noting(engine):
        seen.append(capsys.readouterr().out)
        return step(engine)

    monkeypatch.setattr(Engine, "step", noting)
    run(folder)
    assert sum("w" in piece for piece in seen[2:]) >= 10  # word by word


def test_raw_leaves_the_chat_template_out(folder, capsys):
    run(folder, "--raw")
    model, tokenizer = model_files.load(folder)
    engine = Engine(model, tokenizer)
    (output, _) = engine.generate(["w20 w21", "w30"], SamplingParams(12), raw=True)
    assert f"> w20 w21\n{output.text}\n" in capsys.readouterr().out


def test_with_a_seed_a_draw_is_the_same_again(folder, capsys):
    options = ["--temperature", "1.5", "--seed"]
    texts = []
    for seed in ("3", "3", "4"):
        run(folder, *options, seed)
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_few_blocks_mean_preemption_and_the_same_answers(folder, answers, capsys):
    assert run(folder, "--block-size", "4", "--num-blocks", "8") == 0
    shown = capsys.readouterr()
    assert all(answer in shown.out for answer in answers)
    assert "0 preemptions" not in shown.err


def test_watching_without_a_terminal_is_plain_streaming(folder, answers, capsys):
    run(folder)
    plain = capsys.readouterr().out
    run(folder, "--watch")
    assert capsys.readouterr().out == plain
    assert "\x1b" not in plain


def test_watching_draws_and_leaves_the_answers(folder, answers, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then believes in a terminal
    assert run(folder, "--watch") == 0
    shown = capsys.readouterr().out
    assert "pool at step 3" in shown and "block table" in shown
    assert shown.endswith(
        "".join(
            f"> {p}\n{a}\n\n" for p, a in zip(["w20 w21", "w30"], answers, strict=True)
        )
    )


def test_a_frame_is_saved_as_a_picture(folder, tmp_path, capsys):
    file = tmp_path / "frame.svg"
    assert run(folder, "--save-frame", str(file)) == 0
    svg = file.read_text(encoding="utf-8").replace("&#160;", " ")
    assert svg.startswith("<svg")
    assert "w20 w21" in svg and "pool at step" in svg and "1 shared" in svg


def frame_as_text(engine, talks, width=80):
    from rich.console import Console

    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115
    console.print(watch.frame(engine, talks, width))
    return console.export_text()


def test_a_frame_says_who_holds_what(folder):
    engine = Engine.from_pretrained(folder, num_blocks=7, block_size=4)
    engine.add_request([5, 6, 7, 8, 9], SamplingParams(8, temperature=1.0, n=2, seed=1))
    engine.step()
    text = frame_as_text(engine, [watch.Talk("a question", "an answer")])
    assert "a question" in text and "an answer" in text
    assert "7 blocks, 5 free, 2 shared, 62% of the used slots" in text
    tables = [sequence.table.block_ids for sequence in engine.sequences]
    for ids in tables:
        assert f"0              5  {ids[0]} {ids[1]}" in text
    assert "· · · · ·" in text


def test_a_frame_fits_into_a_narrow_terminal_and_shows_the_end(folder):
    engine = Engine.from_pretrained(folder, num_blocks=1000)
    engine.add_request([5] * 400, SamplingParams(8))
    engine.step()
    answer = " ".join(f"word{i}" for i in range(200))
    text = frame_as_text(engine, [watch.Talk("question " * 40, answer)], width=40)
    assert max(map(len, text.splitlines())) <= 40
    assert "word199" in text and "word100 " not in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "smollm2"], "course get-model"),
        (["--model", "/no/such/folder"], "/no/such/folder"),
        (["--max-tokens", "0"], "max_tokens must be a whole number >= 1, got 0"),
        (["--num-blocks", "1"], "can never fit"),
    ],
)
def test_what_does_not_work_is_one_line(
    options, message, folder, capsys, monkeypatch, tmp_path
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(folder, *options) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("paged_attention: ") and message in error


def test_a_folder_without_weights_is_one_line_too(tmp_path, capsys):
    config_of("llama").save_pretrained(tmp_path)
    assert program.main(["w3", "--model", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("paged_attention: ") and str(tmp_path) in error


@pytest.mark.parametrize("where", ["load", "step"])
def test_ctrl_c_ends_with_130_wherever_it_comes(where, folder, capsys, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    if where == "load":
        monkeypatch.setattr(model_files, "load", interrupted)
    else:
        monkeypatch.setattr(Engine, "step", interrupted)
    assert run(folder) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_a_real_ctrl_c_leaves_no_traceback(folder):
    command = [sys.executable, "-m", "paged_attention", "w20", "--model", folder]
    process = subprocess.Popen(
        [*command, "--max-tokens", "400", "--temperature", "5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "> w20\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in errors and errors.endswith("interrupted\n")


def test_help_needs_nothing_heavy():
    code = (
        "import sys, paged_attention.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: print([x for x in ('torch', 'rich') if x in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "--watch" in printed and printed.endswith("[]\n")
