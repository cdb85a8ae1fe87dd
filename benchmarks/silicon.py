"""Public measurements of servers beside the closed loop that kvtrace simulates: errors of TPOT and TTFT by group.

python -m benchmarks.silicon [FILE] [--held-out] [--rows FILE] [--errors FILE] [--disaggregated]

FILE is `silicon_sample.csv` of the package aiconfigurator_core (pip install aiconfigurator-core); without it, that of
this Python, or of the environment aiconfigurator in KVTRACE_CLIENTS. Its aggregated rows of vLLM and SGLang count. A
deployment (architecture, GPU, engine, parallelism, precision) is for development or held out, by a hash; a GPU and a
model are left out whole. Only development rows are evaluated, unless --held-out asks for the others. AIConfigurator's
estimates of the same rows are beside ours (silicon_rival.py). --rows writes the side of each row, or the reason why it
is left out, and evaluates nothing: tests/data/silicon_rows.json. --errors also writes our errors by deployment and
load, and those of our recordings: src/kvtrace/serving/hardware/measured.json, which every result reads; then run
`make docs`. With --held-out it has the rows of all sides. --disaggregated compares the rows of prefill and decode on
different workers instead (silicon_apart.py).

How the servers ran is in silicon_servers.json, how their clients did in `load`: sources are named there. Columns of
topology are read as the exporter filled them: for one node it wrote GPUs = tp * ep, so that (tp, dp, moe_tp, moe_ep)
is (T, T, 1, T * T) for vLLM on T GPUs with expert parallelism, and (T * E, 1, T, E) for SGLang.
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

import kvtrace
from kvtrace.cache.simulation import Setting
from kvtrace.serving.calibration.costs import step_cost
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.expectations import MeasuredErrors, load_class, model_kind, rows_of, text_of
from kvtrace.serving.hardware.roofline import roofline_of
from kvtrace.serving.hardware.room import kv_room, step_limits
from kvtrace.serving.lanes import ClosedLoop
from kvtrace.serving.models.config import catalog_entry, model_name
from kvtrace.serving.models.shape import model_shape
from kvtrace.serving.routers import in_lockstep
from kvtrace.serving.schedulers.base import Scheduler
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import closed_loop
from kvtrace.trace.columns import Columns
from kvtrace.trace.dependencies import COMPLETION, SEQUENCE, dependencies_between
from kvtrace.trace.trace import Trace

from .measuring import CLIENTS, SHARED, client

SERVERS = json.loads((Path(__file__).parent / "silicon_servers.json").read_text())
MODELS = SERVERS["models"]
LISTED = Path(__file__).parents[1] / "tests/data/silicon_rows.json"
SIDES = ("development", "held out", "GPU left out", "model left out")
KV_NAMES = {"vllm": "fp8", "sglang": "fp8_e4m3"}  # of keys and values in FP8
PROMPTS = 10  # for each request at once, as the clients sent
GPU_OUT, MODEL_OUT = "b300", "Kimi-K2.5"


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
    def architecture(self) -> str:
        """The model, or the one that has the same layers."""
        return str(MODELS.get(self.model, {}).get("architecture", self.model))

    @property
    def deployment(self) -> tuple[Any, ...]:
        """What is on one side of the split: architecture, GPU, engine, parallelism and precision."""
        return self.architecture, self.gpu, self.engine, self.tp, self.dp, self.ep, self.precision

    @property
    def side(self) -> str:
        """The side, or why the row is left out."""
        if self.left_out:
            return self.left_out
        if self.model == MODEL_OUT or self.gpu == GPU_OUT:
            return SIDES[3 if self.model == MODEL_OUT else 2]
        return SIDES[sha256("|".join(map(str, self.deployment)).encode()).digest()[0] % 2]

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
    return max(abs(row.tpot_ms - other.tpot_ms), abs(row.ttft_ms - other.ttft_ms)) < 0.006


def _row(raw: Mapping[str, str]) -> Row:
    said = dict(part.partition("=")[::2] for part in raw["silicon_data_source"].split("; "))
    tp, dp, moe_tp, moe_ep = (
        int(float(raw[name] or 1)) for name in ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    engine, ep = raw["backend"], moe_ep > 1
    if said.get("config_id") in ("707", "727"):  # their scripts pass --data-parallel-size 2
        tp, dp = 1, 2
    elif engine == "vllm" and (dp, moe_tp, moe_ep) == (tp, 1, tp * tp):
        dp = 1
    elif engine == "sglang" and moe_ep > 1 and moe_tp > 1 and tp == moe_tp * moe_ep:
        tp = moe_tp
    elif moe_tp > tp:  # the gap analysis leaves dp empty
        dp = moe_tp // tp
    model, precision = raw["model_path"].partition("/")[2], raw["precision"] or "bf16"
    row = Row(
        raw["id"], model, raw["system"].partition("_")[0], engine, raw["backend_version"], precision, tp, dp, ep,
        int(raw["isl"]), int(raw["osl"]), int(said.get("silicon_concurrency") or 0), float(raw["silicon_tpot_ms"] or 0),
        float(raw["silicon_ttft_ms"] or 0), said.get("measured", ""),
        "gap analysis" if "aic-auto-gap-analysis" in raw["silicon_data_source"] else "InferenceX", {},
    )  # fmt: skip
    row = replace(row, server=_server(row))
    ep, version = row.server.get("ep", row.ep) and row.gpus > 1, row.version or row.server.get("as_version", "")
    row = replace(row, ep=ep, version=version)
    return replace(row, left_out=_reason(row, raw))


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
    if row.precision not in MODELS.get(row.model, {}).get("checkpoints", ()):
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


def deployment_of(row: Row) -> Deployment:
    """The deployment of a row, with the flags of its server."""
    version = row.version if re.fullmatch(r"[\d.]+(post\d+)?", row.version) else None
    tokens, requests = row.server["tokens"], row.server.get("seqs")
    return Deployment(
        MODELS[row.model]["checkpoints"][row.precision], "vllm" if row.engine == "vllm" else "sglang", gpu=row.gpu,
        tensor_parallel_size=row.tp, data_parallel_size=row.dp, enable_expert_parallel=row.ep,
        kv_cache_dtype=KV_NAMES[row.engine] if "kv" in row.server else "auto",
        gpu_memory_utilization=row.server.get("util"), max_model_len=row.isl + row.osl + 256,
        engine_version=version if row.engine == "vllm" else None,
        max_num_batched_tokens=2 * row.isl if tokens == "2*isl" else tokens,
        max_num_seqs=row.concurrency if requests == "concurrency" else requests,
    )  # fmt: skip


def lengths(row: Row, requests: int) -> tuple[np.ndarray, np.ndarray]:
    """Prompts and outputs, in tokens, as the client drew them.

    InferenceX: each from 80 % of the stated length to all of it, with seed 0 (utils/bench_serving/
    benchmark_serving.py @086eabbe, kimbochen/bench_serving @406abc35). The gap analysis is taken to have sent the
    stated lengths.
    """
    if row.cohort != "InferenceX":
        return np.full(requests, row.isl), np.full(requests, row.osl)
    draw = np.random.RandomState(0)
    prompts, outputs = (draw.randint(int(0.8 * most), most + 1, requests) for most in (row.isl, row.osl))
    return prompts, outputs


def load(row: Row, requests: int, block: int) -> Trace:
    """The requests of a row, which share no prefix; the last one waits for the one before, as a trace of sessions."""
    prompts, outputs = lengths(row, requests)
    offsets = np.concatenate([[0], np.cumsum(-(-prompts // block))])
    waits = dependencies_between(
        np.array([requests - 1]), np.array([requests - 2]), np.array([COMPLETION]), np.array([SEQUENCE]),
        np.zeros(1), requests,
    )  # fmt: skip
    columns = Columns(np.zeros(requests), prompts, outputs, np.arange(offsets[-1]), offsets, dependencies=waits)
    return Trace.from_columns(columns, block_size=block)


def simulated(row: Row) -> tuple[float, float]:
    """The mean TPOT and TTFT, in ms, of the closed loop of a row with the roofline's costs; nothing is fitted."""
    deployment = deployment_of(row)
    limits, block = step_limits(deployment), 16 if row.engine == "vllm" else 64
    scheduler: Scheduler = VllmScheduler(limits.step_tokens, limits.requests)
    if row.engine == "sglang":
        prefill, polls = row.server.get("prefill_tokens", 16384), row.server.get("recv", 1)
        if polls == "load":
            polls = 30 if row.concurrency >= 16 else 10
        scheduler = SglangScheduler(limits.step_tokens, prefill, limits.requests, scheduler_recv_interval=polls)
    tokens, cost = kv_room(deployment).tokens or 0, step_cost(roofline_of(as_served(row, deployment)))
    run = closed_loop(
        load(row, PROMPTS * row.concurrency, block), cost, loop=ClosedLoop(row.concurrency),
        setting=Setting(tokens // block, engine=deployment.engine), scheduler=scheduler, instances=row.dp,
        lockstep=in_lockstep(deployment, has_experts=cost.expert_step_s > 0),
    )  # fmt: skip
    if run.rejected:
        raise ValueError(f"{row.id}: {run.rejected} requests do not fit into the cache")
    return 1000 * float(run.tpot_s.mean()), 1000 * float(run.ttft_s.mean())


def as_served(row: Row, deployment: Deployment) -> Deployment:
    """The deployment by whose costs a row runs: a flag may make a version plan steps as newer ones do."""
    return replace(deployment, engine_version=None) if "async" in row.server else deployment


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


@dataclass(frozen=True)
class Compared:
    """A row, and errors of its times: ours over the measured one, less 1."""

    row: Row
    tpot: float
    ttft: float | None  # None where the row's TTFT does not count


def compared(rows: Iterable[Row]) -> Iterator[Compared]:
    """The errors of rows, each in the closed loop that was measured."""
    for row in rows:
        yield _compared(row, *simulated(row))


def _compared(row: Row, tpot_ms: float, ttft_ms: float) -> Compared:
    return Compared(row, tpot_ms / row.tpot_ms - 1, ttft_ms / row.ttft_ms - 1 if row.has_ttft else None)


def estimated(rows: list[Row]) -> tuple[dict[str, Compared], Counter[str]]:
    """AIConfigurator's errors, row id -> error, and why rows have none; nothing without its environment."""
    programs, missing = client("aiconfigurator")
    python = sys.executable if find_spec("aiconfigurator_core") else str(programs / "python")
    if missing and python != sys.executable:
        return {}, Counter({missing: len(rows)})
    wanted = []
    for row in rows:
        share = 0.9 if row.cohort == "InferenceX" else 1  # the mean of what the client drew
        isl, osl, tokens = round(share * row.isl), round(share * row.osl), step_limits(deployment_of(row)).step_tokens
        request = {"isl": isl, "osl": osl, "step_tokens": tokens, "fp8_kv": "kv" in row.server}
        wanted.append(request | {name: getattr(row, name) for name in ("id", "tp", "dp", "ep", "concurrency")})
    program = [python, str(Path(__file__).parent / "silicon_rival.py")]
    done = subprocess.run(program, input=json.dumps(wanted), capture_output=True, text=True, check=True)
    answers = list(zip(rows, json.loads(done.stdout.splitlines()[-1]), strict=True))
    errors = {row.id: _compared(row, *found) for row, found in answers if isinstance(found, list)}
    return errors, Counter(found for _, found in answers if isinstance(found, str))


GROUPS: dict[str, Callable[[Row], str]] = {
    "all": lambda row: "rows",
    "cohort": lambda row: row.cohort,
    "GPU": lambda row: row.gpu,
    "model kind": lambda row: MODELS[row.model]["kind"],
    "model": lambda row: row.architecture,
    "engine": lambda row: row.engine,
    "parallelism": lambda row: f"TP {row.tp}" + f", DP {row.dp}" * (row.dp > 1) + ", EP" * row.ep,
    "precision": lambda row: row.precision,
    "requests at once": lambda row: load_class(row.concurrency),
    "prompt and output": lambda row: f"{round(row.isl, -3) // 1000}k {round(row.osl, -3) // 1000}k",
    "polls for requests": lambda row: "SGLang, each 10 or 30 steps" if "recv" in row.server else "each step",
    "group": lambda row: " ".join((row.architecture, row.gpu, row.engine, row.precision, f"{row.gpus} GPUs")),
}
RECORDING = "recording"  # the source of errors that are not a public measurement's
LEAST = 10  # rows of a group that has a line of its own


def table(ours: list[Compared], theirs: Mapping[str, Compared]) -> Iterator[str]:
    """Mean absolute and median errors of each group of ten rows or more; the rival's on those of its rows."""
    yield f"{'':46} {'rows':>5} {'TPOT':>6} {'median':>7} {'TTFT':>6} {'median':>7}   AIConfigurator: rows, the same"
    for title, name_of in GROUPS.items():
        groups: dict[str, list[Compared]] = {}
        for each in ours:
            groups.setdefault(name_of(each.row), []).append(each)
        for name, group in sorted(groups.items()):
            if len(group) >= LEAST or title == "cohort":
                rival = [theirs[each.row.id] for each in group if each.row.id in theirs]
                yield f"{title + ': ' + name:46} {_errors(group)}   {_errors(rival) if rival else ''}".rstrip()


def _errors(group: list[Compared]) -> str:
    """Rows, and mean absolute and median errors of TPOT and TTFT."""
    first = [each.ttft for each in group if each.ttft is not None]
    figures = f"{len(group):5} {_both([each.tpot for each in group])}"
    return f"{figures} {_both(first)}" if first else f"{figures} {'-':>6} {'-':>7}"


def _both(errors: list[float]) -> str:
    return f"{np.abs(errors).mean():6.1%} {np.median(errors):+7.1%}"


RECORDINGS = {  # folder of the shared recordings -> model, GPU, and the log of its prompts
    "RTXPRO6000_Llama-3.1-8B": ("llama-3.1-8b", "rtx-pro-6000-server", "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"),
    "RTX4090_Llama-3.1-8B": ("llama-3.1-8b", "rtx-4090", "sharegpt-llama-3.1-8b-300-sps10.jsonl.gz"),
    "RTXPRO6000_Qwen3-32B": ("qwen3-32b", "rtx-pro-6000-server", "sharegpt-qwen3-32b-300-sps10.jsonl.gz"),
}


def errors_of_rows(rows: Iterable[Compared]) -> Iterator[MeasuredErrors]:
    """The errors of each deployment at the loads of a class; nothing else of the rows."""
    groups: dict[tuple[Any, ...], list[Compared]] = defaultdict(list)
    for each in rows:
        groups[*each.row.deployment, load_class(each.row.concurrency), each.row.side].append(each)
    for (architecture, gpu, engine, tp, dp, ep, precision, requests, side), group in groups.items():
        checkpoint = MODELS[architecture]["checkpoints"][precision]
        model, kind = catalog_entry(model_name(checkpoint) or "").name, model_kind(model_shape(checkpoint))
        yield MeasuredErrors(
            gpu, model, kind, engine, precision, tp, dp, ep, requests, side, _digits(each.tpot for each in group),
            _digits(each.ttft for each in group if each.ttft is not None),
        )  # fmt: skip


def errors_of_recordings(folder: Path = SHARED / "data/measured") -> Iterator[MeasuredErrors]:
    """The errors of the recordings, with the costs of the roofline; nothing without their folder."""
    for name, (model, gpu, log) in RECORDINGS.items() if folder.is_dir() else ():
        fields = {"timestamp": "arrival_time_ns", "input": "input_tok_ids", "output_length": "output_toks"}
        prompts = kvtrace.ingest.anonymize(
            folder / log, log_format="tokens", field_map=fields, time_unit="ns", tokenizer=None, block_size=16,
            profile="exact",
        )  # fmt: skip
        validation = kvtrace.validate(folder / name, trace=prompts, model=model, gpu=gpu)
        served, means = validation.recording.settings.deployment, validation.errors
        errors = {error.latency: (round(error.error, 3),) for error in means if error.statistic == "mean"}
        yield MeasuredErrors(
            gpu, model, model_kind(model_shape(model)), served.engine, "bf16", served.tensor_parallel_size,
            served.data_parallel_size, served.enable_expert_parallel, load_class(validation.run.requests_at_once),
            RECORDING, errors["tpot_s"], errors["ttft_s"],
        )  # fmt: skip


def _digits(errors: Iterable[float]) -> tuple[float, ...]:
    return tuple(sorted(round(error, 3) for error in errors))


def write_errors(path: Path, ours: Iterable[Compared]) -> None:
    """Write the errors of rows and recordings; without the shared recordings, those that the file has."""
    old = rows_of(path.read_bytes()) if path.exists() else []
    recorded = list(errors_of_recordings()) or [row for row in old if row.source == RECORDING]
    path.write_text(text_of([*errors_of_rows(ours), *recorded]), encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Print the sides, and the errors of the development rows."""
    target, errors_path = (
        Path(arguments.pop(arguments.index(name) + 1)) if name in arguments else None for name in ("--rows", "--errors")
    )
    paths = [each for each in arguments if not each.startswith("--")]
    if "--disaggregated" in arguments:
        from . import silicon_apart  # which imports this module

        silicon_apart.main(Path(paths[0]) if paths else sample_path(), arguments, target)
        return
    with (Path(paths[0]) if paths else sample_path()).open(newline="") as file:
        rows = read_rows(file)
    print(*counts(rows), sep="\n")
    if target:
        target.write_text(json.dumps(sides_of(rows), indent=1) + "\n")
        return
    if not paths and sides_of(rows) != json.loads(LISTED.read_text()):
        print(f"Some rows are not on the side that {LISTED.name} has: another version of the package, or a new rule.")
    evaluated = SIDES[1:] if "--held-out" in arguments else SIDES[:1]
    wanted = [row for row in rows if row.side in (SIDES if errors_path and len(evaluated) > 1 else evaluated)]
    all_ours: list[Compared] = []
    for side in SIDES:
        start, mine = time.process_time(), [row for row in wanted if row.side == side]
        if mine:
            ours = list(compared(mine))
            all_ours += ours
            print(f"\n{side}: {len(mine)} rows, {time.process_time() - start:.1f} s of processor time")
            rival, without = estimated(mine)
            reasons = (f"{number:6,}  no estimate: {why}" for why, number in without.items())
            print(*table(ours, rival), *reasons, sep="\n")
    if errors_path:
        write_errors(errors_path, all_ours)


if __name__ == "__main__":
    main(sys.argv[1:])
