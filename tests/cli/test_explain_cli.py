"""`kvtrace explain` as its user meets it."""

import csv
import io
import json

import numpy as np
import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.serving.misses.causes import CAUSES
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from tests.docs import ROOT

MODEL = str(ROOT / "tests/data/models/llama-3.1-8b.json")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """With 3 blocks: 0 1 4 evict 2; 0 and 1 hit in the last request, 2 misses by one block."""
    monkeypatch.chdir(tmp_path)
    kvtrace.write(toy("0 1 2", "0 1 4", "0 1 2", block_size=16, gap_ms=60_000), "trace.jsonl")
    return "trace.jsonl"


def shown(capsys, *arguments):
    assert run(["explain", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def as_json(capsys, *arguments):
    return json.loads(shown(capsys, *arguments, "--json"))


def test_new_tokens_that_repeat_an_output_are_stated(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = Columns(
        [0, 1000], [16, 48], [16, 16], [0, 0, 1, 2], [0, 1, 4], output_ids=[1, 3], output_offsets=[0, 1, 2],
        cached_tokens=[0, 32],
    )  # fmt: skip
    kvtrace.write(Trace.from_columns(columns, block_size=16), "outputs.jsonl")
    output = shown(capsys, "outputs.jsonl", "--capacity", "9")
    assert "No cache of prompts can hit the 48 new tokens." in output
    assert "An engine that keeps outputs can hit 16 of them, which repeat an earlier output" in output


def test_the_causes_and_what_would_help(path, capsys):
    assert shown(capsys, path, "--capacity", "3").splitlines() == [
        "Prompt tokens by cause, lru, 3 blocks",
        "cause              prompt tokens   share  these tokens",
        "hit                           64   44.4%  were in the cache",
        "evicted                       16   11.1%  were evicted",
        "first use                     64   44.4%  were new",
        "all prompt tokens            144  100.0%",
        "55.6 % of the prompt tokens repeat what an earlier request had; 80.0 % of these are hits. "
        "No cache of prompts can hit the 64 new tokens. kvtrace lint LOG finds what in the prompts makes tokens new, "
        "such as a date at their beginning.",
        "",
        "What would help",
        "tokens  share  basis      change",
        "    16  11.1%  simulated  Add 1 block to the cache: 100 % of the evicted tokens become hits.",
        "    16  11.1%  simulated  Add a tier of 1 block, such as DRAM, below the cache: the same hits as in a larger "
        "cache. They are fetched and not computed.",
        " <= 16  11.1%  bound      Try other eviction policies at this capacity with kvtrace simulate: this is the "
        "gain of belady, the best possible one, which knows the future.",
        "simulated: the same trace simulated with this change",
        "bound: no more than this is possible",
        "Do not add these figures up: two changes can make the same tokens hits.",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("options", [
    ["--capacity", "3", "--instances", "2", "--over-time", "1m", "--by-session"],
    ["--gpu", "h100", "--model", MODEL, "--capacity", "3", "--instances", "2", "--input-price", "3"],
])  # fmt: skip
def test_the_tables_fit_a_terminal(path, capsys, monkeypatch, width, options):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = shown(capsys, path, *options).splitlines()
    assert max(map(len, lines)) <= width and not any("Not shown" in line for line in lines)


def test_json_has_the_keys_that_the_docs_list(path, capsys):
    found = as_json(capsys, path, "--capacity", "3", "--over-time", "1m", "--by-session")
    timed = as_json(capsys, path, "--capacity", "3", "--gpu", "h100", "--model", MODEL)
    assert sum(found["causes"].values()) == found["tokens"] == 144 and [*found["causes"]] == [*CAUSES]
    for groups in (found["over_time"], found["by_session"]):
        assert sum(one["tokens"] for one in groups) == 144
    page = (ROOT / "docs/serving/explain.md").read_text()
    cure = found["cures"][0]
    every = [*found, *timed, *found["causes"], *cure, *cure["amounts"][0], *found["over_time"][0]]
    every += [*found["by_session"][0], *(one["name"] for one in found["cures"] + timed["cures"])]
    assert [name for name in every if f"`{name}`" not in page] == []


def test_csv_has_a_row_for_all_requests_or_for_each_window_or_session(path, capsys):
    def rows(*options):
        return list(csv.DictReader(io.StringIO(shown(capsys, path, "--capacity", "3", "--csv", *options))))

    (whole,) = rows()
    assert [*whole] == ["requests", "tokens", *CAUSES] and whole["tokens"] == "144" and whole["evicted"] == "16"
    windows, sessions = rows("--over-time", "2m"), rows("--by-session")
    assert [row["start_ms"] for row in windows] == ["0.0", "120000.0"] and [row["session"] for row in sessions] == [
        "-1"
    ]
    for cause in CAUSES:
        assert sum(int(row[cause]) for row in windows) == int(sessions[0][cause]) == int(whole[cause])


def test_the_causes_of_each_request_go_to_a_file_or_stdout(path, capsys, tmp_path):
    assert run(["explain", path, "--capacity", "3", "--per-request", "causes.csv"]) == 0
    printed = capsys.readouterr()
    assert "wrote       causes.csv\n" in printed.err and "What would help" in printed.out
    assert shown(capsys, path, "--capacity", "3", "--per-request", "-") == (tmp_path / "causes.csv").read_text()
    rows = list(csv.DictReader(io.StringIO((tmp_path / "causes.csv").read_text())))
    assert [(row["input_length"], row["hit"], row["evicted"], row["first_use"]) for row in rows] == [
        ("48", "0", "0", "48"), ("48", "32", "0", "16"), ("48", "32", "16", "0"),
    ]  # fmt: skip


def test_tiers_and_their_hits(path, capsys):
    found = as_json(capsys, path, "--tiers", "hbm=3,dram=2")
    assert found["tiers"] == {"hbm": 64, "dram": 16}
    assert "  in dram" in shown(capsys, path, "--tiers", "hbm=3,dram=2")
    rows = list(csv.DictReader(io.StringIO(shown(capsys, path, "--tiers", "hbm=3,dram=2", "--per-request", "-"))))
    assert [row["hit_dram"] for row in rows] == ["0", "0", "16"]


def test_a_time_to_live_and_domains(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    columns = replace_columns(toy("0", "0", "0", block_size=16, gap_ms=60_000), domain=np.array([0, 1, 0]))
    kvtrace.write(kvtrace.Trace.from_columns(columns, block_size=16), "own.jsonl")
    found = as_json(capsys, "own.jsonl", "--capacity", "9", "--ttl", "90s")
    assert {name: tokens for name, tokens in found["causes"].items() if tokens} == {
        "expired": 16, "other_domain": 16, "first_use": 16,
    }  # fmt: skip
    cures = {one["name"]: one for one in found["cures"]}
    assert cures["longer_ttl"]["amounts"] == [{"share": 0.5, "tokens": 16, "ttl_ms": 120_000.0}]
    assert cures["merged_domains"]["tokens"] == 32
    merged = as_json(capsys, "own.jsonl", "--capacity", "9", "--domains", "merge")
    assert merged["causes"]["hit"] == 32


def test_no_cures_and_the_warm_up(path, capsys):
    text = shown(capsys, path, "--capacity", "3", "--no-cures", "--warm-up", "1")
    assert "What would help" not in text and "all prompt tokens             96" in text
    assert "cures" not in as_json(capsys, path, "--capacity", "3", "--no-cures")


def test_requests_that_do_not_fit_are_named(path, capsys):
    text = shown(capsys, path, "--gpu", "h100", "--model", MODEL, "--capacity", "2", "--no-cures")
    assert "Requests that do not fit are not served; the longest of their prompts has 3 blocks." in text


def test_figures_are_drawn(path, capsys, tmp_path):
    pytest.importorskip("plotly")
    assert run(["explain", path, "--capacity", "3", "--svg", "causes.svg"]) == 0
    assert "wrote       causes.svg\n" in capsys.readouterr().err and (tmp_path / "causes.svg").stat().st_size > 1000


def test_the_gpus_hold_as_much_as_simulate_states(path, capsys):
    options = (path, "--gpu", "h100", "--model", MODEL, "--json")
    assert run(["simulate", *options]) == 0
    (simulated,) = json.loads(capsys.readouterr().out)["results"]
    assert as_json(capsys, *options[:-1])["simulation"]["capacity"] == simulated["capacity"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "Missing option '--capacity'. kvtrace curve shows hits by capacity."),
        ("--capacity 3,4", "--capacity: name one capacity. kvtrace simulate compares several."),
        ("--capacity 3 --engine vllm,sglang", "--engine: name one engine. kvtrace simulate compares several."),
        ("--capacity 3 --tiers hbm=3,dram=4", "--tiers has the capacities. Leave out --capacity."),
        ("--capacity 3 --policy arc --ttl 5m", "ttl is the policy ttl:5m, which cannot be combined with 'arc'."),
        ("--capacity 3 --json --csv", "--json and --csv cannot be combined."),
        ("--capacity 3 --csv --per-request -", "--per-request - and --csv both write to stdout."),
        ("--capacity 3 --csv --over-time 1m --by-session", "With --csv, use one of --over-time and --by-session."),
        ("--capacity 3 --no-cures --input-price 3", "--input-price needs what --no-cures leaves out."),
        ("--capacity 3 --over-time 0s", "A window must be longer than 0 ms."),
        ("--capacity 3 --router sticky", "--router needs --instances."),
        ("--capacity 3 --domains merge", "the trace has no domains."),
        ("--capacity 2", "--capacity 2 does not hold the longest request"),
        ("--capacity x", "'x' is not a capacity."),
        ("--capacity 3 --gpu h100", "--gpu needs --model."),
        ("--capacity 3 --lanes 2", "--lanes needs --loop closed."),
    ],
)
def test_wrong_options_are_one_line_and_write_nothing(path, capsys, tmp_path, line, message):
    assert run(["explain", path, *line.split()]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == 1 and message in printed.err, printed.err
    assert sorted(one.name for one in tmp_path.iterdir()) == ["trace.jsonl", "trace.jsonl.meta.json"]


def test_a_missing_trace_has_status_3(path, capsys):
    assert run(["explain", "none.jsonl", "--capacity", "3"]) == 3
    assert capsys.readouterr().err == "kvtrace: none.jsonl: no such file.\n"
