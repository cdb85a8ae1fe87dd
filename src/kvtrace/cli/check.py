"""`kvtrace check`: the invariants of any trace file."""

from __future__ import annotations

import click


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--most", default=20, metavar="N", help="Violations of a kind to list.")
@click.option("-q", "--quiet", is_flag=True, help="Print violations only.")
def check(trace, block_size, most, quiet):
    """Check the invariants of any trace file: one line a violation, exit status 3 if there is one."""
    from ..formats.violations import check as violations_of

    violations = violations_of(trace, block_size=block_size, max_per_rule=most)
    for violation in violations:
        click.echo(str(violation))
    if not violations and not quiet:
        click.echo(f"{trace}: a trace that holds every invariant.")
    return 3 if violations else 0
