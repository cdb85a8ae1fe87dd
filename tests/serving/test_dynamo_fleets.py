"""Changing fleets in simulated time: vectors of Dynamo's replay under a policy of scaling."""

import json

import pytest

from kvtrace.serving.schedulers.dynamo import DynamoScheduler
from tests.conftest import ROOT
from tests.serving.scheduler_cases import fleet_of
from tests.serving.test_dynamo_times import require_equal

VECTORS = json.loads((ROOT / "tests/vectors/dynamo_fleets.json").read_text())


@pytest.mark.parametrize("number", range(len(VECTORS["vectors"])))
def test_workers_hits_and_times_are_those_of_the_replay(number):
    vector = VECTORS["vectors"][number]
    assert VECTORS["version"] == DynamoScheduler.version
    require_equal(vector["case"], vector["requests"], number, fleet_of(vector["case"]))
