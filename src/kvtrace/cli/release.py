"""`kvtrace release`: a trace as a release profile lets others see it."""

from __future__ import annotations

import click

from .output import console
from .release_options import chosen_profile, release_options


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("-o", "--output", required=True, metavar="FILE", help="File to write; - is stdout. .gz, .zst, .parquet by name.")
@click.option("--format", "to", metavar="NAME", help="mooncake, bailian or parquet.  [default: by the file's name, else mooncake]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block of TRACE.  [default: the sidecar's, else inferred]")
@release_options
@click.option("--users", metavar="FILE", help="Who sent each request: one line for each row of TRACE, empty where it is not known.")
@click.option("--isolate-tenants", is_flag=True, help="With --users: let them share no block at all.")
@click.option("--seed", type=click.IntRange(0), metavar="N", help="What the sample is drawn with.  [default: fresh randomness]")
@click.option("--against", metavar="TRACE", help="An earlier release, which must not be found again in this one.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Of a folder of parts: processes.  [default: one a core]")
@click.option("--memory", metavar="SIZE", help="Of a folder of parts: what may be taken, as in 2GB; FILE is a folder of parts, too.")
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def release(trace, output, to, block_size, sample_sessions, users, isolate_tenants, seed, against, workers, memory, first_id, quiet, **options):
    """Coarsen a trace so that others may see it, audit it, and write it with its data card; TRACE - is stdin.

    Users are counted, never written. The steps and what each costs in hits are printed, and stand in the sidecar.
    """
    from .._base.errors import UsageError
    from ..formats import dataset as parts
    from ..formats import trace_files as formats
    from ..report import release_costs as said

    profile = chosen_profile(options)
    formats.check_output(output, to)
    common = {"users": users, "share": sample_sessions, "isolate": isolate_tenants, "seed": seed}
    writing = {"format": to, "first_id": first_id, "against": against}
    if parts.is_dataset(trace):
        done, found, size, written = _in_tasks(trace, output, profile, block_size, workers, memory, quiet, writing, **common)
    else:
        if workers is not None or memory is not None:
            raise UsageError(f"--workers and --memory go with a folder of parts; {trace} is read whole.")
        done, found, size, written = _in_one(trace, output, profile, block_size, writing, **common)
    if not quiet:
        screen = console()
        screen.print(said.costs(done))
        for line in said.closing(done, found, size, written):
            screen.print(line, highlight=False, markup=False)


def _in_tasks(trace, output, profile, block_size, workers, memory, quiet, writing, *, users, share, isolate, seed):
    """Release a folder of parts in a stream; what was done, its figures, and what was written."""
    import os

    import numpy as np

    from .._base.errors import UsageError
    from .._base.files import temporary_name
    from ..privacy.numbering.bound import blocks_within, require_folder, running
    from ..privacy.numbering.local_runner import LocalRunner
    from ..privacy.publishing import publish_chunks
    from ..privacy.release_tasks import release_dataset
    from ..privacy.users import numbered
    from .large import opened, say

    if isolate:
        raise UsageError("--isolate-tenants takes all blocks in one place. Convert the folder to one file, and release that.")
    found, most = opened(trace, memory, block_size)
    require_folder(most, output)
    runner = LocalRunner(workers)
    blocks = blocks_within(most, runner.workers)
    say(running(runner.workers, blocks), most, quiet)
    holding = None if users is None else numbered(users, len(found))
    work, rng = temporary_name(os.path.realpath(output)), np.random.default_rng(seed)
    options = {"users": holding, "session_share": share, "rng": rng, "task_blocks": blocks}
    with release_dataset(found, profile, runner=runner, work=work, **options) as made:
        written = publish_chunks(
            made.columns(), output, meta=made.meta | {"figures": made.figures}, block_size=found.block_size,
            tail=made.plan.tail, contributors=made.contributors(), memory=most, **writing,
        )  # fmt: skip
        return made.account, made.figures, made.plan.block_size, written


def _in_one(trace, output, profile, block_size, writing, *, users, share, isolate, seed):
    """Release a trace that is read whole; what was done, its figures, and what was written."""
    import numpy as np

    from ..privacy.publishing import publish
    from ..privacy.releases import release as released
    from ..privacy.users import read_with_users
    from ..trace.conversion import STALE
    from ..trace.figures import figures

    whole, holding = read_with_users(trace, users, block_size=block_size)
    rng = np.random.default_rng(seed)
    done = released(whole, profile, users=holding, session_share=share, isolate=isolate, rng=rng)
    made = {key: value for key, value in whole.meta.items() if key not in STALE}
    found = figures(done.trace)
    meta = made | done.meta | {"figures": found}
    written = publish(done.trace, output, meta=meta, contributors=done.contributors, **writing)
    return done, found, whole.block_size, written
