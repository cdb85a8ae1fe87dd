"""Columns of a synthetic trace from plans: starts of sessions, times, block ids and dependencies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from .._base.workers import thread_map
from .._native import numbering
from .._native import synthesis as kernel
from .._native.growth import CAPACITIES, FULL_KINDS, Growth
from ..trace.columns import Columns
from ..trace.dependencies import COMPLETION, JOIN, SEQUENCE, SPAWN, Dependencies, dependencies_between
from ..trace.normalise import by_first_appearance
from ..trace.session_trees import previous_turn
from .arrival_times import ArrivalClock
from .attach_fitting import capacity_grid
from .knobs import SampleOptions
from .session_model import MAIN, SessionModel
from .session_plans import SessionPlan, draw_plan, take

MAX_REFERENCES = 1 << 34
KNOBS = ("speedup_ratio", "osl_multiplier", "min_osl", "max_osl", "max_rejections")


def session_columns(
    model: SessionModel, options: SampleOptions, on_progress: Callable[[int], None] | None = None
) -> Columns:
    """The columns of a sample, which satisfy all invariants of a Trace.

    A number of requests is that of the first ones of as many sessions as have them. `on_progress` receives the number
    of requests drawn since its last call.
    """
    n, sessions, seed, workers = options.n, options.sessions, options.seed, options.workers
    _require_supported(options.knobs)
    if sessions is None:
        assert n is not None
        sessions = max(1, -(-n * model.sessions // model.rows))
    plan = _plan(model, sessions, seed, workers)
    while n is not None and len(plan) < n:
        sessions += 1 + sessions // 20
        plan = _plan(model, sessions, seed, workers)
    if on_progress:
        on_progress(len(plan) if n is None else n)
    rng = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    start = _session_starts(model, sessions, options.scale, rng)
    return _columns(model, plan, start, options.knobs, n)


def _require_supported(knobs):
    """UsageError for a knob that would change lengths or arrivals of single requests."""
    for name in knobs.to_dict():
        if name not in KNOBS:
            raise UsageError(
                f"--{name.replace('_', '-')} is not supported for sessions, whose contexts grow from turn to turn. "
                "Try --method attach."
            )


def _plan(model, sessions, seed, workers):
    """All sessions, as one plan."""
    rounds = -(-sessions // model.sessions)
    _, *seeds = np.random.SeedSequence(seed).spawn(1 + rounds)

    def draw(number):
        rng = np.random.default_rng(seeds[number])
        wanted = min(model.sessions, sessions - number * model.sessions)
        return draw_plan(model, _mains(model, wanted, rng), rng)

    return _joined(list(thread_map(draw, range(rounds), workers)), model.sessions)


def _mains(model, sessions, rng):
    """The main chains of a round, in random order; a part of a round is a systematic sample of them."""
    mains = np.flatnonzero(model.tables["chains"]["kind"] == MAIN)
    place = (np.arange(sessions) + rng.random()) * len(mains) / sessions
    if sessions == model.sessions == len(mains):
        place = np.arange(sessions)
    return rng.permutation(mains[np.minimum(place.astype(np.int64), len(mains) - 1)])


def _session_starts(model, sessions, scale, rng):
    """session -> its start in ms. With `duration`, rounds follow each other; with `rate`, all begin together."""
    rounds = -(-sessions // model.sessions)
    period = model.duration_ms * model.rows / max(model.rows - 1, 1) if scale == "duration" else 0.0
    starts = []
    for number in range(rounds):
        wanted = min(model.sessions, sessions - number * model.sessions)
        times = ArrivalClock(model.pace, rng).take(model.sessions if scale == "rate" else wanted)
        starts.append(times - times[0] + number * period)
        if len(times) > wanted:  # fewer sessions per hour
            starts[-1] = starts[-1][np.sort(rng.permutation(len(times))[:wanted])]
    return np.concatenate(starts)


def _joined(plans: list[SessionPlan], sessions) -> SessionPlan:
    """Consecutive rounds as one plan."""
    if len(plans) == 1:
        return plans[0]
    first = offsets_of([len(plan) for plan in plans])
    columns = {
        name: np.concatenate([getattr(plan, name) for plan in plans])
        for name in SessionPlan.__dataclass_fields__
        if name not in ("session", "join", "join_offsets", "base", "source")
    }
    shifted = {
        name: np.concatenate([
            np.where(getattr(plan, name) >= 0, getattr(plan, name) + row, -1)
            for plan, row in zip(plans, first, strict=False)
        ])
        for name in ("join", "base", "source")
    }  # fmt: skip
    return SessionPlan(
        **columns, **shifted,
        session=np.concatenate([plan.session + number * sessions for number, plan in enumerate(plans)]),
        join_offsets=offsets_of(np.concatenate([np.diff(plan.join_offsets) for plan in plans])),
    )  # fmt: skip


def _columns(model, plan, start, knobs, rows) -> Columns:
    step = float(model.time_step_ms)
    start = np.rint(start / step) * step
    unknown = plan.service < 0
    service = np.where(unknown, 0.0, plan.service * step)
    delay = plan.delay * step
    root = plan.base < 0
    begins = np.where(root, start[plan.session] + delay, 0.0)
    base = np.where(plan.waits | (np.diff(plan.join_offsets) == 0), plan.base, -1)
    time = kernel.arrivals(base, plan.trigger == COMPLETION, delay, service, begins, plan.join_offsets, plan.join)
    order = np.argsort(time, kind="stable")[:rows]
    kept_plan = take(plan, order) if len(order) == len(plan) else _head(plan, order)
    time, delay, service = (values[order] / knobs.speedup_ratio for values in (time, delay, service))
    time -= time[0]
    service[unknown[order]] = np.nan
    hash_ids, offsets = _blocks(model, kept_plan)
    session = by_first_appearance(kept_plan.session)
    extra = {"agent": kept_plan.agent} if model.columns["agent"] else {}
    return Columns(
        time, kept_plan.tokens, knobs.outputs(kept_plan.output), hash_ids, offsets, session=session,
        parent=_parents(kept_plan, session) if model.columns["parent"] else None, extra=extra,
        dependencies=_dependencies(kept_plan, delay), service_ms=service if model.columns["service"] else None,
    )  # fmt: skip


def _head(plan, order):
    """The first rows in time order. Each waits for rows that are as early, so none is cut off."""
    rest = np.ones(len(plan), dtype=bool)
    rest[order] = False
    whole = take(plan, np.concatenate([order, np.flatnonzero(rest)]))
    end = whole.join_offsets[len(order)]
    columns = {name: getattr(whole, name)[: len(order)] for name in SessionPlan.__dataclass_fields__}
    return SessionPlan(**columns | {"join": whole.join[:end], "join_offsets": whole.join_offsets[: len(order) + 1]})


def _parents(plan, session):
    """Row -> the previous request of its agent."""
    return previous_turn(session * (int(plan.agent.max(initial=0)) + 1) + plan.agent)


def _dependencies(plan, delay) -> Dependencies:
    """What each request waits for: its base, then the ends of chains. All have the delay of the request."""
    row = np.flatnonzero((plan.base >= 0) & plan.waits)
    joining = np.repeat(np.arange(len(plan)), np.diff(plan.join_offsets))
    relation = np.where(plan.spawned[row], SPAWN, SEQUENCE)
    return dependencies_between(
        np.concatenate([row, joining]), np.concatenate([plan.base[row], plan.join]),
        np.concatenate([plan.trigger[row], np.full(len(joining), COMPLETION)]),
        np.concatenate([relation, np.full(len(joining), JOIN)]), np.concatenate([delay[row], delay[joining]]),
        len(plan),
    )  # fmt: skip


def _blocks(model, plan):
    """Block ids in time order, and their offsets."""
    full = plan.tokens // model.block_size
    offsets = offsets_of(full if model.tail == "dropped" else -(-plan.tokens // model.block_size))
    if offsets[-1] >= MAX_REFERENCES:
        raise UsageError(f"the sample would have {int(offsets[-1]):,} block references. Try fewer sessions.")
    source, keep = _earlier_sources(plan)
    root, numbers, distinct = np.zeros(len(plan), dtype=np.int64), np.zeros(0, np.int64), 0
    if plan.hits.any():
        fresh = np.flatnonzero((source < 0) & (full > 0))
        numbers = _roots(model, plan, fresh, full[fresh])
        root[fresh], keep[fresh] = offsets_of(full[fresh])[:-1], full[fresh]
        distinct = int(numbers.max(initial=-1)) + 1
    return kernel.paths(offsets, source, keep, root, numbers, distinct), offsets


def _earlier_sources(plan):
    """The source and the kept blocks of each row; where the source is later, it takes its blocks from the row."""
    source, keep = plan.source.copy(), plan.keep.copy()
    for row in np.flatnonzero(source > np.arange(len(plan))).tolist():
        later, shared = int(source[row]), int(keep[row])
        source[row], keep[row] = -1, 0
        if source[later] < 0:
            source[later], keep[later] = row, shared
    return source, keep


def _roots(model, plan, row, length):
    """Block numbers of the first prompts of chains, which attach to each other as in the fitted trace.

    Main chains and others grow in forests of their own.
    """
    offsets = offsets_of(length)
    numbers, used = np.empty(int(offsets[-1]), dtype=np.int64), 0
    main = plan.agent[row] == 0
    for which in (np.flatnonzero(main), np.flatnonzero(~main)):
        blocks = _grown(model, plan, row[which], length[which])
        numbers[numbering.ranges(offsets[which], length[which])] = blocks + used
        used += int(blocks.max(initial=-1)) + 1
    return numbers


def _grown(model, plan, row, length):
    """The paths of first prompts in one forest, in time order."""
    if not len(row):
        return np.zeros(0, dtype=np.int64)
    chosen = np.arange(len(row))
    lowest = int(
        np.argmin(plan.hits[row])
    )  # the first path shares nothing: it takes the place of one that shares least
    chosen[[0, lowest]] = chosen[[lowest, 0]]
    hits = np.minimum(plan.hits[row[chosen]], length)
    distance, fork_distance = plan.distance[row[chosen]], plan.fork_distance[row[chosen]]
    grid = capacity_grid(int(distance.max() + hits.max()))
    forest = Growth(int(hits.max()), 1 << 62, model.block_size, grid, np.ones(CAPACITIES))
    zero = np.zeros(len(row), dtype=np.int64)
    blocks, *_ = forest.grow(
        hits, hits, hits, length, distance, np.minimum(plan.fork[row[chosen]], np.maximum(hits - 1, 0)),
        np.minimum(fork_distance, distance), np.minimum(plan.use[row[chosen]], FULL_KINDS - 1),
        zero + model.block_size, zero, np.arange(len(row)),
    )  # fmt: skip
    return blocks.astype(np.int64)
