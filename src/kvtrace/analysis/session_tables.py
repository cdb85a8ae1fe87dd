"""The tables of sessions that `kvtrace analyze` prints; what the trace does not tell is left out."""

from __future__ import annotations

from collections.abc import Iterator

from .._base.tables import TextTable
from .distribution import Distribution
from .tables import distribution_table, pair_table, scaled
from .turns import SessionStatistics

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
    known = sessions.distributions()
    if sessions.subagents and not sessions.subagents.total:
        del known["subagents"]
    yield distribution_table("Per session", _rows(PER_SESSION, known))
    if per_turn := _per_turn(sessions, known):
        yield distribution_table("Per turn", per_turn)


def _per_turn(sessions: SessionStatistics, known: dict[str, Distribution]) -> dict[str, Distribution]:
    """The rows over turns; below the think times those after tools and after all others."""
    if answers := sessions.tool_answers:
        parts = {"after_tools_ms": answers.think_ms, "after_others_ms": answers.other_think_ms}
        known = known | {name: values for name, values in parts.items() if values and values.count}
    return _rows(PER_TURN, known)


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


def _rows(names: dict[str, str], known: dict[str, Distribution]) -> dict[str, Distribution]:
    """The known rows of a table; milliseconds as seconds."""
    return {
        label: scaled(known[name], 1000) if name.endswith("_ms") else known[name]
        for label, name in names.items()
        if name in known
    }
