"""Each command keeps its bound of time and memory on the worst small inputs found so far (fuzz/worst.py)."""

import re
import sys

import pytest

from fuzz import worst
from kvtrace.cli import commands
from tests.docs import ROOT

pytest.importorskip("scipy")
SERVICES = {"record", "watch"}  # tests/capture/test_inflating.py
FOUND = ("long-output", "no-ids", "late.", "blank.", "lengths.", "outputs.", "no-room.", "fast.", "one-token.")
WITHOUT_INPUT = {"completion", "join", "models"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("worst")
    worst.prepare(place)
    return place


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("command", worst.COMMANDS)
def test_the_worst_small_inputs_take_little_time_and_memory(folder, command):
    """A child has 20 s of processor time and 3 GB of address space; the harness itself has more inputs."""
    for place, line in worst.runs(folder, command):
        if not any(name in line for name in FOUND):
            continue
        status, _, _, text = worst.measured(place, line)
        assert not worst.fault(status, text), line


def test_the_inputs_are_small():
    for files in (worst.TRACES, worst.LOGS, worst.RECORDINGS):
        assert max(len(make()) for make in files.values()) <= 110_000


def test_the_table_of_bounds_has_each_command_that_reads_files():
    page = (ROOT / "docs/performance.md").read_text()
    table = page.partition("## Bounds")[2].partition("## ")[0]
    stated = set(re.findall(r"`([a-z]+)`", table))
    assert {*commands.commands} - WITHOUT_INPUT <= stated
    assert {*commands.commands} - WITHOUT_INPUT - SERVICES == worst.COMMANDS.keys()
