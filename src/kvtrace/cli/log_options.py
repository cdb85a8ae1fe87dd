"""The options that `anonymize` and `lint` share: how a raw log is read, and how its prompts become tokens."""

from __future__ import annotations

import click

from .options import with_options

LOGS = click.argument("inputs", nargs=-1, required=True, metavar="LOG...")
LOG_FORMAT = with_options(
    click.option(
        "--log-format",
        default="auto",
        metavar="NAME",
        help="Log format, as listed in docs/ingest/logs.md; auto detects it from the first rows.",
    ),
    click.option(
        "--map",
        "maps",
        multiple=True,
        metavar="FIELD=PATH",
        help="Path of a field in the log, such as session=meta.conversation. Repeatable.",
    ),
    click.option(
        "--time-unit",
        default="auto",
        metavar="UNIT",
        help="Unit of the log's times: s, ms, us, ns or iso; auto detects it from the first rows.",
    ),
)
PROMPTS = with_options(
    click.option(
        "--tokenizer",
        default="auto",
        metavar="NAME",
        help="Built-in name, o200k_base or cl100k_base, path of a tokenizer.json or of its folder, or Hugging Face id. auto takes that of the log's model if it needs no download, else deepseek-r1.",
    ),
    click.option("--chat-template", metavar="FILE", help="Jinja file to use instead of the tokenizer's own chat template."),
    click.option("--no-chat-template", is_flag=True, help="Do not apply a chat template: the prompts are already the text that the engine receives."),
    click.option("--generation-prompt", metavar="TEXT", help=r"Replace the template's generation prompt; \n is a newline."),
    click.option(
        "--render-as",
        default="vllm",
        type=click.Choice(["vllm", "sglang", "raw"]),
        help="Engine whose form of a request the chat template gets; raw: as logged.",
    ),
    click.option("--request-templates", is_flag=True, help="Render a request that brings its own chat template with it, in a sandbox."),
)
ALLOW_TRUNCATED = click.option("--allow-truncated", is_flag=True, help="Accept prompts that the logger cut short.")
BAD_ROWS = with_options(
    click.option("--on-error", default="stop", type=click.Choice(["stop", "skip"]), help="At a bad row: stop, or skip it."),
    click.option(
        "--max-errors",
        type=click.IntRange(0),
        metavar="N",
        help="With --on-error skip: stop after N bad rows.  [default: no limit]",
    ),
)

ON_MISMATCH = click.option(
    "--on-mismatch",
    default="stop",
    type=click.Choice(["stop", "warn"]),
    help="If the log's own counts of prompt tokens differ from ours by more than 2 %, though the tokenizer is known to be the model's: stop, or warn.",
)


def bad_rows_allowed(on_error: str, max_errors: int | None) -> int:
    """The bad rows that a run skips; -1 = any number."""
    return 0 if on_error == "stop" else -1 if max_errors is None else max_errors
