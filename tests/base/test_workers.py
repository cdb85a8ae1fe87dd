"""Work over several processes: in order, bounded, and silent about content when it fails."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kvtrace._base.errors import KvtraceError, RowError
from kvtrace._base.workers import ordered_map, place_of

CANARY = "canary-7f3a"


def double(item):
    return item * 2


def fail_on_three(item):
    if item == 3:
        raise ValueError(CANARY)
    return item


def refuse_three(item):
    if item == 3:
        raise RowError("is three").at("numbers", 3)
    return item


def die_on_three(item):
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order(workers):
    assert list(ordered_map(double, range(40), workers)) == [2 * n for n in range(40)]


@pytest.mark.parametrize("workers", [1, 2])
def test_an_unexpected_exception_shows_its_place_and_not_its_message(workers):
    with pytest.raises(KvtraceError) as error:
        list(ordered_map(fail_on_three, range(9), workers))
    assert "ValueError at test_workers.py" in str(error.value) and CANARY not in repr(error.getrepr())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_clear_error_arrives_whole(workers):
    with pytest.raises(RowError, match="numbers:3: is three"):
        list(ordered_map(refuse_three, range(9), workers))


def test_a_killed_worker_is_one_clear_line():
    with pytest.raises(KvtraceError, match="a worker process was killed"):
        list(ordered_map(die_on_three, range(9), 2))


STARTING = """
import os, signal, sys
from kvtrace._base.errors import KvtraceError
from kvtrace._base.workers import ordered_map
def stopped(number, frame):
    raise KvtraceError("stopped")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, stopped)
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), int(sys.argv[1])))
try:
    print(list(ordered_map(abs, [-1, -2, -3], 2)))
except KvtraceError as error:
    print(str(error)[:27])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux")
@pytest.mark.parametrize(
    ("number", "said"),
    [
        (signal.SIGINT, "[1, 2, 3]\n"),  # the parent handles it
        (signal.SIGHUP, "[1, 2, 3]\n"),
        (signal.SIGTERM, "a worker process was killed\n"),  # the pool ends its workers with it when one was killed
    ],
)
def test_a_signal_to_a_worker_that_starts_runs_no_handler_of_its_parent(number, said):
    run = [sys.executable, "-c", STARTING, str(int(number))]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == (said, "", 0)


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.parametrize(
    ("call", "step"), [("sweep", 41), ("thread_map", 97), ("ordered_map", 199), ("retrying_map", 199)]
)
def test_a_signal_at_any_instruction_ends_the_work(call, step):
    step = 1 if os.environ.get("KVTRACE_THOROUGH") else step
    script = Path(__file__).with_name("stopped_anywhere.py")
    done = subprocess.run([sys.executable, script, call, "5", str(step)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_place_of_an_exception_without_a_frame_is_its_type():
    assert place_of(KeyError(CANARY)) == "KeyError"


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_drawn_as_they_are_needed(workers):
    drawn = []
    results = ordered_map(double, (drawn.append(n) or n for n in range(1000)), workers)
    next(results)
    assert len(drawn) <= 2 * workers + 1
    results.close()
