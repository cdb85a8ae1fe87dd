"""Far more requests than the digester takes: memory stays under its bound, and what finds no room is counted."""

import os
import resource
import signal
from pathlib import Path

import pytest

import kvtrace
from kvtrace.capture.digester import NICENESS
from kvtrace.capture.recorder import Recorder
from tests.capture.windows import sealed, waited
from tests.docs import ROOT

OPTIONS = {"tokenizer": str(ROOT / "tests/data/tokenizers/tiny"), "block_size": 16, "profile": "exact"}
MIB = 1 << 20
BOUND, MARGIN = 16 * MIB, 8 * MIB  # the margin: copies on their way to the digester, and the allocator
SIZE, COUNT = 100_000, 3000  # 300 MB


def resident():
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def payload(number):
    """A request whose row is large and soon digested: a reader leaves out most of it."""
    row = f'{{"timestamp": {1_900_000_000 + number}, "input": "Hello {number}", "output": 3, "note": "'.encode()
    return row + b"x" * (SIZE - len(row) - 2) + b'"}'


@pytest.fixture
def recorder(tmp_path):
    with Recorder(tmp_path, queue_bytes=BOUND, **OPTIONS) as one:
        one.put("follow", payload(0))
        waited(lambda: one.counts().digested == 1)
        yield one


def test_memory_stays_under_the_bound_and_drops_are_counted(recorder, tmp_path):
    os.kill(recorder._feeder.pid, signal.SIGSTOP)  # a digester that takes nothing
    before, most, taken = resident(), 0, 1
    for number in range(1, COUNT):
        taken += recorder.put("follow", payload(number))
        counts = recorder.counts()
        assert counts.waiting_bytes <= BOUND
        most = max(most, counts.waiting_bytes)
    assert most > BOUND - SIZE and resident() - before <= BOUND + MARGIN
    assert counts.accepted == taken and counts.dropped == COUNT - taken > COUNT / 2
    os.kill(recorder._feeder.pid, signal.SIGCONT)
    recorder.close()
    counts = recorder.counts()
    assert (counts.digested, counts.waiting_bytes, counts.lost, counts.restarts) == (taken, 0, 0, 0)
    (window,) = sealed(tmp_path)
    assert len(kvtrace.read(window)) == taken


def test_the_digester_yields_the_processor_to_the_requests(recorder):
    """Whoever receives requests keeps its own priority."""
    digester = int(Path(f"/proc/{recorder._feeder.pid}/stat").read_text().rpartition(")")[2].split()[16])
    assert digester == min(19, os.nice(0) + NICENESS)
