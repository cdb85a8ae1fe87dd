"""Sessions: their turns, the growth of the context, the times of calls and between them, and their hits."""

from __future__ import annotations

import numpy as np

from ...analysis.session_statistics import SessionStatistics, session_statistics
from ...trace.unknown import PREFIXES, SESSIONS
from .plot import Axis, Panel, Plot, Series, Study, bars, cdf, cumulative

TITLES = ("Turns per session", "Context by turn", "Block hit rate by turn")
NO_SESSIONS = "no request continues another one."


def plot(study: Study) -> Plot:
    """Turns per session, prompt length by turn and hit rate by turn.

    >>> from kvtrace.trace.building import toy
    >>> plot(Study(toy("0 1", "2 3"))).panels[0].missing
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
            return Plot("Sessions", explanation, [Panel(title, missing=NO_SESSIONS) for title in TITLES])
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
