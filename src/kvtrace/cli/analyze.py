"""`kvtrace analyze`: statistics of a trace."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import print_json, print_tables


@click.command("analyze")
@click.argument("trace", metavar="TRACE")
@click.option("--basic", is_flag=True, help="Print only the statistics of datagen and AIPerf.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; its keys are in docs/analysis/analyze.md.")
@click.option("--quantiles", metavar="Q,...", help="Extra quantiles of each distribution. Example: 0.9,0.99.")
@click.option("--fold", "factors", metavar="N,...", help="Also print hit rates at block sizes N times as large. Example: 1,2,4.")
@click.option("--ms-per-token", default=30.0, type=click.FloatRange(0), metavar="MS", help="Decode time of an output token, for the mean concurrency.")
@click.option("--model-config", metavar="FILE", help="config.json of the model, to compute bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache per token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.  [default: from the sidecar, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain block ids that were hashed without their prefix.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
def analyze_command(trace, basic, as_json, quantiles, factors, ms_per_token, model_config, kv_bytes_per_token, block_size, chain, memory, quiet):
    """Print statistics of a trace: lengths, hit rates, reuse, arrivals, sessions. TRACE - is stdin."""
    from .._base.lists import factors as parse_factors
    from .._base.lists import quantiles as parse_quantiles
    from ..analysis.block_sizes import block_size_table, by_block_size
    from ..analysis.summary import analyze, basics
    from ..serving.hardware.kv_bytes import chosen

    extra_quantiles, fold_factors = parse_quantiles(quantiles), parse_factors(factors)
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    loaded = _load(trace, basic, factors, block_size, chain, memory, quiet)
    if basic:
        statistics = basics(loaded, extra_quantiles)
    else:
        statistics = analyze(loaded, quantiles=extra_quantiles, ms_per_token=ms_per_token, kv_bytes_per_token=kv_bytes)
    sizes = by_block_size(loaded, fold_factors)
    if as_json:
        print_json(statistics.to_dict() | ({"by_block_size": [size.to_dict() for size in sizes]} if sizes else {}))
    else:
        print_tables([*statistics.tables(), *([block_size_table(sizes)] if sizes else [])])


def _load(trace, basic, factors, block_size, chain, memory, quiet):
    """Load the trace. A data set is streamed, unless an option needs the whole trace in memory."""
    from ..formats import reading
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import analyzing, whole
    from .large import opened, require_memory

    dataset, max_bytes = opened(trace, memory, block_size)
    if dataset is None or chain or factors:
        if dataset is not None:
            require_memory(whole(dataset, "--chain" if chain else "--fold"), max_bytes, quiet)
        loaded = reading.read(trace, block_size=block_size, extra="ignore" if basic else "keep")
        return loaded.chained() if chain else loaded
    require_memory(analyzing(dataset), max_bytes, quiet)
    return LazyTrace(dataset, extra=() if basic else ("type",))
