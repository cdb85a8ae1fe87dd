"""Options of a simulation: one cache, its instances, its times, the closed loop, and policies of the user's.

Every command with --policy finds the user's classes, and reports their exceptions, alike.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import click

from .._base.errors import UsageError
from .._base.units import count, share
from . import completion
from .help import AmountType
from .options import (
    COSTS,
    ENGINE_BLOCK_SIZE,
    EXTRAPOLATE,
    RETENTION,
    RowsOption,
    engine_units,
    roofline_of,
    with_options,
)

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


LOOP_OPTIONS = (
    click.option("--loop", type=click.Choice(["open", "closed"]), default="open", show_default=True, help="In time: when requests arrive. open: at the times of the trace. closed: when the requests that they wait for have ended, plus their delay; simulate then shows both."),
    click.option("--lanes", type=click.IntRange(1), metavar="N", help="Closed loop: number of sessions that run at once, each with its subagents."),
    click.option("--duration", metavar="TIME", help="Closed loop: length of the run; sessions are played again until then.  [default: each session is played once]"),
    click.option("--start-inside", is_flag=False, flag_value=RANGE, type=AmountType(shares), metavar="[RANGE]", help=f"Closed loop: each lane starts inside its first session, at a random share of its time; the request before it primes the cache.  [range: {RANGE}]"),
    click.option("--idle-cap", metavar="TIME", help="Closed loop: longest time without any request; all that wait move forward together."),
    click.option("--tree-idle-cap", metavar="TIME", help="Closed loop: longest time without a request of a session; all its requests move forward together."),
    click.option("--think-scale", type=click.FloatRange(0), metavar="X", help="Closed loop: factor of all delays between requests.  [default: 1]"),
)  # fmt: skip
LOOP_NAMES = ("lanes", "duration", "start_inside", "idle_cap", "tree_idle_cap", "think_scale")


def loop_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the closed loop to a command."""
    for option in reversed(LOOP_OPTIONS):
        command = option(command)
    return command


def closed_loop_of(loop, *, seed, warm_up="0", lanes_wanted=True, **given):
    """The closed loop of a command's options; None for the open loop. UsageError if they do not fit together."""
    from ..serving.closed_loop import ClosedLoop

    if loop == "open":
        for name in LOOP_NAMES:
            if given[name] is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} needs --loop closed.")
        return None
    if given["lanes"] is None and lanes_wanted:
        raise click.UsageError("--loop closed needs --lanes: the number of sessions that run at once.")
    seconds = {name: None if given[name] is None else given[name] / 1000 for name in ("duration", "idle_cap", "tree_idle_cap")}
    inside = given["start_inside"]
    return ClosedLoop(
        lanes=given["lanes"] or 1, duration_s=seconds["duration"], warm_up=_requests(warm_up),
        start="beginning" if inside is None else "inside", start_range=shares(RANGE) if inside is None else inside,
        think_scale=1.0 if given["think_scale"] is None else given["think_scale"],
        idle_cap_s=seconds["idle_cap"], tree_idle_cap_s=seconds["tree_idle_cap"], seed=seed or 0,
    )  # fmt: skip


def _requests(warm_up: str) -> int:
    """The warm-up requests of each lane."""
    try:
        return count(warm_up)
    except UsageError as error:
        raise click.UsageError(f"--warm-up: {error}") from None


CACHE = with_options(
    click.option("--mode", default="block", metavar="M", help="What is cached. block: each id counts as a full block. token: true lengths of prompts. grow: outputs too."),
    click.option("--schedule", metavar="S", help="Requests that are active together: serial is one at a time, concurrency:N is N at a time, open-loop:MS starts them at their times and takes MS ms per output token.  [default: serial; with --instances open-loop:30]"),
    click.option("--capacity-counts", default="total", metavar="WHAT", help="Blocks that count: total is active and idle blocks, idle is idle blocks only. (reference)"),
    click.option("--pool", default="flat", metavar="WHICH", help="Blocks that can be evicted: flat is any idle block, leaf-first is idle blocks without a resident child. (reference)"),
    click.option("--free-order", default="prepend", metavar="HOW", help="Position of freed unhashed blocks in the free queue: prepend, or append as before May 2026. (vllm)"),
    click.option("--tree", default="unified", metavar="WHICH", help="Tree of the cache: unified, or radix as in earlier versions. (sglang)"),
    click.option("--watermark", default="off", metavar="HOW", help="on: evict a fifth of the blocks at 80 % use. (lmcache)"),
    ENGINE_BLOCK_SIZE,
    RETENTION,
    click.option("--tiers", metavar="NAME=C,...", help="Tiers of blocks, fastest first, in place of --capacity. Example: hbm=5000,dram=50000; with --gpu hbm=5000,dram=50000@25GB, with bytes per second."),
    click.option("--inclusive", is_flag=True, help="A tier also holds the blocks of the tiers above it.  [default: exclusive]"),
    click.option("--instances", type=click.IntRange(1), metavar="N", help="Number of instances behind a router, each with its own cache."),
)
IN_TIME = with_options(
    click.option("--seed", "router_seed", type=click.IntRange(0), metavar="N", help="Seed of --router dynamo, which draws among instances of equal cost, and of --start-inside.  [default: 0]"),
    click.option("--gpu", "gpu_name", metavar="G", cls=RowsOption, rows=completion.gpus, help="With --model: simulate serving in time on {rows}, or a JSON file; prints TTFT and TPOT."),
    click.option("--gpus", type=click.IntRange(1), metavar="N", help="With --gpu or --costs: GPUs per instance.  [default: 1; with --costs as many as were measured]"),
    COSTS,
    EXTRAPOLATE,
    click.option("--step-tokens", type=click.IntRange(1), metavar="N", help="Largest number of tokens in a step: of an instance in time, or of a prompt for a --model with windows or states.  [default: 8192; with --costs as measured]"),
    click.option("--max-requests", type=click.IntRange(1), metavar="N", help="In time: largest number of requests that an instance serves at once.  [default: 1024 for vllm, 2048 for sglang, else 256; with --costs as measured]"),
    click.option("--scheduler", "scheduler_options", metavar="K=V,...", help="In time, with --engine vllm, sglang or dynamo: options of its scheduler, with the engine's own names. Example: watermark=0.01,async_scheduling=off."),
    loop_options,
)
LOOP_WARM_UP = click.option("--warm-up", default="0", metavar="N", help="Do not count the first requests: a number (1000), a share (10%) or a time (10m); with --loop closed a number of each lane.")


class Times(NamedTuple):
    """The engines of a command's options, and what decides the times of their simulations; None without times."""

    engines: list[str]
    grouped: list[str]  # engines whose cache groups are modelled
    has_groups: bool  # one of them serves a model with cache groups
    roofline: Any
    costs: Any
    cost: Any
    loop: Any
    schedulers: dict[str, Any] | None  # engine -> its scheduler


def times_of(
    engine_names: str | None, policies: str, routers: str | None, *, model_config: Any, gpu_name: Any, gpus: int | None, costs_file: Any,
    step_tokens: int | None, max_requests: int | None, scheduler_options: str | None, loop: str, warm_up: str, router_seed: int | None, **closed: Any,
) -> Times:  # fmt: skip
    """The engines and the times of a command's options; UsageError if they do not fit together."""
    from .._base.units import names
    from ..serving.models.engine_layout import LAYOUTS, has_groups

    timed = bool(gpu_name or costs_file)
    engines = names(engine_names or ("vllm" if timed and policies == "lru" else "reference"))
    roofline, costs = roofline_of(model_config, gpu_name, costs_file, gpus, engines)
    cost = _step_cost(roofline, engines)
    grouped = [] if timed and "vllm" not in engines else ["vllm"] if timed else engines
    chunked = bool(model_config and not timed and has_groups(model_config))
    if not cost and ((step_tokens and not chunked) or max_requests or scheduler_options):
        raise click.UsageError("--step-tokens, --max-requests and --scheduler need --gpu, --costs or --engine dynamo.")
    closed_loop = closed_loop_of(loop, seed=router_seed, warm_up=warm_up if loop == "closed" else "0", **closed)
    if closed_loop and not cost:
        raise click.UsageError("--loop closed is a simulation in time. Add --gpu and --model, or --engine dynamo.")
    if router_seed is not None and "dynamo" not in names(routers or "round-robin") and not (closed_loop and closed_loop.start == "inside"):
        raise click.UsageError("--seed needs --router dynamo or --start-inside.")
    schedulers = _schedulers(engines, costs, step_tokens, max_requests, scheduler_options) if cost else None
    return Times(engines, grouped, bool(chunked and LAYOUTS.keys() & engines), roofline, costs, cost, closed_loop, schedulers)


def needs_of(times: Times, mode: str, schedule: str | None, over_time: Any, instances: int | None) -> list[str]:
    """What the result of a command's options uses of a trace, of `kvtrace.trace.unknown.NEEDS`."""
    overlaps = bool(times.cost) or (schedule or ("open-loop" if instances else "")).startswith("open-loop")
    outputs = ["outputs"] if overlaps or mode == "grow" else []
    return ["prefixes", *outputs, *(["times"] if overlaps or over_time else [])]


def caches_of(trace: Any, times: Times, units: dict[str, Any], layouts: dict[str, Any], *, capacity: str, tiers: str | None) -> dict[str, Any]:
    """The options of `simulate_all` that hold blocks: capacities of each engine, tiers, and schedulers."""
    from ..analysis.capacities import parse_capacities, parse_capacity
    from ..cache.tiered import parse_tiers
    from ..serving.schedulers.base import parse_timed_tiers

    roofline = times.roofline
    lower: Sequence[Any] = ()
    parse = partial(parse_capacity, **units)
    if roofline and tiers:
        first, lower = parse_timed_tiers(tiers, parse, trace.block_size * roofline.model.kv_bytes_per_token)
        tiers, capacity = None, str(first)
    sizes = {engine: engine_units(layouts.get(engine), trace.block_size, units) for engine in times.engines}
    capacities: dict[str, Any] | None = None
    if roofline and capacity == "auto":
        room = _room(times) * roofline.model.kv_bytes_per_token  # bytes
        capacities = {engine: [max(room // own.get("block_bytes", trace.block_size * roofline.model.kv_bytes_per_token), 1)] for engine, own in sizes.items()}
    elif capacity != "auto" and not tiers:
        capacities = {engine: dict.fromkeys(parse_capacities(capacity, **own)) for engine, own in sizes.items()}
    return {"capacities": capacities, "tiers": parse_tiers(tiers, parse) if tiers else None, "lower": lower, "schedulers": times.schedulers}


def _room(times: Times) -> int:
    """The tokens that the GPUs of an instance hold."""
    holds = partial(times.costs.capacity_tokens, times.roofline) if times.costs else lambda one: times.roofline.capacity_tokens(one.step_tokens, one.requests)
    return min(holds(scheduler.limits) for scheduler in (times.schedulers or {}).values())


def _step_cost(roofline, engines):
    """The time of a step on a GPU, else the one that an engine has of its own; None for a simulation without times."""
    from ..serving.planning.planning import step_cost
    from ..serving.schedulers import cost_of

    return step_cost(roofline) if roofline else cost_of(engines)


def _schedulers(engines, costs, step_tokens, max_requests, scheduler_options):
    """Engine -> its scheduler with the options of the command."""
    from ..serving.schedulers import BatchLimits, scheduler_of
    from ..serving.schedulers.base import with_options

    made = {}
    for engine in engines:
        scheduler = scheduler_of(engine)
        own = costs.batch_limits if costs else scheduler.limits
        scheduler = scheduler.limited(BatchLimits(step_tokens or own.step_tokens, max_requests or own.requests))
        made[engine] = with_options(scheduler, scheduler_options) if scheduler_options else scheduler
    return made


@contextmanager
def hint_on_commas(trace: Any, capacity: str) -> Iterator[None]:
    """Add to an error how to write `--capacity 20,208` as one number, if that can be what is meant."""
    from .._base.errors import UsageError
    from ..analysis.capacities import hint_on_commas as hint_of

    try:
        yield
    except UsageError as error:
        if hint := hint_of(capacity, int(trace.prompt_blocks.max(initial=1))):
            error.add_note(hint)
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

        if (failed := failure(error)) is None:
            raise
        policy, place = failed
        message = f": {error}" if str(error) else ""  # safe: a policy sees numbers only, no content
        raise UsageError(f"The policy failed: {policy}, {place}{message}") from error
    finally:
        sys.path.remove("")
