"""The result of `explain`: the causes of all prompt tokens, in total, over time, by session and by request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NotRequired, TypedDict

import numpy as np

from ..._base.results import PlottedResult
from ...analysis.delivered import Delivered, DeliveredDict, delivered_hits
from ...cache.simulation import Simulation, SimulationDict
from ...trace.hits import RequestGroups, session_groups, time_windows
from ...trace.trace import Trace
from .causes import CAUSES, Causes
from .setup import Setup

SCHEMA = 1  # version of the keys and values of to_dict


class GroupDict(TypedDict):
    """The prompt tokens of a group of requests, by cause."""

    requests: int
    tokens: int
    causes: dict[str, int]


class WindowCausesDict(GroupDict):
    """The prompt tokens of one window of time, by cause."""

    start_ms: float


class SessionCausesDict(GroupDict):
    """The prompt tokens of one session, by cause; session -1 has the requests without one."""

    session: int


class ExplanationDict(TypedDict):
    """The result of `Explanation.to_dict`; docs/serving/explain.md explains the keys."""

    schema: int
    simulation: SimulationDict
    requests: int
    tokens: int
    causes: dict[str, int]
    tiers: dict[str, int]
    possible_tokens: int
    delivered: NotRequired[DeliveredDict]  # of a trace with cached_tokens


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(PlottedResult):
    """The causes of the prompt tokens of a simulation. Totals leave out the requests of its warm-up."""

    simulation: Simulation
    causes: Causes
    trace: Trace  # as it was given, with its isolation domains
    setup: Setup  # what was simulated

    def _headline(self) -> str:
        totals = self.totals
        most = max((name for name in totals if name != "hit"), key=totals.__getitem__)
        shares = [tokens / max(self.tokens, 1) for tokens in (totals["hit"], self.possible_tokens, totals[most])]
        hit, possible, missed = (f"{share:.4f}" for share in shares)
        return f"{self.tokens:,} prompt tokens, hit={hit}, possible={possible}, largest miss: {most}={missed}"

    def _columns(self) -> dict[str, np.ndarray]:
        return self.per_request

    @property
    def per_request(self) -> dict[str, np.ndarray]:
        """Columns with a row for each request, as in `kvtrace explain --per-request`: its tokens by cause and tier.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explaining import explain
        >>> explain(toy("0 1", "2 3", "0 1"), 2).per_request["evicted"].tolist()
        [0, 0, 2]
        """
        trace = self.simulation.trace
        columns = {"request": np.arange(len(trace)), "timestamp": trace.timestamp}
        if trace.session is not None:
            columns["session"] = trace.session
        tiers = self.causes.tiers if len(self.causes.tiers) > 1 else {}
        by_tier = {f"hit_{name}": tokens for name, tokens in tiers.items()}
        return columns | {"input_length": trace.input_length} | self.causes.tokens | by_tier

    @property
    def tokens(self) -> int:
        """Prompt tokens after the warm-up."""
        return int(self.simulation.trace.input_length[self.simulation.warm_up :].sum())

    @property
    def totals(self) -> dict[str, int]:
        """Cause -> prompt tokens; they add up to `tokens`.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explaining import explain
        >>> {name: tokens for name, tokens in explain(toy("0 1", "2 3", "0 1"), 2).totals.items() if tokens}
        {'evicted': 2, 'first_use': 4}
        """
        return self._sums(slice(self.simulation.warm_up, None))

    @property
    def tiers(self) -> dict[str, int]:
        """Tier -> prompt tokens that hit in it; they add up to the hits."""
        rows = slice(self.simulation.warm_up, None)
        return {name: int(tokens[rows].sum()) for name, tokens in self.causes.tiers.items()}

    @property
    def possible_tokens(self) -> int:
        """Prompt tokens that an earlier request had in its prompt: all but first uses and requests not served."""
        totals = self.totals
        return self.tokens - totals["first_use"] - totals["not_served"]

    @cached_property
    def delivered(self) -> Delivered | None:
        """What the service delivered, beside the simulated and the possible hits; None without `cached_tokens`."""
        trace = self.simulation.trace
        if trace.cached_tokens is None:
            return None
        return delivered_hits(trace, simulated=self.causes.tokens["hit"], warm_up=self.simulation.warm_up)

    def over_time(self, window_ms: float) -> list[WindowCausesDict]:
        """The causes of each window of `window_ms` milliseconds that has requests.

        Raises:
            UsageError: The window is not longer than 0 ms.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explaining import explain
        >>> [window["causes"]["hit"] for window in explain(toy("0", "0", "0", gap_ms=60), 1).over_time(100)]
        [1, 1]
        """
        windows = time_windows(self.simulation.trace.timestamp, window_ms)
        rows = zip(windows.labels.tolist(), self._grouped(windows), strict=True)
        return [{**row, "start_ms": start} for start, row in rows]

    def by_session(self) -> list[SessionCausesDict]:
        """The causes of each session, in order of its number; one for all requests if the trace has no sessions.

        >>> from kvtrace.trace.building import toy
        >>> from kvtrace.serving.misses.explaining import explain
        >>> [(one["session"], one["tokens"]) for one in explain(toy("0", "0 1"), 2).by_session()]
        [(-1, 3)]
        """
        sessions = session_groups(self.simulation.trace.session, len(self.simulation.trace))
        rows = zip(sessions.labels.tolist(), self._grouped(sessions), strict=True)
        return [{**row, "session": number} for number, row in rows]

    def to_dict(self) -> ExplanationDict:
        """Keys as docs/serving/explain.md lists them."""
        requests = len(self.simulation.trace) - self.simulation.warm_up
        result: ExplanationDict = {
            "schema": SCHEMA, "simulation": self.simulation.to_dict(), "requests": max(requests, 0),
            "tokens": self.tokens, "causes": self.totals, "tiers": self.tiers, "possible_tokens": self.possible_tokens,
        }  # fmt: skip
        if self.delivered is not None:
            result["delivered"] = self.delivered.to_dict()
        return result

    def _sums(self, rows: slice) -> dict[str, int]:
        return {name: int(self.causes.tokens[name][rows].sum()) for name in CAUSES}

    def _grouped(self, groups: RequestGroups) -> list[GroupDict]:
        """Requests, tokens and causes of groups of rows."""
        rows, starts, _ = groups
        if not len(rows):
            return []
        tokens = np.add.reduceat(self.simulation.trace.input_length[rows], starts).tolist()
        sums = {name: np.add.reduceat(self.causes.tokens[name][rows], starts).tolist() for name in CAUSES}
        return [
            {"requests": count, "tokens": tokens[at], "causes": {name: sums[name][at] for name in CAUSES}}
            for at, count in enumerate(np.diff(starts, append=len(rows)).tolist())
        ]
