"""The recordings of vLLM 0.19.0 on real GPUs, in shared data (casys-kaist/LLMServingSim, MIT)."""

from functools import cache

import pytest

import kvtrace
from kvtrace.serving.recordings import read_recording

FOLDERS = {  # GPU -> folder; the profile of the RTX PRO 6000 in the same repository is of the Server Edition
    "rtx-pro-6000-server": "RTXPRO6000_Llama-3.1-8B",
    "rtx-4090": "RTX4090_Llama-3.1-8B",
}
BLOCKS = {"rtx-pro-6000-server": 35_913, "rtx-4090": 2_588}  # that vLLM had; only one meta.json states them
LIMITS = {"rtx-pro-6000-server": (2048, 128), "rtx-4090": (2048, 256)}  # tokens of a step, requests at once


@cache
def measured(shared, gpu):
    """The recording on a GPU, with its prompts in blocks of 16 tokens; skips the test without the data."""
    folder = shared / "data/measured"
    if not folder.is_dir():
        pytest.skip("no recordings in the shared data")
    return read_recording(folder / FOLDERS[gpu], trace=_prompts(folder))


@cache
def _prompts(folder):
    fields = {"timestamp": "arrival_time_ns", "input": "input_tok_ids", "output_length": "output_toks"}
    return kvtrace.ingest.anonymize(
        folder / "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz", log_format="tokens", field_map=fields, time_unit="ns",
        tokenizer=None, block_size=16, profile="exact",
    )  # fmt: skip
