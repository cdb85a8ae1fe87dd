"""Fit the session model: cut a trace's sessions into chains, and pool their turns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._base.step_work import report_work
from .._native import growth
from ..trace.building import with_whole_prompts
from ..trace.dependencies import COMPLETION
from ..trace.domains import in_domains
from ..trace.hits import unlimited_hits
from ..trace.trace import Trace
from ..trace.unknown import OUTPUTS, PREFIXES, require_known
from .arrival_times import Pace, rounded, stratified_sample
from .attach_fitting import recency_of, time_step
from .bins import Bins
from .fidelity import figures_of
from .session_model import (
    ATTACHMENT,
    BASE,
    BINNED,
    CHAINS,
    FINALS,
    FORKED,
    GROUPS,
    MAIN,
    MAX_CHAINS,
    MAX_PARTS,
    MAX_TURNS,
    NOTHING,
    PARTS,
    SIBLING,
    SPAWNED,
    TURNS,
    WHOLE,
    SessionChains,
    SessionModel,
    Table,
    chains_of,
)

MIN_PART = 4  # turns of a part of a chain
SLOW = (0.95, 0.75)  # quantiles of the times of turns: slower ones count as this slow in further sums


def fit_sessions(trace: Trace) -> SessionModel:
    """Fit the session model to a trace with sessions and dependencies. `sample` draws any number of sessions from it.

    Tokens without a stated block (tail `stated`) are blocks of their request alone.

    Raises:
        InputError: The trace has no dependencies or no prompts, or its ids do not form a forest.
        UnknownError: Shared prefixes or output lengths are unknown.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import fields_of, replace_columns
    >>> from kvtrace.trace.dependencies import Dependencies
    >>> waits = Dependencies.of([[], [(0, "completion", "sequence", 5.0)], []])
    >>> columns = replace_columns(toy("0 1", "0 1 2", "3"), session=[0, 0, 1], dependencies=waits)
    >>> fit_sessions(Trace(**fields_of(columns), block_size=1))
    SessionModel(2 sessions, 3 requests, block_size=1)
    """
    require_known(trace, trace.meta, "the model of a trace", PREFIXES, OUTPUTS)
    if trace.dependencies is None:
        raise InputError("the trace has no dependencies between requests. Use --method attach or tree.")
    trace = in_domains(with_whole_prompts(trace)).require_chained()
    if not trace.input_length.any():
        raise InputError("the trace has no prompts, so there is nothing to fit.")
    chains = chains_of(trace)
    report_work(1, 3)
    step = time_step(trace.timestamp)
    kept, parent_place = _kept(trace, chains), _places_above(chains)
    turns, time, growth, level, is_break = _turns(trace, chains, kept, step)
    values = {"turns": turns, "finals": _finals(trace, chains, step), "groups": _groups(chains, parent_place)}
    values["chains"] = _chains(trace, chains, kept, parent_place, step)
    slow_times = np.quantile(time[chains.place > 0], SLOW) if len(turns["output"]) else np.zeros(len(SLOW))
    brief, quick = rounded(slow_times.astype(np.int64)).tolist()
    values["parts"], starts = _parts(chains, time, (brief, quick), growth, level, is_break)
    report_work(1, 3)
    bins = _bins(values)
    tables, starts = _tables(values, starts, bins)
    mains = chains.kind == MAIN
    return SessionModel(
        sessions=int(mains.sum()), rows=len(trace), block_size=trace.block_size, tail=trace.tail,
        duration_ms=float(trace.timestamp[-1]), time_step_ms=step,
        columns={"agent": "agent" in trace.extra, "parent": trace.parent is not None,
                 "service": trace.service_ms is not None},
        tables=tables, starts=starts, bins=bins, slow=(brief, quick),
        pace=Pace.of(np.sort(trace.timestamp[chains.first[mains]])), figures=figures_of(trace),
    )  # fmt: skip


def _kept(trace, chains):
    """Row -> leading full blocks shared with its base, by bisection: in a forest, equal ids have equal beginnings."""
    row = np.flatnonzero(chains.base >= 0)
    low, high = np.zeros(len(row), dtype=np.int64), np.minimum(_blocks(trace)[row], _blocks(trace)[chains.base[row]])
    mine, theirs = trace.offsets[row], trace.offsets[chains.base[row]]
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        equal = trace.hash_ids[mine[open_] + middle] == trace.hash_ids[theirs[open_] + middle]
        low[open_[equal]], high[open_[~equal]] = middle[equal] + 1, middle[~equal]
    kept = np.zeros(len(trace), dtype=np.int64)
    kept[row] = low
    return kept


def _blocks(trace):
    """Row -> its full blocks."""
    return np.minimum(trace.full_blocks, trace.prompt_blocks)


def _places_above(chains):
    """Chain -> place of the request that it begins from, in the chain above; -1 = none."""
    base = chains.base[chains.first]
    return np.where(base < 0, -1, chains.place[base])


def _turns(trace, chains, kept, step):
    """The turn records; for each row with a turn before it in its chain: time, growth, level and break, else 0."""
    row = np.flatnonzero(chains.place > 0)
    base = chains.base[row]
    output, level = trace.output_length[base], _blocks(trace)[base]
    growth = trace.input_length[row] - trace.input_length[base]
    lost, is_break = level - kept[row], level - kept[row] > kept[row]
    service = _service(trace, step)
    delay = _steps(chains.delay_ms[row], step)
    beyond = growth - output
    records = {
        "child": (chains.kind[chains.chain[row]] != MAIN).astype(np.int64), "break": is_break.astype(np.int64),
        "output": output, "over": np.maximum(beyond, 0), "under": np.maximum(-beyond, 0),
        "blocks": np.where(is_break, kept[row], lost), "level": np.where(is_break, level, 0),
        "trigger": chains.trigger[row], "delay": delay, "service": service[base],
    }  # fmt: skip
    per_row = []
    time = delay + np.where(chains.trigger[row] == COMPLETION, np.maximum(service[base] - 1, 0), 0)
    for values in (time, growth, records["level"], is_break):
        column = np.zeros(len(trace), dtype=np.int64)
        column[row] = values
        per_row.append(column)
    return records, *per_row


def _service(trace, step):
    """Row -> service time in steps, plus 1; 0 if it is unknown."""
    if trace.service_ms is None:
        return np.zeros(len(trace), dtype=np.int64)
    return np.where(np.isnan(trace.service_ms), 0, _steps(np.nan_to_num(trace.service_ms), step) + 1)


def _steps(times_ms, step):
    return np.rint(np.maximum(times_ms, 0) / step).astype(np.int64)


def _finals(trace, chains, step):
    last = chains.rows[chains.starts[1:] - 1]
    return {"output": trace.output_length[last], "service": _service(trace, step)[last]}


def _groups(chains, parent_place):
    """Chains that begin from the same request, by kind."""
    child = np.flatnonzero(chains.kind != MAIN)
    base = chains.base[chains.first[child]]
    own = np.where(base < 0, -1 - np.arange(len(child)), base)  # roots: a group of their own
    _, member, width = np.unique(np.stack([own, chains.kind[child]]), axis=1, return_index=True, return_counts=True)
    child, base = child[member], base[member]
    above = chains.chain[base]
    turns = np.maximum(chains.turns[above], 1)
    return {
        "kind": chains.kind[child], "position": np.where(base < 0, 0, parent_place[child] * 16 // turns),
        "width": width, "nested": ((base >= 0) & (chains.kind[above] != MAIN)).astype(np.int64),
    }  # fmt: skip


def _chains(trace: Trace, chains: SessionChains, kept, parent_place, step) -> Table:
    first = chains.first
    session = chains.session[first]
    groups = _groups_by_session(chains, session)
    is_main = chains.kind == MAIN
    in_session, everywhere = _hits(trace, chains.session), unlimited_hits(trace)
    shared, hits = (np.minimum(hit_blocks[first], _blocks(trace)[first]) for hit_blocks in (in_session, everywhere))
    like = np.where(shared == 0, NOTHING, np.where(shared > kept[first], SIBLING, BASE))
    base = chains.base[first]
    lost = np.where(base < 0, 0, _blocks(trace)[base] - kept[first])
    like[(like == BASE) & (lost <= kept[first])] = WHOLE
    grown = np.where(like == WHOLE, trace.input_length[first] - trace.input_length[base], 0)
    fresh = like == NOTHING
    attached = {name: np.zeros(len(first), dtype=np.int64) for name in ATTACHMENT}
    for which in (fresh & is_main, fresh & ~is_main):  # forests of their own
        if (hits[which] > 0).any():
            for name, column in _attachments(trace, first[which]).items():
                attached[name][which] = column
    join = np.where(chains.join < 0, 0, chains.place[chains.join] - parent_place)
    above = np.where(chains.kind == FORKED, _blocks(trace)[base], 0)
    is_below = chains.kind == SPAWNED
    of_session = {"below": chains.turns * is_below, "beside": chains.turns * ~(is_below | is_main), "reach": above}
    sums = {name: np.bincount(session, values).astype(np.int64)[session] for name, values in of_session.items()}
    return {
        "kind": chains.kind, "turns": chains.turns, "first": trace.input_length[first],
        "over": np.maximum(grown, 0), "under": np.maximum(-grown, 0),
        "shared": np.where(like == WHOLE, lost, shared), "like": like,
        "above": above, "trigger": chains.trigger[first],
        "delay": np.where(is_main, 0, _steps(chains.delay_ms[first], step)),
        "join": np.where(parent_place < 0, 0, np.maximum(join, 0)), "alone": chains.alone,
        "groups": np.where(is_main, groups[session], 0), **attached,
        **{name: np.where(is_main, values, 0) for name, values in sums.items()},
    }  # fmt: skip


def _attachments(trace, rows):
    """What rows attach to among themselves, in time order: columns of chain records."""
    order = np.argsort(rows, kind="stable")
    roots = trace[rows[order]]
    blocks, none = _blocks(roots), np.full(len(roots), -1)
    hits, kind, _ = growth.walk(roots.hash_ids, roots.offsets, np.zeros(len(roots)), none, roots.distinct)
    recency, place = recency_of(roots), np.argsort(order, kind="stable")
    columns = {
        "hits": np.minimum(hits, blocks), "distance": recency.distance, "fork": np.minimum(recency.fork, blocks),
        "fork_distance": recency.fork_distance, "use": kind,
    }  # fmt: skip
    return {name: column[place] for name, column in columns.items()}


def _groups_by_session(chains, session):
    """Session -> groups of chains that begin in it."""
    child = np.flatnonzero(chains.kind != MAIN)
    base = chains.base[chains.first[child]]
    own = np.where(base < 0, -1 - np.arange(len(child)), base)
    _, member = np.unique(np.stack([own, chains.kind[child]]), axis=1, return_index=True)
    return np.minimum(np.bincount(session[child[member]], minlength=int(session.max()) + 1), (1 << 16) - 1)


def _hits(trace, session):
    """Row -> leading blocks that earlier requests of its session had."""
    from ..trace.columns import fields_of, replace_columns

    apart = replace_columns(trace, domain=session, output_ids=None, output_offsets=None)
    return unlimited_hits(in_domains(Trace(**fields_of(apart), block_size=trace.block_size, tail=trace.tail)))


def _parts(chains, time, slow, growth, level, is_break):
    """The parts of the chains, and the first part of each chain; a part covers MIN_PART turns or more."""
    more = chains.turns - 1
    count = np.where(more > 0, np.clip(more // MIN_PART, 1, MAX_PARTS), 0)
    starts = offsets_of(count)
    edges = chains.starts[:-1][np.repeat(np.arange(len(count)), count)] + 1 + cuts(more, count)[0]
    sums = {}
    of_rows = {"growth": growth, "time": time, "breaks": is_break, "level": level} | at_most(time, slow)
    for name, values in of_rows.items():
        total = offsets_of(values[chains.rows])
        ends = edges + cuts(more, count)[1]
        sums[name] = total[ends] - total[edges]
    return {
        "grown": np.maximum(sums["growth"], 0), "shrunk": np.maximum(-sums["growth"], 0), "time": sums["time"],
        "brief": sums["brief"], "quick": sums["quick"],
        "breaks": np.minimum(sums["breaks"], (1 << 16) - 1), "level": sums["level"],
    }, starts  # fmt: skip


def at_most(time: np.ndarray, slow: Sequence[int]) -> dict[str, np.ndarray]:
    """Times of turns, with slower ones at each limit of `slow`, by the name of their sum.

    >>> at_most(np.array([3, 50]), (20, 5))
    {'brief': array([ 3, 20]), 'quick': array([3, 5])}
    """
    return {name: np.minimum(time, limit) for name, limit in zip(("brief", "quick"), slow, strict=True)}


def cuts(size: np.ndarray, parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `size` items cut into `parts` almost equal parts: the first item of each part in its row, and its items.

    >>> cuts(np.array([5, 0, 3]), np.array([2, 0, 1]))
    (array([0, 2, 0]), array([2, 3, 3]))
    """
    row = np.repeat(np.arange(len(parts)), parts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(parts) - parts, parts)
    first, end = (size[row] * at // parts[row] for at in (place, place + 1))
    return first, end - first


# -- bins and samples ------------------------------------------------------------------------------------------------


def _bins(values):
    """The bins of all columns that share a name."""
    of: dict[str, list[np.ndarray]] = {name: [np.zeros(1, dtype=np.int64)] for name in BINNED}
    for table, columns in _COLUMNS.items():
        for name, kind in columns.items():
            if isinstance(kind, str):
                of[kind].append(values[table][name])
    return {name: Bins.of(np.concatenate(arrays[1:])) for name, arrays in of.items()}


_COLUMNS = {"chains": CHAINS, "parts": PARTS, "groups": GROUPS, "turns": TURNS, "finals": FINALS}


def _tables(values, starts, bins):
    """The records in bins, sorted by value; parts in the order of their chains. Large tables are sampled."""
    coded = {
        table: {
            name: bins[kind].codes(values[table][name]) if isinstance(kind, str) else values[table][name]
            for name, kind in columns.items()
        }
        for table, columns in _COLUMNS.items()
    }
    rng = np.random.default_rng(0)
    order = {
        table: stratified_sample(_sorted(coded[table]), MAX_CHAINS if table == "chains" else MAX_TURNS, rng)
        for table in ("chains", "groups", "turns", "finals")
    }
    chain = order["chains"]
    count = np.diff(starts)[chain]
    part = np.repeat(starts[chain] - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))
    order["parts"] = part
    return {
        table: {name: np.asarray(column)[order[table]] for name, column in coded[table].items()} for table in coded
    }, offsets_of(count)


def _sorted(table):
    return np.lexsort(tuple(reversed(list(table.values()))))
