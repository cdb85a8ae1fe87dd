"""`kvtrace curve`: how often an LRU cache of each capacity hits."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import print_json, print_tables


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", default="auto", metavar="LIST", help="Capacities, as in 1000,64ktokens,24GiB,50%; a number alone is blocks, % is of the working set. auto: from the longest request to the working set.")
@click.option("--points", default=25, type=click.IntRange(1, 10_000), metavar="N", help="How many capacities auto takes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/analysis/curve.md lists its keys.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values with a header.")
@click.option("--sample", type=float, metavar="SHARE", help="Estimate from this share of the blocks, with errors.  [default: all, exact]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="What the sample is drawn with.")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
def curve(trace, capacity, points, as_json, as_csv, sample, seed, model_config, kv_bytes_per_token, block_size, chain, memory, quiet):
    """Say how often an LRU cache of each capacity hits, exactly, in one pass; TRACE - is stdin."""
    from .._base.errors import UsageError
    from ..analysis.capacities import parse_capacities
    from ..analysis.curves import hit_curve
    from ..report import curve_tables as shown
    from ..serving.hardware.kv_bytes import chosen

    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other. Give one of them.")
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    read, at_most = _read(trace, sample, block_size, chain, memory, quiet)
    found = hit_curve(read, sample=sample, seed=seed, max_references=at_most)
    units = {"block_size": found.block_size, "working_set": found.working_set, "kv_bytes_per_token": kv_bytes}
    wanted = found.capacities(points) if capacity == "auto" else parse_capacities(capacity, **units)
    values = found.to_dict(sorted(set(wanted)), kv_bytes_per_token=kv_bytes)
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(shown.as_csv(values), nl=False)
    else:
        print_tables([shown.table(values)])
        for line in shown.notes(values):
            click.echo(line)


def _read(trace, sample, block_size, chain, memory, quiet):
    """The trace, in a stream where it is a folder of parts; and the most references that a sample may hold."""
    from ..formats import trace_files as formats
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import curving, sampled, whole
    from .large import opened, say

    parts, most = opened(trace, memory, block_size)
    if parts is None or chain:
        if parts is not None:
            say(whole(parts, "--chain"), most, quiet)
        read = formats.read(trace, block_size=block_size, extra="ignore")
        return (read.chained() if chain else read), None
    say(curving(parts, sample), most, quiet)
    return LazyTrace(parts, extra=()), sampled(parts, sample) if sample and most is not None else None
