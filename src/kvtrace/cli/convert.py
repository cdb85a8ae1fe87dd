"""`kvtrace convert`: to another format, for a client, or to a part of a trace."""

from __future__ import annotations

from functools import partial

import click

from ..trace.conversion_options import ConvertOptions
from .completion import Name, targets
from .help import Command
from .options import BLOCK_SIZE_OF_TRACE, FIRST_ID, MEMORY, QUIET_ERRORS, print_need, record_options, size_of, taken
from .output import Outcome, console, print_lines


@click.command("convert", cls=Command, page="formats/formats.md", types={"--to": Name(targets)}, examples=(
    "kvtrace convert trace.jsonl -o part.jsonl --start 1m --stop '2 min'",
    "kvtrace convert trace.jsonl -o coarse.jsonl --fold 4 --to vllm",
    "kvtrace convert trace.jsonl -o half.parquet --sample 50% --seed 1",
))
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="Output file; - is stdout. Its name selects .gz, .zst or .parquet; FOLDER/ or FOLDER.dataset is a data set, FOLDER.sessions a folder of sessions.")
@click.option("--to", metavar="NAME", help="A format (mooncake, bailian, agentic-mooncake, parquet, dataset, weka) or a client: aiperf, vllm, sglang, guidellm, dynamo, dynamo-agentic, llm-d, vidur, azure, burstgpt, lmcache, libcachesim.  [default: by the file's name, else mooncake]")
@BLOCK_SIZE_OF_TRACE
@record_options(ConvertOptions)
@FIRST_ID
@click.option("--extra", is_flag=True, help="Also write extra columns that are not part of the format.")
@MEMORY
@QUIET_ERRORS
def convert_command(trace, output, memory, quiet, **options):
    """Convert a trace to another format, block size or time span.

    The steps have this order: --chain, --start and --stop, --sample-sessions, --sample, --limit,
    --assume-output, --fold, --speedup-ratio. TRACE - is stdin.
    """
    from ..formats.converting import convert_file
    from ..report.progress import CONVERT, Work

    with Work(console(), "convert", CONVERT, quiet) as work:
        work.step("read")
        conversion = convert_file(
            trace, output, memory=size_of(memory), on_need=None if quiet else print_need, on_write=partial(work.step, "write"),
            **vars(taken(ConvertOptions, options)), **options,
        )
    if not quiet:
        lines = [("normalised", conversion.fixes)] if conversion.fixes else []
        lines.append(("converted", f"{conversion.requests:,} of {conversion.source_requests:,} requests, blocks of {conversion.block_size:,} tokens"))
        for name, values in (("lost", conversion.losses), ("wrote", [" and ".join(conversion.files)]), ("use", conversion.usage)):
            lines += [(name, value) for value in values]
        print_lines(lines)
    return Outcome(conversion)
