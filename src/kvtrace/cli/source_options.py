"""Options of where requests come from: a raw log (`anonymize`, `lint`) or live sources (`record`, `watch`).

They say how rows are read, and how prompts become tokens and digests. A live service ends at Ctrl-C or SIGTERM, which
set an event, so that requests that wait are finished first.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from .._base.process import STOPPING, forget_handlers
from ..ingest.encoding_options import EncodingOptions
from .completion import log_formats
from .options import record_options, with_options

LOGS = click.argument("inputs", nargs=-1, required=True, metavar="LOG...")
LOG_FORMAT = record_options(EncodingOptions, only=("log_format", "field_map", "time_unit"), settings={"log_format": {"rows": log_formats}})
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
    from ..capture.live import LiveOptions, parse_address

    otlp, proxy, metrics = (
        None if text is None else parse_address(text) for text in map(options.pop, ("otlp", "proxy", "metrics"))
    )
    live = LiveOptions(
        otlp=otlp, proxy=proxy, metrics=metrics, follow=tuple(map(Path, options.pop("follow"))), kv_events=tuple(options.pop("kv_events")),
        **{name: options.pop(name) for name in LIVE},
    )  # fmt: skip
    live.require_source()
    live.require_libraries()
    live.require_startable()
    return live


def queue_bytes(options: dict[str, Any]) -> int:
    """The memory of the queue; it is taken from the options."""
    from .._base.errors import UsageError
    from .._base.units import size_bytes

    try:
        return size_bytes(options.pop("queue"))
    except UsageError as error:
        raise UsageError(f"--queue: {error}") from None


class _StopEvent(threading.Event):
    """An event that a signal handler sets.

    Python runs the handler in the main thread between two steps, so a wait must end now and then: a signal that came
    just before it would be lost. And the handler must take no lock that the thread may hold at that moment.
    """

    _is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        while not self._is_set and (end is None or time.monotonic() < end):
            time.sleep(WAIT_S if end is None else max(0.0, min(WAIT_S, end - time.monotonic())))
        return self._is_set


WAIT_S = 0.1


@contextmanager
def stop_event() -> Iterator[threading.Event]:
    """An event that the first signal sets; a second one ends the process at once. Signals are as before after the block.

    >>> with stop_event() as stopped:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stopped.is_set()
    True
    """
    stopped = _StopEvent()

    def stop(*_: object) -> None:
        forget_handlers()
        stopped.set()

    is_main = threading.current_thread() is threading.main_thread()  # Python allows handlers there alone
    before = {number: signal.getsignal(number) for number in STOPPING} if is_main else {}
    ours = [number for number, handler in before.items() if handler not in (None, signal.SIG_IGN)]
    for number in ours:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        for number in ours:
            signal.signal(number, before[number])
