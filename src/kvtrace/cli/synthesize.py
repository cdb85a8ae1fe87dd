"""`kvtrace synthesize`: a trace of any size with the behaviour of another."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import click

from .._base import units
from .amounts import Amount
from .help import Command
from .options import BLOCK_SIZE_OF_TRACE, CHAIN, QUIET_ERRORS, SAME_BYTES
from .output import console, print_lines


@click.command("synthesize", cls=Command, groups={"--seed": "Size and load", "--speedup-ratio": "Size and load", "--workers": "Large inputs"}, examples=(
    "kvtrace synthesize trace.jsonl -n 3x -o synthetic.jsonl",
    "kvtrace synthesize trace.jsonl -o bursts.jsonl --step-rates '5@10m,20@2 min'",
    "kvtrace synthesize trace.jsonl --save-model model.json",
    "kvtrace synthesize sessions.json --sessions 10x -o sessions.jsonl",
))
@click.argument("trace", metavar="TRACE")
@click.option("-n", "--requests", "n", type=Amount(units.requests), metavar="N", help="Number of requests: 1000, 10k, 1.5M; 3x is three times as many as TRACE has.  [default: 1x]")
@click.option("--sessions", type=Amount(partial(units.requests, what="sessions")), metavar="N", help="Number of sessions, of a trace with dependencies: 500, 10x.  [default: 1x]")
@click.option("-o", "--output", metavar="FILE", help="File to write; - is stdout. The name may end in .gz, .zst or .parquet.")
@click.option("--method", type=click.Choice(["attach", "tree", "sessions"]), help="attach: keeps reuse over time. tree: the algorithm of datagen, with corrections. sessions: keeps session trees.  [default: sessions if TRACE has sessions and dependencies, else attach]")
@click.option("--scale", default="duration", type=click.Choice(["duration", "rate"]), help="The quantity that grows with N. duration: a longer trace with the load of TRACE. rate: more requests per second.")
@SAME_BYTES
@click.option("--speedup-ratio", default=1.0, metavar="X", help="Divide times by X.")
@click.option("--prefix-len-multiplier", default=1.0, metavar="X", help="Multiply the length of shared prefixes.")
@click.option("--prompt-len-multiplier", default=1.0, metavar="X", help="Multiply the length of unique prompt parts.")
@click.option("--osl-multiplier", default=1.0, metavar="X", help="Multiply output lengths.")
@click.option("--prefix-root-multiplier", default=1, metavar="N", help="Number of disjoint copies of the shared prefixes; each request uses one.")
@click.option("--min-isl", type=int, metavar="TOKENS", help="Redraw shorter prompts.")
@click.option("--max-isl", type=int, metavar="TOKENS", help="Redraw longer prompts.")
@click.option("--min-osl", type=int, metavar="TOKENS", help="Raise shorter outputs to this length.")
@click.option("--max-osl", type=int, metavar="TOKENS", help="Cut longer outputs to this length.")
@click.option("--max-rejections", default=10_000, metavar="N", help="With tree: stop after N redrawn prompts in a row.")
@click.option("--step-rates", metavar="RATE@TIME,...", help="Arrival rates in requests per second. Example: 5@10m,20@2m.")
@click.option("--extra", is_flag=True, help="Also write extra columns that the format does not define.")
@click.option("--save-model", metavar="FILE", help="Also write the fitted model as JSON; you can share it in place of a trace.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Number of streams that are drawn at a time.  [default: one for each core]")
@BLOCK_SIZE_OF_TRACE
@CHAIN
@QUIET_ERRORS
def synthesize_command(trace, n, sessions, output, method, scale, seed, save_model, extra, workers, block_size, chain, quiet, **knobs):
    """Synthesize a trace of any size that behaves like another.

    TRACE is a trace, or a model that --save-model wrote; - is stdin.
    """
    from .._base.errors import UsageError
    from .._base.output_files import appear_together
    from .._base.output_lock import only_writer
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..report.progress import FIT, RequestProgress, Work
    from ..synthesis.knobs import Knobs
    from ..synthesis.models import model_of
    from ..synthesis.sampling import write_sample

    if output is None and save_model is None:
        raise UsageError("Nothing would be written. Use -o FILE, --save-model FILE, or both.")
    if save_model is not None and method == "tree":
        raise UsageError("--save-model does not support --method tree.")
    if n is not None and sessions is not None:
        raise UsageError("Use -n or --sessions, not both.")
    settings = Knobs(**knobs)
    if output is not None:
        writing.check_output(output)
    with Work(console(), "fit", FIT, quiet) as work:
        work.step("read")
        model = model_of(trace, method=method, block_size=block_size, chain=chain, on_read=partial(work.step, "fit"))
    written = []
    lock = nullcontext() if output is None else only_writer(output, (sidecar_path(output),))
    with lock, appear_together():  # a run that is stopped leaves both files or none
        if save_model is not None:
            written.append(model.save(save_model))
        if output is not None:
            n, sessions = _size(model, n, sessions)
            with RequestProgress(console(), quiet, "synthesizing") as bar:
                bar.expect(round(model.rows * sessions / model.sessions) if n is None else n)
                written += write_sample(
                    model, n, output, sessions=sessions, seed=seed, scale=scale, knobs=settings, workers=workers, extra=extra, on_progress=bar.update,
                )
    if not quiet:
        print_lines([("wrote", " and ".join(map(str, written)))])


def _size(model, n, sessions):
    """The number of requests, or of sessions: the other is None. A multiple of a session model counts sessions."""
    from .._base.errors import UsageError

    if sessions is not None and model.method != "sessions":
        raise UsageError("--sessions needs a trace with sessions and dependencies, and --method sessions. Use -n.")
    if model.method == "sessions" and (n is None or isinstance(n, units.Multiple)):
        n, sessions = None, next((size for size in (n, sessions) if size is not None), units.Multiple(1.0))
    elif n is None and sessions is None:
        n = units.Multiple(1.0)
    n = n.of(model.rows) if isinstance(n, units.Multiple) else n
    return n, sessions.of(model.sessions) if isinstance(sessions, units.Multiple) and n is None else sessions
