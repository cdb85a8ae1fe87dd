"""Public measurements of servers beside the closed loop that kvtrace simulates: errors of TPOT and TTFT by group.

python -m benchmarks.silicon [FILE] [--held-out] [--rows FILE]

FILE is `silicon_sample.csv` of the package aiconfigurator_core (pip install aiconfigurator-core); without it, that of
the environment aiconfigurator in KVTRACE_CLIENTS, or of this Python. Its aggregated rows of vLLM and SGLang count. A
deployment (architecture, GPU, engine, parallelism, precision) is for development or held out, by a hash; a GPU and a
model are left out whole. Only development rows are evaluated, unless --held-out asks for the others. --rows writes the
side of each row, or the reason why it is left out, and evaluates nothing: tests/data/silicon_rows.json.

How the servers ran is in silicon_servers.json, how their clients did in `load`: sources are named there. Columns of
topology are read as the exporter filled them: for one node it wrote GPUs = tp * ep, so that (tp, dp, moe_tp, moe_ep)
is (T, T, 1, T * T) for vLLM on T GPUs with expert parallelism, and (T * E, 1, T, E) for SGLang.
"""

from __future__ import annotations

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

from .measuring import CLIENTS

SERVERS = json.loads((Path(__file__).parent / "silicon_servers.json").read_text())
LISTED = Path(__file__).parents[1] / "tests/data/silicon_rows.json"
DEVELOPMENT, HELD_OUT, LEFT_GPU, LEFT_MODEL = "development", "held out", "GPU left out", "model left out"
SIDES = (DEVELOPMENT, HELD_OUT, LEFT_GPU, LEFT_MODEL)
GPU_OUT, MODEL_OUT = "b300", "Kimi-K2.5"
ARCHITECTURES = {"DeepSeek-R1": "DeepSeek-V3", "Llama-3.1-8B-Instruct-FP8": "Llama-3.1-8B-Instruct"}  # alike
CHECKPOINTS = {  # (model of the row, precision) -> the checkpoint in the catalog that was served
    ("Llama-3.1-70B", "fp8"): "nvidia/Llama-3.3-70B-Instruct-FP8",
    ("Llama-3.1-70B", "fp4"): "nvidia/Llama-3.3-70B-Instruct-FP4",
    ("DeepSeek-R1", "fp4"): "nvidia/DeepSeek-R1-0528-NVFP4", ("DeepSeek-V3", "fp4"): "nvidia/DeepSeek-R1-0528-NVFP4",
    ("DeepSeek-R1", "fp8"): "deepseek-ai/DeepSeek-R1", ("DeepSeek-V3", "fp8"): "deepseek-ai/DeepSeek-V3",
    ("Qwen3.5-397B-A17B", "bf16"): "Qwen/Qwen3.5-397B-A17B", ("Qwen3.5-397B-A17B", "fp8"): "Qwen/Qwen3.5-397B-A17B-FP8",
    ("Qwen3.5-397B-A17B", "fp4"): "nvidia/Qwen3.5-397B-A17B-NVFP4", ("GLM-5", "fp8"): "zai-org/GLM-5-FP8",
    ("GLM-5", "fp4"): "nvidia/GLM-5-NVFP4", ("Kimi-K2.5", "fp4"): "nvidia/Kimi-K2.5-NVFP4",
    ("Kimi-K2.5", "int4"): "moonshotai/Kimi-K2.5", ("MiniMax-M2.5", "fp8"): "MiniMaxAI/MiniMax-M2.5",
    ("MiniMax-M2.5", "fp4"): "nvidia/MiniMax-M2.5-NVFP4", ("gpt-oss-120b", "fp4"): "openai/gpt-oss-120b",
    ("Qwen3-32B", "bf16"): "Qwen/Qwen3-32B", ("Qwen3-32B", "fp8"): "Qwen/Qwen3-32B-FP8",
    ("Qwen3-235B-A22B-FP8", "fp8"): "Qwen/Qwen3-235B-A22B-FP8",
    ("Llama-3.1-8B-Instruct", "fp8"): "nvidia/Llama-3.1-8B-Instruct-FP8",
    ("Llama-3.1-8B-Instruct-FP8", "fp8"): "nvidia/Llama-3.1-8B-Instruct-FP8",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A measurement: a closed loop of so many requests on one deployment."""

    id: str
    model: str
    gpu: str
    engine: str
    version: str
    precision: str
    tp: int
    dp: int
    ep: bool  # experts are whole on a GPU
    isl: int  # the largest prompt, or the only one
    osl: int
    concurrency: int
    tpot_ms: float
    ttft_ms: float
    measured: str  # date, or ""
    cohort: str  # "InferenceX", or "gap analysis" where nobody states the flags of the server
    server: Mapping[str, Any]  # how it ran, from silicon_servers.json
    left_out: str = ""  # why

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.tp * self.dp

    @property
    def deployment(self) -> tuple[Any, ...]:
        """What is on one side of the split: architecture, GPU, engine, parallelism and precision."""
        architecture = ARCHITECTURES.get(self.model, self.model)
        return architecture, self.gpu, self.engine, self.tp, self.dp, self.ep, self.precision

    @property
    def side(self) -> str:
        """The side, or why the row is left out."""
        if self.left_out:
            return self.left_out
        if self.model == MODEL_OUT:
            return LEFT_MODEL
        if self.gpu == GPU_OUT:
            return LEFT_GPU
        key = "|".join(map(str, self.deployment))
        return HELD_OUT if sha256(key.encode()).digest()[0] % 2 else DEVELOPMENT

    @property
    def has_ttft(self) -> bool:
        """Whether TTFT counts: clients of 2025 sent no warm-up, so that it holds compilations."""
        return not self.measured.startswith("2025")


def read_rows(lines: Iterable[str]) -> list[Row]:
    """The aggregated rows of vLLM and SGLang, in the order of the file; each has a side or a reason."""
    rows = [_row(raw) for raw in csv.DictReader(lines) if raw["mode"] == "agg" and raw["backend"] in ("vllm", "sglang")]
    seen: dict[tuple[Any, ...], list[Row]] = {}  # deployment and load -> what was measured
    marked: dict[str, Row] = {}
    for row in sorted(rows, key=lambda row: not row.measured):  # copies have neither dates nor all digits
        others = seen.setdefault((*row.deployment, row.isl, row.osl, row.concurrency), [])
        if not row.left_out:
            if any(_same(row, other) for other in others):
                row = replace(row, left_out="a copy of another row")
            else:
                others.append(row)
        marked[row.id] = row
    return [marked[row.id] for row in rows]


def _same(row: Row, other: Row) -> bool:
    """Whether two rows state one measurement: copies are rounded to 0.01 ms."""
    return abs(row.tpot_ms - other.tpot_ms) < 0.006 and abs(row.ttft_ms - other.ttft_ms) < 0.006


def _row(raw: Mapping[str, str]) -> Row:
    said = dict(part.partition("=")[::2] for part in raw["silicon_data_source"].split("; "))
    tp, dp, moe_tp, moe_ep = (
        int(float(raw[name] or 1)) for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    engine, reason, ep = raw["backend"], "", moe_ep > 1
    if said.get("config_id") in ("707", "727"):
        tp, dp = 1, 2
    elif engine == "vllm" and (dp, moe_tp, moe_ep) == (tp, 1, tp * tp):
        dp = 1
    elif engine == "sglang" and moe_ep > 1 and tp == moe_tp * moe_ep:
        tp = tp if moe_tp == 1 else moe_tp
    elif moe_tp > tp:
        dp = moe_tp // tp
    model, precision = raw["model_path"].partition("/")[2], raw["precision"] or "bf16"
    row = Row(
        raw["id"], model, raw["system"].partition("_")[0], engine, raw["backend_version"], precision, tp, dp, ep,
        int(raw["isl"]), int(raw["osl"]), int(said.get("silicon_concurrency") or 0), float(raw["silicon_tpot_ms"] or 0),
        float(raw["silicon_ttft_ms"] or 0), said.get("measured", ""),
        "gap analysis" if "aic-auto-gap-analysis" in raw["silicon_data_source"] else "InferenceX", {},
    )  # fmt: skip
    row = replace(row, server=_server(row))
    row = replace(
        row,
        ep=row.server.get("ep", row.ep) and row.gpus > 1,
        version=row.version or row.server.get("as_version", ""),
    )
    reason = _reason(row, raw)
    return replace(row, left_out=reason)


def _server(row: Row) -> Mapping[str, Any]:
    """The first server of silicon_servers.json that a row may be of."""
    for server in SERVERS["servers"]:
        fits = row.model in server["models"] and row.gpu in server["gpus"] and row.precision in server["precision"]
        exact = all(getattr(row, name) == server[name] for name in ("tp", "isl", "osl") if name in server)
        dated = row.measured.startswith(server.get("measured", ""))
        if fits and exact and dated and row.version in server.get("versions", [row.version]):
            return dict(server)
    return {}


def _reason(row: Row, raw: Mapping[str, str]) -> str:
    """Why a row is left out before anything is compared, or ""."""
    drafted = (row.model, row.precision, row.version, raw["tp_size"], raw["moe_tp_size"])
    if row.id in SERVERS["speculative"] or drafted == ("Qwen3.5-397B-A17B", "fp8", "0.5.9", "4", "4"):
        return "speculative decoding (MTP), which no column states"
    if row.gpu == "gb200":
        return "disaggregated: prefill and decode on GPUs of their own"
    if row.model == "gpt-oss-120b" and row.concurrency == 512:
        return "few of the 512 requests ran at once: the server's limit is not known"
    if not row.concurrency:
        return "no concurrency is stated"
    if not row.tpot_ms or not row.ttft_ms:
        return "no time is stated"
    if (row.model, row.precision) not in CHECKPOINTS:
        return "the model is not in the catalog"
    return "" if row.server else "how the server ran is not known"


def sample_path() -> Path:
    """The file of the package in this Python, or in the environment aiconfigurator of KVTRACE_CLIENTS."""
    spec = find_spec("aiconfigurator_core")
    folders = [Path(spec.origin).parent] if spec and spec.origin else []
    folders += (CLIENTS / "aiconfigurator").glob("lib/*/site-packages/aiconfigurator_core")
    for folder in folders:
        if (folder / "systems/silicon_sample.csv").exists():
            return folder / "systems/silicon_sample.csv"
    raise SystemExit("No silicon_sample.csv. Install aiconfigurator-core, or give the path of the file.")


def counts(rows: Iterable[Row]) -> Iterator[str]:
    """How many rows each side has, and each reason."""
    rows = list(rows)
    sides = Counter(row.side for row in rows)
    for side in (*SIDES, *sorted(sides.keys() - set(SIDES), key=lambda side: -sides[side])):
        mine = [row for row in rows if row.side == side]
        cold = sum(not row.has_ttft for row in mine)
        note = f"  {len({row.deployment for row in mine})} deployments; {cold} TPOT only" if side in SIDES else ""
        yield f"{sides[side]:6,}  {side}{note}"
    yield f"{len(rows):6,}  aggregated rows of vLLM and SGLang"


def sides_of(rows: Iterable[Row]) -> dict[str, list[str]]:
    """Side or reason -> lines of row ids, as eight hexadecimal digits of their SHA-256 each."""
    sides: dict[str, list[str]] = {}
    for row in rows:
        sides.setdefault(row.side, []).append(sha256(row.id.encode()).hexdigest()[:8])
    return {side: wrap(" ".join(sorted(ids)), 116) for side, ids in sorted(sides.items())}


def listed() -> dict[str, list[str]]:
    """The sides as they are committed."""
    return dict(json.loads(LISTED.read_text()))


def main(arguments: list[str]) -> None:
    """Print the sides, and the errors of the development rows."""
    target = Path(arguments.pop(arguments.index("--rows") + 1)) if "--rows" in arguments else None
    paths = [each for each in arguments if not each.startswith("--")]
    with (Path(paths[0]) if paths else sample_path()).open(newline="") as file:
        rows = read_rows(file)
    print(*counts(rows), sep="\n")
    if target:
        target.write_text(json.dumps(sides_of(rows), indent=1) + "\n")
        return
    if not paths and sides_of(rows) != listed():
        print(f"Some rows are not on the side that {LISTED.name} has: another version of the package, or a new rule.")


if __name__ == "__main__":
    main(sys.argv[1:])
