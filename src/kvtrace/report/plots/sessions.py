"""Sessions: turns, growth of the context, times, hits; and the first sessions over time, a row for each agent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...analysis.session_statistics import SessionStatistics, session_statistics
from ...analysis.sessions import agents
from ...trace.hits import leading_tokens
from ...trace.unknown import OUTPUTS, PREFIXES, SESSIONS
from .plot import Axis, Panel, Plot, Series, Spans, Study, bars, cdf, cumulative, time_unit

TITLES = ("Turns per session", "Context by turn", "Block hit rate by turn")
NO_TURNS = "no request continues another one."


def sessions_plot(study: Study) -> Plot:
    """Turns per session, prompt length by turn and hit rate by turn.

    >>> from kvtrace.trace.building import toy
    >>> sessions_plot(Study(toy("0 1", "2 3"))).panels[0].missing
    'no request continues another one.'
    """
    sessions, session = study.summary.sessions, study.trace.session
    explanation = "The growth of sessions. Turn 20 includes all later turns. Without eviction."
    if (sessions is None or session is None) and PREFIXES in study.unknown:
        missing = f"sessions are unknown: {study.unknown.get(SESSIONS, study.unknown[PREFIXES])}"
        return Plot("Sessions", explanation, [Panel(title, missing=missing) for title in TITLES])
    if sessions is None or session is None:
        links = study.inferred_sessions
        explanation += " Sessions are inferred from the blocks that requests share: the trace records none."
        if not (links.parent >= 0).any():
            return Plot("Sessions", explanation, [Panel(title, missing=NO_TURNS) for title in TITLES])
        session, sessions = links.session, session_statistics(study.trace, study.hit_blocks, links=links)
        assert sessions is not None
    turns = np.bincount(session[session >= 0])
    value, share = cumulative(turns[turns > 0])
    distribution = Panel(
        TITLES[0],
        Axis("turns", log=True, unit="turns"),
        Axis("sessions with more turns", percent=True, limits=(0, 1)),
        [Series("sessions", np.concatenate([[1], value]), np.concatenate([[1.0], 1 - share]), 0, "step")],
    )
    return Plot(
        "Sessions",
        explanation,
        [distribution, *_by_turn(sessions, study.unknown.get(PREFIXES, "")), *_of_agents(study)],
    )


def _of_agents(study: Study) -> list[Panel]:
    """Of recorded sessions: times, growth, and the blocks by the session that used them before."""
    values, hits = study.session_values, study.summary.sessions and study.summary.sessions.hits
    if values is None or not hits:
        return []
    seconds = {
        name: sample / 1000
        for name, sample in (
            ("think time", values.think_ms), ("service time", values.service_ms),
            ("time to the next turn", values.turn_gap_ms),
        )
        if sample is not None and len(sample)
    }  # fmt: skip
    samples = [(name, sample, None) for name, sample in seconds.items()]
    shrinks = f"{(values.growth <= 0).mean():.1%} of the turns do not grow." if (values.growth <= 0).any() else ""
    grows = values.growth[values.growth > 0]
    blocks = max(1, hits.same_session.blocks)
    shares = {
        "same session": hits.same_session.hit_blocks / blocks,
        "across sessions": hits.across_sessions.hit_blocks / blocks,
        "new blocks": 1 - (hits.same_session.hit_blocks + hits.across_sessions.hit_blocks) / blocks,
    }
    why = "no session has a second turn."
    return [
        cdf("Times of calls and between them", Axis("time (s)", log=True, unit="s"), *samples, why=why),
        cdf("Context growth", Axis("tokens", log=True, unit="tokens"), ("growth", grows, None), why=why, note=shrinks),
        bars("Blocks by where they were used before", Axis("share of all blocks", percent=True, limits=(0, 1)), shares),
    ]


def _by_turn(sessions: SessionStatistics, why: str) -> list[Panel]:
    turn = np.arange(1, len(sessions.by_turn) + 1)
    ticks = {
        float(t): group.name
        for t, group in zip(turn, sessions.by_turn, strict=True)
        if t == 1 or t % 5 == 0 or len(turn) < 8
    }
    axis = Axis("turn", ticks=ticks, unit="")
    lengths = {"mean prompt": "mean", "median prompt": "median"}
    context = [
        Series(
            name, turn, np.array([getattr(group.input_length, figure) for group in sessions.by_turn]), colour, "dots"
        )
        for colour, (name, figure) in enumerate(lengths.items())
    ]
    hits = [group.hits for group in sessions.by_turn if group.hits is not None]
    rates = Panel(TITLES[2], missing=why)
    if len(hits) == len(turn):
        series = [Series("block hit rate", turn, np.array([counts.block_hit_rate for counts in hits]), 0, "dots")]
        rates = Panel(TITLES[2], axis, Axis("block hit rate", percent=True, limits=(0, 1)), series)
    return [Panel(TITLES[1], axis, Axis("tokens", limits=(0, 0), unit="tokens"), context), rates]


MAX_ROWS = 14  # agents that are drawn
MAX_CALLS = 1200  # that are drawn, as many as a browser draws at once
TITLE = "The first sessions"
NO_SESSIONS = "the trace records no sessions."
MAIN, SUBAGENT, AFTER_COMPACTION, BETWEEN = "main agent", "subagent", "after a compaction", "between calls"


@dataclass(frozen=True, eq=False)
class Calls:
    """The calls of the rows that are drawn; times are since the start of each session, in ms."""

    request: np.ndarray
    row: np.ndarray  # of the drawing, from the top
    start: np.ndarray
    end: np.ndarray  # the start, if the service time is not known
    agent: np.ndarray
    labels: list[str]  # of the rows
    left: int  # sessions that are not drawn
    sessions: int  # that are drawn


def timeline_plot(study: Study) -> Plot:
    """The calls of the first sessions, as many as a page can show.

    >>> from kvtrace.trace.building import toy
    >>> timeline_plot(Study(toy("0 1", "2 3"))).panels[0].missing
    'the trace records no sessions.'
    """
    explanation = (
        "Each row is an agent of a session, each bar a call from its start to its end, each thin line the time until "
        "the agent's next call, in which tools run or people think. The pointer shows lengths and hits without "
        "eviction; drag to zoom."
    )
    if study.recorded_turns is None:
        return Plot("Session timeline", explanation, [Panel(TITLE, missing=NO_SESSIONS)])
    calls = _calls(study)
    shown_ms = _shown_ms(calls)
    inside = np.flatnonzero(calls.start <= shown_ms)
    unit, ms = time_unit(shown_ms)
    rows = Axis("", ticks={float(len(calls.labels) - 1 - row): label for row, label in enumerate(calls.labels)},
                limits=(-0.5, len(calls.labels) - 0.5))  # fmt: skip
    series = [_between(calls, shown_ms, ms), *_bars(study, calls, inside, ms)]
    time = Axis(f"time in the session ({unit})", limits=(0, shown_ms / ms * 1.01 or 1.0), unit=unit)
    note = _note(calls, len(calls.start) - len(inside), study)
    return Plot(
        "Session timeline", explanation, [Panel(TITLE, time, rows, [spans for spans in series if spans], note=note)]
    )


def _calls(study: Study) -> Calls:
    """The calls of the first sessions whose agents fit the rows."""
    trace = study.trace
    assert trace.session is not None
    agent = agents(trace)
    agent = np.zeros(len(trace), dtype=np.int64) if agent is None else agent
    inside = np.flatnonzero(trace.session >= 0)
    numbers, first = np.unique(trace.session[inside], return_index=True)
    pairs = np.unique(np.stack([trace.session[inside], agent[inside]], axis=1), axis=0)  # in order of session and agent
    rows_of = np.searchsorted(pairs[:, 0], numbers, side="right")  # rows up to each session
    drawn = max(1, int(np.searchsorted(rows_of, MAX_ROWS, side="right")))
    pairs = pairs[: min(int(rows_of[drawn - 1]), MAX_ROWS)]
    key = trace.session * (int(agent.max(initial=0)) + 1) + agent
    keys = pairs[:, 0] * (int(agent.max(initial=0)) + 1) + pairs[:, 1]
    request = inside[np.isin(key[inside], keys)]
    begin = trace.timestamp[inside[first]][np.searchsorted(numbers, trace.session[request])]
    service = 0.0 if trace.service_ms is None else np.nan_to_num(trace.service_ms[request])
    start = trace.timestamp[request] - begin
    labels = [f"session {session}" if number == 0 else f"agent {number}" for session, number in pairs.tolist()]
    return Calls(request, np.searchsorted(keys, key[request]), start, start + service, agent[request], labels,
                 len(numbers) - drawn, drawn)  # fmt: skip


def _shown_ms(calls: Calls) -> float:
    """The end of the axis: the median duration of the rows, or less where there are more calls than a page can show."""
    last = np.zeros(len(calls.labels))
    np.maximum.at(last, calls.row, calls.end)
    several = float(np.median(last))
    by_start = np.sort(calls.start)
    return min(several, float(by_start[MAX_CALLS])) if len(by_start) > MAX_CALLS else several


def _bars(study: Study, calls: Calls, inside: np.ndarray, ms: float) -> list[Spans | None]:
    """One series for each kind of call."""
    trace, links = study.trace, study.recorded_turns
    assert links is not None
    request = calls.request[inside]
    before = np.where(links.parent[request] >= 0, trace.input_length[links.parent[request]], 0)
    is_compacted = 2 * trace.input_length[request] < before
    kinds = np.where(is_compacted, AFTER_COMPACTION, np.where(calls.agent[inside] > 0, SUBAGENT, MAIN))
    shares = {}
    if PREFIXES not in study.unknown:
        hits = leading_tokens(trace, study.hit_blocks[request], request)
        shares["hit"] = hits / np.maximum(trace.input_length[request], 1)
    outputs = {} if OUTPUTS in study.unknown else {"output tokens": trace.output_length[request]}

    def of_kind(kind: str, colour: int) -> Spans | None:
        which = np.flatnonzero(kinds == kind)
        if not len(which):
            return None
        at, length = inside[which], trace.input_length[request[which]]
        measured = {name: values[which] for name, values in (shares | outputs).items()}
        details = {"prompt tokens": length} | measured
        took = (calls.end[at] - calls.start[at]) / ms
        return Spans(kind, calls.start[at] / ms, _place(calls, at), colour, length=took, details=details)

    return [of_kind(MAIN, 0), of_kind(SUBAGENT, 2), of_kind(AFTER_COMPACTION, 1)]


def _between(calls: Calls, shown_ms: float, ms: float) -> Spans | None:
    """The time from the end of each call to the start of the next one of its row, which may be beyond the axis."""
    order = np.lexsort((calls.start, calls.row))
    call, next_call = order[:-1], order[1:]
    follows = (calls.row[call] == calls.row[next_call]) & (calls.start[next_call] > calls.end[call])
    follows &= calls.start[call] <= shown_ms
    call, next_call = call[follows], next_call[follows]
    if not len(call):
        return None
    waits = (calls.start[next_call] - calls.end[call]) / ms
    return Spans(BETWEEN, calls.end[call] / ms, _place(calls, call), 5, length=waits, height=0.1)


def _place(calls: Calls, at: np.ndarray) -> np.ndarray:
    """The height of calls in the drawing: the first row is on top."""
    return (len(calls.labels) - 1 - calls.row[at]).astype(float)


def _note(calls: Calls, later: int, study: Study) -> str:
    """What is not drawn."""
    left = [f"{calls.left:,} more session{'s' * (calls.left != 1)}"] if calls.left else []
    left += [f"{later:,} later call{'s' * (later != 1)} of these sessions"] if later else []
    notes = [f"Not drawn: {' and '.join(left)}."] if left else []
    if study.trace.service_ms is None:
        notes.append("The trace has no service times: each call is a line at its arrival.")
    return " ".join(notes)
