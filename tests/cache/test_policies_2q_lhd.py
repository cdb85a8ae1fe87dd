"""2Q and LHD on traces of one-block prompts that were worked out by hand; test_policy_twins.py has the rest."""

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.policies.adaptive import TwoQ
from kvtrace.cache.policies.base import Context
from kvtrace.cache.policies.learned import LHD
from kvtrace.cache.simulation import simulate
from tests.cache.test_policies_classic import singles


def hits(blocks, capacity, policy):
    return simulate(singles(blocks.split()), capacity, policy).hit_blocks.tolist()


# ---- 2q: of 4 blocks, 1 is the arrivals' share (Kin), and 2 ghosts are remembered (Kout)


def test_what_is_wanted_again_while_its_ghost_is_remembered_outlives_a_scan():
    # 4 evicts 0, whose ghost takes it to the main queue; 5 6 1 7 pass through the arrivals
    assert hits("0 1 2 3 4 0 5 6 1 7 0", 4, "2q")[-1] == 1
    assert hits("0 1 2 3 4 0 5 6 1 7 0", 4, "lru")[-1] == 0


def test_a_hit_among_the_arrivals_changes_nothing():
    #  4 evicts 0, the oldest arrival, though it was hit
    assert hits("0 1 2 3 0 4 0", 4, "2q") == [0, 0, 0, 0, 1, 0, 0]
    assert hits("0 1 2 3 0 4 0", 4, "lru") == [0, 0, 0, 0, 1, 0, 1]


def test_the_main_queue_gives_up_its_least_recent_while_arrivals_are_few():
    # main: 0, then 0 1, then 0 1 2, arrivals: 4. 3 evicts 0, and 0 evicts 1, so that 4 is still there
    assert hits("0 1 2 3 4 0 1 2 3 0 4", 4, "2q") == [0] * 10 + [1]


def test_a_ghost_that_is_older_than_two_others_is_forgotten():
    # 4 5 6 evict 0 1 2, so that 1 and 2 are remembered; 0 is an arrival again, and 10 evicts it
    assert hits("0 1 2 3 4 5 6 0 7 8 9 10 0", 4, "2q")[-1] == 0
    assert hits("0 1 2 3 4 5 6 1 7 8 9 10 1", 4, "2q")[-1] == 1


# ---- lhd: before the first reconfiguration density is uses / (age + 1)


def test_what_was_used_often_is_denser():
    # when 2 comes, 0 has 3 / (1 + 1) and 1 has 1 / (0 + 1)
    assert hits("0 0 0 1 2 0", 2, "lhd") == [0, 1, 1, 0, 0, 1]


def test_density_falls_with_age_and_equal_ones_go_by_the_last_use():
    # when 3 comes, 0 has 3 / (2 + 1) and 2 has 1 / (0 + 1): 0 goes
    assert hits("0 0 0 1 2 3 0", 2, "lhd") == [0, 1, 1, 0, 0, 0, 0]


def test_it_learns_that_a_loop_comes_round():
    trace = singles([block % 30 for block in range(6_000)])
    assert simulate(trace, 20, "lru").hit_blocks.sum() == 0
    assert simulate(trace, 20, "lhd").hit_blocks[3_000:].mean() > 0.3  # the best policy has (20 - 1) / (30 - 1)


def test_equal_runs_give_equal_hits():
    trace = singles((np.random.default_rng(3).zipf(1.2, 5_000) % 900).tolist())
    one, other = (simulate(trace, 200, "lhd").hit_blocks.tolist() for _ in range(2))
    assert one == other


# ---- arguments


@pytest.mark.parametrize(("policy", "parameter"), [(TwoQ, 1.5), (TwoQ, float("nan")), (LHD, 0)])
def test_a_parameter_that_makes_no_sense_is_refused(policy, parameter):
    with pytest.raises(UsageError, match="Try "):
        policy(Context(4, 2), parameter)


@pytest.mark.parametrize("policy", [TwoQ, LHD])
def test_a_live_cache_has_no_trace_to_look_at(policy):
    with pytest.raises(UsageError, match="which a live cache does not have"):
        policy(Context(4, 2))
