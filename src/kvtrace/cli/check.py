"""`kvtrace check`: the invariants of any trace file."""

from __future__ import annotations

from functools import partial

import click

from .help import Command
from .options import BLOCK_SIZE
from .output import Outcome, console, echo


@click.command("check", cls=Command, page="formats/formats.md", examples=(
    "kvtrace check trace.jsonl",
    "kvtrace check trace.jsonl --max 1 --quiet",
))
@click.argument("trace", metavar="TRACE")
@BLOCK_SIZE
@click.option("--max", "max_per_rule", default=20, metavar="N", help="List at most N violations of each kind.")
@click.option("-q", "--quiet", is_flag=True, help="Print violations only.")
def check_command(trace, block_size, max_per_rule, quiet):
    """Check a trace file, and list all violations.

    Prints one line for each violation; the exit status is 3 if there is one. TRACE may have any trace format; - is stdin.
    """
    from ..formats.violations import check as violations_of
    from ..report.progress import CHECK, Work

    with Work(console(), "check", CHECK, quiet) as work:
        work.step("read")
        violations = violations_of(trace, block_size=block_size, max_per_rule=max_per_rule, on_read=partial(work.step, "check"))
    for violation in violations:
        echo(str(violation))
    if not violations and not quiet:
        echo(f"{trace}: OK: all invariants hold.")
    return Outcome(violations, 3 if violations else 0)
