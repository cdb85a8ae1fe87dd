"""`kvtrace synthesize`: a trace of any size with the behaviour of another."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import click

from .._base import units
from .._base.errors import UsageError
from ..synthesis.knobs import Knobs, SampleOptions, TenantOptions
from .help import AmountType, Command
from .options import ASSUME_OUTPUT, BLOCK_SIZE_OF_TRACE, CHAIN, QUIET_ERRORS, record_options, taken
from .output import Outcome, console, print_lines, print_tables


@click.command("synthesize", cls=Command, page="synthesis/synthesize.md", examples=(
    "kvtrace synthesize trace.jsonl -n 3x -o synthetic.jsonl",
    "kvtrace synthesize trace.jsonl --check --save-model model.json",
    "kvtrace synthesize sessions.json --sessions 10x -o sessions.jsonl",
    "kvtrace synthesize trace.jsonl:0.7 synthetic.jsonl:0.3 -n 10k --tenants 20 -o mixed.jsonl",
))
@click.argument("mixed", metavar="TRACE...", nargs=-1, required=True)
@click.option("-n", "--requests", "n", type=AmountType(units.requests), metavar="N", help="Number of requests: 1000, 10k, 1.5M; 3x is three times as many as all TRACEs have.  [default: 1x]")
@click.option("--sessions", type=AmountType(partial(units.requests, what="sessions")), metavar="N", help="Number of sessions, of a trace with dependencies: 500, 10x.  [default: 1x]")
@click.option("-o", "--output", metavar="FILE", help="File to write; - is stdout. The name may end in .gz, .zst or .parquet.")
@click.option("--method", type=click.Choice(["attach", "tree", "sessions"]), help="attach: keeps reuse over time. tree: the algorithm of datagen, with corrections. sessions: keeps session trees.  [default: sessions if TRACE has sessions and dependencies, else attach]")
@record_options(SampleOptions, only=("scale",))
@record_options(TenantOptions)
@record_options(SampleOptions, only=("seed",))
@record_options(Knobs)
@click.option("--rates", "rates", metavar="FILE", help="Rates over a day, repeated: CSV with the columns time and rate (requests per second) or relative, or JSON lines.")
@click.option("--rates-period", metavar="TIME", help="Time after which --rates is repeated: 1h, 7d.  [default: a day, or its last time if that is later]")
@click.option("--extra", is_flag=True, help="Also write extra columns that the format does not define.")
@click.option("--check", is_flag=True, help="Compare samples, as large as the fitted trace, with that trace, and print what they keep; the model and the sidecar state it.")
@click.option("--save-model", metavar="FILE", help="Also write the fitted model as JSON; you can share it in place of a trace.")
@record_options(SampleOptions, only=("workers",))
@ASSUME_OUTPUT
@BLOCK_SIZE_OF_TRACE
@CHAIN
@QUIET_ERRORS
def synthesize_command(mixed, n, sessions, output, check, save_model, quiet, **options):
    """Synthesize a trace of any size that behaves like another.

    TRACE is a trace, or a model that --save-model wrote; - is stdin. Several are mixed: TRACE:SHARE states the share of the
    requests that each draws. Shares need not sum to 1; the default is equal shares.
    """
    from .._base.file_locks import only_writer
    from .._base.files import base_names, share_of
    from .._base.output_files import appear_together
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..report.progress import FIT, RequestProgress, Work
    from ..synthesis.mixture import mix
    from ..synthesis.model_files import model_of
    from ..synthesis.rate_profile import read_rates
    from ..synthesis.sampling import Synthesized, check_fidelity, write_drawn
    from ..synthesis.tree import Tree
    from ..trace.unknown import stated

    _require_output(output, check=check, save_model=save_model, method=options["method"])
    if n is not None and sessions is not None:
        raise UsageError("Use -n or --sessions, not both.")
    tenants = _tenants(options)
    period, rates = options.pop("rates_period"), options.pop("rates")
    if period is not None and rates is None:
        raise UsageError("--rates-period needs --rates.")
    parts = [share_of(trace) for trace in mixed]
    if len(parts) > 1 and (check or save_model is not None):
        raise UsageError("--check and --save-model need one TRACE. Save a model of each, then mix the models.")
    if [path for path, _ in parts].count("-") > 1:
        raise UsageError("stdin (-) can be read once. Give one - at most.")
    knobs = taken(Knobs, options, rates=None if rates is None else read_rates(rates, period=period))
    settings, extra = taken(SampleOptions, options, knobs=knobs), options.pop("extra")
    if output is not None:
        writing.check_output(output)
    meta: dict[str, Any] = {}
    with Work(console(), "fit", FIT, quiet) as work:
        models = []
        for path, _ in parts:
            work.step("read")
            models.append(model_of(path, on_read=partial(work.step, "fit"), on_meta=meta.update, **options))
    model = models[0]
    fidelity = None
    if check:
        fidelity = check_fidelity(model, workers=settings.workers)
        model = model if isinstance(model, Tree) else model.checked(fidelity)
        print_tables(fidelity.tables())
    elif not quiet:
        print_lines(("not kept", sentence) for each in models if each.fidelity is not None for sentence in each.fidelity.lost)
    drawn = model  # what the sample is drawn from
    if len(parts) > 1 or tenants.tenants is not None:
        names = base_names(*(path for path, _ in parts))
        drawn = mix([model, *models[1:]], [share for _, share in parts], names=names, **vars(tenants))
    written = []
    lock = nullcontext() if output is None else only_writer(output, (sidecar_path(output),))
    with lock, appear_together():  # a run that is stopped leaves both files or none
        if save_model is not None:
            written.append(model.save(save_model))
        if output is not None:
            n, sessions = _size(drawn, n, sessions)
            with RequestProgress(console(), quiet, "synthesizing") as bar:
                bar.expect(round(drawn.rows * sessions / drawn.sessions) if n is None else n)
                sized = replace(settings, n=n, sessions=sessions)
                written += write_drawn(drawn, sized, output, extra=extra, on_progress=bar.update, meta=meta)
    if written and not quiet:
        print_lines(("note", sentence) for sentence in stated(meta).values())
        print_lines([("wrote", " and ".join(map(str, written)))])
    return Outcome(Synthesized([str(name) for name in written], fidelity))


def _require_output(output, *, check, save_model, method):
    """UsageError if nothing would be written, or what is written does not fit together."""
    if output is None and save_model is None and not check:
        raise UsageError("Nothing would be written. Use -o FILE, --save-model FILE, --check, or several of them.")
    if check and output == "-":
        raise UsageError("--check prints on stdout, where -o - writes the trace. Use -o FILE.")
    if save_model is not None and method == "tree":
        raise UsageError("--save-model does not support --method tree.")


def _tenants(options):
    """The tenants, whose options are taken; UsageError for an option of tenants without --tenants."""
    for name in ("tenant_skew", "tenant_cv"):
        if options[name] is not None and options["tenants"] is None:
            raise UsageError(f"--{name.replace('_', '-')} needs --tenants.")
    return taken(TenantOptions, options)


def _size(model, n, sessions):
    """The number of requests, or of sessions: the other is None. A multiple of a session model counts sessions."""
    if sessions is not None and model.method != "sessions":
        raise UsageError("--sessions needs a trace with sessions and dependencies, and --method sessions. Use -n.")
    if model.method == "sessions" and (n is None or isinstance(n, units.Multiple)):
        n, sessions = None, next((size for size in (n, sessions) if size is not None), units.Multiple(1.0))
    elif n is None and sessions is None:
        n = units.Multiple(1.0)
    n = n.of(model.rows) if isinstance(n, units.Multiple) else n
    return n, sessions.of(model.sessions) if isinstance(sessions, units.Multiple) and n is None else sessions
