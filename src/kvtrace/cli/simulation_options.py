"""Options of a simulation: one cache, its instances, its times, the closed loop, and policies of the user's.

Every command with --policy finds the user's classes, and reports their exceptions, alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .._base.errors import UsageError
from .._base.options import option
from .._base.units import count, share
from ..cache.setup import CacheSetup
from ..serving.deployment import Deployment
from ..serving.disaggregation import Disaggregation
from ..serving.run_options import InstanceSetup, TimeSetup
from .deployment_options import DEPLOYMENT, LIMITS, command_of, costs_of, deployment_of, gpu_options
from .help import AmountType
from .options import (
    ENGINE_BLOCK_SIZE,
    RETENTION,
    engine_units,
    record_options,
    taken,
    with_options,
)
from .output import is_silent

if TYPE_CHECKING:
    from ..serving.lanes import ClosedLoop
    from ..serving.run import Run

LOOP = "Closed loop"  # group of --help
TOO_SMALL = "does not hold the longest request"
RANGE = "25%-75%"


def shares(text: str) -> tuple[float, float]:
    """A range of shares; UsageError if it is not valid.

    >>> shares("25%-75%")
    (0.25, 0.75)
    """
    low, dash, high = text.partition("-")
    if not dash:
        raise UsageError(f"{text!r} is not a range of shares. Example: {RANGE}.")
    return share(low), share(high)


@dataclass(frozen=True)
class LoopOptions:
    """When requests arrive. Times are milliseconds; None is an option that is not given."""

    loop: str = option("open", "In time: when requests arrive. open: at the times of the trace. closed: when the requests that they wait for have ended, plus their delay; simulate then shows both.", choices=("open", "closed"), group=LOOP)
    lanes: int | None = option(None, "Closed loop: number of sessions that run at once, each with its subagents.", minimum=1, metavar="N", group=LOOP)
    duration: float | None = option(None, "Closed loop: length of the run; sessions are played again until then.  [default: each session is played once]", metavar="TIME", group=LOOP)
    start_inside: tuple[float, float] | None = option(None, f"Closed loop: each lane starts inside its first session, at a random share of its time; the request before it primes the cache.  [range: {RANGE}]", metavar="[RANGE]", group=LOOP)
    idle_cap: float | None = option(None, "Closed loop: longest time without any request; all that wait move forward together.", metavar="TIME", group=LOOP)
    tree_idle_cap: float | None = option(None, "Closed loop: longest time without a request of a session; all its requests move forward together.", metavar="TIME", group=LOOP)
    think_scale: float | None = option(None, "Closed loop: factor of all delays between requests.  [default: 1]", minimum=0, metavar="X", group=LOOP)

    def closed_loop(self, *, seed: int | None, warm_up: str = "0", lanes_wanted: bool = True) -> ClosedLoop | None:
        """The closed loop; None for the open loop. UsageError if the options do not fit together."""
        from ..serving.lanes import ClosedLoop

        if self.loop == "open":
            for part in fields(self)[1:]:
                if getattr(self, part.name) is not None:
                    raise click.UsageError(f"--{part.name.replace('_', '-')} needs --loop closed.")
            return None
        if self.lanes is None and lanes_wanted:
            raise click.UsageError("--loop closed needs --lanes: the number of sessions that run at once.")
        return ClosedLoop(
            lanes=self.lanes or 1, duration_s=_seconds(self.duration), warm_up=_requests(warm_up),
            start="beginning" if self.start_inside is None else "inside", start_range=self.start_inside or shares(RANGE),
            think_scale=1.0 if self.think_scale is None else self.think_scale,
            idle_cap_s=_seconds(self.idle_cap), tree_idle_cap_s=_seconds(self.tree_idle_cap), seed=seed or 0,
        )  # fmt: skip


loop_options = record_options(LoopOptions, settings={"start_inside": {"is_flag": False, "flag_value": RANGE, "type": AmountType(shares)}})


def _seconds(ms: float | None) -> float | None:
    return None if ms is None else ms / 1000


def _requests(warm_up: str) -> int:
    """The warm-up requests of each lane."""
    try:
        return count(warm_up)
    except UsageError as error:
        raise click.UsageError(f"--warm-up: {error}") from None


TIERS = click.option("--tiers", metavar="NAME=C,...", help="Tiers of blocks, fastest first, in place of --capacity. Example: hbm=5000,dram=50000; with --gpu hbm=5000,dram=50000@25GB, with bytes per second.")
CACHE = with_options(
    record_options(CacheSetup, without=("inclusive",)), ENGINE_BLOCK_SIZE, RETENTION, TIERS, record_options(CacheSetup, only=("inclusive",)),
    record_options(InstanceSetup, only=("instances", "instances_per_host", "fleet")),
)  # fmt: skip
ROUTERS = record_options(InstanceSetup, only=("routers",))
APART = record_options(Disaggregation)
IN_TIME = with_options(
    record_options(InstanceSetup, only=("router_seed", "router_options")), gpu_options(), record_options(TimeSetup, only=("costs_file", "kernels", "extrapolate")),
    record_options(Deployment, only=LIMITS), record_options(TimeSetup, only=("scheduler",)), DEPLOYMENT, loop_options,
)  # fmt: skip
DRAWN = with_options(  # of a report, whose run `drawn_run` makes
    TIERS, record_options(InstanceSetup, only=("instances", "instances_per_host", "routers")),
    record_options(Disaggregation, only=("prefill_workers", "decode_workers", "decode_router", "kv_transfer_bandwidth", "kv_transfer_latency_s")),
)  # fmt: skip
LOOP_WARM_UP = click.option("--warm-up", default="0", metavar="N", help="Do not count the first requests: a number (1000), a share (10%) or a time (10m); with --loop closed a number of each lane.")


def run_of(options: dict[str, Any], *, engines: str | None, policies: str, routers: str | None, warm_up: str) -> Run:
    """The run of a command's options, which it takes out of them; UsageError if they do not fit together.

    Its capacities, tiers and cache groups need a trace: `with_caches` adds them.
    """
    from .._base.units import names
    from ..serving.run import Run

    seed = options["router_seed"]
    time, names_of_engines = _deployment_of(options, engines, policies)
    loop = _loop_of(options, time, warm_up, seed, names(routers or "round-robin"))
    cache = taken(CacheSetup, options, policies=names(policies), engines=names_of_engines, gap=not options.pop("no_gap", True), domains=options.pop("domains"))
    instances = taken(InstanceSetup, options, routers=names(routers) if routers else None)
    apart = taken(Disaggregation, options)  # of a command that has its options
    if apart.prefill_workers:  # whose ranks are those of each worker
        return Run(cache, instances, time, loop, disaggregation=apart)
    return Run(cache, _with_ranks(instances, time, names_of_engines), time, loop)


def drawn_run(options: dict[str, Any], time: TimeSetup, trace: Any, units: dict[str, Any]) -> Run | None:
    """The one LRU run of the options DRAWN, which it takes out of them; None if they state no tiers and no workers."""
    from .._base.units import names
    from ..serving.routers import check_router
    from ..serving.run import Run

    tiers, routers = options.pop("tiers"), options.pop("routers")
    apart, instances = taken(Disaggregation, options), taken(InstanceSetup, options, routers=names(routers) if routers else None)
    for router in instances.routers or ():
        check_router(router)
    if not tiers and not apart.prefill_workers:
        if instances != InstanceSetup():
            raise UsageError("--instances and --router need --tiers, or --prefill-workers and --decode-workers.")
        return None
    if len(list(instances.routers or [])) > 1:
        raise UsageError("--router must be one router. Example: --router kv-aware.")
    engines: list[Any] = [time.deployment.engine] if time.cost else ["reference"]
    cache = CacheSetup(policies=["lru"], engines=engines, gap=False)
    if apart.prefill_workers:
        if not time.cost:
            raise UsageError("--prefill-workers is a simulation in time. Add --model and --gpu.")
        run = Run(cache, instances, time, disaggregation=apart)
    else:
        run = Run(cache, _with_ranks(instances, time, engines), time)
    run = with_layouts(run, {"engine_block_size": None, "retention": None}, trace.block_size)
    return with_caches(run, trace, units, capacity="auto", tiers=tiers)


def _with_ranks(instances: InstanceSetup, time: TimeSetup, engines: list[Any]) -> InstanceSetup:
    """The instances, which are the data-parallel ranks of the deployment behind the engine's balancer if it has several."""
    from ..serving.routers import in_lockstep, ranks_of

    if time.deployment.data_parallel_size == 1:
        return instances
    if len(engines) > 1:
        raise click.UsageError("--data-parallel-size: name one engine, whose balancer the ranks have.")
    if instances.fleet is not None:
        raise click.UsageError("--fleet does not support the ranks of one server. Leave out --data-parallel-size.")
    size, balancer = ranks_of(time.deployment, instances.instances)
    lockstep = in_lockstep(time.deployment, has_experts=getattr(time.cost, "expert_step_s", 0) > 0)
    return replace(instances, instances=size, routers=instances.routers or (balancer,), lockstep=lockstep)


def time_of(options: dict[str, Any], engines: list[Any] | None = None, **others: Any) -> TimeSetup:
    """What serves the requests, by a command's options, which it takes out of them; `others` are fields of Deployment.

    The engines are that of the deployment, unless they are named.
    """
    time, costs = taken(TimeSetup, options), None
    if time.costs_file:
        from ..serving.calibration.costs import read_costs

        costs = read_costs(time.costs_file)
    if costs and options.get("gpu"):
        raise UsageError("--costs and --gpu cannot be combined. Use one of them.")
    served = command_of(options)
    scheduler = time.scheduler or (served.scheduler if served else None)
    deployment = deployment_of(options, costs.measured if costs else None, **others)
    costs = costs_of(time, deployment, costs)
    return replace(time, scheduler=scheduler, deployment=deployment, costs=costs).resolved(engines or [deployment.engine])


def _deployment_of(options: dict[str, Any], engines: str | None, policies: str) -> tuple[TimeSetup, list[Any]]:
    """What serves the requests, and the engines, whose default it decides."""
    from .._base.units import count, names

    timed, served = bool(options["gpu"] or options["costs_file"]), command_of(options)
    default = served.stated["engine"] if served else "vllm" if timed and policies == "lru" else "reference"
    engine_names: list[Any] = names(engines or default)
    retention = options["retention"]
    time = time_of(
        options, engine_names, model=options["model_config"], block_size=options["engine_block_size"],
        engine=engine_names[0],
    )  # fmt: skip
    if retention is not None:
        interval = None if retention == "dense" else count(retention)
        time = replace(time, deployment=replace(time.deployment, retention_interval=interval))
    limits = time.deployment.max_num_batched_tokens, time.deployment.max_num_seqs
    only_step = limits[0] and not (limits[1] or time.scheduler)
    if not time.cost and time.limits_steps and not (only_step and _is_chunked(time)):
        raise click.UsageError("--step-tokens, --max-requests and --scheduler need --gpu, --costs or --engine dynamo.")
    return time, engine_names


def _loop_of(options: dict[str, Any], time: TimeSetup, warm_up: str, seed: int | None, routers: list[str]) -> ClosedLoop | None:
    given = taken(LoopOptions, options)
    loop = given.closed_loop(seed=seed, warm_up=warm_up if given.loop == "closed" else "0")
    if loop and not time.cost:
        raise click.UsageError("--loop closed is a simulation in time. Add --gpu and --model, or --engine dynamo.")
    draws = {"dynamo", "vllm-dp"} & set(routers) or time.deployment.data_parallel_size > 1
    if seed is not None and not draws and not (loop and loop.start == "inside"):
        raise click.UsageError("--seed needs --router dynamo or vllm-dp, or --start-inside.")
    return loop


def _is_chunked(time: TimeSetup) -> bool:
    """Whether the prompts of a model with cache groups are computed in chunks, without times."""
    model = time.deployment.model
    if not model or time.deployment.gpu is not None:
        return False
    from ..serving.models.engine_layout import has_groups

    return has_groups(model)


def unbounded_groups(run: Run) -> bool:
    """Whether an engine serves a model with cache groups, without times."""
    if not _is_chunked(run.time):
        return False
    from ..serving.models.engine_layout import LAYOUTS

    return bool(set(LAYOUTS) & set(run.cache.engines))


def needs_of(run: Run, over_time: Any) -> dict[str, None]:
    """What the result of a command uses of a trace, of `kvtrace.trace.unknown.NEEDS`."""
    return dict.fromkeys([*run.needs(), *(["times"] if over_time else [])])


def with_layouts(run: Run, options: dict[str, Any], block_size: int) -> Run:
    """The run with the cache groups of its engines; UsageError if options need a model that has none."""
    deployment, engines = run.time.deployment, list(run.cache.engines)
    layouts = {}
    if deployment.model is not None:
        from ..serving.models.engine_layout import layouts_for

        grouped = engines if deployment.gpu is None else [engine for engine in engines if engine == "vllm"]
        layouts = layouts_for(deployment, grouped, block_size)
    if (options["engine_block_size"] or options["retention"]) and not layouts:
        raise UsageError("--engine-block-size and --retention need --model with windows or states, and --engine vllm or sglang.")
    return run.changed(layouts=layouts, drafting=run.time.drafting(engines))


def with_caches(run: Run, trace: Any, units: dict[str, Any], *, capacity: str, tiers: str | None) -> Run:
    """The run with what holds blocks: the capacities of each engine, or tiers."""
    from ..analysis.capacities import parse_capacities, parse_capacity
    from ..cache.tiers import parse_tiers, parse_timed_tiers

    if tiers and capacity != "auto":
        raise click.UsageError("--tiers has the capacities. Leave out --capacity.")
    roofline, engines = run.time.roofline, list(run.cache.engines)
    lower: Sequence[Any] = ()
    parse: Callable[[str], int] = partial(parse_capacity, **units)
    if tiers and capacity != "auto":
        raise UsageError("--tiers has the capacities. Leave out --capacity.")
    if run.time.cost and tiers:
        kv_bytes = roofline.model.kv_bytes_per_token if roofline else units["kv_bytes_per_token"]
        if kv_bytes is None:
            raise UsageError("With --engine dynamo, --tiers needs --kv-bytes-per-token or --model.")
        first, lower = parse_timed_tiers(tiers, parse, trace.block_size * kv_bytes)
        tiers, capacity = None, str(first)
    sizes = {engine: engine_units((run.cache.layouts or {}).get(engine), trace.block_size, units, run.time.deployment.gpus_per_instance) for engine in engines}
    capacities: dict[str, Any] | None = None
    if roofline and capacity == "auto":
        layouts = run.cache.layouts or {}
        capacities = {engine: [run.time.blocks_of(engine, trace.block_size, layouts.get(engine))] for engine in engines}
    elif capacity != "auto" and not tiers:
        capacities = {engine: list(dict.fromkeys(parse_capacities(capacity, **size))) for engine, size in sizes.items()}
    return run.changed(capacities=capacities, tiers=parse_tiers(tiers, lambda text: 0 if text == "0" else parse(text)) if tiers else None, lower=lower)


def kv_bytes_of(run: Run, options: dict[str, Any]) -> int | None:
    """Bytes of a token on the GPUs of an instance: of the deployment, or as given; None without either."""
    given, model = options["kv_bytes_per_token"], run.time.kv_bytes_per_token
    if given is not None and model is not None:
        raise UsageError("--model and --kv-bytes-per-token cannot be combined. Use one of them.")
    return model if given is None else given


@contextmanager
def capacity_as_written(capacity: str, trace: Any, units: dict[str, Any]) -> Iterator[None]:
    """Errors name a capacity as the user wrote it. If a list may mean one number, they say how to write that number."""
    from .._base.units import names
    from ..analysis.capacities import hint_on_commas, parse_capacity

    try:
        yield
    except UsageError as error:
        if hint := hint_on_commas(capacity, int(trace.prompt_blocks.max(initial=1))):
            error.add_note(hint)
        for text in names(capacity) if (TOO_SMALL in str(error) and not hint and capacity != "auto") else ():
            blocks = parse_capacity(text, **units)
            if text != str(blocks):
                error.args = (str(error).replace(f"--capacity {blocks} {TOO_SMALL}", f"--capacity {text} ({blocks:,} blocks) {TOO_SMALL}"),)
        raise


@contextmanager
def own_policies():
    """Import policy classes from the current folder, and report their exceptions as usage errors."""
    from .._base.errors import UsageError

    sys.path.insert(0, "")
    try:
        yield
    except Exception as error:
        from ..cache.core.pool import failure

        if (failed := failure(error)) is None or is_silent():  # in Python the exception itself says more
            raise
        policy, place = failed
        message = f": {error}" if str(error) else ""  # safe: a policy sees numbers only, no content
        raise UsageError(f"The policy failed: {policy}, {place}{message}") from error
    finally:
        sys.path.remove("")
