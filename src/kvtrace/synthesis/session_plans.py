"""A plan: what happens in the sessions of one round, drawn from a session model.

A round has each fitted session once. Its sizes are those of the model's chains, with new values from their bins. The
pooled turns are dealt to the chains so that the parts of each have about their growth, time and breaks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .._base.arrays import offsets_of
from .._native import numbering
from .._native import synthesis as kernel
from ..trace.dependencies import COMPLETION
from .session_fitting import at_most, cuts
from .session_model import ATTACHMENT, BASE, CHAINS, FORKED, MAIN, NOTHING, ROOT, SIBLING, SPAWNED, WHOLE, SessionModel

SWAPS = 1000  # tried per turn
SUMS = ("below", "beside", "reach")  # of a session: over the chains that begin in it
WEIGHTS = {"growth": 20.0, "time": 5.0, "brief": 5.0, "quick": 5.0, "level": 1.0}  # of sums of a part


@dataclass(eq=False)
class SessionPlan:
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
    distance: np.ndarray  # row -> distinct blocks of first prompts used since then
    fork: np.ndarray  # row -> those of the blocks that later sessions had too
    fork_distance: np.ndarray  # row -> distinct blocks of first prompts used since these
    use: np.ndarray  # row -> kind of that attachment

    def __len__(self) -> int:
        return len(self.session)


def draw_plan(model: SessionModel, mains: np.ndarray, rng: np.random.Generator) -> SessionPlan:
    """Draw the sessions of some main chains of the model.

    Args:
        model: The model.
        mains: Session of the round -> record of its main chain.
        rng: Draws all values.
    """
    record, session, above, spot = _chains(model, mains, rng)
    chain = model.draw("chains", record, rng)
    parts = np.diff(model.starts)[record]
    turns = chain["turns"] = _turns(model, record, chain["kind"] != MAIN, rng)
    starts = offsets_of(turns - 1)
    turn = _deal(model, record, chain["kind"] != MAIN, turns, parts, starts, rng)
    order = np.arange(len(turn["growth"]))
    tokens = kernel.contexts(starts, np.maximum(chain["first"], 1), turn["growth"], order, model.block_size)
    finals = rng.permutation(_resampled(len(model.tables["finals"]["output"]), len(record), rng))
    turn = {name: column[order] for name, column in turn.items()}
    return _laid_out(model, chain, turn, model.draw("finals", finals, rng), session, above, spot, tokens, starts)


# -- chains ----------------------------------------------------------------------------------------------------------


def _chains(model, mains, rng):
    """The chains of all sessions, mains first: record, session, chain above (-1 = none), place in that (0 to 1)."""
    table = model.tables["chains"]
    wanted = table["groups"][mains]
    session_of_group = np.repeat(np.arange(len(mains)), wanted)
    group, record = _groups(model, mains, session_of_group, rng)
    of_group = np.repeat(np.arange(len(group["width"])), group["width"])
    session = np.concatenate([np.arange(len(mains)), session_of_group[of_group]])
    above = np.concatenate([np.full(len(mains), -1), _above(group, session_of_group, of_group, len(mains))])
    share = (group["position"] + rng.random(len(session_of_group))) / 16
    return np.concatenate([mains, record]), session, above, np.concatenate([np.zeros(len(mains)), share[of_group]])


def _groups(model, mains, session, rng):
    """The group in each place of `session`, and the records of their chains, so that the sums of a session are kept."""
    table, bins = model.tables["chains"], model.bins["turns"]
    drawn = rng.permutation(_resampled(len(model.tables["groups"]["kind"]), len(session), rng))
    group = model.draw("groups", drawn, rng)
    of_group = np.repeat(np.arange(len(drawn)), group["width"])
    record = np.empty(len(of_group), dtype=np.int64)
    for kind in np.unique(group["kind"]).tolist():
        child = np.flatnonzero(group["kind"][of_group] == kind)
        pool = np.flatnonzero(table["kind"] == kind)
        record[child] = pool[rng.permutation(_resampled(len(pool), len(child), rng))]
    is_below = group["kind"][of_group] == SPAWNED
    turns = _middle(bins)[table["turns"][record]]
    of_chain = turns * is_below, turns * ~is_below, _middle(model.bins["level"])[table["above"][record]]
    has = np.stack([np.bincount(of_group, values, minlength=len(drawn)) for values in of_chain], axis=1)
    wanted = np.stack([_middle(model.bins[CHAINS[name]])[table[name][mains]] for name in SUMS], axis=1)
    scale = np.maximum(has.mean(axis=0), 1) if len(has) else 1
    item = np.arange(len(drawn))
    kernel.deal(
        has / scale, wanted / scale, np.ones_like(wanted), session, item, item.copy(), [0, len(item)],
        int(rng.integers(1 << 62)), SWAPS * len(item),
    )  # fmt: skip
    first = offsets_of(group["width"])
    record = record[numbering.ranges(first[item], group["width"][item])]
    return {name: column[item] for name, column in group.items()}, record


def _middle(bins):
    return (bins.low + bins.high) / 2


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


def _turns(model, record, child, rng):
    """The requests of each chain: spread over their bins, so that a whole round has as many turns as the pool."""
    bins, code = model.bins["turns"], model.tables["chains"]["turns"][record]
    fitted, pooled = model.tables["chains"]["kind"] != MAIN, model.tables["turns"]["child"] > 0
    turns = np.empty(len(record), dtype=np.int64)
    for kind in (False, True):
        own = np.flatnonzero(child == kind)
        share = len(own) / max(1, np.count_nonzero(fitted == kind))  # of a whole round
        total = len(own) + round(share * np.count_nonzero(pooled == kind))
        turns[own] = bins.spread_to(code[own], total, rng)
    return turns


def _resampled(records, size, rng):
    """`size` of the records, each about equally often: whole copies, and a systematic sample in their order."""
    if not size:
        return np.zeros(0, dtype=np.int64)
    copies, rest = divmod(size, records)
    sample = np.minimum((np.arange(rest) + rng.random()) * records / max(rest, 1), records - 1).astype(np.int64)
    return np.concatenate([np.tile(np.arange(records), copies), sample])


# -- turns -----------------------------------------------------------------------------------------------------------


def _deal(model, record, child, turns, parts, starts, rng):
    """The values of the turn in each slot of the chains; a slot is between two requests."""
    slots = int(starts[-1])
    part = numbering.ranges(model.starts[record], parts)
    _, size = cuts(turns - 1, parts)
    cell = np.repeat(np.arange(len(part)), size)
    target = model.draw("parts", part, rng)
    kind = _kinds(target["breaks"], size, cell, rng) + 2 * np.repeat(child, parts)[cell]
    pool = model.tables["turns"]
    pool_kind = pool["break"] + 2 * pool["child"]
    turn, members = np.empty(slots, dtype=np.int64), []
    for number in range(4):
        members.append(np.flatnonzero(kind == number))
        own = np.flatnonzero(pool_kind == number)
        turn[members[-1]] = own[rng.permutation(_resampled(len(own), len(members[-1]), rng))]
    values = _turn_values(model, turn, rng)
    target["growth"] = target["grown"] - target["shrunk"]
    quantities, targets = (
        np.stack([of[name] for name in WEIGHTS], axis=1).astype(np.float64) for of in (values, target)
    )
    scale = np.maximum(np.abs(quantities).mean(axis=0) * 10, 1e-9) if slots else np.ones(len(WEIGHTS))
    weights = np.array(list(WEIGHTS.values())) / (1 + np.abs(targets / scale))
    item = np.arange(slots)
    kernel.deal(
        quantities / scale, targets / scale, weights, cell, item, np.concatenate(members),
        offsets_of([len(slots_of_kind) for slots_of_kind in members]), int(rng.integers(1 << 62)), SWAPS * slots,
    )  # fmt: skip
    return {name: column[item] for name, column in values.items()}


def _kinds(breaks, size, cell, rng):
    """1 for the slots of breaks: as many as each cell has, at random places of it."""
    shuffled = np.lexsort((rng.random(len(cell)), cell))
    place = np.arange(len(cell)) - (np.cumsum(size) - size)[cell]
    kind = np.empty(len(cell), dtype=np.int64)
    kind[shuffled] = place < breaks[cell]
    return kind


def _turn_values(model, turn, rng):
    """The values of turns, drawn from their bins; also their growth in tokens and their time in steps."""
    drawn = model.draw("turns", turn, rng)
    drawn["level"][drawn["break"] == 0] = 0
    time = drawn["delay"] + np.where(drawn["trigger"] == COMPLETION, np.maximum(drawn["service"] - 1, 0), 0)
    return drawn | {
        "growth": drawn["output"] + drawn["over"] - drawn["under"], "time": time,
    } | at_most(time, model.slow)  # fmt: skip


# -- rows ------------------------------------------------------------------------------------------------------------


def _laid_out(model, chain, turn, final, session, above, spot, tokens, starts) -> SessionPlan:
    """The chains as rows, in an order in which each request follows all that it waits for."""
    kind, turns = chain["kind"], chain["turns"]
    rows, first = int(turns.sum()), offsets_of(turns)  # chain -> its first row, before rows are ordered
    chain_of = np.repeat(np.arange(len(turns)), turns)
    later = np.flatnonzero(np.arange(rows) > first[chain_of])  # rows with a turn before them, as the slots
    last = first[1:] - 1
    begin = _begins(chain, session, above, spot, first, starts, turn["time"], tokens // model.block_size)
    _continue_contexts(chain, begin, first, tokens, model.block_size)

    def by_row(of_slots, of_firsts):  # values of each request
        column = np.empty(rows, dtype=np.int64)
        column[later], column[first[:-1]] = of_slots, of_firsts
        return column

    def before(of_slots, of_lasts):  # values of the request before each slot
        column = np.empty(rows, dtype=np.int64)
        column[later - 1], column[last] = of_slots, of_lasts
        return column

    base, blocks = by_row(later - 1, begin), tokens // model.block_size
    behind = np.where(base >= 0, blocks[base], 0)
    kept = np.where(by_row(turn["break"], 0), by_row(turn["blocks"], 0), behind - by_row(turn["blocks"], 0))
    source, keep = _sources(chain, first, base, np.clip(kept, 0, np.minimum(behind, blocks)), above, session, blocks)
    fresh = chain["like"] == NOTHING
    plan = SessionPlan(
        session=session[chain_of], agent=_agents(kind, session, above)[chain_of], base=base, waits=base >= 0,
        spawned=by_row(0, (kind != MAIN) & (kind != FORKED)).astype(bool),
        trigger=by_row(turn["trigger"], chain["trigger"]), delay=by_row(turn["delay"], chain["delay"]),
        service=before(turn["service"], final["service"]) - 1,
        join_offsets=np.zeros(rows + 1, dtype=np.int64), join=np.zeros(0, dtype=np.int64), tokens=tokens,
        output=before(turn["output"], final["output"]), source=source, keep=keep,
        hits=by_row(0, np.where(fresh, np.minimum(chain["hits"], blocks[first[:-1]]), 0)),
        **{name: by_row(0, chain[name]) for name in ATTACHMENT[1:]},
    )  # fmt: skip
    waiting = np.minimum(begin + np.maximum(chain["join"], 1), first[np.maximum(above, 0) + 1] - 1)
    joining = (chain["join"] > 0) & (begin >= 0) & (waiting > begin)
    _join(plan, waiting[joining], last[joining], chain["alone"][joining])
    return _ordered(plan, first, begin, session) if (begin >= 0).any() else plan


def _begins(chain, session, above, spot, first, starts, time, blocks):
    """The row that each chain begins from, -1 = none.

    A fork begins where the context above has about its size, and so early that the chain above goes on after the fork
    has ended; its delay becomes shorter where it must. Changes session, above and delay.
    """
    ends = offsets_of(time)[starts]  # chain -> time of all chains before it
    lasts = np.diff(ends)  # chain -> time from its first request to its last
    forks = np.flatnonzero((chain["kind"] == FORKED) & (above >= 0) & (chain["kind"][above] == MAIN))
    exchange_long_forks(chain, session, above, forks, lasts)
    place = (spot * chain["turns"][above]).astype(np.int64)
    for fork, host in zip(forks.tolist(), above[forks].tolist(), strict=True):
        passed = offsets_of(time[starts[host] : starts[host + 1]])  # place in the host -> time since its first request
        chain["delay"][fork] = max(0, min(int(chain["delay"][fork]), int(passed[-1] - lasts[fork]) - 1))
        latest = int(np.searchsorted(passed, passed[-1] - lasts[fork] - chain["delay"][fork], side="left")) - 1
        contexts = blocks[first[host] : first[host] + max(1, latest + 1)]
        off = np.abs(contexts - chain["above"][fork])
        place[fork] = np.lexsort((np.abs(np.arange(len(off)) - place[fork]), off))[0]
    return np.where(above >= 0, first[above] + np.minimum(place, chain["turns"][above] - 1), -1)


def exchange_long_forks(chain, session, above, forks, lasts):
    """Let each fork that is longer than the chain above exchange its place with the fork most like it that has room."""
    whole = chain["delay"][forks] + lasts[forks]
    sizes = np.log1p(np.stack([chain["turns"][forks], chain["above"][forks]]))
    for long in np.flatnonzero(whole > lasts[above[forks]]).tolist():
        room = lasts[above[forks]]  # fork -> time of the chain above
        fits = np.flatnonzero((whole[long] <= room) & (whole <= room[long]))
        if len(fits):
            like = np.abs(sizes[:, fits] - sizes[:, [long]]).sum(axis=0)
            pair = forks[[long, fits[int(np.argmin(like))]]]
            above[pair], session[pair] = above[pair[::-1]], session[pair[::-1]]


def _continue_contexts(chain, begin, first, tokens, least):
    """Let the contexts of chains that keep the context above grow from it; changes tokens."""
    for number in np.flatnonzero((chain["like"] == WHOLE) & (begin >= 0)).tolist():  # chains above stand before
        rows = slice(first[number], first[number + 1])
        wanted = max(least, tokens[begin[number]] + chain["over"][number] - chain["under"][number])
        tokens[rows] = np.maximum(tokens[rows] + (wanted - tokens[first[number]]), least)


def _sources(chain, first, base, keep, above, session, blocks):
    """The row whose first blocks each row keeps (-1 = none), and how many."""
    source, row, like = base.copy(), first[:-1], chain["like"]
    begin = base[row]
    shared = np.minimum(chain["shared"], blocks[row])
    whole = np.minimum(np.maximum(blocks[begin] - chain["shared"], 0), blocks[row])
    source[row], keep[row] = -1, 0
    for kind, blocks_kept in ((BASE, np.minimum(shared, blocks[begin])), (WHOLE, whole)):
        mine = np.flatnonzero((like == kind) & (begin >= 0))
        source[row[mine]], keep[row[mine]] = begin[mine], blocks_kept[mine]
    last: dict[int, int] = {}  # session -> the last chain beside the main chain
    for number in np.flatnonzero(chain["kind"] != MAIN).tolist():
        sibling = last.get(int(session[number]))
        if like[number] == SIBLING and sibling is not None:
            source[row[number]] = row[sibling]
            keep[row[number]] = min(int(shared[number]), int(blocks[row[sibling]]))
        last[int(session[number])] = number
    return source, keep


def _agents(kind, session, above):
    """The agent of each chain: subagents count 1, 2, ... in their session; a fork belongs to the agent above."""
    own = (kind != MAIN) & (kind != FORKED)
    order = np.argsort(session, kind="stable")
    agent = np.zeros(len(kind), dtype=np.int64)
    counted = np.cumsum(own[order])
    first = np.searchsorted(session[order], session[order])
    agent[order] = np.where(own[order], counted - (counted - own[order])[first], 0)
    for chain in np.flatnonzero((kind == FORKED) & (above >= 0)).tolist():  # chains above stand before
        agent[chain] = agent[above[chain]]
    return agent


def _join(plan: SessionPlan, row, end, alone):
    """Let rows wait for the ends of chains; `alone`: for nothing else."""
    order = np.argsort(row, kind="stable")
    plan.join = end[order]
    plan.join_offsets = offsets_of(np.bincount(row, minlength=len(plan)))
    plan.waits[row[alone > 0]] = False


def _ordered(plan: SessionPlan, first, begin, session) -> SessionPlan:
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


def take(plan: SessionPlan, order: np.ndarray) -> SessionPlan:
    """The rows of a plan in another order."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    columns = {
        name: getattr(plan, name)[order]
        for name in SessionPlan.__dataclass_fields__
        if name not in ("join", "join_offsets", "base", "source")
    }
    count = np.diff(plan.join_offsets)[order]
    offsets = offsets_of(count)
    joined = np.repeat(plan.join_offsets[:-1][order] - offsets[:-1], count) + np.arange(int(offsets[-1]))
    return SessionPlan(
        **columns, join_offsets=offsets, join=place[plan.join[joined]],
        base=_moved(plan.base[order], place), source=_moved(plan.source[order], place),
    )  # fmt: skip


def _moved(rows, place):
    return np.where(rows >= 0, place[rows], -1)
