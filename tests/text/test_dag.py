"""Sessions as AIPerf's dag_jsonl: turns, delays and subagents, and what the format cannot express."""

import json

import numpy as np
import pytest

from kvtrace import Trace
from kvtrace.cli import run
from kvtrace.formats import writing
from kvtrace.text import tokenizers
from kvtrace.text.prompts import write_prompts
from kvtrace.text.prompts.writing import Spawn, dag_of
from kvtrace.trace.building import toy
from kvtrace.trace.columns import replace_columns
from kvtrace.trace.dependencies import Dependencies
from tests.conftest import ROOT

TOKENIZER = str(ROOT / "tests/data/tokenizers/tiny/tokenizer.json")


def family(*waits, agents, prompts=None, **columns):
    """Requests in blocks of 16 tokens, 50 ms apart, each with its dependencies and its agent."""
    prompts = prompts or [str(row) for row in range(len(waits))]
    trace = toy(*prompts, block_size=16, gap_ms=50.0)
    columns = replace_columns(trace, dependencies=Dependencies.of(waits), **columns)
    columns.extra = {"agent": np.array(agents)}
    return Trace.from_columns(columns, block_size=16)


@pytest.fixture
def tree():
    """An agent of three turns whose first spawns a subagent of two, which the second waits for; and a session alone.

    row  0: main -- spawns --> 1: sub --> 4: sub
         2: main, after 0 and 1, + 9 ms
         3: main, after 2, + 3.5 ms
         5: another session
    """
    waits = [
        [], [(0, "completion", "spawn", 0.0)],
        [(0, "completion", "sequence", 9.0), (1, "completion", "join", 9.0)], [(2, "completion", "sequence", 3.5)],
        [(1, "completion", "sequence", 1.0)], [],
    ]  # fmt: skip
    prompts = ["0", "5", "0 1", "0 1 2", "5 6", "9"]
    return family(*waits, agents=[0, 1, 0, 0, 1, 0], prompts=prompts, session=[0, 0, 0, 0, 0, 1])


def test_each_agent_has_its_turns_their_delays_and_what_they_spawn(tree):
    main, sub, alone = dag_of(tree).agents
    assert (main.rows, main.delays) == ([0, 2, 3], [0.0, 9.0, 3.5])
    assert main.spawns == [[Spawn(["session-0/agent-1"], 1)], [], []]
    assert (sub.rows, sub.delays, sub.spawns) == ([1, 4], [0.0, 1.0], [[], []])
    assert (alone.name, alone.rows) == ("session-1/agent-0", [5])


@pytest.mark.parametrize(
    ("trace", "losses"),
    [(family([], [(0, "dispatch", "spawn", 2.0)], agents=[0, 1], service_ms=[1.0, np.nan]),
      ["1 time of a session's start was left out: AIPerf starts sessions by its own load.",
       "1 subagent starts at the end of the turn that spawns it, not before.", "1 service time was left out."]),
     (family([], [(0, "completion", "sequence", 2.0)], [(0, "completion", "sequence", 2.0)], agents=[0, 0, 0]),
      ["1 time of a session's start was left out: AIPerf starts sessions by its own load.",
       "1 request waits for the turn before it, not for another one."]),
     (family([], [(0, "completion", "spawn", 2.0)], [(0, "completion", "sequence", 2.0)], agents=[0, 1, 0]),
      ["1 time of a session's start was left out: AIPerf starts sessions by its own load.",
       "1 subagent that no turn waits for is waited for by its agent's last turn."])],
)  # fmt: skip
def test_what_the_format_cannot_express_is_counted(trace, losses):
    assert dag_of(trace).losses == losses


def test_a_file_has_a_line_for_each_agent_with_whole_prompts(tree, tmp_path):
    done = write_prompts(tree, tmp_path / "dag.jsonl", tokenizers.load(TOKENIZER), to="dag-jsonl", model="m")
    lines = [json.loads(line) for line in (tmp_path / "dag.jsonl").read_text().splitlines()]
    assert [line["session_id"] for line in lines] == ["session-0/agent-0", "session-0/agent-1", "session-1/agent-0"]
    assert {line["context_mode"] for line in lines} == {"message_array_with_responses"}
    first, second, third = lines[0]["turns"]
    texts = [turn["messages"][0]["content"] for turn in (first, second, third)]
    assert texts[1].startswith(texts[0]) and texts[2].startswith(texts[1])
    assert first["spawns"] == [{"children": ["session-0/agent-1"], "join_at": 1}]
    assert (second["delay"], second["max_tokens"], second["model"]) == (9.0, 1, "m") and "delay" not in first
    assert done.exact == len(tree) and len(done.losses) == 1


def test_the_command_prints_what_is_lost(tree, tmp_path, capsys):
    writing.write(tree, tmp_path / "t.parquet")
    command = ["texts", str(tmp_path / "t.parquet"), "-o", str(tmp_path / "d.jsonl"), "--tokenizer", TOKENIZER]
    assert run([*command, "--to", "dag-jsonl"]) == 0
    said = capsys.readouterr()
    assert "2 times of sessions' starts were left out" in said.out + said.err
    assert "--custom-dataset-type dag_jsonl" in said.out + said.err
