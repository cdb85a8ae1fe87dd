"""`kvtrace convert`: to another format, for a client, or to a part of a trace."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import console


@click.command("convert")
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="Output file; - is stdout. Its name selects .gz, .zst or .parquet; FOLDER/ or FOLDER.dataset is a data set.")
@click.option("--to", metavar="NAME", help="A format (mooncake, bailian, parquet, dataset) or a client: aiperf, vllm, sglang, guidellm, dynamo, llm-d, vidur, azure, burstgpt, lmcache, libcachesim.  [default: by the file's name, else mooncake]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block of TRACE.  [default: from the sidecar, else inferred]")
@click.option("--chain", is_flag=True, help="Chain the ids of blocks that were hashed without their prefix.")
@click.option("--start", metavar="TIME", help="Drop requests that arrive before TIME, such as 90s, 10m or 1.5h.  [default: the beginning]")
@click.option("--stop", metavar="TIME", help="Drop requests that arrive at TIME or later.  [default: the end]")
@click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Keep this share of the sessions, each whole.")
@click.option("--sample", default=1.0, metavar="SHARE", help="Keep this share of the requests.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the samples.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Keep the first N requests.  [default: all]")
@click.option("--fold", default=1, metavar="FACTOR", help="Merge FACTOR blocks into one.")
@click.option("--speedup-ratio", default=1.0, metavar="RATIO", help="Divide times by RATIO.")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="First block id in the output.")
@click.option("--extra", is_flag=True, help="Also write sessions and extra columns that are not part of the format.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def convert_command(trace, output, to, block_size, start, stop, sample_sessions, sample, seed, fold, speedup_ratio, first_id, extra, memory, quiet, **options):
    """Convert a trace to another format, for a client, or to a part of it; TRACE - is stdin.

    Order of the steps: --chain, --start and --stop, --sample-sessions, --sample, --limit, --fold, --speedup-ratio.
    """
    from .._base.units import milliseconds
    from ..formats import format_table, reading, writing
    from ..formats import targets as clients
    from ..formats.dataset_conversion import convert_dataset, streams
    from ..formats.memory_needs import converting
    from ..formats.memory_needs import whole as needs_whole
    from ..trace.conversion import convert as converted
    from ..trace.conversion import meta_of
    from .large import opened, require_memory

    is_client = to is not None and to not in format_table.NAMES
    target = (clients if is_client else writing).check_output(output, to)
    steps = options | {
        "start_ms": milliseconds(start) if start else 0.0,
        "stop_ms": milliseconds(stop) if stop else float("inf"),
        "session_share": sample_sessions,
        "row_share": sample,
        "factor": fold,
        "ratio": speedup_ratio,
    }
    dataset, max_bytes = opened(trace, memory, block_size)
    if dataset is not None and streams(target, **steps):
        require_memory(converting(dataset), max_bytes, quiet)
        written, requests = convert_dataset(dataset, output, steps["limit"], speedup_ratio, format=target, first_id=first_id, extra=extra)
        if not quiet:
            _print_summary("", requests, len(dataset), dataset.block_size, clients.Written(written, _lost(dataset), []))
        return
    if dataset is not None:
        require_memory(needs_whole(dataset, "this conversion"), max_bytes, quiet)
    whole = reading.read(trace, block_size=block_size)
    part = converted(whole, **steps, seed=seed)
    meta = meta_of(part, whole, ratio=speedup_ratio)
    if is_client:
        done = clients.write(part, output, to, first_id=first_id, meta=meta)
    else:
        written = writing.write(part, output, format=to, first_id=first_id, extra=extra, meta=meta)
        done = clients.Written(written, _changed_times(part) if target == "bailian" else [], [])
    done.losses[:0] = _lost(whole)
    if not quiet:
        _print_summary(str(whole.fixes), len(part), len(whole), part.block_size, done)


def _lost(trace):
    """What no conversion keeps of the sidecar."""
    if "profile" not in trace.meta:
        return []
    return ["the release profile: a conversion is not audited. `kvtrace release` writes a file with a profile"]


def _changed_times(trace):
    """What the seconds of Qwen-Bailian do not keep of times."""
    from ..formats.bailian import changed_times
    from ..formats.targets.losses import Losses

    losses = Losses()
    kept = "than seconds can keep; a reader rounds"
    losses.add(changed_times(trace.timestamp), f"time has more decimals {kept} it.", f"times have more decimals {kept} them.")
    return losses.sentences


def _print_summary(fixes, requests, of, block_size, done):
    screen = console()
    if fixes:
        screen.print(f"normalised  {fixes}", highlight=False, markup=False)
    screen.print(f"converted   {requests:,} of {of:,} requests, blocks of {block_size:,} tokens", highlight=False, markup=False)
    for name, lines in (("lost", done.losses), ("wrote", [" and ".join(done.files)]), ("use", done.usage)):
        for line in lines:
            screen.print(f"{name:<12}{line}", highlight=False, markup=False)
