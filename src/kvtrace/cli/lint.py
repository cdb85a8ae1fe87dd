"""`kvtrace lint`: where the prompts of a raw log diverge though they nearly agree."""

from __future__ import annotations

import os

import click

from ..ingest.encoding_options import EncodingOptions
from .help import Command
from .options import json_option, taken
from .output import Outcome, console, is_silent, print_json, print_notes
from .source_options import ALLOW_TRUNCATED, BAD_ROWS, LOG_FORMAT, LOGS, PROMPTS, bad_rows_allowed


@click.command("lint", cls=Command, groups={"--block-size": "Output"}, examples=(
    "kvtrace lint log.jsonl",
    "kvtrace lint 'logs/*.jsonl' --json --fail",
))
@LOGS
@LOG_FORMAT
@PROMPTS
@click.option("--block-size", type=click.IntRange(1), default=512, metavar="TOKENS", help="Tokens per block, for the positions.")
@ALLOW_TRUNCATED
@BAD_ROWS
@click.option("--fail", is_flag=True, help="Exit with status 3 if there is a finding.")
@json_option("ingest/lint.md")
@click.option("-q", "--quiet", is_flag=True, help="Print only the report and errors.")
def lint_command(inputs, on_error, max_errors, fail, as_json, quiet, **options):
    """Find what breaks the sharing of prefixes in a raw log.

    It compares prompts that nearly agree, but diverge early. A LOG is a file, a directory or a glob, also .gz and .zst; - is stdin. The report has positions, kinds, counts and
    the tokens that would hit otherwise. It shows no text of the log, and no file is written.
    """
    from ..text import preload, trial

    trial.hides_panics = not is_silent()  # a Python program may write to stderr from its own threads
    if any(map(os.path.exists, inputs)):  # else an error follows, which should not wait for the tokenizer
        preload.begin(options["tokenizer"], inputs)
    from .._base.errors import UsageError
    from ..ingest.linting.linter import lint_log
    from ..report.progress import Bar
    from ..report.raw_logs import lint_lines, lint_notes

    if on_error == "stop" and max_errors is not None:
        raise UsageError("--max-errors requires --on-error skip.")
    with Bar(console(), quiet or as_json, "reading") as bar:
        encoding = taken(EncodingOptions, options, max_errors=bad_rows_allowed(on_error, max_errors))
        report = lint_log(inputs, encoding, on_progress=bar.update)
    if as_json:
        print_json(report.to_dict())
    else:
        print_notes([*lint_lines(report), *lint_notes(report)])
    return Outcome(report, report.status if fail else 0)
