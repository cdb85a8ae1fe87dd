"""`kvtrace tune`: the best setting of each eviction policy, and the gap to the optimum that it closes."""

from __future__ import annotations

import click

from .help import Command
from .options import CSV, DOMAINS, STREAMED, json_option, load, remarks_of, require_one
from .output import Outcome, console, print_lines, print_notes, print_result, print_tables
from .simulation_options import capacity_as_written


@click.command("tune", cls=Command, groups={"--table": "Cache", "--save-table": "Output"}, examples=(
    "kvtrace tune trace.jsonl --capacity 25%",
    "kvtrace tune trace.jsonl --capacity 400,50% --policy slru,lhd,reuse-density --pool leaf-first",
    "kvtrace tune trace.jsonl --capacity 25% --policy reuse-density --save-table table.json",
))
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", required=True, metavar="C,...", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set.")
@click.option("--policy", "policies", metavar="P,...", help="Eviction policies, without parameters.  [default: all that the trace has what they need for]")
@click.option("--pool", "pools", default="flat,leaf-first", metavar="WHICH,...", help="Blocks that can be evicted: flat, leaf-first, as in simulate.")
@click.option("--table", "table_file", metavar="FILE", help="Table of reuse-density.  [default: one trained on the first half]")
@click.option("--save-table", metavar="FILE", help="Also write the table of reuse-density, for --policy reuse-density:FILE.")
@DOMAINS
@json_option("cache/sweep.md")
@CSV
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of simulations at a time.  [default: one for each core]")
@STREAMED
def tune_command(trace, capacity, policies, save_table, as_json, as_csv, quiet, **options):
    """Find the best setting of each eviction policy.

    Settings are chosen by the hits of the first half of the requests, and the hits of the second half are the result:
    the share of the gap from lru to belady that each policy closes. TRACE - is stdin.
    """
    from .._base.errors import UsageError, wrong_word
    from .._base.units import names
    from ..analysis.capacities import parse_capacities
    from ..cache.structures.reuse_table import read_table
    from ..cache.tuning import POOLS, tune
    from ..report import capacity_tables
    from ..report.progress import RequestProgress
    from ..serving.models.layers import chosen
    from ..trace.domains import in_domains

    require_one(as_json, as_csv)
    table, pools = read_table(options["table_file"]) if options["table_file"] else None, names(options["pools"])
    if wrong := [pool for pool in pools if pool not in POOLS]:
        raise wrong_word(wrong[0], "a pool", POOLS)
    loaded = load(trace, options["memory"], quiet, _memory_need, block_size=options["block_size"], chain=options["chain"], ids=True)
    viewed = in_domains(loaded, options["domains"])
    kv_bytes = chosen(options["model_config"], options["kv_bytes_per_token"])
    units = {"block_size": viewed.block_size, "working_set": viewed.working_set, "kv_bytes_per_token": kv_bytes}
    capacities = parse_capacities(capacity, **units)
    with RequestProgress(console(), quiet) as bar, capacity_as_written(capacity, viewed, units):
        tuned = tune(
            viewed, dict.fromkeys(capacities), names(policies) if policies else None, pools=pools, table=table,
            threads=options["workers"], on_start=bar.expect, on_progress=bar.update,
        )  # fmt: skip
    if save_table:
        if tuned.table is None:
            raise UsageError(f"--save-table needs the policy reuse-density. {tuned.skipped.get('reuse-density', 'Add it to --policy.')}")
        tuned.table.write(save_table)
    remarks = remarks_of(viewed, "prefixes")
    if not print_result(tuned.to_dict(), remarks, as_json=as_json, as_csv=capacity_tables.tune_csv(tuned) if as_csv else None):
        print_tables(capacity_tables.tune_tables(tuned))
        print_notes([*capacity_tables.tune_notes(tuned), *remarks.values()])
    if not quiet:
        print_lines([("wrote", save_table)] if save_table else [])
    return Outcome(tuned)


def _memory_need(dataset):
    """The memory of a policy with heaps on a trace in memory, which belady needs too."""
    from ..cache.setup import CacheSetup
    from ..formats.memory_needs import simulating

    return simulating(dataset, CacheSetup([1], ["belady"]).settings(), None, per_request=False, beyond="kvtrace tune")
