"""`kvtrace simulate --loop closed`: the open and the closed loop side by side, and one line for each bad use."""

import json

import pytest

from kvtrace.cli import run as run_command
from kvtrace.cli import simulate as simulate_module
from tests.serving.session_forests import random_forest

DYNAMO = ["simulate", "trace.jsonl", "--engine", "dynamo", "--capacity", "500"]
CLOSED = [*DYNAMO, "--loop", "closed", "--lanes", "2"]


@pytest.fixture
def trace(monkeypatch):
    """A forest of sessions in place of the file."""
    forest = random_forest(3)
    monkeypatch.setattr(simulate_module, "load", lambda *_, **__: forest)
    return forest


@pytest.fixture
def run(capsys):
    """Run a command: its exit status, stdout and stderr; white space in messages is a space."""

    def command(*words):
        status = run_command(list(words))
        out, err = capsys.readouterr()
        return status, out, " ".join(err.split())

    return command


def test_both_loops_stand_side_by_side_with_their_difference(trace, run):
    values = json.loads(run(*CLOSED, "--json")[1])
    opened, closed = values["results"]
    assert "loop" not in opened and (closed["loop"]["lanes"], closed["schedule"]) == (2, "closed-loop")
    assert closed["difference"]["ttft_s_p50"] == closed["ttft_s"]["p50"] - opened["ttft_s"]["p50"]
    assert opened["requests"] == closed["requests"] == len(trace)
    table = run(*CLOSED, "-q")[1]
    assert "Open and closed loop, 2 lanes" in table and "sessions per hour" in table


def test_the_options_reach_the_loop(trace, run):
    words = ["--duration", "20s", "--warm-up", "2", "--start-inside", "0%-50%", "--idle-cap", "3s", "--tree-idle-cap",
             "2s", "--think-scale", "0.5", "--seed", "7"]  # fmt: skip
    loop = json.loads(run(*CLOSED, *words, "--json")[1])["results"][1]["loop"]
    assert {name: loop[name] for name in ("duration_s", "warm_up", "start", "start_range", "idle_cap_s", "seed")} == {
        "duration_s": 20.0, "warm_up": 2, "start": "inside", "start_range": [0.0, 0.5], "idle_cap_s": 3.0, "seed": 7,
    }  # fmt: skip
    assert (loop["tree_idle_cap_s"], loop["think_scale"], loop["window_s"]) == (2.0, 0.5, 20.0)


@pytest.mark.parametrize(("words", "message"), [
    (["--lanes", "2"], "--lanes needs --loop closed."),
    (["--loop", "closed"], "--loop closed needs --lanes"),
    (["--loop", "closed", "--lanes", "0"], "--lanes must be at least 1."),
    (["--loop", "closed", "--lanes", "2", "--duration", "-1"], "--duration: '-1' is not a duration."),
    (["--loop", "closed", "--lanes", "2", "--warm-up", "10%"], "--warm-up: '10%' is not a whole number."),
    (["--loop", "closed", "--lanes", "2", "--start-inside", "10-20"], "--start-inside: '10' is not a share"),
    (["--loop", "closed", "--lanes", "2", "--idle-cap", "0s"], "--idle-cap must be longer than 0 s."),
    (["--loop", "closed", "--lanes", "2", "--start-inside", "80%-20%"], "the smaller one first"),
    (["--loop", "closed", "--lanes", "2", "--start-inside", "half"], "'half' is not a range of shares."),
    (["--loop", "closed", "--lanes", "900"], "--lanes 900 needs 900 sessions; the trace has"),
    (["--loop", "closed", "--lanes", "2", "--seed", "1"], "--seed needs --router dynamo or vllm-dp, or --start-inside"),
    (["--loop", "closed", "--lanes", "2", "--policy", "belady"], "upper bound belady"),
])  # fmt: skip
def test_a_bad_use_gets_one_clear_line(trace, run, words, message):
    status, _, err = run(*DYNAMO, *words)
    assert status == 2 and message in err, err


def test_a_closed_loop_needs_times(trace, run):
    status, _, err = run("simulate", "trace.jsonl", "--loop", "closed", "--lanes", "2")
    assert status == 2 and "is a simulation in time" in err


def test_a_trace_without_dependencies_is_refused(monkeypatch, run):
    from kvtrace.trace.building import toy

    monkeypatch.setattr(simulate_module, "load", lambda *_, **__: toy("0 1", "0 2"))
    status, _, err = run(*CLOSED)
    assert status == 2 and "has no dependencies" in err


def test_rejected_requests_are_in_the_tables(trace, run):
    table = run(*CLOSED, "--capacity", "1", "-q")[1]
    assert "requests rejected" in table and "rejected: requests that do not fit into an instance" in table
    assert "reject" not in run(*CLOSED, "-q")[1]
