"""The fuzzers of fuzz/ pass on what they begin with, and see what is planted for them."""

import json
import os
import random
import re
import signal

import numpy as np
import pytest

from fuzz import files, kernels, kinds, seeds
from fuzz.mutate import mutate
from kvtrace._base.errors import RowError
from kvtrace._native import sharing
from kvtrace.ingest import logs
from tests.attacks.canary import CANARY
from tests.formats.test_rows import agree


def test_the_kernels_pass_a_few_cases():
    assert {kernels.run(7, number) for number in range(150)} == set(kernels.KERNELS)


def test_a_kernel_that_differs_from_its_twin_is_seen(monkeypatch):
    monkeypatch.setattr(
        sharing, "count_contributors", lambda blocks, offsets, contributor, distinct: np.zeros(distinct, np.int32)
    )
    with pytest.raises((AssertionError, IndexError)) as seen:  # the split has other counts than the kernel now
        for number in range(150):
            kernels.run(7, number)
    assert re.search(r"--seed 7 --case \d+", "".join(seen.value.__notes__))


def test_a_case_is_the_same_each_time():
    assert mutate(random.Random("7 1"), b"{}") == mutate(random.Random("7 1"), b"{}")
    assert kernels.run(7, 1) == kernels.run(7, 1)


@pytest.mark.parametrize("data", seeds.trace_files())
def test_the_scanners_seeds_are_read_as_its_twin_reads_them(data):
    agree(data)


def test_every_example_log_is_a_seed():
    assert len(seeds.log_lines()) > 40


@pytest.fixture
def readers():
    pytest.importorskip("atheris")
    from fuzz import readers

    return readers


def test_the_readers_pass_their_seeds(readers):
    for seed in readers.seeds():
        readers.one(seed)


def test_an_error_that_holds_what_a_row_holds_is_seen(readers, monkeypatch):
    def leak(self, line):
        raise RowError(f"cannot take {line!r}")

    monkeypatch.setattr(logs.LogReader, "records", leak)
    with pytest.raises(AssertionError, match="the canary is in an error of a row"):
        for seed in readers.seeds():
            readers.one(seed)
    assert any(CANARY.encode() in seed for seed in readers.seeds())


def test_an_error_that_is_none_of_ours_is_seen(readers, monkeypatch):
    def fail(self, line):
        raise KeyError("role")

    monkeypatch.setattr(logs.LogReader, "records", fail)
    with pytest.raises(KeyError):
        for seed in readers.seeds():
            readers.one(seed)


def test_commands_pass_a_few_damaged_files(tmp_path):
    pytest.importorskip("pyarrow")
    files.prepare(tmp_path)
    assert [fault for number in range(4) if (fault := files.case(tmp_path, 5, number))] == []


def test_commands_pass_the_past_finds(tmp_path):
    files.prepare(tmp_path)
    faults = [*files.found_before(tmp_path)]
    assert faults == [None] * len(faults) and len(faults) > 5


@pytest.mark.parametrize(
    ("status", "text", "fault"),
    [
        (0, "", None),
        (3, "kvtrace: bad.\n", None),
        (3, f"kvtrace: {CANARY}.\n", "shows content"),
        (3, "kvtrace: one.\nkvtrace: two.\n", "more than one line"),
        (1, "kvtrace: internal error: ...\n", "status 1"),
        (-6, "", "crashes (SIGABRT)"),
        (-14, "", "takes more than 20 s"),
    ],
)
def test_what_a_command_must_not_do_is_seen(status, text, fault):
    assert files.fault_of(status, text, "analyze -q") == fault


@pytest.mark.parametrize("name", kinds.KINDS)
def test_files_of_a_kind_pass_the_past_finds_and_a_few_cases(name):
    pytest.importorskip("pyarrow")
    assert [fault for fault in kinds.faults_of(kinds.tasks_of(name, 5, range(4))) if fault] == []


def test_a_damaged_file_is_the_same_each_time():
    (example, *_) = kinds.examples_of(kinds.KINDS["windows"])
    for file, data in example.items():
        one, other = (kinds.damaged(random.Random(f"7 {file}"), file, data) for _ in range(2))
        assert one == other


def _leaks():
    raise RowError(CANARY)


def _takes_too_much():
    return bytearray(kinds.MEMORY + (64 << 20))[-1]


@pytest.mark.parametrize(
    ("task", "fault"),
    [
        (lambda: kinds.outcome(_leaks), "shows content"),
        (lambda: kinds.command("convert nowhere.jsonl -o nowhere.jsonl -q"), None),
        (lambda: json.loads("{"), "JSONDecodeError"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), r"crashes \(SIGSEGV\)"),
        (lambda: os.kill(os.getpid(), signal.SIGPROF), "takes more than 20 s"),
        (_takes_too_much, "takes .* MB"),
    ],
)
def test_what_a_case_must_not_do_is_seen(task, fault):
    (seen, after) = kinds.faults_of([("--seed 1 --case 7", task), ("the next", lambda: None)])
    assert after is None
    assert seen is None if fault is None else re.search(rf"^--seed 1 --case 7: [^$]*{fault}", seen)
