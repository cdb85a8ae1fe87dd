"""kvtrace calibrate and --costs: what they print and write, and one sentence with the exit status for each fault."""

import contextlib
import json
import shutil

import pytest
from click.testing import CliRunner

from kvtrace.cli import commands, run
from kvtrace.serving.calibration.costs import OperatingRange, read_costs
from tests.docs import ROOT
from tests.serving.quick_fits import quick_fits

MODEL = ["--model", "llama-3.1-8b", "--gpu", "h100"]
SMALL = ["--gpu", "h100", "--model", "llama-3.1-8b"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with the example, its costs, what the command that wrote them printed, and a trace."""
    folder = tmp_path_factory.mktemp("costs")
    shutil.copytree(ROOT / "examples/recording", folder / "recording")
    with contextlib.chdir(folder):
        line = ["calibrate", "recording", *MODEL, "-o", "costs.json", "--json", "--quiet"]
        (folder / "printed.json").write_text(CliRunner().invoke(commands, line, catch_exceptions=False).stdout)
        log = str(ROOT / "examples/raw_log.jsonl")
        assert run(["anonymize", log, "-o", "trace.jsonl", "--block-size", "16", "-q"]) == 0
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch, written):
    """A copy of that folder to work in."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys, *line, status=2):
    """The sentence of a command that fails."""
    capsys.readouterr()
    assert run(list(line)) == status
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    return captured.err


def test_the_tables_hold_errors_terms_forms_and_range(folder, capsys):
    with quick_fits():
        assert run(["calibrate", "recording", *MODEL, "--holdout", "30%"]) == 0
    captured = capsys.readouterr()
    for words in ("Held-out requests", "90 % interval", "unfitted", "worth", "sum-request", "requests at once"):
        assert words in captured.out
    with quick_fits(worth=False):
        assert run(["calibrate", "recording", *MODEL, "--holdout", "0"]) == 0
    captured = capsys.readouterr()
    assert "Fitted requests" in captured.out and "no request is held out" in captured.err


@pytest.mark.parametrize("width", ["80", "120"])
def test_tables_fit_the_terminal(folder, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    with quick_fits():
        assert run(["calibrate", "recording", *MODEL]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= int(width)


def test_the_same_seed_gives_the_same_costs(folder):
    with quick_fits(worth=False):
        for name in ("one.json", "two.json"):
            assert run(["calibrate", "recording", *MODEL, "--seed", "3", "-o", name, "--quiet"]) == 0
    assert read_costs("one.json") == read_costs("two.json")


def test_json_and_the_file_agree(folder):
    values = json.loads((folder / "printed.json").read_text())
    assert values["costs"] == json.loads((folder / "costs.json").read_text())
    assert (values["requests"], values["held_out"], values["left_out"]) == (80, 40, 0)
    assert all(one["interval"][0] <= one["interval"][1] for one in values["errors"])
    assert (
        max(abs(one["error"]) for one in values["errors"])
        < 0.05
        < max(abs(one["error"]) for one in values["unfitted_errors"])
    )


def test_costs_replace_the_gpu(folder, capsys):
    assert run(["simulate", "trace.jsonl", "--costs", "costs.json", "--json", "--quiet"]) == 0
    (fitted,) = json.loads(capsys.readouterr().out)["results"]
    assert run(["simulate", "trace.jsonl", *SMALL, "--json", "--quiet"]) == 0
    (roofline,) = json.loads(capsys.readouterr().out)["results"]
    assert fitted["tpot_s"]["mean"] > 1.1 * roofline["tpot_s"]["mean"]  # its steps are slower
    assert fitted["capacity"] != roofline["capacity"]  # that of the recording
    assert (
        run(["simulate", "trace.jsonl", "--costs", "costs.json", "--model", "llama-3-70b", "--gpus", "4", "--json"])
        == 0
    )
    (large,) = json.loads(capsys.readouterr().out)["results"]
    assert large["tpot_s"]["mean"] > 1.5 * fitted["tpot_s"]["mean"]


def test_a_plan_and_a_report_take_costs(folder, capsys):
    assert run(["plan", "trace.jsonl", "--costs", "costs.json", "--router", "sticky", "--json", "--quiet"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["setting"]["gpu"] == "h100" and "llama-3.1-8b on 1 x h100" in values["setting"]["assumes"][0]
    assert "llama-3.1-8b on 1 x h100" in values["instances"]["model_error"]["basis"]
    pytest.importorskip("plotly")
    assert run(["report", "trace.jsonl", "-o", "page.html", "--costs", "costs.json", "--quiet"]) == 0
    assert "as fitted to a recording" in (folder / "page.html").read_text()


@pytest.mark.parametrize("command", ["simulate", "plan"])
def test_a_run_beyond_the_recording_needs_a_flag(folder, capsys, command):
    from dataclasses import replace

    costs = read_costs("costs.json")
    replace(costs, seen=OperatingRange(*[10] * 4)).save("small.json")
    more = [] if command == "simulate" else ["--router", "sticky"]
    line = [command, "trace.jsonl", "--costs", "small.json", *more]
    sentence = refused(capsys, *line, "--quiet")
    assert "tokens of a request:" in sentence and "times" in sentence and "--extrapolate" in sentence
    assert run([*line, "--extrapolate"]) == 0
    captured = capsys.readouterr()
    assert "beyond what the costs were measured for" in (captured.err if command == "simulate" else captured.out)


@pytest.mark.parametrize(
    ("line", "status", "sentence"),
    [
        ("calibrate recording --model llama-3.1-8b", 2, "Missing option '--gpu'"),
        ("calibrate nothing --model llama-3.1-8b --gpu h100", 2, "nothing: no such file or folder."),
        ("calibrate recording --model llama-3.1-8b --gpu h100 --holdout 2", 2, "--holdout"),
        ("calibrate recording --model llama-3.1-8b --gpu h100 --holdout 1%", 2, "at least 20 requests to fit"),
        ("calibrate recording --model llama-3.1-8b --gpu h100 --format aiperf", 3, "this is a folder, not a file"),
        (
            "calibrate recording --model llama-3.1-8b --gpu h100 --format unknown",
            2,
            "is not a --recording-format. Try auto, vllm-requests",
        ),
        ("calibrate recording --model llama-3.1-8b --gpu h100 -o recording/requests.jsonl", 2, "would overwrite it"),
        ("calibrate recording --model llama-3.1-8b --gpu h100 -o costs.csv", 2, "costs.csv"),
        ("calibrate recording --model empty.json --gpu h100", 3, "num_hidden_layers is missing"),
        ("calibrate recording --model llama-3.1-8b --gpu h100 --trace trace.jsonl", 2, "but the trace has 96"),
        ("calibrate recording --model llama-3.1-8b --gpu h100 --scheduler seats=3", 2, "seats"),
        ("simulate trace.jsonl --costs costs.json --gpu h100", 2, "--costs and --gpu cannot be combined"),
        ("simulate trace.jsonl --costs costs.json --engine sglang", 2, "measured with the engine vllm, not sglang"),
        ("simulate trace.jsonl --costs empty.json", 3, "not a costs.json of version 1"),
        ("simulate trace.jsonl --costs nothing.json", 2, "nothing.json: No such file or directory"),
        ("simulate trace.jsonl --costs damaged.json", 3, "model_shape, gpu_figures, gpus"),
        ("plan trace.jsonl --costs costs.json --gpu h100", 2, "cannot be combined"),
        ("plan trace.jsonl", 2, "Missing option '--model'"),
    ],
)
def test_a_fault_is_one_sentence(folder, capsys, line, status, sentence):
    (folder / "empty.json").write_text("{}")
    (folder / "damaged.json").write_text((folder / "costs.json").read_text().replace('"layers"', '"leyers"'))
    assert sentence in refused(capsys, *line.split(), status=status)
    assert (folder / "recording/requests.jsonl").read_bytes() == (
        ROOT / "examples/recording/requests.jsonl"
    ).read_bytes()


def test_failed_requests_are_counted_in_a_warning(folder, capsys):
    path = folder / "recording/requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["last_token_ts"] = None
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with quick_fits(worth=False):
        assert run(["calibrate", "recording", *MODEL]) == 0
    assert "1 requests failed and are left out" in capsys.readouterr().err
