"""The options of raw logs that several commands share: how a raw log is read, and how its prompts become tokens."""

from __future__ import annotations

import click

from ..ingest.encoding_options import EncodingOptions
from .options import record_options, with_options

LOGS = click.argument("inputs", nargs=-1, required=True, metavar="LOG...")
LOG_FORMAT = record_options(EncodingOptions, only=("log_format", "field_map", "time_unit"))
PROMPTS = record_options(EncodingOptions, only=(
    "tokenizer", "chat_template", "use_template", "generation_prompt", "render_as", "request_templates",
))
ALLOW_TRUNCATED = record_options(EncodingOptions, only=("allow_truncated",))
BAD_ROWS = with_options(
    click.option("--on-error", default="stop", type=click.Choice(["stop", "skip"]), help="At a bad row: stop, or skip it."),
    click.option(
        "--max-errors",
        type=click.IntRange(0),
        metavar="N",
        help="With --on-error skip: stop after N bad rows.  [default: no limit]",
    ),
)


def bad_rows_allowed(on_error: str, max_errors: int | None) -> int:
    """The bad rows that a run skips; -1 = any number."""
    return 0 if on_error == "stop" else -1 if max_errors is None else max_errors
