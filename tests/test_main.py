"""`python -m paged_attention`: answers stream, the pool is drawn, Ctrl-C is clean."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

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


@pytest.mark.parametrize("width", [1, 4, 5])
def test_a_terminal_without_room_gets_a_frame_all_the_same(folder, width):
    engine = Engine.from_pretrained(folder, num_blocks=4)
    engine.add_request([5, 6, 7], SamplingParams(8))
    engine.step()
    text = frame_as_text(engine, [watch.Talk("a question", "an answer")], width)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-blocks", "1000000000000"], "0 blocks need 5,722,045.9 GiB"),
        (["--num-blocks", "9" * 30], " GiB, which could not be had on cpu"),
        (
            ["--model", __file__],
            f"a model is a folder with its files, got the file {__file__}",
        ),
        (["--save-frame", "/no/x.svg"], "got /no/x.svg: No such file or directory"),
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


def test_an_engine_without_the_memory_for_its_blocks_says_how_much_it_needs():
    with pytest.raises(MemoryError, match=r"^9+ blocks need [\d,.]+ GiB, which could"):
        Engine(make_model(), num_blocks=int("9" * 15))


def with_config(path, **changes):
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def cut(path, name, num_bytes):
    (path / name).write_bytes((path / name).read_bytes()[:num_bytes])


DAMAGES = {
    "weights cut off": (
        lambda path: cut(path, "model.safetensors", 500),
        "SafetensorError",
    ),
    "weights of another shape": (
        lambda path: with_config(path, intermediate_size=32),
        "mlp.down_proj.weight must be [48, 32] by its config.json, got [48, 64]",
    ),
    "a string for a number": (
        lambda path: with_config(path, hidden_size="x"),
        "'hidden_size' expected int, got str",
    ),
    "no weights": (
        lambda path: (path / "model.safetensors").unlink(),
        "no file named model.safetensors",
    ),
    "a tokenizer cut off": (
        lambda path: cut(path, "tokenizer.json", 100),
        "tokenizer.json, tokenizer_config.json) cannot be loaded: JSONDecodeError",
    ),
    "another file for a tokenizer": (
        lambda path: (path / "tokenizer.json").write_text("{}"),
        "tokenizer.json, tokenizer_config.json) cannot be loaded: KeyError",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_one_line_with_its_folder(damage, folder, tmp_path, capsys):
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    do, message = DAMAGES[damage]
    do(path)
    assert program.main(["w3", "--model", str(path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("paged_attention: the ")
    assert str(path) in error and message in error


def test_what_a_library_said_of_a_damaged_model_is_chained(folder, tmp_path):
    path = tmp_path / "model"
    shutil.copytree(folder, path)
    (path / "config.json").write_text("{ not json")
    with pytest.raises(model_files.ModelLoadError) as caught:
        model_files.load(str(path))
    assert isinstance(caught.value.__cause__, OSError)


def test_a_model_without_any_tokenizer_is_told_from_a_broken_one(tmp_path, capsys):
    make_model().save_pretrained(tmp_path)
    assert model_files.load(str(tmp_path))[1] is None
    assert program.main(["w3", "--model", str(tmp_path)]) == 1
    assert "has no tokenizer" in capsys.readouterr().err


def test_a_picture_that_cannot_be_saved_is_told_before_the_model_is_loaded(
    folder, tmp_path, capsys
):
    assert run(folder, "--save-frame", str(tmp_path)) == 1
    shown = capsys.readouterr()
    assert "Is a directory" in shown.err and "loading" not in shown.err


def test_a_frame_that_was_never_drawn_leaves_no_file_and_no_change(folder, tmp_path):
    old, new = tmp_path / "old.svg", tmp_path / "new.svg"
    old.write_text("a picture")
    for file in (old, new):
        assert run(folder, "--num-blocks", "1", "--save-frame", str(file)) == 1
    assert old.read_text() == "a picture" and not new.exists()


def test_the_answers_are_there_even_if_the_picture_is_lost(
    folder, answers, tmp_path, capsys, monkeypatch
):
    def full(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(Path, "write_text", full)
    assert run(folder, "--save-frame", str(tmp_path / "frame.svg")) == 1
    shown = capsys.readouterr()
    assert all(answer in shown.out for answer in answers)
    assert shown.err.endswith("paged_attention: no space left\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("where", ["load", "step"])
def test_a_signal_ends_it_wherever_it_comes_with_the_cursor_back(
    where, number, folder, capsys, monkeypatch, hang_up
):
    def interrupted(*_):
        signal.raise_signal(number)

    if where == "load":
        monkeypatch.setattr(model_files, "load", interrupted)
    else:
        monkeypatch.setattr(Engine, "step", interrupted)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then believes in a terminal
    before = signal.getsignal(number)
    assert run(folder, "--watch") == 128 + number
    shown = capsys.readouterr()
    drawn = shown.err if where == "load" else shown.out
    assert 0 <= drawn.rfind("\x1b[?25l") < drawn.rfind("\x1b[?25h")
    assert shown.err.endswith("interrupted\n") and "Traceback" not in shown.err
    assert signal.getsignal(number) is before


def in_a_terminal(folder, mark, number):
    """All that a --watch writes, and its exit code; the signal comes after mark."""
    ours, its = os.openpty()
    command = [sys.executable, "-m", "paged_attention", "w20", "--model", folder]
    process = subprocess.Popen(
        [*command, "--max-tokens", "400", "--temperature", "5", "--watch"],
        stdin=its,
        stdout=its,
        stderr=its,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm-256color"},
        start_new_session=True,
    )
    os.close(its)
    written = b""
    try:
        while piece := os.read(ours, 65536):
            written += piece
            if number and mark in written:
                process.send_signal(number)
                number = None
    except OSError:  # so a terminal tells that nobody is left to write to it
        pass
    finally:
        os.close(ours)
        code = process.wait(timeout=240)
    return written, code


@pytest.mark.parametrize(
    ("mark", "number"),
    [
        (b"loading", signal.SIGINT),
        pytest.param(b"pool at step", signal.SIGTERM, marks=pytest.mark.proof),
    ],
)
def test_a_real_process_ends_in_order_in_a_real_terminal(folder, mark, number):
    written, code = in_a_terminal(folder, mark, number)
    assert code == 128 + number
    hidden, shown = written.rfind(b"\x1b[?25l"), written.rfind(b"\x1b[?25h")
    assert 0 <= hidden < shown
    assert written.endswith(b"interrupted\r\n") and b"Traceback" not in written


@pytest.mark.parametrize("where", ["_prepare", "_steps"])
def test_a_signal_within_a_callback_of_c_code_is_not_lost(
    where, folder, capsys, monkeypatch
):
    class Callback:
        def __del__(self):  # what it raises, Python forgets
            signal.raise_signal(signal.SIGTERM)
            [None for _ in range(9)]

    before = getattr(program, where)

    def replaced(*arguments):
        Callback()
        return before(*arguments)

    monkeypatch.setattr(program, where, replaced)
    assert run(folder) == 128 + signal.SIGTERM
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_a_signal_while_torch_is_imported_waits_for_its_end(capsys, monkeypatch):
    # Interrupted in the middle, its C++ code would end the process at once.
    def prepare(_):
        code = "signal.raise_signal(signal.SIGTERM); done.append('the import')"
        exec(code, {"__name__": "torch", "signal": signal, "done": done})
        time.sleep(60)

    done = []
    monkeypatch.setattr(program, "_prepare", prepare)
    assert program.main(["w3"]) == 128 + signal.SIGTERM
    assert done == ["the import"]
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_a_signal_while_a_string_is_executed_has_its_own_exit_code():
    code = (
        "import os, sys, paged_attention.__main__ as m\n"
        "m._run = lambda _: exec('os.kill(os.getpid(), 15)', {'os': os})\n"
        "sys.exit(m.main(['w3']))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(number):
    code = (
        "import os, sys, paged_attention.__main__ as m\n"
        f"m._run = lambda _: os.kill(os.getpid(), {int(number)}) or print('went on')\n"
        "sys.exit(m.main(['w3']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN),
    )
    assert (done.returncode, done.stdout) == (0, b"went on\n")


def test_an_interrupt_that_became_another_error_is_one_all_the_same(
    folder, capsys, monkeypatch
):
    def interrupted(*_):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            raise OSError("the terminal is gone")  # noqa: B904 (as in a finally)

    monkeypatch.setattr(model_files, "load", interrupted)
    assert run(folder) == 130
    assert capsys.readouterr().err.endswith("interrupted\n")


def test_help_needs_nothing_heavy():
    code = (
        "import sys, paged_attention.__main__ as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: print([x for x in ('torch', 'rich') if x in sys.modules])"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "--watch" in printed and printed.endswith("[]\n")
