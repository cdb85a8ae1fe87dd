"""Work over several processes: in order, bounded, and silent about content when it fails."""

import os
import signal

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


def test_the_place_of_an_exception_without_a_frame_is_its_type():
    assert place_of(KeyError(CANARY)) == "KeyError"


@pytest.mark.parametrize("workers", [1, 2])
def test_items_are_drawn_as_they_are_needed(workers):
    drawn = []
    results = ordered_map(double, (drawn.append(n) or n for n in range(1000)), workers)
    next(results)
    assert len(drawn) <= 2 * workers + 1
    results.close()
