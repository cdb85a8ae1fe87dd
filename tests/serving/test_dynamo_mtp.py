"""Multi-token prediction of Dynamo's mocked workers in simulated time: vectors of its replay, a twin, and laws."""

import json
import os
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from kvtrace.serving.simulation import StepCost, Tier, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT, drawn
from tests.reference.dynamo_mtp import Draws, serve
from tests.serving.scheduler_cases import dynamo_mtp_case
from tests.serving.test_dynamo_tiers import COUNTS, TIMES, require_equal
from tests.serving.test_dynamo_times import in_seconds

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_mtp.json").read_text())
CASES = int(os.environ.get("KVTRACE_EXAMPLES", drawn(200)))


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_preemptions_and_times_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    require_equal(vector["case"], vector["requests"], number)


def test_the_kernel_takes_the_times_of_the_twin():
    preempted = 0
    for seed in range(CASES):
        case = dynamo_mtp_case(random.Random(seed))
        expected = [[*request, 0] for request in serve(in_seconds(case))]
        require_equal(case, expected, f"seed {seed}", 1e-9)
        preempted += sum(request[5] for request in expected)
    assert preempted > CASES


def test_the_twin_takes_the_times_of_the_replay():
    for number, vector in enumerate(VECTORS["vectors"]):
        expected = np.array(vector["requests"], dtype=float)
        twin = np.array([[*one, 0] for one in serve(in_seconds(vector["case"]), winner=expected[:, 0])], dtype=float)
        assert twin[:, COUNTS].tolist() == expected[:, COUNTS].tolist(), number
        assert twin[:, TIMES] == pytest.approx(expected[:, TIMES], abs=1e-6), number


def test_the_draws_are_those_of_chacha12():
    """The first key stream of draft-strombergson-chacha-test-vectors-01: 12 rounds, a key of zeros."""
    draws = Draws(0)
    draws.start[4:] = [0] * 8
    assert draws.next().to_bytes(8, "little").hex() == "9bf49a6a0755f953"
    assert draws.next().to_bytes(8, "little").hex() == "811fce125f2683d5"


def run(**options):
    trace = toy("0 1", "2 3", "0 1", block_size=16, gap_ms=400.0)
    scheduler = DynamoScheduler(aic_nextn=2, **options)
    return open_loop(trace, DynamoCost(), setting=Setting(99, engine="dynamo"), scheduler=scheduler)


def test_accepted_tokens_shorten_the_output():
    slow, fast = run(aic_nextn_accept_rates="0"), run(aic_nextn_accept_rates="1:1")
    assert (fast.ended_s <= slow.ended_s).all()
    assert (run(aic_mtp_seed=7).ended_s >= fast.ended_s).all()


def test_what_it_does_not_model_is_refused():
    setting = Setting(99, engine="dynamo")
    with pytest.raises(UsageError, match="no lower tiers"):
        open_loop(toy("0"), DynamoCost(), setting=setting, scheduler=DynamoScheduler(aic_nextn=1), tiers=[Tier("a", 9)])
    with pytest.raises(UsageError, match="Dynamo's replay alone"):
        open_loop(toy("0"), StepCost(0.01), setting=setting, scheduler=DynamoScheduler(aic_nextn=1))
    for wrong in ({"aic_nextn": 6}, {"aic_nextn": -1}, {"aic_mtp_seed": -1}):
        with pytest.raises(UsageError, match="aic_nextn must be from 0 to 5"):
            DynamoScheduler(**wrong)
    for text in ("", "a", "1.5", "0.5:-1"):
        with pytest.raises(UsageError, match="list of rates"):
            DynamoScheduler(aic_nextn=1, aic_nextn_accept_rates=text)
