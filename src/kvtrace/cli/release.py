"""`kvtrace release`: coarsen a trace by a release profile, audit it, and write it."""

from __future__ import annotations

from dataclasses import replace

import click

from ..privacy.release_options import ReleaseOptions
from .help import Command
from .options import opened, record_options, taken_publishing, taken_release, tasks_of
from .output import Outcome, console, print_line, print_table


@click.command("release", cls=Command, page="privacy/privacy.md", groups={"--seed": "Privacy"}, examples=(
    "kvtrace release trace.jsonl -o public.jsonl",
    "kvtrace release trace.jsonl -o public.jsonl --profile strict --sample-sessions 50%",
))
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is stdout. The name may end in .gz, .zst, .parquet or .dataset.")
@click.option("--format", "to", metavar="NAME", help="Trace format: mooncake, bailian or parquet.  [default: from the file name, else mooncake]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens per block of TRACE.  [default: from the sidecar, else inferred]")
@record_options(ReleaseOptions)
@click.option("--users", metavar="FILE", help="File with one user per line, one line for each row of TRACE; an empty line is an unknown user.")
@click.option("--isolate-tenants", is_flag=True, help="With --users: share no block between users.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the sample.  [default: random]")
@click.option("--against", metavar="TRACE", help="Earlier release; fail if its requests can be recognised in this one.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Worker processes, for a data set.  [default: one for each core]")
@click.option("--memory", metavar="SIZE", help="Memory limit for a data set, such as 2GB; FILE must be a data set, too.")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="First block id in the output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
def release_command(trace, output, block_size, users, workers, memory, quiet, **options):
    """Coarsen a trace for publication, audit it, and write it.

    A data card and a sidecar are written beside FILE. The cost of each step in hits is printed, but never
    written. Users are counted, but never written. TRACE - is stdin.
    """
    import numpy as np

    from .._base.errors import UsageError
    from .._base.file_locks import only_writer
    from ..formats import dataset as datasets
    from ..formats import writing
    from ..formats.sidecar import sidecar_path
    from ..privacy.profiles import chosen_profile
    from ..privacy.releases import ReleaseScope
    from ..report import release_tables

    release = taken_release(options)
    profile, to_write = chosen_profile(release), taken_publishing(options)
    writing.check_output(output, to_write["format"])
    isolate, rng = options.pop("isolate_tenants"), np.random.default_rng(options.pop("seed"))
    scope = ReleaseScope(None, release.sample_sessions, isolate, rng, release.keep_domains)
    with only_writer(output, (sidecar_path(output), writing.card_path(output))):
        if datasets.is_dataset(trace):
            from ..privacy.numbering.run import LocalRunner

            dataset, max_bytes = opened(trace, memory, block_size)
            tasks = tasks_of(LocalRunner(workers), output, max_bytes, work=None, quiet=quiet)
            account, figures, size, written = _release_dataset(dataset, output, profile, scope, tasks, users, to_write, quiet)
        else:
            if workers is not None or memory is not None:
                raise UsageError(f"--workers and --memory need a data set, but {trace} is a single file.")
            account, figures, size, written = _release_file(trace, output, profile, scope, users, block_size, to_write, quiet)
    if not quiet:
        screen = console()
        if account.steps:  # none where shared prefixes are unknown
            print_table(screen, release_tables.costs(account))
        for line in release_tables.closing(account, figures, size, written):
            print_line(screen, line)
    return Outcome(written)


def _release_dataset(dataset, output, profile, scope, tasks, users, to_write, quiet):
    """Release a data set in tasks; returns the account, the figures, the block size and the written files."""
    from ..privacy.contributors import numbered
    from ..privacy.publishing import publish
    from ..privacy.release_tasks import released_in_tasks
    from ..report.progress import RELEASE_DATASET, Work

    if users is not None:
        scope = replace(scope, users=numbered(users, len(dataset)))
    with Work(console(), "release", RELEASE_DATASET, quiet) as bar:
        bar.requests = len(dataset)
        with released_in_tasks(dataset, profile, scope, tasks, on_step=bar.step) as released:
            bar.step("write")
            written = publish(released, output, memory=tasks.memory, on_step=bar.step, **to_write)
            return released.account, released.figures, released.block_size, written


def _release_file(trace, output, profile, scope, users, block_size, to_write, quiet):
    """Release a trace file in memory; returns the account, the figures, the block size and the written files."""
    from ..privacy.contributors import read_with_users
    from ..privacy.publishing import publish
    from ..privacy.releases import release_in_pieces
    from ..report.progress import RELEASE, Work

    with Work(console(), "release", RELEASE, quiet) as work:
        work.step("read")
        whole, user_numbers = read_with_users(trace, users, block_size=block_size)
        work.requests = len(whole)
        work.step("coarsen")
        released = release_in_pieces(whole, profile, replace(scope, users=user_numbers))
        del whole  # the largest array of all
        work.step("write")
        written = publish(released, output, on_step=work.step, **to_write)
    return released.account, written.figures, released.block_size, written
