"""The engines' own balancers of data-parallel ranks: vectors of the engines themselves, and their rules by hand."""

import json

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.cache.simulation import Setting
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.routers import OWN, check_router, ranks_of
from kvtrace.serving.schedulers import SglangScheduler, VllmScheduler
from kvtrace.serving.simulation import StepCost, open_loop
from tests.conftest import ROOT
from tests.serving.balancer_cases import served
from tests.serving.test_routers_in_time import requests

PATH = ROOT / "tests/vectors/balancers.json"
VECTORS = json.loads(PATH.read_text()) if PATH.exists() else {}  # missing only while it is written for the first time
SERVERS = {
    "vllm": VllmScheduler(async_scheduling=False),
    "sglang": SglangScheduler(disable_overlap_schedule=True, chunked_prefill_size=100),
}


def require_reports(ours, real, name):
    assert len(ours) == len(real), name
    assert np.array(ours) == pytest.approx(np.array(real, dtype=float), abs=1e-9), name


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_requests_go_to_the_ranks_that_the_engine_chose(engine):
    assert len(VECTORS[engine]["choices"]) == 6
    for vector in VECTORS[engine]["choices"]:
        assert served(vector["case"])["instance"] == vector["instance"], vector["case"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_ranks_report_what_the_engine_reported(engine):
    assert len(VECTORS[engine]["reports"]) == 6
    for vector in VECTORS[engine]["reports"]:
        require_reports(served(vector["case"])["reports"][0], vector["reports"], vector["case"])


def balanced(trace, router, capacity=500, **options):
    """The ranks that requests go to. A step takes 10 ms and 1 ms for each token."""
    cost, engine = StepCost(token_s=0.001, overhead_s=0.010), OWN[router]
    options = {"scheduler": SERVERS[engine], "instances": 2, "api_server_count": 1} | options
    return open_loop(trace, cost, setting=Setting(capacity, engine=engine), router=router, **options).instance.tolist()


@pytest.mark.parametrize("router", OWN)
def test_a_burst_spreads_over_idle_ranks(router):
    trace = requests(*((0, str(number), 20) for number in range(6)))
    assert sorted(balanced(trace, router)) == [0, 0, 0, 1, 1, 1]


def test_vllm_counts_requests_in_flight_and_looks_at_the_next_rank_first():
    #  0 and 1 have a request each; the first rank's ends at 20 ms, so that 2 goes there; 3 begins at rank 1: 1 = 1
    trace = requests((0, "0", 1), (1, "1", 90), (50, "2", 90), (60, "3", 1))
    assert balanced(trace, "vllm-dp") == [0, 1, 0, 1]


def test_each_api_server_of_vllm_knows_its_own_requests_only():
    #  within 100 ms of the last publication nobody tells one API server what the other one has sent
    trace = requests(*((number, str(number), 90) for number in range(40)))
    alone, apart = balanced(trace, "vllm-dp"), balanced(trace, "vllm-dp", api_server_count=8)
    assert np.bincount(alone).tolist() == [20, 20] and alone != apart


def test_sglang_reads_a_load_at_most_every_20_ms():
    #  at 15 ms the first rank is done, but the load was read at 0: both have one request, and the first is taken
    trace = requests((0, "0", 1), (1, "1", 90), (15, "2", 90), (45, "3", 1))
    assert balanced(trace, "sglang-total-requests") == [0, 1, 0, 0]


def test_sglang_counts_the_tokens_of_prompts():
    trace = requests((0, "0 1 2", 90), (1, "3", 90), (2, "4", 90), (3, "5 6", 90))
    assert balanced(trace, "sglang-total-tokens") == [0, 1, 1, 1]
    assert balanced(trace, "sglang-total-requests") == [0, 1, 0, 1]


@pytest.mark.parametrize("router", OWN)
def test_a_balancer_needs_times_and_its_engine(router):
    with pytest.raises(UsageError, match=f"--router {router} needs a simulation in time. Add --model and --gpu"):
        check_router(router, in_time=False)
    with pytest.raises(UsageError, match=f"is {OWN[router]}'s own balancer. Use --engine {OWN[router]}."):
        open_loop(
            requests((0, "0", 1)), StepCost(1.0), setting=Setting(9, engine="reference"), instances=2, router=router
        )


def test_the_ranks_of_a_deployment_are_instances_behind_its_balancer():
    assert ranks_of(Deployment(data_parallel_size=4)) == (4, "vllm-dp")
    assert ranks_of(Deployment(engine="sglang", data_parallel_size=2)) == (2, "round-robin")
    sglang = Deployment(engine="sglang", data_parallel_size=2, balancer="total_tokens")
    assert ranks_of(sglang) == (2, "sglang-total-tokens")
    assert ranks_of(Deployment(), 3, "lmetric") == (3, "lmetric")
    for deployment, instances, words in (
        (Deployment(data_parallel_size=2), 2, "cannot both be above 1 yet. For one router over all ranks"),
        (Deployment(engine="lmcache", data_parallel_size=2), 1, "does not support engine lmcache"),
        (Deployment(engine="sglang", data_parallel_size=2, balancer="follow_bootstrap_room"), 1, "is not simulated"),
    ):
        with pytest.raises(UsageError, match=words):
            ranks_of(deployment, instances)
