"""`kvtrace watch`: what the prefix cache delivers, and what more memory would bring, of live requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from math import inf
from typing import Any

import click

from .._base.errors import InputError, UsageError
from ..ingest.encoding_options import EncodingOptions
from .help import Command, PageOption
from .options import KV_BYTES, MODEL_CONFIG, QUIET, taken
from .output import Outcome, console, echo, is_silent, print_json_line, print_line, print_tables, rejected
from .source_options import READING, SOURCES, live_options, queue_bytes, stop_event

IDLE_S = 1.0  # --once: nothing has come for so long
POLL_S = 0.1
Show = Callable[[Any], None]  # shows a capture.metrics.Reading


@click.command("watch", cls=Command, groups={"--block-size": "Blocks", "--window": "Cache", "--sample": "Cache", "--for": "Output"}, examples=(
    "kvtrace watch --otlp --capacity 24GiB --model llama-3.1-8b",
    "kvtrace watch --proxy 8001 --upstream http://127.0.0.1:8000 --metrics",
    "kvtrace watch --follow log.jsonl --from-start --block-size 16 --capacity 100 --once",
    "kvtrace watch --follow log.jsonl --from-start --json --for 2s",
))
@SOURCES
@click.option("--capacity", metavar="C", help="Capacity of today's cache: 24GiB (with --model), 1000 (blocks) or 64ktokens.  [default: the curve is of shares of the working set]")
@MODEL_CONFIG
@KV_BYTES
@click.option("--window", default="1h", metavar="TIME", help="Length of the moving window of the figures.")
@click.option("--half-life", default="10m", metavar="TIME", help="Time after which a request counts half in the decayed figures.")
@click.option("--sample", type=float, default=0.01, metavar="SHARE", help="Share of the blocks that the estimate follows beyond its exact part.")
@READING
@click.option("--interval", default="5s", metavar="TIME", help="Time from one display to the next.")
@click.option("--once", is_flag=True, help="Wait until requests have come and no more follow, show the figures, and stop.")
@click.option("--for", "for_ms", metavar="TIME", help="Stop after this time.  [default: at Ctrl-C or SIGTERM]")
@click.option("--json", "as_json", is_flag=True, cls=PageOption, page="capture/watch.md", help="Print one JSON object a line; its keys are on the page below.")
@QUIET
def watch_command(interval, once, for_ms, as_json, quiet, **options):
    """Show live hit rates, and what more memory would bring.

    Live requests become keyed digests in memory, and nothing is stored. A terminal shows the figures in place; a pipe gets a line
    at each interval.
    """
    from ..capture.live import Live
    from ..capture.metrics import Reading
    from ..capture.watcher import Watcher, known_block_size

    live = live_options(options)
    encoding, queue = taken(EncodingOptions, options), queue_bytes(options)
    gauge = _gauge_options(known_block_size(live, encoding), **options)
    screen, lock = console(), threading.Lock()
    consoles = [screen]  # the last one takes messages

    def say(sentence: str) -> None:
        with lock:
            consoles[-1].print(sentence, highlight=False, markup=False)

    def read() -> Reading:
        return Reading(watcher.snapshot(), watcher.counts())

    sources, show = sources_of(live), None
    with ExitStack() as display:
        with (
            stop_event() as stopped,
            Watcher(gauge, encoding, queue_bytes=queue, on_message=say) as watcher,
            Live(live, watcher, ledger=watcher.ledger, metrics=_metrics(read, watcher.problem) if live.metrics else None, on_message=say, supervisor=watcher.supervisor) as running,
        ):
            if not quiet:
                for name, address in running.addresses.items():
                    print_line(screen, f"{name:<12}http://{address}")
            end_s = None if for_ms is None else time.monotonic() + for_ms / 1000
            if once:
                _wait_until_idle(read, stopped, end_s)
            else:
                show = display.enter_context(_display(sources, consoles, as_json=as_json))
                _show_at_intervals(read, show, stopped, interval / 1000, end_s)
        if show is not None and (last := read()).snapshot is not None:  # with what waited in the queue
            show(last)
    if is_silent():
        return Outcome(json_of(_require_figures(read()), sources))
    if once:
        _show_once(read(), sources, as_json=as_json)
    elif not quiet:
        for line in rejected(read().counts.get("reasons", {})):
            print_line(screen, line)


def _gauge_options(block_size, *, capacity, model_config, kv_bytes_per_token, window, half_life, sample):
    """What the gauge measures."""
    from ..capture.gauge import GaugeOptions
    from ..serving.models.layers import chosen

    kv_bytes = chosen(model_config, kv_bytes_per_token)
    capacity = require_capacity(capacity, kv_bytes, block_size)
    return GaugeOptions(capacity, kv_bytes, block_size, window / 1000, half_life / 1000, sample)


def require_capacity(text: str | None, kv_bytes: int | None, block_size: int | None = None) -> str | None:
    """The capacity as it was written; UsageError if it is not one. If not known, the first requests tell the block size.

    >>> require_capacity("24GiB", 131072), require_capacity(None, None)
    ('24GiB', None)
    """
    from ..analysis.capacities import parse_capacity

    if text is None:
        return None
    if text.rstrip().endswith("%"):
        raise UsageError(f"--capacity {text}: the working set is not known in advance. Write blocks, tokens or GiB.")
    parse_capacity(text, block_size=block_size or 1, working_set=1, kv_bytes_per_token=kv_bytes)
    return text


def sources_of(live: Any) -> list[str]:
    """The kinds of sources that run."""
    return [name.replace("_", "-") for name in ("otlp", "proxy", "follow", "kv_events") if getattr(live, name)]


def _metrics(read: Callable[[], Any], problem: Callable[[], str | None]) -> Any:
    """The application of --metrics."""
    from ..capture.metrics import metrics_app, registry_of

    return metrics_app(registry_of(read), problem)


def _wait_until_idle(read: Callable[[], Any], stopped: threading.Event, end_s: float | None) -> None:
    """Wait until requests were taken and no more come, until `end_s` of the monotonic clock, or until a signal."""
    taken, since_s = 0, time.monotonic()
    while not stopped.wait(POLL_S):
        now_s, counts = time.monotonic(), read().counts
        if counts["accepted"] != taken or counts["waiting"]:
            taken, since_s = counts["accepted"], now_s
        if (taken and now_s - since_s >= IDLE_S) or (end_s is not None and now_s >= end_s):
            return


def _show_at_intervals(read: Callable[[], Any], show: Show, stopped: threading.Event, interval_s: float, end_s: float | None) -> None:
    """Show the figures at each interval, until `end_s` of the monotonic clock or until a signal."""
    while True:
        left_s = inf if end_s is None else end_s - time.monotonic()
        if stopped.wait(max(0.0, min(interval_s, left_s))) or left_s <= interval_s:
            return
        if (reading := read()).snapshot is not None:
            show(reading)


@contextmanager
def _display(sources: list[str], consoles: list[Any], *, as_json: bool) -> Iterator[Show]:
    """A function that shows a reading: as a JSON line, in place on a terminal, or as a line of text.

    While it shows in place, messages go above the figures: another console would write over them.
    """
    from rich.console import Console

    from ..report.watch_view import LiveView, RequestRates, line

    screen, pace = Console(quiet=is_silent()), RequestRates()
    if is_silent():
        yield lambda reading: None
    elif as_json:
        yield lambda reading: print_json_line(json_of(reading, sources))
    elif screen.is_terminal:
        with LiveView(screen, sources) as view:
            consoles.append(screen)
            yield lambda reading: view.update(reading.snapshot, reading.counts)
        consoles.pop()
    else:

        def show(reading: Any) -> None:
            pace.update(reading.snapshot)
            echo(line(reading.snapshot, reading.counts, pace, time.strftime("%H:%M:%S")))

        yield show


def _show_once(reading: Any, sources: list[str], *, as_json: bool) -> None:
    """Show the last figures, whole."""
    from rich.console import Console, Group

    from ..report.watch_view import RequestRates, screen

    _require_figures(reading)
    if as_json:
        print_json_line(json_of(reading, sources))
    else:
        print_tables([Group(*screen(reading.snapshot, reading.counts, sources, RequestRates(), width=Console().width))])


def _require_figures(reading: Any) -> Any:
    """The reading; InputError if no request could be read."""
    if reading.snapshot is None or not reading.snapshot["since_start"]["requests"]:
        reasons = reading.counts.get("reasons", {})
        if not reasons:
            raise InputError("no request arrived, so there are no figures.")
        reason = max(reasons, key=reasons.__getitem__)
        raise InputError(f"no request could be read, so there are no figures. {reasons[reason]:,} rejected: {reason}")
    return reading


def json_of(reading: Any, sources: list[str]) -> dict[str, Any]:
    """One line of --json: the snapshot, the sources, and the counts of the service."""
    return {**reading.snapshot, "sources": sources, "counts": reading.counts}
