"""The plain twin of SGLang's scheduler does what SGLang does: vectors of SGLang's own, and its rules drawn by hand."""

import json
from pathlib import Path

import pytest

from tests.reference.sglang_scheduler import serve

VECTORS = json.loads((Path(__file__).parents[1] / "vectors/scheduler_sglang.json").read_text())["vectors"]
SECOND_A_STEP = {"token_s": 0.0, "pair_s": 0.0, "step_s": 1.0, "read_s": 0.0, "overhead_s": 0.0}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_twin_takes_the_steps_that_sglang_took(vector):
    assert serve(vector["case"]) == vector["served"]


def steps(requests, capacity, page_size=1, **settings):
    """The kinds, parts and retracted rows of the steps, for (arrival, ids, output); each id is a token, or a page."""
    settings = {"page_size": page_size, "chunked_prefill_size": 100, "max_running_requests": 10} | settings
    rows = [
        {"arrival": arrival, "ids": ids, "tokens": len(ids) * page_size, "output": output}
        for arrival, ids, output in requests
    ]
    case = {
        "block_size": page_size, "capacity": capacity, "settings": settings, "cost": SECOND_A_STEP, "requests": rows
    }  # fmt: skip
    return [tuple(step[1:]) for step in serve(case)["steps"]]


def test_decodes_stand_still_while_a_prompt_is_computed():
    requests = [(0.0, [1, 2], 3), (1.5, [3, 4, 5], 2)]
    assert steps(requests, 100, disable_overlap_schedule=True) == [
        ("prefill", [[0, 0, 2]], []),
        ("decode", [[0, 2, 1]], []),
        ("prefill", [[1, 0, 3]], []),
        ("decode", [[0, 3, 1], [1, 3, 1]], []),
    ]


def test_a_mixed_step_decodes_too():
    requests = [(0.0, [1, 2], 3), (1.5, [3, 4, 5], 2)]
    assert steps(requests, 100, disable_overlap_schedule=True, enable_mixed_chunk=True)[2:] == [
        ("mixed", [[1, 0, 3], [0, 3, 1]], []),
        ("decode", [[1, 3, 1]], []),
    ]


def test_with_overlap_an_arrival_is_seen_one_step_later():
    requests = [(0.0, [1, 2], 4), (0.5, [3, 4, 5], 1)]
    kinds = [kind for kind, _, _ in steps(requests, 100)]
    assert kinds == ["prefill", "decode", "prefill", "decode", "decode"]
    kinds = [kind for kind, _, _ in steps(requests, 100, disable_overlap_schedule=True)]
    assert kinds == ["prefill", "prefill", "decode", "decode", "decode"]


def test_with_an_interval_an_arrival_is_seen_at_one_turn_of_so_many():
    # the turn after the first prefill looks, then every third; a prefill makes the next turn look
    requests = [(0.0, [1, 2], 9), (1.5, [3], 1), (5.5, [4], 1)]
    kinds = [kind for kind, _, _ in steps(requests, 100, disable_overlap_schedule=True, scheduler_recv_interval=3)]
    assert kinds == ["prefill", *["decode"] * 3, "prefill", *["decode"] * 3, "prefill", *["decode"] * 2]
    # an idle loop looks at once
    requests = [(0.0, [1, 2], 3), (9.5, [3], 1)]
    case_steps = steps(requests, 100, disable_overlap_schedule=True, scheduler_recv_interval=3)
    assert [kind for kind, _, _ in case_steps] == ["prefill", "decode", "decode", "prefill"]


def test_a_prompt_is_found_once_its_result_is_known():
    requests = [(0.0, [1, 2, 3, 4], 4), (1.5, [1, 2, 3, 4], 1)]
    assert steps(requests, 100, disable_overlap_schedule=True)[2] == ("prefill", [[1, 3, 1]], [])


def test_the_longer_of_two_prompts_is_retracted_and_computed_again_with_its_outputs():
    # 15 tokens: prompts of 3 and 4 and four decode steps of both fill the pool
    requests = [(0.0, [1, 2, 3], 6), (0.0, [4, 5, 6, 7], 6)]
    taken = steps(requests, 15, disable_overlap_schedule=True, schedule_conservativeness=0.01)
    assert taken[-2:] == [
        ("decode", [[0, 7, 1]], [1]),
        # room for 20 steps of request 0 was made at once, so that the prompt of request 1 is not cached any more
        ("prefill", [[1, 0, 9]], []),
    ]
