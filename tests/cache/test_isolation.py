"""What isolation costs: the hits of one setting with the domains of a trace merged, split, and partly shared."""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace.cache.setup import Grid
from kvtrace.cli import run
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of
from kvtrace.trace.domains import in_domains
from kvtrace.trace.trace import Trace

VIEWS = ("split", "merge", "shared:4")


def with_domains(trace, domain):
    return Trace(**fields_of(trace) | {"domain": np.array(domain)}, block_size=trace.block_size)


#  merged: 0 + 3 + 2 blocks of 4 tokens hit; split: 0 + 0 + 2; shared:4 shares the first block: 0 + 1 + 2
TRACE = with_domains(toy("0 1 2", "0 1 2", "0 1 3", block_size=4), [0, 1, 0])


@pytest.mark.parametrize(("view", "hits"), [(None, [0, 0, 2]), ("split", [0, 0, 2]), ("merge", [0, 3, 2]),
                                            ("shared:4", [0, 1, 2]), ("shared:12", [0, 3, 2])])  # fmt: skip
def test_a_simulation_hits_in_its_view(view, hits):
    assert kvtrace.cache.simulate(TRACE, 9, domains=view).hit_blocks.tolist() == hits


def test_what_isolation_costs_and_what_sharing_saves():
    (isolation,) = kvtrace.serving.simulate_all(TRACE, [9], domains="shared:4").isolation
    assert isolation.to_dict() == {
        "domains": 2, "view": "shared:4", "merged_hit_tokens": 20, "merged_token_hit_rate": 20 / 36,
        "split_hit_tokens": 8, "split_token_hit_rate": 8 / 36, "isolation_cost_tokens": 12,
        "shared_hit_tokens": 12, "shared_token_hit_rate": 12 / 36, "shared_saved_tokens": 4,
    }  # fmt: skip
    assert str(isolation) == (
        "isolation of 2 domains costs 12 hit tokens (33.3 points of token hit rate: 55.6 % merged, 22.2 % split); "
        "sharing the first 4 tokens saves 4 of them (11.1 points)"
    )


@pytest.mark.parametrize("how", [{"engines": ["vllm"]}, {"instances": 2}, {"tiers": {"hbm": 3, "dram": 6}}])
@pytest.mark.parametrize("view", VIEWS)
def test_every_kind_of_run_is_that_of_the_viewed_trace(how, view):
    capacities = None if "tiers" in how else [6, 9]
    simulations = kvtrace.serving.simulate_all(TRACE, capacities, domains=view, **how)
    plain = kvtrace.serving.simulate_all(in_domains(TRACE, view), capacities, **how)
    assert [run.to_dict() for run in simulations.runs] == [run.to_dict() for run in plain.runs]
    assert len(simulations.isolation) == len(simulations.runs) and not plain.isolation


def test_what_has_no_option_shows_domains_apart():
    apart = in_domains(TRACE)
    assert kvtrace.analysis.analyze(TRACE).basics.hits == kvtrace.analysis.analyze(apart).basics.hits
    assert kvtrace.analysis.hit_curve(TRACE).hits([9]) == kvtrace.analysis.hit_curve(apart).hits([9])
    assert kvtrace.analysis.hit_curve(TRACE, domains="merge").hits([9])[0].hit_blocks == 5
    assert kvtrace.cache.simulate_tiers(TRACE, {"hbm": 9, "dram": 9}).hits.hit_blocks == 2
    assert kvtrace.serving.simulate_instances(TRACE, 1, setting=kvtrace.cache.Setting(9)).hits.hit_blocks == 2
    assert set(kvtrace.analysis.compare(TRACE, apart).scores.values()) <= {1.0, None}
    assert kvtrace.analysis.by_block_size(TRACE, [1])[0].hits.hit_blocks == 2


def test_a_sweep_shows_domains_apart(tmp_path):
    kvtrace.write(TRACE, tmp_path / "a.jsonl")
    table = kvtrace.cache.sweep(Grid((str(tmp_path / "a.jsonl"),), capacity="9"))
    assert [row["hit_blocks"] for row in table.rows] == [2]


@pytest.fixture
def said(capfd):
    """Runs a command; returns its status, and what it printed."""

    def ran(*arguments):
        status = run([*map(str, arguments)])
        out, err = capfd.readouterr()
        return status, out, err

    return ran


def test_commands_state_the_view(tmp_path, said):
    kvtrace.write(TRACE, tmp_path / "a.jsonl")
    split = said("simulate", tmp_path / "a.jsonl", "--capacity", "9", "--no-gap")[1]
    assert "domains are kept apart (--domains split); isolation of 2 domains costs 12 hit tokens" in split
    for command in ("curve", "analyze"):
        text = said(command, tmp_path / "a.jsonl", "--domains", "merge")[1]
        assert "blocks of 2 domains are shared (--domains merge)." in text
        values = json.loads(said(command, tmp_path / "a.jsonl", "--json")[1])
        assert values["domains"] == {"domains": 2, "view": "split"}
    shared = said("simulate", tmp_path / "a.jsonl", "--capacity", "9", "--json", "--domains", "shared:4")[1]
    values = json.loads(shared)
    assert values["results"][0]["isolation"]["shared_saved_tokens"] == 4 and values["working_set"] == 6


@pytest.mark.parametrize("command", ["simulate", "curve", "analyze"])
def test_a_trace_without_domains_is_as_before_and_has_no_view(command, tmp_path, said):
    kvtrace.write(toy("0 1", "0 2", block_size=4), tmp_path / "a.jsonl")
    assert "domain" not in said(command, tmp_path / "a.jsonl")[1]
    assert "domain" not in said(command, tmp_path / "a.jsonl", "--json")[1]
    status, _, error = said(command, tmp_path / "a.jsonl", "--domains", "split")
    assert (status, error) == (2, "kvtrace: --domains split: the trace has no domains.\n")


def test_a_data_set_with_domains_is_read_whole(tmp_path, said):
    kvtrace.write(TRACE, tmp_path / "a.dataset")
    assert kvtrace.open_trace(tmp_path / "a.dataset").domain.tolist() == [0, 1, 0]
    assert "isolation of 2 domains" in said("simulate", tmp_path / "a.dataset", "--capacity", "9", "--no-gap")[1]
