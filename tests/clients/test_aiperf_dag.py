"""AIPerf's own loader reads our dag_jsonl, and finds the turns, delays, subagents and joins of the trace."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvtrace.text import tokenizers
from kvtrace.text.prompts import write_prompts
from kvtrace.text.prompts.writing import dag_of
from tests.clients.test_dynamo_agentic import sessions
from tests.conftest import ROOT
from tests.text.test_dag import TOKENIZER, tree

__all__ = ["tree"]  # a fixture
PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "no-such-folder")) / "aiperf/bin/python"
needs_aiperf = pytest.mark.skipif(not PYTHON.exists(), reason="no environment aiperf in KVTRACE_CLIENTS")


def loaded(path):
    """AIPerf's conversations of a file, by name, and the names of those that nothing spawns."""
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [PYTHON, ROOT / "tests/clients/aiperf_dag.py", path]
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert done.returncode == 0, done.stderr[-2000:]
    said = json.loads(done.stdout.splitlines()[-1])
    return {one["name"]: one for one in said["conversations"]}, said["roots"]


def written(trace, folder):
    path = folder / "dag.jsonl"
    write_prompts(trace, path, tokenizers.load(TOKENIZER), to="dag-jsonl")
    return path


@needs_aiperf
def test_it_finds_the_tree(tree, tmp_path):
    found, roots = loaded(written(tree, tmp_path))
    main, sub = found["session-0/agent-0"], found["session-0/agent-1"]
    assert roots == ["session-0/agent-0", "session-1/agent-0"]
    assert (main["delays"], sub["delays"]) == ([0.0, 9.0, 3.5], [0.0, 1.0])
    (branch,) = main["branches"]
    assert main["branches"][branch] == ["session-0/agent-1"]
    assert main["spawns"] == [[branch], [], []] and main["joins"] == [[], [branch], []]


@needs_aiperf
def test_it_loads_random_sessions(tmp_path):
    for seed in range(3):
        trace = sessions(seed)
        found, roots = loaded(written(trace, tmp_path))
        agents = dag_of(trace).agents
        assert found.keys() == {agent.name for agent in agents} and len(roots) == 5
        assert sum(len(one["delays"]) for one in found.values()) == len(trace)
        for agent in agents:
            assert found[agent.name]["delays"] == agent.delays
            assert found[agent.name]["max_tokens"] == trace.output_length[agent.rows].tolist()
