"""`kvtrace audit`: what a trace shows, before others may see it."""

from __future__ import annotations

import os

import click

from .large import MEMORY
from .output import print_json, print_tables


@click.command()
@click.argument("trace", metavar="TRACE")
@click.option("--against", metavar="PREVIOUS", help="An earlier release, to look for rows that are in both.")
@click.option("--users", metavar="FILE", help="One user a line for each row, to count who shares a block; never written.")
@click.option("--profile", metavar="NAME", help="Grade against exact, standard or strict.  [default: as declared, else standard]")
@click.option("--block-size", type=click.IntRange(1), metavar="TOKENS", help="Tokens a block.  [default: the sidecar's, else inferred]")
@click.option("--format", "given", metavar="NAME", help="mooncake, bailian, parquet or parts.  [default: by the content]")
@click.option("--card", "card_file", metavar="FILE", help="Also write a data card: Markdown to publish beside the trace.")
@MEMORY
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object; docs/privacy/audit.md lists its keys.")
@click.option("-q", "--quiet", is_flag=True, help="Print the verdict only.")
def audit(trace, against, users, profile, block_size, given, card_file, memory, as_json, quiet):
    """Audit a trace, a file or a folder of parts: fifteen checks, PASS, WARN or FAIL; exit status 4 if one fails."""
    from .._base.errors import UsageError
    from .._base.files import name_of
    from ..privacy.checks import audit as audited
    from ..privacy.checks import auditing
    from ..report.audit_table import table
    from .large import opened, say

    if as_json and quiet:
        raise UsageError("--json and --quiet exclude each other. Give one of them.")
    if card_file is not None and (trace == "-" or card_file == "-"):
        raise UsageError("a data card needs files: the trace is read twice, and stdout has the findings.")
    options = {"block_size": block_size, "format": given}
    parts, most = opened(trace, memory, block_size)
    if parts is not None:
        say(auditing(parts, profile=profile, users=users is not None, against=against), most, quiet)
    found = audited(trace, against=against, users=users, profile=profile, memory=most, **options)
    if card_file is not None:
        _write_card(found, trace, parts, card_file, options)
    if as_json:
        print_json(found.to_dict())
    else:
        if not quiet:
            print_tables([table(found, os.path.basename(name_of(trace).rstrip("/")))])
        click.echo(found.verdict)
    return found.status


def _write_card(found, path, parts, card_file, options):
    import orjson

    from .._base.files import write_atomically
    from ..formats import trace_files as formats
    from ..formats.dataset import MANIFEST
    from ..privacy.data_card import card

    beside = formats.sidecar_path(path) if parts is None else os.path.join(path, MANIFEST)
    read = formats.read(path, extra="ignore", **options) if parts is None else None  # a manifest has the figures
    made = read.meta if read is not None else {}
    if os.path.exists(beside):  # beyond what a trace keeps of it: which version wrote it
        with open(beside, "rb") as file:
            made = orjson.loads(file.read())
    with write_atomically(card_file) as stream:
        stream.write(card(found, read, made).encode())
