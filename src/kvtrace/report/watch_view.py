"""What `kvtrace watch` shows of a snapshot: a screen that renews itself on a terminal, or one line for a log.

Snapshots are the objects of docs/capture/watch.md, counts those of a service. The figures are those of the last window;
the line above the tables states its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from .._base.tables import TextTable
from .._base.units import duration, short
from ..trace.unknown import PREFIXES, sentence

if TYPE_CHECKING:
    from rich.console import Console

Values = Mapping[str, Any]
CAUSES = {  # cause -> what these tokens are
    "hit": "were in the cache",
    "evicted": "repeat an earlier prompt, but were not in the cache",
    "first_use": "are new: no cache has them",
}
EIGHTHS = " ▏▎▍▌▋▊▉"
WIDE = 100  # columns from which on bars are longer
MAX_REASONS = 3
TALL = 30  # lines from which on empty lines divide the parts, and reasons of rejections are shown


@dataclass
class RequestRates:
    """Requests and prompt tokens per second, between one snapshot and the next."""

    requests: float | None = None
    tokens: float | None = None
    _last: tuple[float, float, float] | None = None
    _started_s: float | None = None

    def update(self, snapshot: Values) -> None:
        """Take the pace since the snapshot before.

        >>> pace = RequestRates()
        >>> for now_s, requests in ((10.0, 5), (12.0, 25)):
        ...     total = {"requests": requests, "prompt_tokens": requests * 100}
        ...     pace.update({"now_s": now_s, "started_s": 9.0, "since_start": total})
        >>> pace.requests, pace.tokens
        (10.0, 1000.0)
        """
        total = snapshot["since_start"]
        now = (snapshot["now_s"], total["requests"], total["prompt_tokens"])
        if snapshot["started_s"] != self._started_s:  # a digester that starts again counts from 0
            self._started_s, self._last = snapshot["started_s"], None
            self.requests = self.tokens = None
        if self._last is not None and now[0] > self._last[0]:
            seconds = now[0] - self._last[0]
            self.requests, self.tokens = ((now[at] - self._last[at]) / seconds for at in (1, 2))
        if self._last is None or now[0] > self._last[0]:
            self._last = now


class LiveView:
    """A screen that renews itself in place; for a console that is a terminal."""

    def __init__(self, console: Console, sources: Sequence[str]):
        from rich.live import Live

        self._console, self._sources, self._pace = console, sources, RequestRates()
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, snapshot: Values, counts: Values) -> None:
        """Show a snapshot in place of the last one."""
        from rich.console import Group

        self._pace.update(snapshot)
        is_tall = self._console.height >= TALL
        counts = counts if is_tall else {**counts, "reasons": {}}
        parts = [*screen(snapshot, counts, self._sources, self._pace, width=self._console.width)]
        if not is_tall:
            parts = [part for part in parts if part]
        self._live.update(Group(*parts), refresh=True)


def screen(
    snapshot: Values, counts: Values, sources: Sequence[str], pace: RequestRates, *, width: int
) -> Iterator[TextTable | str]:
    """The lines and tables of the screen.

    Args:
        snapshot: The snapshot.
        counts: The counts of the service.
        sources: The names of the sources.
        pace: Requests and tokens per second.
        width: Columns of the terminal; a wide one has longer bars.
    """
    window = snapshot["window"]
    bar_width = 28 if width >= WIDE else 14
    running = duration(snapshot["now_s"] - snapshot["started_s"])
    yield f"kvtrace watch: {', '.join(sources) or 'no source'}, for {running}"
    yield _counts_line(counts, pace)
    yield ""
    yield (
        f"Last {duration(snapshot['window_s'])}: {window['requests']:,.0f} requests, "
        f"{short(window['prompt_tokens'])} prompt tokens, {short(window['blocks'])} blocks of "
        f"{snapshot['block_size']} tokens"
    )
    yield ""
    yield _hit_table(snapshot, bar_width)
    if window["causes"]:
        yield ""
        yield _cause_table(window, bar_width)
    yield ""
    yield from advice(snapshot)
    yield from _reasons(counts)


def line(snapshot: Values, counts: Values, pace: RequestRates, clock: str) -> str:
    """One line for a log: the pace, the token hit rates, the working set, and the capacity for 90 %.

    Args:
        snapshot: The snapshot.
        counts: The counts of the service.
        pace: Requests and tokens per second.
        clock: The time, as the line states it.
    """
    window = snapshot["window"]
    rates = [f"{name} {percent(rate)}" for name, _, rate in _token_rates(window)]
    parts = [
        f"{window['requests']:,.0f} requests in {duration(snapshot['window_s'])}",
        _pace_text(pace),
        _lost(counts),
        f"token hit rate: {', '.join(rates)}",
        f"working set {amount(snapshot, window['working_set_blocks'], window['working_set_gib'])}",
        f"90 % of possible: {amount(snapshot, window['blocks_for_90_percent'], window['gib_for_90_percent'])}",
        *_lengths_only(snapshot),
    ]
    return f"{clock} " + "; ".join(part for part in parts if part)


def advice(snapshot: Values) -> Iterator[str]:
    """What the figures mean, in a sentence each."""
    window, capacity = snapshot["window"], snapshot["capacity_blocks"]
    yield from _lengths_only(snapshot)
    yield f"Working set: {amount(snapshot, window['working_set_blocks'], window['working_set_gib'])}."
    needed = window["blocks_for_90_percent"]
    if needed is not None:
        times = f", {needed / capacity:.2g} times today's capacity" if capacity else ""
        yield f"90 % of the possible token hits need {amount(snapshot, needed, window['gib_for_90_percent'])}{times}."
    if capacity and (gain := gain_of_doubling(window)) is not None:
        yield f"Twice today's capacity would add {100 * gain:.1f} points to the token hit rate."
    precision = snapshot["precision"]
    if precision["exact_up_to_blocks"] is not None:
        exact = f"Capacities up to {precision['exact_up_to_blocks']:,} blocks are exact"
        yield f"{exact}; larger ones are estimated from {100 * precision['sample']:g} % of the blocks."
    if precision["reach_blocks"] is not None:
        yield f"Reuse after more than {precision['reach_blocks']:,} other blocks counts as first use."


def _lengths_only(snapshot: Values) -> Iterator[str]:
    """A sentence on requests whose log has lengths only."""
    if count := snapshot["lengths_only"]:
        unknown = sentence(PREFIXES)
        yield f"{count:,} requests since the start: {unknown}"


def gain_of_doubling(traffic: Values) -> float | None:
    """Token hit rate at factor 2 less that at factor 1; None if one of them is not known."""
    rates = {point["factor"]: point["token_hit_rate"] for point in traffic["curve"]}
    single, double = rates.get(1.0), rates.get(2.0)
    return None if single is None or double is None else double - single


def percent(rate: float | None) -> str:
    """A rate in percent.

    >>> percent(0.25), percent(None)
    ('25.0 %', '-')
    """
    return "-" if rate is None else f"{100 * rate:.1f} %"


def bar(rate: float | None, width: int) -> str:
    """A rate as a bar of at most so many columns.

    >>> bar(0.5, 4), bar(0.3, 4), bar(None, 4)
    ('██', '█▎', '')
    """
    eighths = round(8 * width * min(max(rate or 0.0, 0.0), 1.0))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def amount(snapshot: Values, blocks: float | None, gib: float | None) -> str:
    """A number of blocks, with the size of their KV cache if a model is named.

    >>> amount({}, 3000, 5.859), amount({}, 3000, None), amount({}, None, None)
    ('3,000 blocks (5.9 GiB)', '3,000 blocks', 'not known yet')
    """
    if blocks is None:
        return "not known yet"
    return f"{blocks:,.0f} blocks" + ("" if gib is None else f" ({gib:,.1f} GiB)")


def _counts_line(counts: Values, pace: RequestRates) -> str:
    return ", ".join(filter(None, [_pace_text(pace), _lost(counts)]))


def _reasons(counts: Values) -> Iterator[str]:
    """The most frequent reasons for which requests are not in the figures, a line each."""
    reasons = counts.get("reasons") or {}
    for reason in sorted(reasons, key=reasons.__getitem__, reverse=True)[:MAX_REASONS]:
        yield f"{reasons[reason]:,} rejected: {reason}"


def _pace_text(pace: RequestRates) -> str:
    if pace.requests is None or pace.tokens is None:
        return ""
    return f"{pace.requests:,.1f} requests/s, {short(pace.tokens)} tokens/s"


def _lost(counts: Values) -> str:
    """Requests that are not in the figures; empty if the service does not count them."""
    keys = {"dropped": "dropped", "rejected": "rejected", "malformed": "malformed", "lost": "lost"}
    always = [key for key in keys if counts.get(key) or (key == "dropped" and key in counts)]
    return ", ".join(f"{counts[key]:,} {keys[key]}" for key in always)


def _token_rates(traffic: Values) -> Iterator[tuple[str, Values, float | None]]:
    """(name, the point, token hit rate) of the curve, of an unlimited cache and of the service."""
    for point in traffic["curve"]:
        yield f"{point['factor']:g}x", point, point["token_hit_rate"]
    yield "possible", traffic["possible"], traffic["possible"]["token_hit_rate"]
    if traffic["delivered"]:
        yield "delivered", traffic["delivered"], traffic["delivered"]["token_hit_rate"]


def _hit_table(snapshot: Values, bar_width: int) -> TextTable:
    window = snapshot["window"]
    of = "multiples of today's capacity" if window["curve_of"] == "capacity" else "shares of the working set"
    table = TextTable(f"Hit rates of an LRU cache, by {of}")
    table.add_column("cache")
    table.add_columns(["blocks"], right=True, rank=0)
    with_gib = snapshot["kv_bytes_per_token"] is not None
    table.add_columns(["GiB"] if with_gib else [], right=True, rank=1)
    table.add_columns(["token hit rate"], right=True, rank=0)
    table.add_column("", rank=4)
    table.add_columns(["block hit rate"], right=True, rank=2)
    table.add_columns(["request hit rate"], right=True, rank=3)
    for name, point, rate in _token_rates(window):
        blocks, gib = point.get("capacity_blocks"), point.get("capacity_gib")
        sizes = [
            "" if blocks is None else f"{blocks:,}",
            *([("" if gib is None else f"{gib:,.1f}")] if with_gib else []),
        ]
        others = [percent(point[key]) if key in point else "" for key in ("block_hit_rate", "request_hit_rate")]
        table.add_row(name, *sizes, percent(rate), bar(rate, bar_width).ljust(bar_width), *others)
    return table


def _cause_table(traffic: Values, bar_width: int) -> TextTable:
    hits = (
        "hits that the service delivered" if traffic["causes_of"] == "delivered" else "hits of LRU at today's capacity"
    )
    table = TextTable(f"Prompt tokens by cause, with the {hits}")
    table.add_column("cause")
    table.add_columns(["prompt tokens", "share"], right=True, rank=0)
    table.add_column("", rank=4)
    table.add_column("these tokens", dim=True, rank=2)
    total = sum(traffic["causes"].values()) or 1.0
    for cause, tokens in traffic["causes"].items():
        share = tokens / total
        cells = (f"{tokens:,.0f}", percent(share), bar(share, bar_width).ljust(bar_width), CAUSES[cause])
        table.add_row(cause.replace("_", " "), *cells)
    return table
