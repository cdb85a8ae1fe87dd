"""`kvtrace curve`: the hit rates of an LRU cache at each capacity."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import print_json, print_tables


@click.command("curve")
@click.argument("trace", metavar="TRACE")
@click.option("--capacity", default="auto", metavar="LIST", help="Capacities. Example: 1000,64ktokens,24GiB,50%. A plain number is blocks; % is of the working set. auto: from the longest request to the working set.")
@click.option("--points", default=25, type=click.IntRange(1, 10_000), metavar="N", help="Number of capacities for auto.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; its keys are in docs/analysis/curve.md.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV with a header.")
@click.option("--sample", type=float, metavar="SHARE", help="Estimate from this share of the blocks, with errors.  [default: all blocks, exact]")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the sample.")
@click.option("--model-config", metavar="FILE", help="config.json of the model, to compute bytes of KV cache.")
@click.option("--kv-bytes-per-token", type=click.IntRange(1), metavar="N", help="Bytes of KV cache per token, in place of --model-config.")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block.  [default: from the sidecar, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain block ids that were hashed without their prefix.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Print results and errors only.")
def curve_command(trace, capacity, points, as_json, as_csv, sample, seed, model_config, kv_bytes_per_token, block_size, chain, memory, quiet):
    """Print the hit rates of an LRU cache at each capacity, exactly and in one pass. TRACE - is stdin."""
    from .._base.errors import UsageError
    from ..analysis.capacities import parse_capacities
    from ..analysis.curves import hit_curve
    from ..report import curve_tables
    from ..serving.hardware.kv_bytes import chosen

    if as_json and as_csv:
        raise UsageError("--json and --csv cannot be combined. Use one of them.")
    kv_bytes = chosen(model_config, kv_bytes_per_token)
    loaded, max_references = _load(trace, sample, block_size, chain, memory, quiet)
    curve = hit_curve(loaded, sample=sample, seed=seed, max_references=max_references)
    units = {"block_size": curve.block_size, "working_set": curve.working_set, "kv_bytes_per_token": kv_bytes}
    capacities = curve.capacities(points) if capacity == "auto" else parse_capacities(capacity, **units)
    values = curve.to_dict(sorted(set(capacities)), kv_bytes_per_token=kv_bytes)
    if as_json:
        print_json(values)
    elif as_csv:
        click.echo(curve_tables.as_csv(values), nl=False)
    else:
        print_tables([curve_tables.curve_table(values)])
        for line in curve_tables.notes(values):
            click.echo(line)


def _load(trace, sample, block_size, chain, memory, quiet):
    """Load the trace (a data set is streamed), and return the largest number of references in a sample."""
    from ..formats import reading
    from ..formats.lazy import LazyTrace
    from ..formats.memory_needs import curving, sampled, whole
    from .large import opened, require_memory

    dataset, max_bytes = opened(trace, memory, block_size)
    if dataset is None or chain:
        if dataset is not None:
            require_memory(whole(dataset, "--chain"), max_bytes, quiet)
        loaded = reading.read(trace, block_size=block_size, extra="ignore")
        return (loaded.chained() if chain else loaded), None
    require_memory(curving(dataset, sample), max_bytes, quiet)
    return LazyTrace(dataset, extra=()), sampled(dataset, sample) if sample and max_bytes is not None else None
