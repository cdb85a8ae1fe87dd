"""`kvtrace analyze`: what a trace is like."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import print_json, print_tables


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--basic", is_flag=True, help="Only the statistics of datagen and AIPerf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/analysis/analyze.md lists its keys.")
@click.option("--quantiles", metavar="Q,...", help="Further quantiles of every distribution, as in 0.9,0.99.")
@click.option("--fold", "factors", metavar="N,...", help="Also hit rates where so many blocks are one, as in 1,2,4.")
@click.option("--ms-per-token", default=30.0, type=click.FloatRange(0), metavar="MS", help="Time of a generated token that the concurrency assumes.")
@click.option("--model-config", metavar="FILE", help="A model's config.json, for bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache a token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but results and errors.")
def analyze(trace, basic, as_json, quantiles, factors, ms_per_token, model_config, kv_bytes_per_token, block_size, chain, memory, quiet):
    """Say what a trace is like: lengths, hit rates, reuse, arrivals, conversations; TRACE - is stdin."""
    from .._base.lists import factors as parse_factors
    from .._base.lists import quantiles as parse_quantiles
    from ..analysis.block_sizes import block_size_table, by_block_size
    from ..analysis.summary import analyze as analyzed
    from ..analysis.summary import basics
    from ..serving.hardware.kv_bytes import chosen

    wanted, sizes = parse_quantiles(quantiles), parse_factors(factors)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    read = _read(trace, basic, factors, block_size, chain, memory, quiet)
    if basic:
        found = basics(read, wanted)
    else:
        found = analyzed(read, quantiles=wanted, ms_per_token=ms_per_token, kv_bytes_per_token=kv_bytes)
    folded = by_block_size(read, sizes)
    if as_json:
        print_json(found.to_dict() | ({"by_block_size": [size.to_dict() for size in folded]} if sizes else {}))
    else:
        print_tables([*found.tables(), *([block_size_table(folded)] if sizes else [])])


def _read(trace, basic, factors, block_size, chain, memory, quiet):
    """The trace: in a stream where it is a folder of parts and every statistic can be counted in one."""
    from ..formats import trace_files as formats
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import analyzing, whole
    from .large import opened, say

    parts, most = opened(trace, memory, block_size)
    if parts is None or chain or factors:
        if parts is not None:
            say(whole(parts, "--chain" if chain else "--fold"), most, quiet)
        read = formats.read(trace, block_size=block_size, extra="ignore" if basic else "keep")
        return read.chained() if chain else read
    say(analyzing(parts), most, quiet)
    return LazyTrace(parts, extra=() if basic else ("type",))
