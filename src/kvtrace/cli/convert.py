"""`kvtrace convert`: to another format, for a client, or to a part."""

from __future__ import annotations

import click

from .large import MEMORY
from .output import console


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is stdout. .gz, .zst, .parquet by name; FOLDER/ or .dataset for a data set.")
@click.option("--to", metavar="NAME", help="A format (mooncake, bailian, parquet, parts) or a client: aiperf, vllm, sglang, guidellm, dynamo, llm-d, vidur, azure, burstgpt, lmcache, libcachesim.  [default: by the file's name, else mooncake]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of TRACE.  [default: the sidecar's, else inferred]")
@click.option("--chain", is_flag=True, help="Re-chain ids of blocks that were hashed without their prefix.")
@click.option("--start", metavar="TIME", help="Leave out what arrives before, as in 90s, 10m, 1.5h.  [default: the beginning]")
@click.option("--stop", metavar="TIME", help="Leave out what arrives then or later.  [default: the end]")
@click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Keep this share of the sessions, each whole.")
@click.option("--sample", default=1.0, metavar="SHARE", help="Keep this share of the requests.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="What the samples are drawn with.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Keep the first N requests.  [default: all]")
@click.option("--fold", default=1, metavar="FACTOR", help="Make this many blocks one.")
@click.option("--speed-up", default=1.0, metavar="RATIO", help="Divide times by this.")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
@click.option("--extra", is_flag=True, help="Also write sessions and extra columns where the format has no place for them.")
@MEMORY
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def convert(trace, output, to, block_size, start, stop, sample_sessions, sample, seed, fold, speed_up, first_id, extra, memory, quiet, **options):
    """Convert a trace: to another format, for a client, or to a part of it; TRACE - is stdin.

    The steps come in this order: --chain, --start and --stop, --sample-sessions, --sample, --limit, --fold, --speed-up.
    """
    from .._base.units import milliseconds
    from ..formats import targets as clients
    from ..formats import trace_files as formats
    from ..formats.dataset_conversion import convert_dataset, streams
    from ..formats.memory_needs import converting
    from ..formats.memory_needs import whole as needs_whole
    from ..trace.conversion import convert as converted
    from ..trace.conversion import meta_of
    from .large import opened, say

    is_client = to is not None and to not in formats.NAMES
    target = (clients if is_client else formats).check_output(output, to)
    steps = options | {
        "start_ms": milliseconds(start) if start else 0.0,
        "stop_ms": milliseconds(stop) if stop else float("inf"),
        "session_share": sample_sessions,
        "row_share": sample,
        "factor": fold,
        "ratio": speed_up,
    }
    parts, most = opened(trace, memory, block_size)
    if parts is not None and streams(target, **steps):
        say(converting(parts), most, quiet)
        written, requests = convert_dataset(parts, output, steps["limit"], speed_up, format=target, first_id=first_id, extra=extra)
        if not quiet:
            _say_converted("", requests, len(parts), parts.block_size, clients.Written(written, [], []))
        return
    if parts is not None:
        say(needs_whole(parts, "this conversion"), most, quiet)
    whole = formats.read(trace, block_size=block_size)
    part = converted(whole, **steps, seed=seed)
    meta = meta_of(part, whole, ratio=speed_up)
    if is_client:
        done = clients.write(part, output, to, first_id=first_id, meta=meta)
    else:
        done = clients.Written(formats.write(part, output, format=to, first_id=first_id, extra=extra, meta=meta), [], [])
    if not quiet:
        _say_converted(str(whole.fixes), len(part), len(whole), part.block_size, done)


def _say_converted(said, requests, of, block_size, done):
    screen = console()
    if said:
        screen.print(f"normalised      {said}", highlight=False, markup=False)
    screen.print(f"converted   {requests:,} of {of:,} requests, blocks of {block_size:,} tokens", highlight=False, markup=False)
    for name, lines in (("lost", done.losses), ("wrote", [" and ".join(done.files)]), ("use", done.usage)):
        for line in lines:
            screen.print(f"{name:<12}{line}", highlight=False, markup=False)
