"""`kvtrace convert`: to another format, for a client, or to a part of a trace."""

from __future__ import annotations

from functools import partial

import click

from .completion import Name, targets
from .help import Command
from .options import BLOCK_SIZE_OF_TRACE, FIRST_ID, MEMORY, QUIET_ERRORS, print_need, size_of
from .output import console, print_lines


@click.command("convert", cls=Command, types={"--to": Name(targets)}, examples=(
    "kvtrace convert trace.jsonl -o part.jsonl --start 1m --stop '2 min'",
    "kvtrace convert trace.jsonl -o coarse.jsonl --fold 4 --to vllm",
    "kvtrace convert trace.jsonl -o half.parquet --sample 50% --seed 1",
))
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="Output file; - is stdout. Its name selects .gz, .zst or .parquet; FOLDER/ or FOLDER.dataset is a data set, FOLDER.sessions a folder of sessions.")
@click.option("--to", metavar="NAME", help="A format (mooncake, bailian, agentic-mooncake, parquet, dataset, weka) or a client: aiperf, vllm, sglang, guidellm, dynamo, dynamo-agentic, llm-d, vidur, azure, burstgpt, lmcache, libcachesim.  [default: by the file's name, else mooncake]")
@BLOCK_SIZE_OF_TRACE
@click.option("--chain", is_flag=True, help="Re-chain the ids of a trace whose blocks were hashed without their prefix.")
@click.option("--start", metavar="TIME", help="Drop requests that arrive before TIME, such as 90s, 10m or 1.5h.  [default: the beginning]")
@click.option("--stop", metavar="TIME", help="Drop requests that arrive at TIME or later.  [default: the end]")
@click.option("--sample-sessions", default=1.0, metavar="SHARE", help="Keep this share of the sessions, each whole.")
@click.option("--sample", default=1.0, metavar="SHARE", help="Keep this share of the requests.")
@click.option("--seed", default=0, type=click.IntRange(0), metavar="N", help="Seed of the samples.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Keep the first N requests.  [default: all]")
@click.option("--assume-output", type=click.IntRange(0), metavar="TOKENS", help="Tokens of each output whose length is unknown, for clients that need one.  [default: unknown]")
@click.option("--fold", default=1, metavar="FACTOR", help="Merge FACTOR blocks into one.")
@click.option("--speedup-ratio", default=1.0, metavar="RATIO", help="Divide times by RATIO.")
@FIRST_ID
@click.option("--extra", is_flag=True, help="Also write extra columns that are not part of the format.")
@MEMORY
@QUIET_ERRORS
def convert_command(trace, output, start, stop, sample_sessions, sample, fold, speedup_ratio, memory, quiet, **options):
    """Convert a trace to another format, block size or time span.

    The steps have this order: --chain, --start and --stop, --sample-sessions, --sample, --limit,
    --assume-output, --fold, --speedup-ratio. TRACE - is stdin.
    """
    from ..formats.converting import convert_file
    from ..report.progress import CONVERT, Work

    with Work(console(), "convert", CONVERT, quiet) as work:
        work.step("read")
        done = convert_file(
            trace, output, memory=size_of(memory), on_need=None if quiet else print_need, on_write=partial(work.step, "write"),
            start_ms=start or 0.0, stop_ms=float("inf") if stop is None else stop,
            session_share=sample_sessions, row_share=sample, factor=fold, ratio=speedup_ratio, **options,
        )
    if not quiet:
        lines = [("normalised", done.fixes)] if done.fixes else []
        lines.append(("converted", f"{done.requests:,} of {done.source_requests:,} requests, blocks of {done.block_size:,} tokens"))
        for name, values in (("lost", done.losses), ("wrote", [" and ".join(done.files)]), ("use", done.usage)):
            lines += [(name, value) for value in values]
        print_lines(lines)
