"""The options that `record` and `watch` share: where requests come from, and how they become digests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..ingest.encoding_options import EncodingOptions
from .log_options import ALLOW_TRUNCATED, LOG_FORMAT, PROMPTS
from .options import record_options, with_options

SOURCES = with_options(
    click.option(
        "--otlp",
        metavar="ADDRESS",
        is_flag=False,
        flag_value="4318",
        help="Receive OpenTelemetry's GenAI spans and events over OTLP/HTTP, and LiteLLM's generic_api callback on /litellm.  [without ADDRESS: 127.0.0.1:4318]",
    ),
    click.option(
        "--proxy", metavar="ADDRESS", help="Pass requests on to --upstream, and record those that generate text."
    ),
    click.option("--upstream", metavar="URL", help="Server behind --proxy, such as http://127.0.0.1:8000."),
    click.option("--session-header", metavar="NAME", help="With --proxy: header whose value is the key of a session."),
    click.option("--user-header", metavar="NAME", help="With --proxy: header whose value is the key of a user."),
    click.option(
        "--follow",
        multiple=True,
        metavar="LOG",
        help="Log file of JSON lines that grows; it may be rotated. Repeatable.",
    ),
    click.option("--from-start", is_flag=True, help="With --follow: also read what the file holds already."),
    click.option(
        "--kv-events",
        multiple=True,
        metavar="ENDPOINT",
        help="KV events of vLLM or SGLang, such as tcp://host:5557; add ,tcp://host:5567 for the replay socket. Repeatable.",
    ),
    click.option(
        "--metrics",
        metavar="ADDRESS",
        is_flag=False,
        flag_value="9464",
        help="Serve Prometheus metrics on /metrics.  [without ADDRESS: 127.0.0.1:9464]",
    ),
    click.option(
        "--queue",
        metavar="SIZE",
        default="256MiB",
        help="Memory for requests that wait. When it is full, further ones are dropped and counted.",
    ),
)
TENANTS = record_options(EncodingOptions, only=("tenant_field", "isolate_tenants"))
BLOCK_SIZE = click.option(
    "--block-size",
    type=click.IntRange(1),
    metavar="TOKENS",
    help="Tokens per block.  [default: 512, or the block size of the source's hashes]",
)
READING = with_options(LOG_FORMAT, PROMPTS, BLOCK_SIZE, ALLOW_TRUNCATED, TENANTS)

LIVE = ("upstream", "session_header", "user_header", "from_start")


def live_options(options: dict[str, Any]):
    """The sources that the options name; they are taken from the options."""
    from ..capture.live import LiveOptions
    from ..capture.servers import parse_address

    otlp, proxy, metrics = (
        None if text is None else parse_address(text) for text in map(options.pop, ("otlp", "proxy", "metrics"))
    )
    live = LiveOptions(
        otlp=otlp, proxy=proxy, metrics=metrics, follow=tuple(map(Path, options.pop("follow"))), kv_events=tuple(options.pop("kv_events")),
        **{name: options.pop(name) for name in LIVE},
    )  # fmt: skip
    live.require_source()
    live.require_libraries()
    return live


def queue_bytes(options: dict[str, Any]) -> int:
    """The memory of the queue; it is taken from the options."""
    from .._base.errors import UsageError
    from .._base.units import size_bytes

    try:
        return size_bytes(options.pop("queue"))
    except UsageError as error:
        raise UsageError(f"--queue: {error}") from None
