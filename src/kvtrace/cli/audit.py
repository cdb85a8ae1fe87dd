"""`kvtrace audit`: what a trace reveals, before it is published."""

from __future__ import annotations

import click

from ..privacy.release_options import listed
from .help import Command
from .options import BLOCK_SIZE, MEMORY, opened, require_memory
from .output import console, print_json, print_notes, print_tables


@click.command("audit", cls=Command, groups={"--format": "Input"}, examples=(
    "kvtrace audit public.jsonl",
    "kvtrace audit public.jsonl --profile strict --json",
))
@click.argument("trace", metavar="TRACE")
@click.option("--against", metavar="PREVIOUS", help="Earlier release: look for requests that are in both.")
@click.option("--users", metavar="FILE", help="File with one user per line, one line for each row, to count contributors; never part of an output.")
@click.option("--profile", metavar="NAME", help="Profile to grade against: exact, standard or strict.  [default: the declared profile, else standard]")
@click.option("--allow-measured", metavar="NAMES", help="Measured columns that TRACE may have, with commas between: cached_tokens, ttft_ms, e2e_ms, queue_ms.  [default: those that its sidecar names]")
@BLOCK_SIZE
@click.option("--format", "format_name", metavar="NAME", help="Trace format: mooncake, bailian, agentic-mooncake, parquet or dataset.  [default: from the content]")
@click.option("--card", "card_file", metavar="FILE", help="Also write a data card: Markdown to publish beside the trace.")
@MEMORY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/privacy/audit.md lists its keys.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the verdict.")
def audit_command(trace, against, users, profile, allow_measured, block_size, format_name, card_file, memory, as_json, quiet):
    """Audit what a trace reveals before you publish it.

    Each check gives PASS, WARN or FAIL, with the risk and the remedy. The exit status is 4 if a check fails.
    """
    from .._base.errors import UsageError
    from .._base.files import base_names
    from ..privacy.checks import audit as run_checks
    from ..privacy.checks import audit_memory
    from ..privacy.data_card import write_card
    from ..report.progress import AUDIT, Work
    from ..report.release_tables import audit_table

    if as_json and quiet:
        raise UsageError("--json and --quiet cannot be combined. Use one of them.")
    if card_file is not None and (trace == "-" or card_file == "-"):
        raise UsageError("--card cannot be combined with - (stdin or stdout): the trace is read twice, and the findings go to stdout.")
    options = {"block_size": block_size, "format": format_name}
    dataset, max_bytes = opened(trace, memory, block_size)
    if dataset is not None:
        need = audit_memory(dataset, profile=profile, users=users is not None, against=against)
        require_memory(need, max_bytes, quiet)
    with Work(console(), "audit", AUDIT, quiet or as_json) as work:
        work.requests = 0 if dataset is None else len(dataset)
        work.step("read")
        result = run_checks(trace, against=against, users=users, profile=profile, memory=max_bytes, on_step=work.step, allow_measured=listed(allow_measured) if allow_measured else (), **options)
    if card_file is not None:
        write_card(result, trace, card_file, **options)
    if as_json:
        print_json(result.to_dict())
    else:
        if not quiet:
            print_tables([audit_table(result, base_names(trace)[0])])
        print_notes([result.verdict])
    return result.status
