"""Public measurements of prefill and decode on different workers, beside the closed loop that kvtrace simulates.

python -m benchmarks.silicon --disaggregated [FILE] [--held-out] [--rows FILE] [--each]

Its rows are the disaggregated ones of the same file (silicon.py) that state their workers and the requests at once:
SGLang and vLLM; TensorRT-LLM's are simulated as SGLang's, and reported apart. A deployment (model, GPU, engine,
precision, and both kinds of workers) is for development or held out, by a hash. The file has no throughput: by
Little's law it is the requests at once over the time of a request, TTFT + TPOT * (outputs - 1), measured and simulated
alike; outputs are nine tenths of the stated length.

How the servers ran is in silicon_servers.json (`apart`). Clients sent five prompts for each request at once
(ishandhanani/srt-slurm, src/srtctl/benchmarks/scripts/sa-bench/bench.sh @09211b64). Columns of parallelism are read as
they are; ranks with attention of their own have their experts on the GPUs of all ranks. But SGLang 0.5.5's workers of
four GPUs have ranks in these columns where the recipes have tensor parallelism, and FP8 weights fit only so.
"""

from __future__ import annotations

import csv
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from kvtrace.cache.simulation import Setting
from kvtrace.serving.apart import Link, serve_apart
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.hardware.roofline import deployed_shape, roofline_of
from kvtrace.serving.hardware.room import kv_room
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.workers import Workers

from . import silicon

PROMPTS = 5  # for each request at once
SIDES = ("development", "held out")
# bytes per second of a GPU in one direction: NVLink within a rack, and ConnectX-7 elsewhere (systems/*.yaml of
# aiconfigurator-core 0.12, inter_node_bw)
NETWORK = {"gb200": 900e9, "gb300": 900e9, "b200": 100e9, "h200": 50e9, "h100": 50e9}
LISTED = silicon.LISTED.with_name("silicon_apart_rows.json")


@dataclass(frozen=True)
class Kind:
    """Workers of one kind: how many, and how each is divided over its GPUs."""

    workers: int
    tp: int
    dp: int
    ep: bool

    @property
    def gpus(self) -> int:
        """The GPUs of all of them."""
        return self.workers * self.tp * self.dp

    def __str__(self) -> str:
        return f"{self.workers} x {'DP' if self.dp > 1 else 'TP'}{max(self.tp, self.dp)}{'+EP' * self.ep}"


@dataclass(frozen=True)
class Row:
    """A measurement of a closed loop of so many requests."""

    id: str
    model: str
    gpu: str
    engine: str
    version: str
    precision: str
    prefill: Kind
    decode: Kind
    isl: int
    osl: int
    concurrency: int
    tpot_ms: float
    ttft_ms: float
    measured: str
    server: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.prefill.gpus + self.decode.gpus

    @property
    def split(self) -> str:
        """The workers of both kinds."""
        return f"{self.prefill} / {self.decode}"

    @property
    def side(self) -> str:
        """The side of its deployment."""
        parts = (self.model, self.gpu, self.engine, self.precision, self.split)
        return SIDES[sha256("|".join(parts).encode()).digest()[0] % 2]

    def tokens_per_s(self, ttft_ms: float, tpot_ms: float) -> float:
        """Output tokens per second of a GPU, by Little's law."""
        outputs = 0.9 * self.osl
        return 1000 * self.concurrency * outputs / (ttft_ms + tpot_ms * (outputs - 1)) / self.gpus


def read_rows(lines: Iterable[str]) -> tuple[list[Row], Counter[str]]:
    """The rows that state workers and concurrency, and how many of each engine do not."""
    rows, left_out = [], Counter[str]()
    for raw in csv.DictReader(lines):
        if raw["mode"] == "disagg":
            row = _row(raw)
            if row is None:
                left_out[raw["backend"]] += 1
            else:
                rows.append(row)
    return rows, left_out


def _row(raw: Mapping[str, str]) -> Row | None:
    said = dict(part.partition("=")[::2] for part in raw["silicon_data_source"].split("; "))
    if not raw["prefill_num_workers"] or not said.get("silicon_concurrency"):
        return None
    kinds = []
    for kind in ("prefill", "decode"):
        workers, tp, dp, ep = (
            int(float(raw[f"{kind}_{name}"])) for name in ("num_workers", "tp_size", "attention_dp_size", "moe_ep_size")
        )
        kinds.append(Kind(workers, tp, dp, ep > 1 or dp > 1))
    if raw["backend_version"] == "0.5.5.post2":
        few = kinds[1].tp * kinds[1].dp == 4
        kinds = [
            replace(kind, tp=4, dp=1, ep=False)
            if kind.dp == 4 and (few or (kind is kinds[0] and raw["isl"] == "8192"))
            else kind
            for kind in kinds
        ]
    row = Row(
        raw["id"], raw["model_path"].partition("/")[2], raw["system"].partition("_")[0], raw["backend"],
        raw["backend_version"], raw["precision"], kinds[0], kinds[1], int(raw["isl"]), int(raw["osl"]),
        int(said["silicon_concurrency"]), float(raw["silicon_tpot_ms"]), float(raw["silicon_ttft_ms"]),
        said.get("measured", ""), {},
    )  # fmt: skip
    return replace(row, server=_server(row))


def _server(row: Row) -> Mapping[str, Any]:
    """The first server of silicon_servers.json that a row may be of; nothing if its flags are not known."""
    if row.engine != "sglang":
        return {}
    for server in silicon.SERVERS["apart"]:
        fits = row.gpu in server["gpus"] and row.precision in server["precision"]
        fits &= row.isl == server.get("isl", row.isl) and row.measured.startswith(server.get("measured", ""))
        fits &= row.prefill.workers <= server.get("workers", row.prefill.workers)
        for name, kind in (("prefill", row.prefill), ("decode", row.decode)):
            fits &= server.get(name, "dp" if kind.dp > 1 else "tp") == ("dp" if kind.dp > 1 else "tp")
        if fits:
            return dict(server)
    return {}


MODELS = silicon.MODELS | {
    "Qwen3-32B-NVFP4": {"checkpoints": {"fp4": "Qwen/Qwen3-32B-FP8"}},
}


def deployment_of(row: Row, kind: Kind, util: float | None, *, deepep: bool) -> Deployment:
    """The deployment of a worker."""
    engine = "vllm" if row.engine == "vllm" else "sglang"
    return Deployment(
        MODELS[row.model]["checkpoints"][row.precision], engine, gpu=row.gpu, tensor_parallel_size=kind.tp,
        data_parallel_size=kind.dp, enable_expert_parallel=kind.ep, enable_dp_attention=kind.dp > 1,
        kv_cache_dtype=silicon.KV_NAMES[engine] if row.engine != "vllm" else "auto", gpu_memory_utilization=util,
        max_model_len=row.isl + row.osl + 256, all2all_backend="deepep" if deepep else None,
    )  # fmt: skip


def workers_of(row: Row, *, decodes: bool) -> tuple[Workers, Deployment]:
    """The workers of a kind, with the flags of their server."""
    server, kind = row.server, row.decode if decodes else row.prefill
    deepep = ("decode" if decodes else "prefill") in server.get("deepep", ())
    deployment = deployment_of(row, kind, server.get("util" if decodes else "prefill_util"), deepep=deepep)
    tokens = kv_room(deployment).tokens or 0
    tokens = min(tokens, server.get("room" if decodes else "prefill_room", tokens))
    if deployment.engine == "sglang":
        seats = server.get("seqs" if decodes else "prefill_seqs", max(row.concurrency, kind.dp))
        chunk = server.get("chunk", 8192) // kind.dp // 64 * 64
        scheduler: Any = SglangScheduler(
            chunk, server.get("prefill_tokens", 16384), max(1, seats // kind.dp), page_size=64,
            num_reserved_decode_tokens=server.get("reserve", 512),
            scheduler_recv_interval=server.get("recv", 1) if decodes and kind.dp == 1 else 1,
        )  # fmt: skip
    else:
        scheduler = VllmScheduler(8192 if not decodes else 2048, max(256, row.concurrency))
    setting = Setting(tokens // 64, engine=deployment.engine)
    cost = step_cost(roofline_of(deployment))
    return Workers(cost, setting, scheduler, kind.workers, kind.dp, lockstep=kind.dp > 1), deployment


def simulated(row: Row) -> tuple[float, float]:
    """The mean TPOT and TTFT, in ms, of the closed loop of a row with the roofline's costs; nothing is fitted."""
    (prefill, _), (decode, receiver) = (workers_of(row, decodes=decodes) for decodes in (False, True))
    load = silicon.load(_as_aggregated(row), PROMPTS * row.concurrency, 64)
    gpus = min(kind.tp * kind.dp for kind in (row.prefill, row.decode))
    run = serve_apart(
        load, prefill, decode, link=Link(NETWORK[row.gpu] * gpus), shape=deployed_shape(receiver),
        api_servers=row.server.get("frontends", 1), loop=ClosedLoop(row.concurrency),
    )  # fmt: skip
    if run.rejected:
        raise ValueError(f"{row.id}: {run.rejected} requests do not fit into the cache")
    return 1000 * float(run.tpot_s.mean()), 1000 * float(run.ttft_s.mean())


def _as_aggregated(row: Row) -> silicon.Row:
    """A row whose client drew the same lengths."""
    return silicon.Row(
        row.id, row.model, row.gpu, row.engine, row.version, row.precision, 1, 1, False, row.isl, row.osl,
        row.concurrency, row.tpot_ms, row.ttft_ms, row.measured, "InferenceX", {},
    )  # fmt: skip


@dataclass(frozen=True)
class Compared:
    """A row, and errors: ours over the measured value, less 1."""

    row: Row
    tpot: float
    ttft: float
    throughput: float
    ours: float  # output tokens per second of a GPU


def compared(row: Row) -> Compared:
    """The errors of a row."""
    tpot, ttft = simulated(row)
    ours = row.tokens_per_s(ttft, tpot)
    return Compared(
        row, tpot / row.tpot_ms - 1, ttft / row.ttft_ms - 1, ours / row.tokens_per_s(row.ttft_ms, row.tpot_ms) - 1, ours
    )


def table(ours: list[Compared]) -> Iterator[str]:
    """Median absolute errors by group."""
    yield f"{'':44} {'rows':>5} {'throughput':>11} {'median':>7} {'TPOT':>6} {'TTFT':>6}  median absolute errors"
    groups: dict[str, list[Compared]] = defaultdict(list)
    for each in ours:
        row = each.row
        known = "known" if row.server else "not known"
        for name in (
            "all", f"engine: {row.engine}", f"flags: {known}", f"GPU: {row.gpu}", f"{row.gpu} {row.precision}",
            f"{row.isl} / {row.osl}", f"decode: {'DP' if row.decode.dp > 1 else 'TP'}",
        ):  # fmt: skip
            groups[name].append(each)
    for name, group in groups.items():
        errors = [np.array([getattr(one, field) for one in group]) for field in ("throughput", "tpot", "ttft")]
        middle = [float(np.median(np.abs(error))) for error in errors]
        yield (
            f"{name:44} {len(group):5} {middle[0]:11.1%} {np.median(errors[0]):+7.1%} {middle[1]:6.1%} {middle[2]:6.1%}"
        )


def rankings(ours: list[Compared], least: int = 8) -> Iterator[str]:
    """Spearman's correlation of the throughput of splits, of each model with so many at one length and load."""
    groups: dict[tuple[Any, ...], list[Compared]] = defaultdict(list)
    for each in ours:
        row = each.row
        groups[row.model, row.isl, row.osl, row.concurrency].append(each)
    for (model, isl, osl, load), group in groups.items():
        if len({one.row.split for one in group}) >= least:
            simulated_rank, measured_rank = (
                np.argsort(np.argsort(values))
                for values in (
                    [one.ours for one in group],
                    [one.row.tokens_per_s(one.row.ttft_ms, one.row.tpot_ms) for one in group],
                )
            )
            correlation = float(np.corrcoef(simulated_rank, measured_rank)[0, 1])
            yield f"{model}, {isl} / {osl}, {load} at once, {len(group)} splits: Spearman {correlation:.2f}"


def sides_of(rows: Iterable[Row]) -> dict[str, dict[str, list[str]]]:
    """Engine -> side -> lines of row ids, as eight hexadecimal digits of their SHA-256 each."""
    sides: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        sides[row.engine][row.side].append(sha256(row.id.encode()).hexdigest()[:8])
    return {
        engine: {side: wrap(" ".join(sorted(ids)), 116) for side, ids in sorted(of_engine.items())}
        for engine, of_engine in sorted(sides.items())
    }


def main(path: Path, arguments: list[str], target: Path | None) -> None:
    """Print the sides, and the errors of the development rows, or with --held-out of the others."""
    with path.open(newline="") as file:
        rows, left_out = read_rows(file)
    for engine in ("sglang", "vllm", "trtllm"):
        mine = [row for row in rows if row.engine == engine]
        sides = ", ".join(f"{number} {side}" for side, number in sorted(Counter(row.side for row in mine).items()))
        known = sum(bool(row.server) for row in mine)
        print(f"{engine}: {sides}; flags known {known}; {left_out[engine]} without workers or load")
    if target:
        target.write_text(json.dumps(sides_of(rows), indent=1) + "\n")
        return
    if sides_of(rows) != json.loads(LISTED.read_text()):
        print(f"Some rows are not on the side that {LISTED.name} has: another version of the package, or a new rule.")
    side = SIDES["--held-out" in arguments]
    for engines in (("sglang", "vllm"), ("trtllm",)):
        start, ours = time.process_time(), []
        for row in rows:
            if row.side == side and row.engine in engines:
                ours.append(compared(row))
                if "--each" in arguments:
                    print(_line(ours[-1]), flush=True)
        seconds = time.process_time() - start
        print(f"\n{side}, {' and '.join(engines)}: {len(ours)} rows, {seconds:.0f} s of processor time")
        if ours:
            print(*table(ours), *rankings(ours), sep="\n")


def _line(one: Compared) -> str:
    errors = f"throughput {one.throughput:+.1%} TPOT {one.tpot:+.1%} TTFT {one.ttft:+.1%}"
    return f"{one.row.id} {one.row.split} {one.row.concurrency} at once: {errors}"
