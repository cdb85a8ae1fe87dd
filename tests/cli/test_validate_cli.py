"""kvtrace validate: what it prints and writes, and one sentence with the right exit status for each fault."""

import csv
import json
import shutil

import pytest

from kvtrace.cli import run
from kvtrace.serving.calibration.calibration import calibrate
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.recordings import read_recording
from tests.docs import ROOT

MADE_UP = ROOT / "examples/recording"
MODEL = ROOT / "tests/data/models/llama-3.1-8b.json"
UNFITTED = ["--model", "llama-3.1-8b", "--gpu", "h100"]


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A copy of the example in the present folder."""
    shutil.copytree(MADE_UP, tmp_path / "recording")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "recording"


def called(*arguments):
    return run(["validate", "recording", *arguments])


@pytest.mark.parametrize("width", [80, 120])
def test_tables_fit_the_terminal(recording, capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert called(*UNFITTED) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width and not any("Not shown" in line for line in lines)
    assert "the roofline of llama-3.1-8b on 1 x h100, nothing fitted" in " ".join(lines)
    assert sum(" % to " in line for line in lines) == 15  # each statistic has its interval
    assert "Times without a recording: on " in " ".join(" ".join(lines).split())


def test_json_and_the_table_of_requests(recording, capsys):
    assert called(*UNFITTED, "--json", "--per-request", "times.csv") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["requests"] == 80 and len(values["errors"]) == 15 and values["warm_up"] == 0
    rows = list(csv.DictReader((recording.parent / "times.csv").read_text().splitlines()))
    assert [int(row["row"]) for row in rows] == list(range(80))
    means = {error["latency"]: error["measured"] for error in values["errors"] if error["statistic"] == "mean"}
    for name, mean in means.items():
        assert sum(float(row[name]) for row in rows) / 80 == pytest.approx(mean)
        assert all(float(row[f"simulated_{name}"]) > 0 for row in rows)


def test_costs_of_a_calibration_are_better_on_the_rest(recording, capsys):
    calibrate(read_recording(recording), Deployment("llama-3.1-8b", gpu="h100")).costs.save("costs.json")
    means = []
    for costs in (["--costs", "costs.json"], UNFITTED):
        assert called(*costs, "--warm-up", "50%", "--json", "--quiet") == 0
        means.append([abs(one["error"]) for one in json.loads(capsys.readouterr().out)["errors"][::5]])
    assert all(fitted < other for fitted, other in zip(*means, strict=True))
    assert called("--costs", "costs.json", "--model", str(MODEL), "--gpus", "2", "--quiet") == 2
    assert "--gpus 2 contradicts LOG, which has 1. Leave it out." in capsys.readouterr().err
    assert called("--costs", "costs.json", "--model", str(MODEL), "--quiet") == 0
    assert "costs.json, fitted to llama-3.1-8b on 1 x h100, for llama-3.1-8b" in capsys.readouterr().out


def test_a_page_a_figure_and_a_csv_on_stdout(recording, capsys):
    pytest.importorskip("plotly")
    pytest.importorskip("matplotlib")
    assert called(*UNFITTED, "--html", "page.html", "--png", "plot.png", "--per-request", "-") == 0
    done = capsys.readouterr()
    assert done.out.startswith("row,arrival_s,") and done.err.count("wrote") == 2
    assert "Simulated against measured: recording" in (recording.parent / "page.html").read_text()
    assert called(*UNFITTED, "--html", "-") == 0
    assert capsys.readouterr().out == (recording.parent / "page.html").read_text()


def test_shared_blocks_come_from_a_trace(recording, capsys):
    rows = [json.loads(line) for line in (recording / "requests.jsonl").read_text().splitlines()]
    lines = [
        {"timestamp": 0, "input_length": row["input_toks"], "output_length": row["output_toks"],
         "hash_ids": list(range(-(-row["input_toks"] // 16)))}
        for row in rows
    ]  # fmt: skip
    (recording.parent / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert called(*UNFITTED, "--trace", "trace.jsonl", "--block-size", "16", "--json") == 0
    assert json.loads(capsys.readouterr().out)["simulated_cached_tokens"] > 10_000


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ([], 2, "Give --costs, or --model and --gpu."),
        (["--gpu", "h100"], 2, "--gpu needs --model."),
        (["--costs", "c.json", "--gpu", "h100"], 2, "--costs and --gpu cannot be combined"),
        (["--costs", "c.json", "--gpus", "2"], 2, "--gpus needs --model."),
        (["--costs", "missing.json"], 2, "missing.json"),
        ([*UNFITTED, "--recording-format", "csv"], 2, "'csv' is not a --recording-format. Try auto, vllm-requests"),
        ([*UNFITTED, "--scheduler", "seats=3"], 2, "is not an option of vllm's scheduler"),
        ([*UNFITTED, "--warm-up", "80"], 2, "--warm-up leaves none of the 80 requests"),
        ([*UNFITTED, "--capacity", "3"], 2, "Give a larger --capacity."),
        ([*UNFITTED, "--json", "--html", "-"], 2, "can write to stdout"),
        ([*UNFITTED, "--html", "recording/page.json"], 2, "a page is HTML"),
        ([*UNFITTED, "--per-request", "recording/timeseries.csv"], 2, "and would overwrite it"),
        ([*UNFITTED[2:], "--model", "config.json"], 3, "config.json"),
        ([*UNFITTED, "--trace", "short.jsonl", "--block-size", "16"], 2, "80 requests, but the trace has 1"),
    ],
)
def test_a_fault_is_one_sentence(recording, capsys, arguments, status, sentence):
    (recording.parent / "config.json").write_text('{"hidden_size": 4096}')
    (recording.parent / "short.jsonl").write_text(
        '{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0]}\n'
    )
    assert called(*arguments) == status
    done = capsys.readouterr()
    assert sentence in done.err and done.err.count("\n") == 1 and not done.out
    assert {path.name for path in recording.parent.iterdir()} == {"recording", "config.json", "short.jsonl"}


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("requests.jsonl", "first_token_ts", "secret_ts", "lacks first_token_ts"),
        ("requests.jsonl", '"queued_ts": 5', '"queued_ts": 9', "The times are of different clocks or units."),
        ("requests.jsonl", '"last_token_ts": 5', '"last_token_ts": 1', "end before their first token"),
        ("requests.jsonl", '"last_token_ts": 50', '"secret": "secret', "not valid JSON"),
        ("requests.jsonl", '"output_toks"', '"secret"', "lacks output_toks"),
        ("meta.json", '"num_gpu_blocks": 1201', '"num_gpu_blocks": "secret"', "num_gpu_blocks is not a whole number"),
        ("timeseries.csv", "t,running", "secret,secret", "lacks one of the columns"),
    ],
)
def test_a_bad_recording_is_one_sentence_without_content(recording, capsys, name, old, new, sentence):
    path = recording / name
    path.write_text(path.read_text().replace(old, new))
    assert called(*UNFITTED) == 3
    done = capsys.readouterr()
    assert sentence in done.err and done.err.count("\n") == 1 and "secret" not in done.err and not done.out


def test_failed_requests_are_left_out_and_too_few_are_refused(recording, capsys):
    path = recording / "requests.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for failed, status in ((3, 0), (70, 3)):
        lines = [{**row, "last_token_ts": None} if place < failed else row for place, row in enumerate(rows)]
        path.write_text("".join(json.dumps(row) + "\n" for row in lines))
        assert called(*UNFITTED) == status
        done = capsys.readouterr()
        expected = "3 requests failed and are left out" if not status else "10 requests with times, 70 that failed"
        assert expected in done.err
