"""Each command keeps its bound of time and memory on the worst small inputs found so far (fuzz/worst.py)."""

import re
import sys

import pytest

from fuzz import worst
from kvtrace.cli import commands
from tests.docs import ROOT

pytest.importorskip("scipy")
SERVICES = {"record", "watch"}  # tests/capture/test_inflating.py
FEW = ("keys.jsonl", "domains.jsonl")  # rows with names of their own
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


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("command", [name for name, (files, _) in worst.COMMANDS.items() if files is worst.TRACES])
def test_sixteen_times_as_many_rows_fit_into_a_gigabyte(tmp_path, command):
    """1.6 MB whose rows each have a key of their own took 3 GB. `python -m fuzz.worst --growth` has the other files."""
    worst.prepare(tmp_path, 16)
    for name in [name for name in worst.TRACES if name.endswith(FEW)]:
        line = worst.COMMANDS[command][1][0].replace("{}", name)
        status, _, peak, text = worst.measured(tmp_path / "0", f"{command} {line}")
        assert not worst.fault(status, text) and peak < 1000, line


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
@pytest.mark.parametrize("command", sorted({*commands.commands} - {"completion", "join"}))
def test_a_huge_value_of_an_option_gives_a_result_or_one_line(folder, command):
    """Of each option in the command tree; the harness has more values, and more lines for each command."""
    for place, line in worst.option_runs(folder, command, slice(-1, None)):
        if str(10**18) in line:
            assert not worst.option_fault(place, line)


@pytest.mark.parametrize("command", worst.FORMS)
def test_options_are_tried_where_they_take_effect(folder, command):
    for form in worst.FORMS[command]:
        number = [worst.TRACES, worst.LOGS, worst.RECORDINGS].index(worst.COMMANDS.get(command, (worst.LOGS,))[0])
        line = f"{command} {form.replace('{}', worst.ORDINARY[number])}"
        status, _, _, text = worst.measured(folder / str(number), line)
        assert status == 0, text


def test_the_inputs_are_small():
    for files in (worst.TRACES, worst.LOGS, worst.RECORDINGS):
        assert max(len(make()) for make in files.values()) <= 110_000


def test_the_table_of_bounds_has_each_command_that_reads_files():
    page = (ROOT / "docs/performance.md").read_text()
    table = page.partition("## Bounds")[2].partition("## ")[0]
    stated = set(re.findall(r"`([a-z]+)`", table))
    assert {*commands.commands} - WITHOUT_INPUT | {"join"} <= stated
    assert {*commands.commands} - WITHOUT_INPUT - SERVICES == worst.COMMANDS.keys()
