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
@click.option("--first-id", default=0, metavar="N", type=click.IntRange(0), help="The first id that is written.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors.")
def release(trace, output, to, block_size, sample_sessions, users, isolate_tenants, seed, against, first_id, quiet, **options):
    """Coarsen a trace so that others may see it, audit it, and write it with its data card; TRACE - is stdin.

    Users are counted, never written. The steps and what each costs in hits are printed, and stand in the sidecar.
    """
    import numpy as np

    from .. import formats
    from ..convert import STALE
    from ..figures import figures
    from ..privacy.publish import publish
    from ..privacy.release import release as released
    from ..privacy.users import read_with_users
    from ..report import release as said

    profile = chosen_profile(options)
    formats.check_output(output, to)
    whole, holding = read_with_users(trace, users, block_size=block_size)
    rng = np.random.default_rng(seed)
    done = released(whole, profile, users=holding, session_share=sample_sessions, isolate=isolate_tenants, rng=rng)
    made = {key: value for key, value in whole.meta.items() if key not in STALE}
    meta = made | done.meta | {"figures": figures(done.trace)}
    written = publish(done.trace, output, meta=meta, holders=done.holders, against=against, format=to, first_id=first_id)
    if not quiet:
        screen = console()
        screen.print(said.costs(done))
        for line in said.closing(done, written):
            screen.print(line, highlight=False, markup=False)
