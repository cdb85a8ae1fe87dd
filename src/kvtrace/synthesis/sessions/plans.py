"""A plan: what happens in the sessions of one round, drawn from a session model.

A round has each fitted session once. Its sizes are those of the model's chains, with new values from their bins. The
pooled turns are dealt to the chains so that the parts of each have about their growth, time and breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._base.offsets import offsets_of
from ..._native import sessions as kernel
from ...trace.dependencies import COMPLETION
from .chains import FORKED, MAIN, ROOT
from .fitting import cuts
from .model import BASE, NOTHING, SIBLING, WHOLE, SessionModel

SWAPS = 1000  # tried per turn
WEIGHTS = {"growth": 5.0, "time": 1.0, "brief": 1.0, "level": 1.0}  # of the quantities whose sums by part are kept


@dataclass(eq=False)
class Plan:
    """The requests of whole sessions, in an order in which each request follows all that it waits for."""

    session: np.ndarray  # row -> session of the round
    agent: np.ndarray  # row -> agent of its session, 0 = main
    base: np.ndarray  # row -> the row that it continues or begins from, -1 = none
    waits: np.ndarray  # row -> whether it waits for base
    spawned: np.ndarray  # row -> whether it is the first of a subagent
    trigger: np.ndarray  # row -> trigger of that wait
    delay: np.ndarray  # row -> steps after what it waits for
    service: np.ndarray  # row -> steps from its start to its end, -1 = unknown
    join_offsets: np.ndarray  # row r also waits for the ends of join[join_offsets[r]:join_offsets[r + 1]]
    join: np.ndarray
    tokens: np.ndarray  # row -> prompt tokens
    output: np.ndarray  # row -> output tokens
    source: np.ndarray  # row -> the row whose first blocks it keeps, -1 = none
    keep: np.ndarray  # row -> how many of them
    hits: np.ndarray  # row -> blocks that other sessions may have had; of rows without source
    age: np.ndarray  # row -> new first blocks since then
    use: np.ndarray  # row -> kind of that attachment

    def __len__(self) -> int:
        return len(self.session)


def draw_plan(model: SessionModel, mains: np.ndarray, rng: np.random.Generator) -> Plan:
    """Draw the sessions of some main chains of the model.

    Args:
        model: The model.
        mains: Session of the round -> record of its main chain.
        rng: Draws all values.
    """
    record, session, above, spot, width_place = _chains(model, mains, rng)
    table = {name: column[record] for name, column in model.tables["chains"].items()}
    drawn = {
        name: model.bins[kind].spread(table[name], rng)
        for name, kind in (("turns", "turns"), ("first", "first"), ("shared", "blocks"), ("delay", "time"),
                           ("join", "turns"), ("over", "growth"), ("under", "growth"), ("hits", "blocks"), ("age", "age"))
    }  # fmt: skip
    parts = np.diff(model.starts)[record]
    turns = _balanced_turns(model, table, drawn["turns"], parts, rng)
    starts = offsets_of(turns - 1)
    item, values = _deal(model, record, table["kind"] != MAIN, turns, parts, starts, rng)
    tokens = kernel.contexts(starts, np.maximum(drawn["first"], 1), values["growth"], item, model.block_size)
    finals = _resampled(len(model.tables["finals"]["output"]), len(record), rng)
    return _laid_out(
        model, table, drawn, session, above, spot, turns, tokens, starts, item, values, rng.permutation(finals), rng
    )


# -- chains ----------------------------------------------------------------------------------------------------------


def _chains(model, mains, rng):
    """The chains of all sessions, mains first: record, session, chain above (-1 = none), place above as a share, group."""
    table = model.tables["chains"]
    wanted = table["groups"][mains]
    groups = rng.permutation(_resampled(len(model.tables["groups"]["kind"]), int(wanted.sum()), rng))
    session_of_group = np.repeat(np.arange(len(mains)), wanted)
    group = {name: column[groups] for name, column in model.tables["groups"].items()}
    width = model.bins["turns"].spread(group["width"], rng)
    of_group = np.repeat(np.arange(len(groups)), width)
    record = np.empty(len(of_group), dtype=np.int64)
    for kind in np.unique(group["kind"]).tolist():
        child = np.flatnonzero(group["kind"][of_group] == kind)
        pool = np.flatnonzero(table["kind"] == kind)
        record[child] = pool[rng.permutation(_resampled(len(pool), len(child), rng))]
    session = np.concatenate([np.arange(len(mains)), session_of_group[of_group]])
    above = np.concatenate([np.full(len(mains), -1), _above(group, session_of_group, of_group, len(mains))])
    share = (group["position"] + rng.random(len(groups))) / 16
    return (
        np.concatenate([mains, record]), session, above,
        np.concatenate([np.zeros(len(mains)), share[of_group]]), of_group,
    )  # fmt: skip


def _above(group, session_of_group, of_group, mains):
    """The chain that each further chain begins from: the main chain, or the chain before its group; -1 = none."""
    above = session_of_group[of_group].copy()
    first = np.searchsorted(of_group, np.arange(len(session_of_group)))
    earlier = (first > 0) & (
        session_of_group == np.append(session_of_group[:1] - 1, session_of_group[:-1])
    )  # a chain of the same session stands before the group
    nested = (group["nested"] > 0) & earlier
    chain_before = first - 1
    above[nested[of_group]] = mains + chain_before[of_group][nested[of_group]]
    above[group["kind"][of_group] == ROOT] = -1
    return above


def _balanced_turns(model, table, turns, parts, rng):
    """The turns of the chains, changed by a few so that a whole round uses each pooled turn once."""
    turns = np.maximum(turns, parts + 1)
    turns[parts == 0] = 1
    pool = model.tables["turns"]["child"]
    for child in (0, 1):
        of_kind = np.flatnonzero((table["kind"] != MAIN) == child)
        missing = int(np.count_nonzero(pool == child) - (turns[of_kind] - 1).sum())
        long = of_kind[turns[of_kind] > 16]  # shorter chains have exactly their turns
        if len(long) and abs(missing) <= 0.03 * (turns[long]).sum():
            share = offsets_of(turns[rng.permutation(long)])
            cut = np.rint(share * (missing / share[-1])).astype(np.int64)
            turns[long] += np.diff(cut)
    return np.maximum(turns, parts + 1)


def _resampled(records, size, rng):
    """`size` of the records, each about equally often: whole copies, and a systematic sample in their order."""
    if not size:
        return np.zeros(0, dtype=np.int64)
    copies, rest = divmod(size, records)
    sample = np.minimum((np.arange(rest) + rng.random()) * records / max(rest, 1), records - 1).astype(np.int64)
    return np.concatenate([np.tile(np.arange(records), copies), sample])


# -- turns -----------------------------------------------------------------------------------------------------------


def _deal(model, record, child, turns, parts, starts, rng):
    """The turn of each slot of the chains (a slot is between two requests), and the values of these turns."""
    slots = int(starts[-1])
    part = model.starts[record].repeat(parts) + np.arange(parts.sum()) - (np.cumsum(parts) - parts).repeat(parts)
    _, size = cuts(turns - 1, parts)
    cell = np.repeat(np.arange(len(part)), size)
    of = {name: column[part] for name, column in model.tables["parts"].items()}
    draw = {name: model.bins[kind].spread(of[name], rng)
            for name, kind in (("grown", "growth"), ("shrunk", "growth"), ("time", "time"), ("brief", "time"), ("level", "level"))}  # fmt: skip
    breaks = np.minimum(of["breaks"], size)
    shuffled = np.lexsort((rng.random(slots), cell))  # each cell's slots in random order: its first ones are breaks
    place = np.arange(slots) - np.repeat(np.cumsum(size) - size, size)
    kind = np.empty(slots, dtype=np.int64)
    kind[shuffled] = place < breaks[cell]
    kind += 2 * np.repeat(child, parts)[cell]
    pool = model.tables["turns"]
    pool_kind = pool["break"] + 2 * pool["child"]
    item, turn = np.empty(slots, dtype=np.int64), np.empty(slots, dtype=np.int64)
    members, bounds = [], [0]
    for number in range(4):
        mine = np.flatnonzero(kind == number)
        own = np.flatnonzero(pool_kind == number)
        turn[mine] = own[rng.permutation(_resampled(len(own), len(mine), rng))]
        members.append(mine)
        bounds.append(bounds[-1] + len(mine))
    item[:] = np.arange(slots)
    values = _values(model, turn, rng)
    quantities = np.stack([values[name] for name in WEIGHTS], axis=1).astype(np.float64)
    draw["growth"] = draw["grown"] - draw["shrunk"]
    targets = np.stack([draw[name] for name in WEIGHTS], axis=1).astype(np.float64)
    scale = np.maximum(np.abs(quantities).mean(axis=0) * 10, 1e-9) if slots else np.ones(len(WEIGHTS))
    kernel.deal(
        quantities / scale, targets / scale, np.array(list(WEIGHTS.values())) / (1 + np.abs(targets / scale)), cell,
        item, np.concatenate(members), np.array(bounds), int(rng.integers(1 << 62)), SWAPS * slots,
    )  # fmt: skip
    return item, values


def _values(model, turn, rng):
    """The values of turns, drawn from their bins."""
    table = {name: column[turn] for name, column in model.tables["turns"].items()}
    drawn = {
        name: model.bins[kind].spread(table[name], rng)
        for name, kind in (("output", "output"), ("over", "growth"), ("under", "growth"), ("blocks", "blocks"),
                           ("level", "level"), ("delay", "time"), ("service", "service"))
    }  # fmt: skip
    drawn["level"][table["break"] == 0] = 0
    growth = drawn["output"] + drawn["over"] - drawn["under"]
    time = drawn["delay"] + np.where(table["trigger"] == COMPLETION, np.maximum(drawn["service"] - 1, 0), 0)
    return drawn | {"growth": growth, "time": time, "brief": np.minimum(time, model.slow), "trigger": table["trigger"], "break": table["break"]}


# -- rows ------------------------------------------------------------------------------------------------------------


def _laid_out(model, table, drawn, session, above, spot, turns, tokens, starts, item, values, finals, rng) -> Plan:
    """The chains as rows, in an order in which each request follows all that it waits for."""
    chains, rows = len(turns), int(turns.sum())
    first = offsets_of(turns)  # chain -> its first row, before rows are ordered
    chain = np.repeat(np.arange(chains), turns)
    place = np.arange(rows) - first[chain]
    later = np.flatnonzero(place > 0)  # rows with a turn before them, in the order of the slots
    final = first[1:] - 1
    begin = _begins(table["kind"], above, spot, turns, first, starts, values["time"][item], drawn["delay"])
    _continue_contexts(table["like"], drawn["over"] - drawn["under"], begin, first, tokens, model.block_size)

    def by_row(slot_values, first_values, dtype=np.int64):
        column = np.empty(rows, dtype=dtype)
        column[later] = slot_values
        column[first[:-1]] = first_values
        return column

    def before(slot_values, final_values):  # values of the request before each slot
        column = np.empty(rows, dtype=np.int64)
        column[later - 1] = slot_values
        column[final] = final_values
        return column

    of_final = {name: model.bins[name].spread(column[finals], rng) for name, column in model.tables["finals"].items()}
    base = by_row(later - 1, begin)
    blocks = tokens // model.block_size
    is_break = by_row(values["break"][item], 0)
    in_blocks = by_row(values["blocks"][item], 0)
    behind = np.where(base >= 0, blocks[base], 0)
    limit = np.minimum(behind, blocks)
    keep = np.clip(np.where(is_break, in_blocks, behind - in_blocks), 0, limit)
    source, keep = _first_sources(table, drawn, first, base, keep, above, session, blocks)
    plan = Plan(
        session=session[chain], agent=_agents(table["kind"], session, above)[chain], base=base,
        waits=base >= 0, spawned=by_row(0, (table["kind"] != MAIN) & (table["kind"] != FORKED)).astype(bool),
        trigger=by_row(values["trigger"][item], table["trigger"]), delay=by_row(values["delay"][item], drawn["delay"]),
        service=before(values["service"][item], of_final["service"]) - 1,
        join_offsets=np.zeros(rows + 1, dtype=np.int64), join=np.zeros(0, dtype=np.int64), tokens=tokens,
        output=before(values["output"][item], of_final["output"]), source=source, keep=keep,
        hits=by_row(0, np.where(table["like"] == NOTHING, np.minimum(drawn["hits"], blocks[first[:-1]]), 0)),
        age=by_row(0, drawn["age"]), use=by_row(0, table["use"]),
    )  # fmt: skip
    joining = (drawn["join"] > 0) & (begin >= 0)
    waiting = np.minimum(begin + np.maximum(drawn["join"], 1), first[np.maximum(above, 0) + 1] - 1)
    joining &= waiting > begin
    _join(plan, waiting[joining], final[joining], table["alone"][joining])
    return _ordered(plan, first, begin, session) if (begin >= 0).any() else plan


def _begins(kind, above, spot, turns, first, starts, time, delay):
    """The row that each chain begins from, -1 = none. The chain above goes on after a fork has ended."""
    place = np.minimum((spot * turns[above]).astype(np.int64), turns[above] - 1)
    ends = offsets_of(time)  # slot -> time from the first request to the end of the slot, over all chains
    for chain in np.flatnonzero((kind == FORKED) & (above >= 0)).tolist():
        slots = starts[above[chain]], starts[above[chain] + 1]
        lasts = delay[chain] + ends[starts[chain + 1]] - ends[starts[chain]]
        latest = np.searchsorted(ends[slots[0] : slots[1] + 1], ends[slots[1]] - lasts, side="left") - 1
        place[chain] = max(0, min(place[chain], latest))
    return np.where(above >= 0, first[above] + place, -1)


def _continue_contexts(like, growth, begin, first, tokens, least):
    """Let the contexts of chains that keep the context above grow from it; changes tokens."""
    for chain in np.flatnonzero((like == WHOLE) & (begin >= 0)).tolist():  # chains above stand before
        rows = slice(first[chain], first[chain + 1])
        wanted = max(least, tokens[begin[chain]] + growth[chain])
        tokens[rows] = np.maximum(tokens[rows] + (wanted - tokens[first[chain]]), least)


def _first_sources(table, drawn, first, base, keep, above, session, blocks):
    """The source and the kept blocks of each row: a chain's first row may share with a chain beside it, or with none."""
    source, row = base.copy(), first[:-1]
    shared = np.minimum(drawn["shared"], blocks[row])
    source[row], keep[row] = -1, 0
    on_base = np.flatnonzero((table["like"] == BASE) & (base[row] >= 0))
    source[row[on_base]] = base[row[on_base]]
    keep[row[on_base]] = np.minimum(shared, blocks[base[row]])[on_base]
    whole = np.flatnonzero((table["like"] == WHOLE) & (base[row] >= 0))
    source[row[whole]] = base[row[whole]]
    kept = np.maximum(blocks[base[row]] - drawn["shared"], 0)
    keep[row[whole]] = np.minimum(kept, blocks[row])[whole]
    last: dict[int, int] = {}  # session -> the last chain beside the main chain
    for chain in np.flatnonzero(above >= 0).tolist():
        sibling = last.get(int(session[chain]))
        if table["like"][chain] == SIBLING and sibling is not None:
            source[row[chain]] = row[sibling]
            keep[row[chain]] = min(int(shared[chain]), int(blocks[row[sibling]]))
        last[int(session[chain])] = chain
    return source, keep


def _agents(kind, session, above):
    """The agent of each chain: subagents count 1, 2, ... in their session; a fork belongs to the agent above."""
    own = (kind != MAIN) & (kind != FORKED)
    before = np.cumsum(own)
    order = np.argsort(session, kind="stable")
    agent = np.zeros(len(kind), dtype=np.int64)
    counted = np.cumsum(own[order])
    first = np.searchsorted(session[order], session[order])
    agent[order] = np.where(own[order], counted - (counted - own[order])[first], 0)
    del before
    for chain in np.flatnonzero((kind == FORKED) & (above >= 0)).tolist():  # chains above stand before
        agent[chain] = agent[above[chain]]
    return agent


def _join(plan: Plan, row, end, alone):
    """Let rows wait for the ends of chains; `alone`: for nothing else."""
    order = np.argsort(row, kind="stable")
    plan.join = end[order]
    plan.join_offsets = offsets_of(np.bincount(row, minlength=len(plan)))
    plan.waits[row[alone > 0]] = False


def _ordered(plan: Plan, first, begin, session) -> Plan:
    """The same rows, with each chain directly behind the row that it begins from."""
    children: dict[int, list[int]] = {}
    for chain in np.flatnonzero(begin >= 0).tolist():
        children.setdefault(int(begin[chain]), []).append(chain)
    roots: dict[int, list[int]] = {}
    for chain in np.flatnonzero(begin < 0).tolist():
        roots.setdefault(int(session[chain]), []).append(chain)
    marked = np.array(sorted(children), dtype=np.int64)
    order: list[np.ndarray] = []
    for number in sorted(roots):
        pending = [(int(first[chain]), int(first[chain + 1])) for chain in reversed(roots[number])]
        while pending:  # rows from start to stop, then the rest
            start, stop = pending.pop()
            at = int(np.searchsorted(marked, start))
            if at < len(marked) and marked[at] < stop:
                row = int(marked[at])
                order.append(np.arange(start, row + 1))
                pending.append((row + 1, stop))
                pending += [(int(first[chain]), int(first[chain + 1])) for chain in reversed(children[row])]
            else:
                order.append(np.arange(start, stop))
    return take(plan, np.concatenate(order))


def take(plan: Plan, order: np.ndarray) -> Plan:
    """The rows of a plan in another order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    columns = {
        name: getattr(plan, name)[order]
        for name in Plan.__dataclass_fields__
        if name not in ("join", "join_offsets", "base", "source")
    }
    count = np.diff(plan.join_offsets)[order]
    offsets = offsets_of(count)
    joined = np.repeat(plan.join_offsets[:-1][order] - offsets[:-1], count) + np.arange(int(offsets[-1]))
    return Plan(
        **columns, join_offsets=offsets, join=place[plan.join[joined]],
        base=_moved(plan.base[order], place), source=_moved(plan.source[order], place),
    )  # fmt: skip


def _moved(rows, place):
    return np.where(rows >= 0, place[rows], -1)
