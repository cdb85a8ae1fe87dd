"""Changing fleets, and ranks in lockstep: vectors of Dynamo's replay."""

import json

import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
from kvtrace.serving.routers import ranks_of
from kvtrace.serving.schedulers.dynamo import DynamoCost, DynamoScheduler
from kvtrace.serving.simulation import Tier, open_loop
from kvtrace.trace.building import toy
from tests.conftest import ROOT
from tests.serving.scheduler_cases import fleet_of
from tests.serving.test_dynamo_times import require_equal

RANKS = json.loads((ROOT / "tests/vectors/dynamo_ranks.json").read_text())
VECTORS = json.loads((ROOT / "tests/vectors/dynamo_fleets.json").read_text())


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_and_times_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == DynamoScheduler.version
    require_equal(vector["case"], vector["requests"], number, fleet_of(vector["case"]))


@pytest.mark.parametrize("number", range(len(RANKS["vectors"])))
def test_ranks_step_together_as_those_of_the_replay(number):
    vector = RANKS["vectors"][number]
    assert RANKS["version"] == DynamoScheduler.version
    require_equal(vector["case"], vector["requests"], number)


def ranks_of_two_workers(trace, **options):
    setting, scheduler = Setting(99, engine="dynamo"), DynamoScheduler(dp_size=2)
    return open_loop(trace, DynamoCost(), setting=setting, scheduler=scheduler, **{"instances": 4} | options)


def test_a_request_waits_for_the_step_of_its_workers_other_rank_alone():
    run = ranks_of_two_workers(toy("0 1 2 3", "4", "5", "6", block_size=16, gap_ms=1.0))
    assert run.instance.tolist() == [0, 1, 2, 3]  # the ranks of the first worker are 0 and 2
    assert run.started_s.tolist() == [0.0, 0.001, run.first_s[0], run.first_s[1]]


def test_what_workers_with_several_ranks_do_not_have_is_refused():
    for message, options in {
        "multiple of dp_size, 2": {"instances": 3}, "several ranks are not modelled": {"tiers": [Tier("a", 9)]},
        "--fleet does not support": {"fleet": FleetSchedule((FleetChange(1.0, 2),))},
        "Leave out one": {"lockstep": True},
    }.items():  # fmt: skip
        with pytest.raises(UsageError, match=message):
            ranks_of_two_workers(toy("0 1"), **options)
    for wrong in ({"dp_size": 0}, {"dp_size": 2, "aic_nextn": 1}):
        with pytest.raises(UsageError, match="dp_size must be at least 1"):
            DynamoScheduler(**wrong)
    with pytest.raises(UsageError, match="give --instances 6 --scheduler dp_size=3"):
        ranks_of(Deployment(engine="dynamo", data_parallel_size=3), 2)
