"""`kvtrace explain`: why prompt tokens were not hits, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import click

from ..serving.routers import ROUTERS
from . import completion
from .deployment_options import deployment_json, deployment_notes, expected_errors
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
    remarks_of,
    require_one,
)
from .output import Outcome, console, print_lines, print_notes, print_result, print_tables
from .simulation_options import (
    CACHE,
    IN_TIME,
    LOOP_WARM_UP,
    capacity_as_written,
    kv_bytes_of,
    needs_of,
    own_policies,
    run_of,
    with_caches,
    with_layouts,
)

if TYPE_CHECKING:
    from ..serving.run import Run


@click.command("explain", cls=Command, types={
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
def explain_command(trace, capacity, policy, ttl, tiers, over_time, per_request, warm_up, quiet, **options):
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
    from ..serving.misses.explanation import expiring, explain_run
    from ..trace.domains import in_domains

    as_json, as_csv, no_cures, input_price = (options[name] for name in ("as_json", "as_csv", "no_cures", "input_price"))
    require_one(as_json, as_csv)
    if per_request == "-" and (as_json or as_csv):
        raise UsageError(f"--per-request - and {'--json' if as_json else '--csv'} both write to stdout. Use one of them.")
    if as_csv and over_time and options["by_session"]:
        raise UsageError("With --csv, use one of --over-time and --by-session.")
    write_figure = figure_writer(options["png"], options["svg"], quiet)
    run = run_of(options, engines=options["engine"], policies="ttl" if ttl else policy, warm_up=warm_up, routers=options["router"])
    kv_bytes = kv_bytes_of(run, options)
    if len(run.cache.engines) != 1:
        raise click.UsageError("--engine: name one engine. kvtrace simulate compares several.")
    if input_price is not None and (no_cures or as_csv):
        raise click.UsageError(f"--input-price needs what {'--no-cures' if no_cures else '--csv'} leaves out. Leave out one of them.")
    if not (capacity or tiers or run.time.roofline):
        raise click.UsageError("Missing option '--capacity'. kvtrace curve shows hits by capacity.")
    loaded = reading.read(trace, block_size=options["block_size"])
    loaded = assumed(loaded.chained() if options["chain"] else loaded, options["assume_output"])
    viewed = in_domains(loaded, run.cache.domains)
    run = with_layouts(run, options, loaded.block_size)
    units = {"block_size": loaded.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    with write_atomically(per_request) if per_request else nullcontext() as stream:
        with RequestProgress(console(), quiet) as bar, own_policies(), capacity_as_written(capacity or "auto", loaded, units):
            progress = _Progress(bar)
            progress.expect(len(loaded))
            first = 0 if run.loop else leading_rows(warm_up, loaded.timestamp)
            run = _one_setting(with_caches(run, loaded, units, capacity=capacity or "auto", tiers=tiers))
            run = run.changed(policies=(expiring(policy, ttl),), routers=(options["router"],) if options["router"] else None, warm_up=first)
            explanation = explain_run(loaded, run, bar.update)
            beyond = extrapolations(run.time.costs, [explanation.simulation], allowed=run.time.extrapolate)
            cures = None if no_cures or as_csv or per_request == "-" else cures_of(
                explanation, roofline=run.time.roofline, kv_bytes_per_token=kv_bytes, prices=None if input_price is None else Prices(input_price / 1e6), on_start=progress.expect, on_progress=bar.update,
            )  # fmt: skip
        if stream:
            explanation_report.write_per_request(explanation, stream)
    windows = explanation.over_time(over_time) if over_time is not None else None
    sessions = explanation.by_session() if options["by_session"] else None
    prefill_s = None if run.time.roofline is None else prefill_by_cause(explanation, run.time.roofline)
    remarks = remarks_of(viewed, *needs_of(run, over_time))
    expected = expected_errors([explanation.simulation])
    if as_json:
        parts = {"deployment": deployment_json(run.time), "prefill_s": prefill_s, "cures": None if cures is None else cures.to_dict(), "over_time": windows, "by_session": sessions}
        present = {name: part for name, part in parts.items() if part is not None}
        print_result(explanation.to_dict() | present, remarks, as_json=True, as_csv=None)
    elif as_csv:
        text = explanation_report.as_csv(explanation, windows if windows is not None else sessions)
        print_result({}, remarks, as_json=False, as_csv=text, notes=expected)
    elif per_request != "-":  # stdout has the CSV
        _print(explanation, prefill_s, windows, sessions, cures)
        print_notes([*deployment_notes(run.time), *remarks.values(), *expected])
    if not quiet:
        print_lines([("warning", warning) for warning in [*run.time.deployment.warnings, *beyond]])
        print_lines([("wrote", per_request)] if per_request not in (None, "-") else [])
    write_figure(explanation)
    return Outcome(replace(explanation, cures=cures))


def _print(explanation, prefill_s, windows, sessions, cures):
    """Print the tables: the causes, those of windows and sessions, and what would help."""
    from ..report import explanation_tables as explanation_report

    print_tables(explanation_report.tables(explanation, prefill_s))
    groups = [(explanation_report.window_table, windows), (explanation_report.session_table, sessions)]
    detailed = [table_of(rows) for table_of, rows in groups if rows is not None]
    if cures is not None and len(cures):
        detailed.append(explanation_report.cure_table(cures))
    print_notes([*explanation_report.notes(explanation), *([""] if detailed else [])])
    print_tables(detailed)
    print_notes([] if cures is None else explanation_report.cure_notes(cures))


class _Progress:
    """The requests of all simulations so far."""

    def __init__(self, bar: Any) -> None:
        self._bar, self._requests = bar, 0

    def expect(self, requests: int) -> None:
        """Add the requests of a simulation."""
        self._requests += requests
        self._bar.expect(self._requests)


def _one_setting(run: Run) -> Run:
    """The run with the one capacity of its engine; UsageError if there are several."""
    from .._base.errors import UsageError

    (engine,) = run.cache.engines
    capacities = run.cache.capacities
    sizes = None if capacities is None else list(cast(Mapping[str, Iterable[int]], capacities)[engine])
    if sizes is not None and len(sizes) != 1:
        raise UsageError("--capacity: name one capacity. kvtrace simulate compares several.")
    layouts = run.cache.layouts or {}
    return run.changed(capacities=sizes, engines=(engine,), layouts={engine: layouts[engine]} if engine in layouts else None, gap=False)
