"""`kvtrace audit`: what a trace reveals, before it is published."""

from __future__ import annotations

from dataclasses import replace

import click

from ..privacy.release_options import AuditOptions
from .help import Command
from .options import MEMORY, json_option, opened, record_options, require_memory, taken
from .output import Outcome, console, print_json, print_notes, print_tables


@click.command("audit", cls=Command, examples=(
    "kvtrace audit public.jsonl",
    "kvtrace audit public.jsonl --profile strict --json",
))
@click.argument("trace", metavar="TRACE")
@record_options(AuditOptions)
@click.option("--card", "card_file", metavar="FILE", help="Also write a data card: Markdown to publish beside the trace.")
@MEMORY
@json_option("privacy/audit.md")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
def audit_command(trace, card_file, memory, as_json, quiet, **options):
    """Audit what a trace reveals before you publish it.

    Each check gives PASS, WARN or FAIL, with the risk and the remedy. The exit status is 4 if a check fails.
    """
    from .._base.errors import UsageError
    from .._base.files import base_names
    from ..privacy.checks import audit_memory, audited
    from ..privacy.data_card import write_card
    from ..report.progress import AUDIT, Work
    from ..report.release_tables import audit_table

    if as_json and quiet:
        raise UsageError("--json and --quiet cannot be combined. Use one of them.")
    if card_file is not None and (trace == "-" or card_file == "-"):
        raise UsageError("--card cannot be combined with - (stdin or stdout): the trace is read twice, and the findings go to stdout.")
    settings = taken(AuditOptions, options)
    dataset, max_bytes = opened(trace, memory, settings.block_size)
    if dataset is not None:
        need = audit_memory(dataset, profile=settings.profile, users=settings.users is not None, against=settings.against)
        require_memory(need, max_bytes, quiet)
    with Work(console(), "audit", AUDIT, quiet or as_json) as work:
        work.requests = 0 if dataset is None else len(dataset)
        work.step("read")
        result = audited(trace, replace(settings, memory=max_bytes), work.step)
    if card_file is not None:
        write_card(result, trace, card_file, block_size=settings.block_size, format=settings.format)
    if as_json:
        print_json(result.to_dict())
    else:
        if not quiet:
            print_tables([audit_table(result, base_names(trace)[0])])
        print_notes([result.verdict])
    return Outcome(result, result.status)
