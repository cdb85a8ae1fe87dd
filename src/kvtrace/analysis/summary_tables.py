"""The tables of `kvtrace analyze`: distributions, sessions, and the times that a service measured.

Figures that the trace does not show are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from .._base.results import column, columns_in
from .._base.tables import TextTable, number, printable
from ..trace.columns import MEASURED, measured_of
from ..trace.hits import RATES
from ..trace.trace import Trace
from .arrivals import Arrivals
from .distribution import FIGURES, Distribution
from .reuse import DepthBand
from .session_statistics import UNKNOWN, RequestGroup, SessionStatistics

TABLE_ROWS = {  # the names that datagen and AIPerf print
    "Input length (ISL)": "input_length",
    "Context length": "context_length",
    "Unique prompt length": "unique_prompt_length",
    "Output length (OSL)": "output_length",
    "Request hit rate": "request_hit_rate",
}
RATE_NOTES = {
    "block_hit_rate": "hit blocks / blocks",
    "token_hit_rate": "hit tokens / prompt tokens",
    "request_hit_rate": "mean of each request's hit / blocks; what datagen and AIPerf print",
}


def pair_table(title: str, rows: list[tuple[str, str, str]]) -> TextTable:
    """A table of names, values and notes."""
    table = TextTable(title, has_header=False)
    table.add_column()
    table.add_column(right=True)
    table.add_column(dim=True)
    for row in rows:
        table.add_row(*row)
    return table


def distribution_table(title: str, rows: dict[str, Distribution]) -> TextTable:
    """A table with one row for each distribution: the seven figures, and the extra quantiles."""
    quantiles = [f"q{quantile:g}" for quantile in next(iter(rows.values())).quantiles]
    columns = {"name": column(rank=0)} | columns_in(Distribution)
    columns |= {quantile: column(quantile, number, none="-") for quantile in quantiles}
    values = [{"name": name} | distribution.to_dict() for name, distribution in rows.items()]
    table = TextTable(title, remedy="use --json or a wider terminal")
    return table.add_results(columns, values, ("name", *FIGURES, *quantiles))


def group_table(title: str, name: str, groups: Iterable[RequestGroup]) -> TextTable:
    """A table with one row for each group of requests."""
    columns = columns_in(RequestGroup) | {rate: replace(each, none=UNKNOWN) for rate, each in RATES.items()}
    rows = [group.to_dict() | {"name": printable(group.name)} for group in groups]
    shown = ("name", "requests", "input_length", "output_length", *RATES)
    return TextTable(title).add_results(columns, rows, shown, name=name)


OF_DEPTHS = {
    "depth": column("depth (blocks)", str, rank=0), **columns_in(DepthBand),
    "share": column("share", ".1%"), "uses": column("uses per block", ",.2f"),
}  # fmt: skip


def depth_table(bands: Iterable[DepthBand]) -> TextTable:
    """A table of sharing by depth."""
    rows = [
        band.to_dict()
        | {"depth": f"{band.low:,}" if band.low == band.high else f"{band.low:,}-{band.high:,}"}
        | {"share": band.shared_blocks / band.blocks, "uses": band.references / band.blocks}
        for band in bands
    ]
    return TextTable("Sharing by depth").add_results(OF_DEPTHS, rows)


def arrival_rows(arrivals: Arrivals) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each arrival statistic."""
    yield "duration", number(arrivals.duration_ms / 1000), "s"
    yield "requests per second", number(arrivals.requests_per_second), ""
    yield "prompt tokens per second", number(arrivals.prompt_tokens_per_second), ""
    yield "gap", number(arrivals.gap_ms.mean), f"ms on average; median {number(arrivals.gap_ms.median)}"
    yield "gap variation", number(arrivals.gap_cv), "standard deviation / mean: 1 for a Poisson process"
    for window, value in arrivals.dispersion.items():
        yield (
            f"dispersion, {window} s",
            number(value),
            "variance / mean of the requests per window: 1 for a Poisson process",
        )
    yield (
        "concurrency",
        UNKNOWN if arrivals.concurrency is None and arrivals.duration_ms else number(arrivals.concurrency),
        f"on average, at {arrivals.ms_per_token:g} ms per output token",
    )


def scaled(distribution: Distribution, by: float) -> Distribution:
    """The distribution of the values divided by a number, for example milliseconds as seconds."""
    figures = {name: None if figure is None else figure / by for name, figure in distribution.named().items()}
    quantiles = {q: value / by for q, value in distribution.quantiles.items()}
    return replace(distribution, **figures, quantiles=quantiles)  # type: ignore[arg-type]


PER_SESSION = {
    "Turns": "turns",
    "Duration (s)": "duration_ms",
    "Share outside calls": "tool_share",
    "Compactions": "compactions",
    "Context drops": "context_drops",
    "Subagents": "subagents",
    "Subagents at once": "spawn_width",
    "Calls of a subagent": "subagent_calls",
}
PER_TURN = {
    "Time to next turn (s)": "turn_gap_ms",
    "Think time (s)": "think_ms",
    "  after tools (s)": "after_tools_ms",
    "  after others (s)": "after_others_ms",
    "Service time (s)": "service_ms",
    "Growth (tokens)": "growth",
}


def session_tables(sessions: SessionStatistics) -> Iterator[TextTable]:
    """Counts and hits of all sessions, and the distributions over sessions and over turns."""
    yield pair_table("Sessions", list(_counts(sessions)))
    distributions = sessions.distributions()
    if sessions.subagents and not sessions.subagents.total:
        del distributions["subagents"]
    yield distribution_table("Per session", _rows(PER_SESSION, distributions))
    if per_turn := _per_turn(sessions, distributions):
        yield distribution_table("Per turn", per_turn)


def _per_turn(sessions: SessionStatistics, distributions: dict[str, Distribution]) -> dict[str, Distribution]:
    """The rows over turns; below the think times those after tools and after all others."""
    if answers := sessions.tool_answers:
        parts = {"after_tools_ms": answers.think_ms, "after_others_ms": answers.other_think_ms}
        distributions = distributions | {name: values for name, values in parts.items() if values and values.count}
    return _rows(PER_TURN, distributions)


def _counts(sessions: SessionStatistics) -> Iterator[tuple[str, str, str]]:
    """(name, value, note) of each count and share."""
    yield "sessions", f"{sessions.sessions:,}", f"with {sessions.requests_in_sessions:,} requests"
    compactions, drops = (_total(values) for values in (sessions.compactions, sessions.context_drops))
    yield "compactions", f"{compactions:,}", "turns with less than half of the context of the turn before"
    if drops != compactions:
        yield "context drops", f"{drops:,}", "the same in order of time, whatever the agent"
    if sessions.subagents and sessions.subagents.total:
        yield "subagents", f"{sessions.subagents.total:,}", f"in {sessions.subagents.width.count:,} sessions"
    if sessions.tool_answers:
        yield "answers of tools", f"{sessions.tool_answers.share:.4f}", "requests that carry a tool's result / requests"
    if sessions.hits:
        for name, hits in (
            ("same session", sessions.hits.same_session),
            ("across sessions", sessions.hits.across_sessions),
        ):
            note = f"hit blocks / blocks, without eviction; {hits.token_hit_rate:.4f} of tokens"
            yield f"hits, {name}", f"{hits.block_hit_rate:.4f}", note


def _total(values: Distribution) -> int:
    return round((values.mean or 0) * values.count)


def _rows(names: dict[str, str], distributions: dict[str, Distribution]) -> dict[str, Distribution]:
    """The known rows of a table; milliseconds as seconds."""
    return {
        label: scaled(distributions[name], 1000) if name.endswith("_ms") else distributions[name]
        for label, name in names.items()
        if name in distributions
    }


LABELS = {"ttft_ms": "Time to first token (s)", "e2e_ms": "End to end (s)", "queue_ms": "In the queue (s)"}


def measured_times(trace: Trace, quantiles: Sequence[float] = ()) -> dict[str, Distribution]:
    """Column -> the distribution of its known values, in ms, for the measured times that a trace has.

    >>> import numpy as np
    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> columns = replace_columns(toy("0", "1", "2"), ttft_ms=[20.0, np.nan, 40.0])
    >>> times = measured_times(Trace.from_columns(columns, block_size=1))
    >>> times["ttft_ms"].count, times["ttft_ms"].mean
    (2, 30.0)
    """
    samples = {name: values[MEASURED[name].is_known(values)] for name, values in measured_of(trace).items()}
    return {name: Distribution.of(values, quantiles) for name, values in samples.items() if name in LABELS}


def measured_table(times: dict[str, Distribution], requests: int) -> TextTable:
    """The table of measured times, in seconds; a caption states the requests without one."""
    table = distribution_table("Measured times", {LABELS[name]: scaled(times[name], 1000) for name in times})
    missing = {name: requests - values.count for name, values in times.items() if values.count < requests}
    table.caption = ", ".join(f"{name} is unknown for {count:,} requests" for name, count in missing.items())
    return table
