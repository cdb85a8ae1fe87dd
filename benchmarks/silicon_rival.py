"""AIConfigurator's estimate of a closed loop, for silicon.py; it runs in an environment with aiconfigurator_core.

A list of requests comes from stdin as JSON, a list of answers goes to stdout: [TPOT in ms, TTFT in ms], or a reason.
The estimate is its run_agg: a mean over steps with a prompt and steps without, and a factor for the queue.
"""

from __future__ import annotations

import csv
import json
import logging
import sys
from functools import cache
from pathlib import Path
from typing import Any

import aiconfigurator_core
from aiconfigurator_core.sdk.backends.factory import get_backend
from aiconfigurator_core.sdk.config import RuntimeConfig
from aiconfigurator_core.sdk.config_builders import build_model_config
from aiconfigurator_core.sdk.models import get_model
from aiconfigurator_core.sdk.perf_database import get_database, get_latest_database_version

NAMES = {  # models of rows, as its catalog has them
    "meta-llama/Llama-3.1-70B": "meta-llama/Meta-Llama-3.1-70B", "zhipuai/GLM-5": "zai-org/GLM-5-FP8",
    "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Meta-Llama-3.1-8B",
    "nvidia/Llama-3.1-8B-Instruct-FP8": "meta-llama/Meta-Llama-3.1-8B",
}  # fmt: skip
MXFP4 = "openai/gpt-oss-120b"  # rows call its dtypes nvfp4: the model's own count
SAMPLE = Path(aiconfigurator_core.__file__).parent / "systems/silicon_sample.csv"


@cache
def database(system: str, backend: str) -> Any:
    """The newest tables of a GPU and an engine; KeyError if there are none."""
    found = get_database(system, backend, get_latest_database_version(system, backend))
    if found is None:
        raise KeyError(f"no tables of {backend} on {system}")
    return found


@cache
def model(path: str, backend: str, tp: int, dp: int, moe_tp: int, moe_ep: int, *quant: str | None) -> Any:
    """A model as a deployment has it: dtypes of products, of experts, of keys and values, and of attention."""
    config = build_model_config(tp, 1, dp, moe_tp, moe_ep, quant[0], quant[2], quant[3], quant[1])
    return get_model(path, config, backend), get_backend(backend)


def estimate(row: dict[str, str], wanted: dict[str, Any]) -> list[float] | str:
    """TPOT and TTFT of one row in ms, or why there is none."""
    tp, dp = wanted["tp"], wanted["dp"]
    parts = (1, tp * dp) if wanted["ep"] else (tp * dp, 1)
    path = NAMES.get(row["model_path"], row["model_path"])
    dtypes = (None, None) if path == MXFP4 else (row["gemm_quant_mode"] or None, row["moe_quant_mode"] or None)
    batch = max(1, wanted["concurrency"] // dp)
    tokens = min(wanted["step_tokens"], batch * wanted["isl"])
    runtime = RuntimeConfig(batch_size=batch, isl=wanted["isl"], osl=wanted["osl"])
    reason = ""
    for attention in (None, "bfloat16"):  # the second where it has no tables of attention in FP8
        try:
            kv = "fp8" if wanted["fp8_kv"] else None
            served, backend = model(path, row["backend"], tp, dp, *parts, *dtypes, kv, attention)
            tables = database(row["system"], row["backend"])
            found = backend.run_agg(served, tables, runtime, ctx_tokens=tokens).get_result_dict()
            return [float(found["tpot"]), float(found["ttft"])]
        except Exception as error:  # the rival's own: each is a row that it cannot estimate
            reason = reason or f"{type(error).__name__}: {error}"[:200]
    return reason


if __name__ == "__main__":
    logging.disable()
    with SAMPLE.open(newline="") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    json.dump([estimate(rows[each["id"]], each) for each in json.load(sys.stdin)], sys.stdout)
