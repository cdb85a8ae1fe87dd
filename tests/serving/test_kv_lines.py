"""Room for KV beside public start-up lines: some rows of our own, and those of ../shared where it is present."""

import csv
from statistics import median

import pytest

from benchmarks import kv_lines

ROWS = """\
source,engine,version,model,gpu,gpus,tp,pp,dp,weights,kv_dtype,gpu_memory_utilization,max_model_len,block_size,\
available_kv_gib,tokens,blocks,note
planner,vLLM,0.19.0,meta-llama/Llama-3.1-8B-Instruct,H100-80GB,1,1,,,bf16,auto(bf16),0.95,8192,,58.11,476000,,
planner,vLLM,0.17.0,Qwen/Qwen3-14B,H100-80GB,1,1,,,bf16,auto(bf16),0.95,8192,,45.34,,,
planner,vLLM,0.19.0,google/gemma-3-27b-it,H100-80GB,1,1,,,bf16,auto(bf16),0.95,8192,,19.53,36560,,8 padding layers
recording,vLLM,0.26.0,llama-3.1-8b,H100-80GB,1,1,,,,,0.9,32768,16,54.93,449968,28123,max_num_seqs 256
guide,vLLM,0.11.2,moonshotai/Kimi-K2-Thinking,H200,8,8,,,int4,auto(bf16),,,,46.80,715072,,
bench,vLLM,0.24.0,qwen3.6-27b,RTX 3090,2,2,,,int4 AutoRound,fp8_e5m2,0.88,262144,,9.84,619202,,
tests,vLLM,0.27.1,qwen3.8-27b,GB10,1,1,,,nvfp4,fp8,0.6,262144,,46.98,1325364,,MTP 3
pool,SGLang,,deepseek-v3,,8,8,,,fp8,bf16,,,,160.63,2454421,,
sglang-1,SGLang,0.4.1,llama-3.1-8b,H100-80GB,1,1,,,,,,,,54.26,,,
vllm#21348,SGLang,0.4.9,Qwen/Qwen3-235B-A22B-FP8,H100,4,4,,,fp8,,0.93,,,,367404,,
nobody,vLLM,0.19.0,no-such-model,,1,1,,,,,,,,10,100000,,
"""  # fmt: skip


def errors(rows, figure):
    return {
        (each.source, each.model): each.error
        for each in kv_lines.compared(rows)
        if each.figure == figure and each.error is not None
    }


def test_rows_of_our_own_are_met():
    rows = list(csv.DictReader(ROWS.splitlines()))
    assert len(errors(rows, "bytes")) == 7 and max(map(abs, errors(rows, "bytes").values())) < 0.001
    tokens = [abs(error) for error in errors(rows, "tokens").values()]
    assert len(tokens) == 6 and median(tokens) < 0.02 and max(tokens) < 0.03
    assert list(errors(rows, "GiB").values()) == [pytest.approx(0, abs=0.005)] * 2
    (left,) = [each for each in kv_lines.compared(rows) if each.figure == "-"]
    assert left.source == "nobody" and "no-such-model: No such file" in left.note


@pytest.mark.skipif(not (kv_lines.SHARED / "facts/kv_lines.csv").exists(), reason="no ../shared")
def test_public_lines_are_met_or_have_a_reason():
    with (kv_lines.SHARED / "facts/kv_lines.csv").open(newline="") as file:
        found = list(kv_lines.compared(list(csv.DictReader(file))))
    assert not [each for each in found if each.error is not None and abs(each.error) > kv_lines.FAR and not each.note]
    plain = {
        figure: [
            abs(each.error) for each in found if each.figure == figure and each.error is not None and not each.note
        ]
        for figure in ("bytes", "tokens", "GiB")
    }
    assert len(plain["bytes"]) >= 28 and max(plain["bytes"]) < 0.01
    assert len(plain["tokens"]) >= 10 and median(plain["tokens"]) < 0.03
    assert max(plain["GiB"]) < 0.01
