"""`kvtrace simulate`: what a prefix cache would have hit."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext

import click

from ..serving.routers import ROUTERS
from .large import MEMORY
from .output import console, print_json, print_tables


class RowsOption(click.Option):
    """An option whose help names the rows of a table in place of `{rows}`; the table is imported only to print it."""

    def __init__(self, *arguments, rows, **options):
        super().__init__(*arguments, **options)
        self.rows = rows

    def get_help_record(self, ctx):
        self.help = self.help.replace("{rows}", self.rows())
        return super().get_help_record(ctx)


def _policies():
    from ..cache.policies import POLICIES

    names = [row.example if row.required else name for name, row in POLICIES.items() if not row.bound]
    bounds = [name for name, row in POLICIES.items() if row.bound]
    return f"{', '.join(names)}, a class of yours as module:Class; upper bounds: {', '.join(bounds)}"


def _engines():
    from ..cache.engines import ENGINES

    return ", ".join(ENGINES)


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--policy", "policies", default="lru", metavar="P,...", cls=RowsOption, rows=_policies, help="Eviction policies: {rows}.")
@click.option("--capacity", default="auto", metavar="C,...", help="Capacities, as in 1000,64ktokens,24GiB,50%; a number alone is blocks, % is of the working set. auto: ten from the longest request to the working set.")
@click.option("--engine", "engine_names", default="reference", metavar="E,...", cls=RowsOption, rows=_engines, help="Whose cache: {rows}.")
@click.option("--mode", default="block", metavar="M", help="block: each id a full block. token: true lengths. grow: outputs are cached too.")
@click.option("--schedule", default="serial", metavar="S", help="When requests end. serial: before the next one arrives. concurrency:N: N are active at once. open-loop:MS: MS per output token after arrival.")
@click.option("--capacity-counts", default="total", metavar="WHAT", help="total: live and idle blocks. idle: the idle alone. (reference)")
@click.option("--pool", default="flat", metavar="WHICH", help="flat: any idle block may go. leaf-first: none that has a resident child. (reference)")
@click.option("--free-order", default="prepend", metavar="HOW", help="Where unhashed blocks go when freed: prepend, or append as before May 2026. (vllm)")
@click.option("--watermark", default="off", metavar="HOW", help="on: a fifth is evicted at 80 % use. (lmcache)")
@click.option("--tiers", metavar="NAME=C,...", help="Tiers in place of --capacity, as in hbm=5000,dram=50000.")
@click.option("--inclusive", is_flag=True, help="Tiers hold what those above them hold.  [default: exclusive]")
@click.option("--instances", type=click.IntRange(1), metavar="N", help="So many instances, each with a cache of its own, behind a router.")
@click.option("--router", "routers", metavar="R,...", help=f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]")
@click.option("--gpu", "gpu_name", metavar="G", help="With --model-config: serve the trace in time, on h100, h200, a100 or a JSON file's; says TTFT and TPOT.")
@click.option("--gpus", default=1, type=click.IntRange(1), metavar="N", help="With --gpu: GPUs of an instance.")
@click.option("--warm-up", default="0", metavar="N", help="Count only what comes after so many requests (1000), share (10%) or time (10m).")
@click.option("--over-time", metavar="WINDOW", help="Also the counts of each window of time, as in 10m.")
@click.option("--per-request", metavar="FILE", help="Also write each request's hit blocks, as CSV.")
@click.option("--no-gap", is_flag=True, help="Leave out the comparison with the offline optimum, which takes a simulation a capacity.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/cache/simulate.md lists its keys.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--threads", type=click.IntRange(1), metavar="N", help="Simulations at once.  [default: one a core]")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
def simulate(trace, as_json, as_csv, per_request, model_config, kv_bytes_per_token, block_size, chain, over_time, warm_up, memory, quiet, gpu_name, gpus, **options):
    """Say what a prefix cache would have hit: an engine's, with any eviction order, at any capacity; TRACE - is stdin."""
    from dataclasses import replace

    from .._base.errors import UsageError
    from .._base.files import write_atomically
    from .._base.lists import leading_rows
    from .._base.units import milliseconds
    from ..report import simulation as shown
    from ..report.progress import Requests
    from ..serving.hardware import roofline_of
    from ..serving.hardware.kv_bytes import chosen

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other. Give one of them.")
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    window_ms = milliseconds(over_time) if over_time else None
    options["roofline"] = roofline_of(model_config, gpu_name, gpus)
    read = _read(trace, block_size, chain, memory, quiet, {"per_request": per_request, "over_time": over_time} | options)
    units = {"block_size": read.block_size, "working_set": read.working_set, "kv_bytes_per_token": kv_bytes}
    skipped = leading_rows(warm_up, read.timestamp)
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with Requests(console(), quiet) as bar, _policies_of_the_user():
            done, optimum = _simulated(read, units, bar, **options)
        done, optimum = ([replace(one, warm_up=skipped) for one in many] for many in (done, optimum))
        if stream:
            shown.write_per_request(done, stream)
    best = {one.setting.capacity: one for one in optimum}
    values = shown.to_dict(read, [
        shown.result(one, best.get(one.setting.capacity), kv_bytes_per_token=kv_bytes, window_ms=window_ms) for one in done
    ])  # fmt: skip
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(shown.as_csv(values["results"]), nl=False)
    else:
        print_tables(shown.tables(values))


def _read(trace, block_size, chain, memory, quiet, options):
    """The trace; of a folder of parts, all columns with ids of 32 bits, which is what a simulation wants."""
    from ..formats import trace_files as formats
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import whole
    from .large import opened, say

    parts, most = opened(trace, memory, block_size)
    if parts is None or chain:
        if parts is not None:
            say(whole(parts, "--chain"), most, quiet)
        read = formats.read(trace, block_size=block_size)
        return read.chained() if chain else read
    say(_need(parts, **options), most, quiet)
    return LazyTrace(parts, ids=True)


def _need(parts, *, policies, capacity, engine_names, mode, schedule, tiers, no_gap, threads, inclusive, per_request, over_time, instances, routers, roofline, **engine_options):
    """The memory that the simulations will take; which capacities they have makes no difference, how many does."""
    from .._base.lists import names
    from ..cache.engines import non_default
    from ..cache.many_settings import optimum_of, settings_of
    from ..cache.schedules import parse_schedule
    from ..formats.memory_needs import simulating

    count = 10 if capacity == "auto" else len(names(capacity))
    common = {"mode": mode, "schedule": parse_schedule(schedule), "engine_options": non_default(engine_options)}
    settings = settings_of(range(1, count + 1), names(policies), names(engine_names), **common)
    bounds = [] if no_gap or tiers else [optimum_of(one) for one in settings]
    beyond = "--tiers" if tiers else "--instances" if instances else "--gpu" if roofline else "--over-time" if over_time else None
    return simulating(parts, dict.fromkeys(settings + bounds), threads, per_request=bool(per_request), beyond=beyond)


@contextmanager
def _policies_of_the_user():
    """Find classes in the folder where the command runs, and let what goes wrong in one be told as theirs."""
    import traceback

    from .._base.errors import KvtraceError, UsageError
    from .._base.workers import place_of
    from ..cache.policies import VERBS

    sys.path.insert(0, "")
    try:
        yield
    except (KvtraceError, MemoryError):
        raise
    except Exception as error:
        through = {frame.name.rpartition(".")[2] for frame in traceback.extract_tb(error.__traceback__)}
        if not through & {"_users", *VERBS}:
            raise
        said = f": {error}" if str(error) else ""  # a policy sees numbers only, no content
        raise UsageError(f"the policy failed, {place_of(error)}{said}") from error
    finally:
        sys.path.remove("")


def _simulated(trace, units, bar, *, policies, capacity, engine_names, mode, schedule, tiers, inclusive, no_gap, threads, instances, routers, roofline, **engine_options):
    """The simulations that were asked for, and the offline optimum at each of their capacities."""
    from functools import partial

    from .._base.errors import UsageError
    from .._base.lists import names
    from ..analysis.capacities import parse_capacities
    from ..cache.engines import non_default
    from ..cache.many_settings import optimum_of, settings_of, simulate_settings
    from ..cache.schedules import parse_schedule
    from ..cache.tiered import parse_tiers, simulate_tiers
    from ..serving.instances import simulate_instances
    from ..serving.planning import step_cost
    from ..serving.simulation import simulate_serving

    common = {
        "mode": mode,
        "schedule": parse_schedule(schedule),
        "engine_options": non_default(engine_options),
    }
    wanted, engines = names(policies), names(engine_names)
    if (routers and not instances) or (tiers and (instances or roofline)):
        raise UsageError("--router needs --instances; --tiers does not go with --instances or --gpu.")
    if tiers:
        sizes = parse_tiers(tiers, lambda text: parse_capacities(text, **units)[0])
        settings = settings_of([1], wanted, engines, **common)
        bar.expect(len(trace) * len(settings) * (len(sizes) if inclusive else 1))
        runs = [simulate_tiers(trace, sizes, one.policy, exclusive=not inclusive, setting=one, on_progress=bar.update) for one in settings]
        return runs, []
    if roofline and capacity == "auto":
        capacity = str(roofline.kv_capacity_tokens // trace.block_size)
    capacities = _auto(trace, mode) if capacity == "auto" else parse_capacities(capacity, **units)
    settings = settings_of(dict.fromkeys(capacities), wanted, engines, **common)
    if instances or roofline:
        by = [(router, one) for router in names(routers or "round-robin") for one in settings]
        bar.expect(len(trace) * len(by))
        if roofline:
            served = partial(simulate_serving, trace, step_cost(roofline), instances=instances or 1, on_progress=bar.update)
            return [served(setting=one, router=router) for router, one in by], []
        return [simulate_instances(trace, instances, router, setting=one, on_progress=bar.update) for router, one in by], []
    bounds = [] if no_gap else list(dict.fromkeys(optimum_of(one) for one in settings))
    every = list(dict.fromkeys(settings + bounds))
    bar.expect(len(trace) * len(every))
    done = dict(zip(every, simulate_settings(trace, every, threads=threads, on_progress=bar.update), strict=True))
    return [done[one] for one in settings], [done[one] for one in bounds]


def _auto(trace, mode, points=10):
    """Capacities from the longest request to the working set."""
    from ..analysis.capacities import spread
    from ..cache.demand import block_demand

    most = block_demand(trace, mode).max_blocks
    return spread(int(most.max(initial=1)), max(trace.working_set, int(most.max(initial=1))), points)
