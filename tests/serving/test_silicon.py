"""Rows of public measurements: how their columns are read, split and left out, on a table of our own."""

import json

import pytest

from benchmarks import silicon

COLUMNS = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,tp_size,"
    "attention_dp_size,moe_tp_size,moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)
ROWS = """\
plain,source_file=x; silicon_concurrency=8; measured=2025-11-02,vllm,,openai/gpt-oss-120b,h100_sxm,fp4,agg,1024,1024,2,\
1,2,1,90.25,7.5
experts,source_file=x; silicon_concurrency=8; measured=2026-03-25,vllm,0.18.0,MiniMaxAI/MiniMax-M2.5,h100_sxm,fp8,agg,\
1024,1024,4,4,1,16,101.2345,9.8765
copy,source_file=y; silicon_concurrency=8,vllm,0.18.0,MiniMaxAI/MiniMax-M2.5,h100_sxm,fp8,agg,1024,1024,4,1,1,4,101.23,\
9.88
nodes,source_file=x; silicon_concurrency=16; measured=2026-04-17,sglang,0.5.9,deepseek-ai/DeepSeek-R1,b200_sxm,fp4,agg,\
8192,1024,64,1,8,8,500,12
silent,source_file=x,vllm,0.12.0,Qwen/Qwen3-32B,h100_sxm,fp8,agg,4000,1000,2,,0,0,900,20
apart,source_file=x; silicon_concurrency=16,vllm,0.17.0,moonshotai/Kimi-K2.5,b200_sxm,fp4,agg,1024,1024,4,4,1,16,500,12
other,source_file=x; silicon_concurrency=16,trtllm,1,moonshotai/Kimi-K2.5,b200_sxm,fp4,agg,1024,1024,4,4,1,16,500,12
"""


@pytest.fixture
def rows():
    return {row.id: row for row in silicon.read_rows([COLUMNS, *ROWS.splitlines()])}


def test_columns_of_one_node_state_the_product_of_tp_and_ep(rows):
    parallel = {name: (row.tp, row.dp, row.ep) for name, row in rows.items()}
    assert parallel == {
        "plain": (2, 1, False), "experts": (4, 1, True), "copy": (4, 1, True), "nodes": (8, 1, True),
        "silent": (2, 1, False), "apart": (4, 1, False),
    }  # fmt: skip


def test_each_row_has_a_side_or_a_reason(rows):
    sides = {name: row.side for name, row in rows.items()}
    assert {sides[name] for name in ("plain", "experts", "nodes")} <= {"development", "held out"}
    assert (sides["copy"], sides["silent"]) == ("a copy of another row", "no concurrency is stated")
    assert sides["apart"] == "model left out"
    assert list(silicon.counts(rows.values()))[-1].split()[0] == "6"
    assert [row.id for row in rows.values() if not row.has_ttft] == ["plain"]


def test_a_deployment_is_on_one_side_whatever_its_load(rows):
    renamed = ROWS.replace("DeepSeek-R1", "DeepSeek-V3").replace("=16", "=64").replace("64,1,8,8", "8,1,1,8")
    again = {row.id: row for row in silicon.read_rows([COLUMNS, *renamed.splitlines()])}
    assert (again["nodes"].deployment, again["nodes"].side) == (rows["nodes"].deployment, rows["nodes"].side)


def test_the_committed_list_names_each_row_once():
    names = [
        name for lines in json.loads(silicon.LISTED.read_text()).values() for line in lines for name in line.split()
    ]
    assert len(names) == len(set(names)) == 2281


def test_a_row_is_simulated_in_its_closed_loop(rows):
    (error,) = silicon.compared([rows["plain"]])
    assert -0.6 < error.tpot < 0.6 and error.ttft is None
    first, line = list(silicon.table([error] * 10, {}))[:2]
    assert line.split()[:3] == ["all:", "rows", "10"] and "AIConfigurator" in first
    prompts, outputs = silicon.lengths(rows["experts"], 6)
    assert prompts.tolist() == [991, 866, 936, 1011, 886, 1014] and len(outputs) == 6
