"""`kvtrace explain`: why prompt tokens were not hits, and what would help."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from ..serving.routers import ROUTERS
from . import completion
from .help import Command
from .options import (
    ASSUME_OUTPUT,
    BLOCK_SIZE,
    CHAIN,
    DOMAINS,
    FIGURE,
    KV_BYTES,
    MODEL_CONFIG,
    QUIET,
    RowsOption,
    assumed,
    extrapolations,
    figure_writer,
    json_option,
    layouts_of,
    remarks_of,
    require_one,
)
from .output import console, print_lines, print_notes, print_result, print_tables
from .simulation_options import (
    CACHE,
    IN_TIME,
    LOOP_NAMES,
    LOOP_WARM_UP,
    caches_of,
    hint_on_commas,
    needs_of,
    own_policies,
    times_of,
)


@click.command("explain", cls=Command, groups={"--seed": "Instances and time"}, types={
    "--policy": completion.Name(completion.policies), "--engine": completion.Name(completion.engines), "--router": completion.Name(completion.routers),
}, examples=(
    "kvtrace explain trace.jsonl --capacity 25%",
    "kvtrace explain trace.jsonl --capacity 400 --instances 4 --router round-robin --per-request causes.csv",
    "kvtrace explain trace.jsonl --capacity 400 --ttl 5m --over-time 10m",
    "kvtrace explain trace.jsonl --gpu h100 --model llama-3.1-8b",
))
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", metavar="C", help="Capacity of the cache. Example: 1000, 64ktokens, 24GiB or 50%. A plain number is blocks; % is of the working set.  [default: with --gpu what the GPUs hold; otherwise required]")
@click.option("--policy", default="lru", metavar="P", help="Eviction order: a name that kvtrace simulate lists, or your class as module:Class.")
@click.option("--ttl", metavar="TIME", help="Blocks that were not used for this time expire: the policy ttl. Example: 5m.")
@click.option("--engine", "engine", metavar="E", cls=RowsOption, rows=completion.engines, help="Engine whose cache is simulated: {rows}.  [default: reference; with --gpu and the policy lru vllm]")
@CACHE
@click.option("--router", metavar="R", help=f"With --instances: {', '.join(ROUTERS)}.  [default: round-robin]")
@IN_TIME
@DOMAINS
@LOOP_WARM_UP
@click.option("--over-time", metavar="WINDOW", help="Also print the causes of each time window. Example: 10m.")
@click.option("--by-session", is_flag=True, help="Also print the causes of each session.")
@click.option("--per-request", metavar="FILE", help="Also write the causes of each request as CSV; - writes it to stdout in place of the tables.")
@click.option("--no-cures", is_flag=True, help="Do not compute what would help; it takes some more simulations.")
@click.option("--input-price", type=click.FloatRange(0), metavar="USD", help="Price of a provider for a million input tokens: adds what a change saves on its bill.")
@json_option("serving/explain.md")
@click.option("--csv", "as_csv", is_flag=True, help="Print the tokens of each cause as CSV: one row, or one for each window or session.")
@FIGURE
@MODEL_CONFIG
@KV_BYTES
@ASSUME_OUTPUT
@BLOCK_SIZE
@CHAIN
@QUIET
def explain_command(trace, assume_output, capacity, policy, ttl, engine, tiers, router, router_seed, domains, warm_up, over_time, by_session, per_request, no_cures, input_price, as_json, as_csv, png, svg, model_config, kv_bytes_per_token, block_size, chain, quiet, gpu_name, gpus, costs_file, extrapolate, step_tokens, max_requests, scheduler_options, engine_block_size, retention, loop, **options):
    """Explain misses: one cause for each prompt token.

    One setting is simulated, as kvtrace simulate does. Each prompt token then has one cause, such as hit, evicted or
    new, and each change that would make more of them hits has a value. TRACE - is stdin.
    """
    from .._base.errors import UsageError
    from .._base.output_files import write_atomically
    from .._base.units import leading_rows
    from ..formats import reading
    from ..report import explanation_tables as explanation_report
    from ..report.progress import RequestProgress
    from ..serving.hardware import Prices
    from ..serving.misses.baseline import prefill_by_cause
    from ..serving.misses.cures import cures_of
    from ..serving.misses.explanation import explain
    from ..serving.models.layers import chosen
    from ..trace.domains import in_domains

    require_one(as_json, as_csv)
    if per_request == "-" and (as_json or as_csv):
        raise UsageError(f"--per-request - and {'--json' if as_json else '--csv'} both write to stdout. Use one of them.")
    if as_csv and over_time and by_session:
        raise UsageError("With --csv, use one of --over-time and --by-session.")
    write_figure = figure_writer(png, svg, quiet)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    window_ms = over_time
    times = times_of(
        engine, "ttl" if ttl else policy, router, model_config=model_config, gpu_name=gpu_name, gpus=gpus, costs_file=costs_file,
        step_tokens=step_tokens, max_requests=max_requests, scheduler_options=scheduler_options, loop=loop, warm_up=warm_up, router_seed=router_seed,
        **{name: options.pop(name) for name in LOOP_NAMES},
    )  # fmt: skip
    if len(times.engines) != 1:
        raise click.UsageError("--engine: name one engine. kvtrace simulate compares several.")
    if capacity and tiers:
        raise click.UsageError("--tiers has the capacities. Leave out --capacity.")
    if input_price is not None and (no_cures or as_csv):
        raise click.UsageError(f"--input-price needs what {'--no-cures' if no_cures else '--csv'} leaves out. Leave out one of them.")
    if not (capacity or tiers or times.roofline):
        raise click.UsageError("Missing option '--capacity'. kvtrace curve shows hits by capacity.")
    loaded = reading.read(trace, block_size=block_size)
    loaded = assumed(loaded.chained() if chain else loaded, assume_output)
    viewed = in_domains(loaded, domains)
    layouts = layouts_of(model_config, times.grouped, loaded.block_size, engine_block_size, retention, step_tokens, gpu_name)
    units = {"block_size": loaded.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with RequestProgress(console(), quiet) as bar, own_policies(), hint_on_commas(loaded, capacity or "auto"):
            progress = _Progress(bar)
            progress.expect(len(loaded) * (2 if times.loop else 1))
            done = explain(
                loaded, policy=policy, ttl=ttl, router=router, router_seed=router_seed or 0, cost=times.cost, loop=times.loop, domains=domains,
                warm_up=0 if times.loop else leading_rows(warm_up, loaded.timestamp), on_progress=bar.update,
                **_one(times, caches_of(loaded, times, units, layouts, capacity=capacity or "auto", tiers=tiers), layouts), **options,
            )  # fmt: skip
            beyond = extrapolations(times.costs, [done.simulation], allowed=extrapolate)
            cures = None if no_cures or as_csv or per_request == "-" else cures_of(
                done, roofline=times.roofline, kv_bytes_per_token=kv_bytes, prices=None if input_price is None else Prices(input_price / 1e6), on_start=progress.expect, on_progress=bar.update,
            )  # fmt: skip
        if stream:
            explanation_report.write_per_request(done, stream)
    windows = done.over_time(window_ms) if window_ms is not None else None
    sessions = done.by_session() if by_session else None
    prefill_s = None if times.roofline is None else prefill_by_cause(done, times.roofline)
    remarks = remarks_of(viewed, *needs_of(times, options["mode"], options["schedule"], over_time, options["instances"]))
    if as_json:
        parts = {"prefill_s": prefill_s, "cures": None if cures is None else cures.to_dict(), "over_time": windows, "by_session": sessions}
        known_parts = {name: part for name, part in parts.items() if part is not None}
        print_result(done.to_dict() | known_parts, remarks, as_json=True, as_csv=None)
    elif as_csv:
        text = explanation_report.as_csv(done, windows if windows is not None else sessions)
        print_result({}, remarks, as_json=False, as_csv=text)
    elif per_request != "-":  # stdout has the CSV
        _print(done, prefill_s, windows, sessions, cures)
        print_notes(remarks.values())
    if not quiet:
        print_lines([("warning", one) for one in beyond])
        print_lines([("wrote", per_request)] if per_request not in (None, "-") else [])
    write_figure(done)


def _print(done, prefill_s, windows, sessions, cures):
    """Print the tables: the causes, those of windows and sessions, and what would help."""
    from ..report import explanation_tables as explanation_report

    print_tables(explanation_report.tables(done, prefill_s))
    groups = [(explanation_report.window_table, windows), (explanation_report.session_table, sessions)]
    made = [table_of(rows) for table_of, rows in groups if rows is not None]
    if cures is not None and len(cures):
        made.append(explanation_report.cure_table(cures))
    print_notes([*explanation_report.notes(done), *([""] if made else [])])
    print_tables(made)
    print_notes([] if cures is None else explanation_report.cure_notes(cures))


class _Progress:
    """The requests of all simulations so far."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._requests = bar, 0

    def expect(self, requests: int) -> None:
        """Add the requests of a simulation."""
        self._requests += requests
        self._bar.expect(self._requests)


def _one(times: Any, caches: dict[str, Any], layouts: dict[str, Any]) -> dict[str, Any]:
    """The options of `explain`, from those of `simulate_all` for one engine."""
    from .._base.errors import UsageError

    (engine,) = times.engines
    capacities = list((caches.pop("capacities") or {}).get(engine, [None]))
    if len(capacities) != 1:
        raise UsageError("--capacity: name one capacity. kvtrace simulate compares several.")
    return {
        "engine": engine, "capacity": capacities[0], "tiers": caches["tiers"], "lower": caches["lower"], "layout": layouts.get(engine),
        "scheduler": (caches["schedulers"] or {}).get(engine),
    }  # fmt: skip
