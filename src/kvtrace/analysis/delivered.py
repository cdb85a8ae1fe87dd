"""Delivered against possible: the prompt tokens that a service took from its cache, beside those that it could have.

`cached_tokens` is what the service measured. Possible is what a cache that never evicts would hit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from .._base.errors import InputError
from .._base.results import Result, ResultColumn, column
from .._base.tables import TextTable
from ..trace.columns import MEASURED, require_trace
from ..trace.domains import in_domains
from ..trace.hits import leading_tokens, session_groups, time_windows, unlimited_hits
from ..trace.trace import Trace
from ..trace.unknown import PREFIXES, require_known

HOUR_MS, DAY_MS = 3_600_000.0, 86_400_000.0
MAX_HOURS = 48  # rows of a table; a longer trace has a row for each day
LARGEST = 10  # sessions in `to_dict` and in the table


KINDS = ("possible", "simulated", "delivered", "lost")
OF_GROUPS = {
    "requests": column("requests", ","), "tokens": column("prompt tokens", ","),
    **{kind: column(kind, str, rank=0) for kind in KINDS}, "lost_tokens": column("lost tokens", ","),
}  # fmt: skip


class TokensDict(TypedDict):
    """The tokens of a group of requests. All but `unknown_requests` count the requests whose hits are known."""

    requests: int
    unknown_requests: int
    tokens: int
    delivered_tokens: int
    possible_tokens: int
    simulated_tokens: int | None
    lost_tokens: int


class WindowTokensDict(TokensDict):
    """The tokens of one window of time."""

    start_ms: float


class SessionTokensDict(TokensDict):
    """The tokens of one session; session -1 has the requests without one."""

    session: int


class DeliveredDict(TokensDict):
    """The result of `Delivered.to_dict`; docs/analysis/analyze.md explains the keys."""

    with_outputs: bool
    excess_requests: int
    excess_tokens: int
    by_hour: list[WindowTokensDict]
    largest_losses: list[SessionTokensDict]
    notes: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class Delivered(Result):
    """What a service delivered from its cache, what was possible, and what a simulation has; one value a request."""

    timestamp: np.ndarray  # ms
    session: np.ndarray | None  # -1 = none
    tokens: np.ndarray  # of the prompt
    delivered: np.ndarray  # of them from the cache of the service, -1 = unknown
    possible: np.ndarray  # of them in a cache that never evicts
    simulated: np.ndarray | None  # of them in a simulated cache
    block_size: int
    with_outputs: bool  # outputs of earlier requests count as possible, too

    @property
    def is_known(self) -> np.ndarray:
        """Request -> whether the service stated its hits. Sums leave out the others."""
        return MEASURED["cached_tokens"].is_known(self.delivered)

    @property
    def totals(self) -> TokensDict:
        """The tokens of all requests.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.trace.columns import replace_columns
        >>> columns = replace_columns(toy("0 1", "0 1", "0 1"), cached_tokens=[0, 1, -1])
        >>> totals = delivered_hits(Trace.from_columns(columns, block_size=1)).totals
        >>> totals["delivered_tokens"], totals["possible_tokens"], totals["unknown_requests"]
        (1, 2, 1)
        """
        return self._groups(np.zeros(1, dtype=np.int64))[0]

    @property
    def excess(self) -> np.ndarray:
        """Request -> tokens that the service delivered beyond what was possible; 0 where its hits are unknown."""
        return np.where(self.is_known, np.maximum(self.delivered - self.possible, 0), 0)

    def over_time(self, window_ms: float = HOUR_MS) -> list[WindowTokensDict]:
        """The tokens of each window of time that has requests; an hour each by default.

        Raises:
            UsageError: The window is not longer than 0 ms.
        """
        windows = time_windows(self.timestamp, window_ms, "an hour, 3600000")
        rows = zip(windows.labels.tolist(), self._groups(windows.starts, windows.order), strict=True)
        return [{**row, "start_ms": start} for start, row in rows]

    def by_session(self) -> list[SessionTokensDict]:
        """The tokens of each session, in order of its number; one for all requests if the trace has no sessions."""
        sessions = session_groups(self.session, len(self.tokens))
        rows = zip(sessions.labels.tolist(), self._groups(sessions.starts, sessions.order), strict=True)
        return [{**row, "session": number} for number, row in rows]

    def largest_losses(self, sessions: int = LARGEST) -> list[SessionTokensDict]:
        """The sessions that lost the most tokens, the largest loss first; without sessions that lost nothing."""
        lost = [session for session in self.by_session() if session["session"] >= 0 and session["lost_tokens"] > 0]
        return sorted(lost, key=lambda session: (-session["lost_tokens"], session["session"]))[:sessions]

    @property
    def notes(self) -> list[str]:
        """Sentences on what the figures leave out, and on hits that the trace does not explain."""
        totals, excess, lines = self.totals, self.excess, []
        if totals["unknown_requests"]:
            everything = len(self.tokens)
            lines.append(
                f"{totals['unknown_requests']:,} of {everything:,} requests have no cached_tokens. Sums leave them out."
            )
        if excess.any():
            earlier = "prompt or output" if self.with_outputs else "prompt"
            outputs = "" if self.with_outputs else "kept outputs (kvtrace anonymize --outputs writes their blocks), "
            lines.append(
                f"In {np.count_nonzero(excess):,} requests the service hit {excess.sum():,} more tokens "
                f"than any earlier {earlier} of the trace had: its cache {outputs}had other traffic or prompts from "
                f"before the log began, its blocks are smaller than {self.block_size:,} tokens, or its tokenizer "
                "counts differently. These tokens make the loss smaller."
            )
        return lines

    def to_dict(self) -> DeliveredDict:
        """The JSON object of https://github.com/kvtrace/kvtrace/blob/main/docs/analysis/analyze.md."""
        excess = self.excess
        return {
            **self.totals, "with_outputs": self.with_outputs, "excess_requests": int(np.count_nonzero(excess)),
            "excess_tokens": int(excess.sum()), "by_hour": self.over_time(), "largest_losses": self.largest_losses(),
            "notes": self.notes,
        }  # fmt: skip

    def tables(self) -> Iterator[TextTable]:
        """The totals, the hours or days if there are several, and the sessions with the largest loss."""
        yield self._totals_table()
        by_day = bool(len(self.timestamp)) and self.timestamp[-1] > MAX_HOURS * HOUR_MS
        unit, window_ms = ("day", DAY_MS) if by_day else ("hour", HOUR_MS)
        if len(windows := self.over_time(window_ms)) > 1:
            first = column(unit, lambda ms: f"{ms / window_ms:,.0f}", rank=0)
            yield self._group_table(f"Delivered against possible by {unit}", {"start_ms": first}, windows)
        if largest := self.largest_losses():
            first = column("session", ",", rank=0)
            yield self._group_table("Sessions with the largest loss", {"session": first}, largest)

    def _totals_table(self) -> TextTable:
        totals = self.totals
        table = TextTable("Delivered against possible")
        table.add_column("")
        table.add_columns(["prompt tokens", "share"], right=True)
        table.add_column("", dim=True)
        possible = "an earlier prompt or output had them" if self.with_outputs else "an earlier prompt had them"
        rows = [
            ("possible", totals["possible_tokens"], possible),
            ("simulated", totals["simulated_tokens"], "hits of the simulated cache"),
            ("delivered", totals["delivered_tokens"], "hits of the service: cached_tokens"),
            ("lost", totals["lost_tokens"], "possible less delivered"),
            ("all", totals["tokens"], f"of {totals['requests']:,} requests"),
        ]
        for name, tokens, note in rows:
            if share := _share(tokens, totals["tokens"]):
                table.add_row(name, f"{tokens:,}", share, note)
        return table

    def _group_table(self, title: str, first: dict[str, ResultColumn], groups: Sequence[TokensDict]) -> TextTable:
        rows = [
            {**group, **{kind: _share(group[f"{kind}_tokens"], group["tokens"]) for kind in KINDS}}  # type: ignore[literal-required]
            for group in groups
        ]
        return TextTable(title, remedy="use --json or a wider terminal").add_results(first | OF_GROUPS, rows)

    def _headline(self) -> str:
        totals = self.totals
        kinds = ("delivered", *(["simulated"] if self.simulated is not None else []), "possible")
        shares = [f"{kind}={totals[f'{kind}_tokens'] / max(totals['tokens'], 1):.4f}" for kind in kinds]  # type: ignore[literal-required]
        unknown = f", {totals['unknown_requests']:,} unknown" if totals["unknown_requests"] else ""
        return f"{totals['requests']:,} requests, {totals['tokens']:,} prompt tokens, {', '.join(shares)}{unknown}"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each request."""
        columns = {"timestamp": self.timestamp, "session": self.session, "input_length": self.tokens}
        columns |= {"delivered": self.delivered, "possible": self.possible, "simulated": self.simulated}
        return {name: values for name, values in columns.items() if values is not None}

    def _groups(self, starts: np.ndarray, order: np.ndarray | None = None) -> list[TokensDict]:
        """The tokens of groups of rows; a group ends where the next one starts."""
        rows = np.arange(len(self.tokens)) if order is None else order
        if not len(rows):
            return [self._group(*[0] * 6)] * len(starts)
        is_counted = self.is_known[rows]
        values = [
            is_counted,
            ~is_counted,
            *(column[rows] * is_counted for column in (self.tokens, self.delivered, self.possible)),
        ]
        values += [] if self.simulated is None else [self.simulated[rows] * is_counted]
        sums = [np.add.reduceat(column.astype(np.int64), starts).tolist() for column in values]
        return [self._group(*(column[at] for column in sums), *[0] * (6 - len(sums))) for at in range(len(starts))]

    def _group(self, requests, unknown, tokens, delivered, possible, simulated) -> TokensDict:
        return {
            "requests": requests, "unknown_requests": unknown, "tokens": tokens, "delivered_tokens": delivered,
            "possible_tokens": possible, "simulated_tokens": None if self.simulated is None else simulated,
            "lost_tokens": possible - delivered,
        }  # fmt: skip


def delivered_hits(
    trace: Trace, *, simulated: np.ndarray | None = None, hit_blocks: np.ndarray | None = None, warm_up: int = 0
) -> Delivered:
    """Compare the hits that a service measured with those of a cache that never evicts.

    Blocks of earlier outputs are possible hits too, if the trace has them.

    Args:
        trace: A trace with the column `cached_tokens`, in memory or streamed.
        simulated: Request -> prompt tokens that a simulated cache hit, to compare them as well.
        hit_blocks: Request -> hit blocks of a cache that never evicts, if they are known already.
        warm_up: The first requests, which are left out.

    Returns:
        The tokens in total, over time and by session, with the sessions that lost the most.

    Raises:
        InputError: The trace has no `cached_tokens`, or its ids do not form a forest.
        UnknownError: Shared prefixes are unknown, and with them the possible hits.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0 1", "0 1", block_size=16), cached_tokens=[0, 16])
    >>> delivered_hits(Trace.from_columns(columns, block_size=16))
    Delivered(2 requests, 64 prompt tokens, delivered=0.2500, possible=0.5000)
    """
    require_trace(trace)
    if trace.cached_tokens is None:
        raise InputError("the trace has no cached_tokens: its service did not measure hits.")
    require_known(trace, trace.meta, "what was possible beside the delivered hits", PREFIXES)
    view = in_domains(trace)
    if hit_blocks is None:
        hit_blocks = unlimited_hits(view, outputs=view.has_output_blocks)
    possible = leading_tokens(trace, hit_blocks)
    rows = slice(warm_up, None)
    return Delivered(
        trace.timestamp[rows], None if trace.session is None else trace.session[rows], trace.input_length[rows],
        trace.cached_tokens[rows], possible[rows], None if simulated is None else simulated[rows],
        trace.block_size, trace.has_output_blocks,
    )  # fmt: skip


def _share(tokens: int | None, whole: int) -> str | None:
    return None if tokens is None else f"{tokens / max(whole, 1):.1%}".replace("%", " %")
