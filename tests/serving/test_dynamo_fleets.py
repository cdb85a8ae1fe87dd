"""Changing fleets, and ranks in lockstep: vectors of Dynamo's replay."""

import json

import pytest

from kvtrace.serving.schedulers.dynamo import DynamoScheduler
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
