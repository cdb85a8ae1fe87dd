"""AIPerf's own loader reads the sessions that we write: its requests, tokens, hits and delays beside ours."""

import json
import os
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace.formats.weka_session import clocks_of
from kvtrace.trace.dependencies import COMPLETION, SEQUENCE
from kvtrace.trace.hits import unlimited_hits
from tests.formats.test_weka import TREE, put

PYTHON = Path(os.environ.get("KVTRACE_CLIENTS", "clients")) / "aiperf/bin/python"


def loaded(folder):
    """What AIPerf's loader finds in a folder of sessions, by their names."""
    if not PYTHON.exists():
        pytest.skip("no environment aiperf in KVTRACE_CLIENTS")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    driver = Path(__file__).with_name("aiperf_weka.py")
    done = subprocess.run([PYTHON, driver, folder], capture_output=True, text=True, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def places(values):
    """The (entry, place in the entry or -1) of each request of a session, in the order of the trace's rows."""
    found, clocks = [], clocks_of(values["requests"])
    for outer, entry in enumerate(values["requests"]):
        if entry["type"] != "subagent":
            found.append((entry["t"], outer, -1))
        for inner, request in enumerate(entry.get("requests", [])):
            found.append((request["t"] + (clocks[outer] if request["t"] + 1e-6 < entry["t"] else 0), outer, inner))
    return [place for _, *place in sorted(found, key=lambda one: one[0])]


def agree(trace, folder):
    """Compare AIPerf's figures of each session with ours; the numbers of delays that both have, and of theirs."""
    theirs, hits, compared = loaded(folder), unlimited_hits(trace), Counter()
    waits = trace.dependencies
    ours = {
        (int(request), int(row)): float(delay)
        for request, row, trigger, relation, delay in zip(
            waits.request, waits.row, waits.trigger, waits.relation, waits.delay_ms, strict=True
        )
        if trigger == COMPLETION and relation == SEQUENCE
    }
    for number, one in enumerate(trace.meta["weka"]["sessions"]):
        rows = np.flatnonzero(trace.session == number)
        figures = theirs[one["fields"]["id"]]
        assert figures["requests"] == len(rows)
        assert figures["input_tokens"] == trace.input_length[rows].sum()
        assert figures["output_tokens"] == trace.output_length[rows].sum()
        assert (figures["hit_blocks"], figures["blocks"]) == (hits[rows].sum(), trace.prompt_blocks[rows].sum())
        row_at = dict(zip(map(tuple, places(json.loads(file_of(folder, one).read_text()))), rows.tolist(), strict=True))
        for *after, outer, inner, delay in figures["delays"]:
            pair = row_at[tuple(after)], row_at[outer, inner]
            compared["theirs"] += 1
            if pair in ours and waits.offsets[pair[0] + 1] - waits.offsets[pair[0]] == 1:  # no join
                compared["same predecessor"] += 1
                assert abs(ours[pair] - delay) < 1e-6
    return compared


def file_of(folder, session):
    return folder / session["file"].removesuffix(".gz")


def test_aiperf_reads_a_session_that_we_write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {name: value for name, value in TREE.items() if name != "custom"}  # AIPerf refuses unknown fields
    trace = kvtrace.read(put(known))
    kvtrace.write(trace, "out", format="weka")
    assert agree(trace, tmp_path / "out")["theirs"] == 2  # the main agent's second request, and the subagent's


def test_aiperf_reads_any_trace_as_sessions(tmp_path):
    trace = kvtrace.toy("0 1", "2 3", "0 1 4", block_size=64, gap_ms=1000.0)
    trace.session = np.array([0, 1, 0])
    kvtrace.write(trace, tmp_path / "out", format="weka")
    theirs = loaded(tmp_path / "out")
    assert {name: (one["requests"], one["hit_blocks"]) for name, one in theirs.items()} == {
        "session-00001": (2, 2), "session-00002": (1, 0),
    }  # fmt: skip


def test_aiperf_counts_the_hits_of_the_recorded_sessions_as_we_do(shared, tmp_path):
    folder = shared / "data/agents/claude-code"
    if not folder.is_dir():
        pytest.skip("no sessions of agents in the shared data")
    trace = kvtrace.read(folder)
    kvtrace.write(trace, tmp_path / "out", format="weka")
    compared = agree(trace, tmp_path / "out")
    print(compared)
    assert compared["same predecessor"] > 0.9 * compared["theirs"]
