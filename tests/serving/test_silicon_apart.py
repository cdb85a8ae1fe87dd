"""Rows of public measurements of prefill and decode apart: how they are read and split, on a table of our own."""

import json

import pytest

from benchmarks import silicon_apart

COLUMNS = (
    "id,silicon_data_source,backend,backend_version,model_path,system,precision,mode,isl,osl,prefill_num_workers,"
    "prefill_tp_size,prefill_attention_dp_size,prefill_moe_ep_size,decode_num_workers,decode_tp_size,"
    "decode_attention_dp_size,decode_moe_ep_size,silicon_ttft_ms,silicon_tpot_ms"
)
ROWS = """\
two,x; silicon_concurrency=4; measured=2026-02-08,sglang,0.5.8,deepseek-ai/DeepSeek-V3,gb200,fp4,disagg,1024,1024,1,4,\
1,1,2,4,1,1,250,6.5
more,x; silicon_concurrency=8; measured=2026-02-08,sglang,0.5.8,deepseek-ai/DeepSeek-V3,gb200,fp4,disagg,1024,1024,1,4,\
1,1,2,4,1,1,300,7.5
ranks,x; silicon_concurrency=8,vllm,0.18.0,moonshotai/Kimi-K2.5,gb200,fp4,disagg,1024,1024,1,1,4,4,1,1,16,16,564,19
silent,x,sglang,0.5.8,deepseek-ai/DeepSeek-V3,gb200,fp4,disagg,1024,1024,1,4,1,1,2,4,1,1,250,6.5
nowhere,x; silicon_concurrency=4,trtllm,1,deepseek-ai/DeepSeek-V3,gb200,fp4,disagg,1024,1024,,,,,,,,,250,6.5
together,x; silicon_concurrency=4,sglang,0.5.8,deepseek-ai/DeepSeek-V3,gb200,fp4,agg,1024,1024,,,,,,,,,250,6.5
"""


@pytest.fixture
def rows():
    found, left_out = silicon_apart.read_rows([COLUMNS, *ROWS.splitlines()])
    assert left_out == {"sglang": 1, "trtllm": 1}
    return {row.id: row for row in found}


def test_workers_of_both_kinds_are_read(rows):
    assert {name: (row.split, row.gpus) for name, row in rows.items()} == {
        "two": ("1 x TP4 / 2 x TP4", 12), "more": ("1 x TP4 / 2 x TP4", 12),
        "ranks": ("1 x DP4+EP / 1 x DP16+EP", 20),
    }  # fmt: skip


def test_a_deployment_is_on_one_side_whatever_its_load(rows):
    assert rows["two"].side == rows["more"].side
    assert {row.side for row in rows.values()} <= set(silicon_apart.SIDES)


def test_throughput_is_by_the_law_of_little(rows):
    assert rows["two"].tokens_per_s(1000.0, 10.0) == pytest.approx(4 * 921.6 / (1 + 0.01 * 920.6) / 12)


def test_the_committed_list_names_each_row_once():
    sides = json.loads(silicon_apart.LISTED.read_text())
    names = [name for engine in sides.values() for lines in engine.values() for line in lines for name in line.split()]
    assert len(names) == len(set(names)) == 267
    held_out = {engine: len(" ".join(lines["held out"]).split()) for engine, lines in sides.items()}
    assert held_out == {"sglang": 57, "vllm": 14, "trtllm": 82}


def test_a_row_is_simulated_in_its_closed_loop(rows):
    error = silicon_apart.compared(rows["two"])
    assert abs(error.tpot) < 0.6 and abs(error.throughput) < 0.4
    assert list(silicon_apart.table([error] * 3))[1].split()[:2] == ["all", "3"]
    assert not list(silicon_apart.rankings([error] * 9))
