"""The streams of a sample: each draws rows as a draft; merged by arrival time, they are one trace with final ids.

The stream of the attach method is endless: its requests attach to earlier requests as in the fitted trace.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError, UsageError
from .._native import numbering
from .._native.growth import FULL_KINDS, Growth
from .._native.numbering import merge_ids
from ..trace.building import join_extra
from ..trace.columns import Columns
from .arrival_times import ArrivalClock, shuffled
from .attach_fitting import capacity_grid
from .attach_model import RECORDED, Model
from .draft import Draft, within
from .knobs import Knobs
from .mixture import effective_tail

if TYPE_CHECKING:
    from .attach_model import Model
    from .tree import Tree


CHUNK = 10_000  # rows drawn at a time, about
MARGIN = 2  # blocks are remembered for MARGIN times the largest distance
SMALL = 5000  # fitted requests of a model whose samples are worth a thorough search
REACH = 0.1  # of the blocks to share: how many more or fewer a further turn shares where that fits better
# rows of a window, blocks of a row, and blocks of a depth that a search tries: in samples of small models, of others,
# and while much is lacking
THOROUGH, QUICK, WIDE = (100, 64, 6, REACH), (16, 24, 3, REACH), (40, 192, 12, REACH)
GRACE = 0.5  # of the fitted blocks and tokens: what else counts as asked for when a stream begins
TRIES = 8  # draws of a rejected request, before an accepted one is copied

GROWN = ("hits", "shallow", "deep", "distance", "fork", "fork_distance", "kind", "tail", "continues", "window")

RecordColumns = dict[str, np.ndarray]  # name -> row -> value: records with drawn values, and `input_length`


class AttachStream:
    """Requests drawn from a model: the records of each window once per round, in random order, with new values.

    `accept` marks the valid input lengths. A rejected request is replaced by a record of the same window, or of the
    nearest window with a valid one.

    Raises:
        InputError: No window has a record with a valid input length.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.trace.building import toy
    >>> stream = AttachStream(fit(toy("0 1", "0 1 2")), np.random.SeedSequence(1))
    >>> [len(draft) for draft in stream.chunks(5)]
    [5]
    """

    def __init__(
        self,
        model: Model,
        seeds: np.random.SeedSequence,
        *,
        accept: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self._model, self._accept = model, accept
        records, arrivals, outputs = (np.random.default_rng(seed) for seed in seeds.spawn(3))
        self._rng, self._clock, self._outputs = (
            records,
            ArrivalClock(model.pace, arrivals),
            _OutputDecks(model, outputs),
        )
        hits, distance = (model.bins[name].high[model.records[name]].max() for name in ("hits", "distance"))
        effort, grace = (THOROUGH, (0, 0)) if model.rows <= SMALL else (QUICK, _grace(model))
        self._forest = Growth(
            int(hits), MARGIN * int(distance) + 1, model.block_size, capacity_grid(model.working_set),
            model.correction, model.tail != "dropped", effort, WIDE, grace,
        )  # fmt: skip
        self._window, self._ready = 0, _no_records(model)
        self._longest = 0  # blocks of the longest path so far
        self._donors: dict[int, int] = {}  # window without a valid record -> window whose records are used

    def chunks(self, rows: int) -> Iterator[Draft]:
        """The next `rows` rows, in chunks of some thousands."""
        while rows > 0:
            draft = self._draft(min(rows, CHUNK))
            rows -= len(draft)
            yield draft

    def _draft(self, rows) -> Draft:
        drawn = self._take(rows)
        blocks, tail, session, parent, order = self._forest.grow(
            length=drawn["hits"] + drawn["new"], **{name: drawn[name] for name in GROWN}
        )
        drawn = {name: column[order] for name, column in drawn.items()}
        return Draft(
            arrival=self._clock.take(rows), offsets=offsets_of(drawn["hits"] + drawn["new"]), blocks=blocks, tail=tail,
            output_length=self._outputs.deal(drawn["input_length"], drawn["type"]), session=session, parent=parent,
            extra=self._extra(drawn),
        )  # fmt: skip

    def _extra(self, drawn):
        types = self._model.types
        if not types:
            return {}
        whole = all(isinstance(value, int) for value in types)
        return {"type": np.array(types, dtype=np.int64 if whole else object)[drawn["type"]]}

    # -- drawing records -----------------------------------------------------------------------------------------

    def _take(self, rows) -> RecordColumns:
        """The next rows of the windows, in order."""
        chunks, ready = [self._ready], len(self._ready["hits"])
        while ready < rows:
            chunks.append(self._draw_windows(rows - ready))
            ready += len(chunks[-1]["hits"])
        joined = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        self._ready = {name: column[rows:] for name, column in joined.items()}
        return {name: column[:rows] for name, column in joined.items()}

    def _draw_windows(self, rows) -> RecordColumns:
        """The rows of the next windows, about `rows` in all."""
        model = self._model
        count = max(1, rows * len(model.window_rows) // int(model.window_rows.sum()))
        window = (self._window + np.arange(count)) % len(model.window_rows)
        self._window = int(window[-1]) + 1
        sizes, row_counts = np.diff(model.starts)[window], model.window_rows[window]
        record, place = shuffled(model.starts[window], sizes, -(-row_counts // sizes), self._rng)
        first = np.searchsorted(place, np.arange(count))
        used = np.arange(len(place)) - first[place] < row_counts[place]  # the last round may be partial
        record, place = record[used], place[used]
        drawn = self._draw(record)
        if self._accept is not None:
            drawn = self._accepted(drawn, record, window[place])
        drawn["window"] = place + (self._window - count)
        return self._feasible_order(drawn, place)

    def _feasible_order(self, drawn, place) -> RecordColumns:
        """Reorder the rows of each window: delay a row that shares more blocks than any path has so far."""
        length = drawn["hits"] + drawn["new"]
        longest = np.maximum.accumulate(np.concatenate([[self._longest], length]))
        order = np.arange(len(place))
        for number in np.unique(place[drawn["shallow"] > longest[:-1]]).tolist():
            rows = np.flatnonzero(place == number)
            order[rows] = rows[_feasible(drawn["shallow"][rows], length[rows], int(longest[rows[0]]))]
        self._longest = int(longest[-1])
        return {name: column[order] for name, column in drawn.items()}

    def _draw(self, record) -> RecordColumns:
        """Draw new values for the records."""
        model, rng = self._model, self._rng
        drawn = {name: column[record] for name, column in model.records.items()}
        drawn["shallow"], drawn["deep"] = (
            edge[drawn["hits"]] for edge in (model.bins["hits"].low, model.bins["hits"].high)
        )
        for name in RECORDED:
            drawn[name] = model.bins[name].draw(drawn[name], rng)
        drawn["fork"] = np.minimum(drawn["fork"], np.maximum(drawn["hits"] - 1, 0))
        drawn["fork_distance"] = np.minimum(drawn["fork_distance"], drawn["distance"])
        drawn["tail"] += 1
        ends_full = (drawn["new"] == 0) & (drawn["kind"] < FULL_KINDS)
        drawn["tail"][ends_full] = model.block_size  # the prompt ends in a full block of another request
        drawn["input_length"] = (drawn["hits"] + drawn["new"] - 1) * model.block_size + drawn["tail"]
        return drawn

    # -- limits on input lengths -------------------------------------------------------------------------------

    def _accepted(self, drawn, record, window) -> RecordColumns:
        """Replace the rejected rows by draws from accepted records."""
        good = self._is_accepted(drawn)
        for number in np.unique(window[~good]).tolist():
            bad = np.flatnonzero((window == number) & ~good)
            accepted = np.flatnonzero((window == number) & good)
            if len(accepted):
                replacement = self._redraw(
                    record[accepted], {name: column[accepted] for name, column in drawn.items()}, len(bad)
                )
            else:
                replacement = self._redraw(*self._donor(number), len(bad))
            for name, column in drawn.items():
                column[bad] = replacement[name]
        return drawn

    def _is_accepted(self, drawn):
        return np.asarray(self._accept(drawn["input_length"]), dtype=bool)  # type: ignore[misc]

    def _redraw(self, record, drawn, rows) -> RecordColumns:
        """Redraw `rows` rows from records with accepted draws; copy an accepted draw after TRIES failures."""
        which = self._rng.integers(len(record), size=rows)
        result = {name: column[which] for name, column in drawn.items()}
        pending = np.arange(rows)
        for _ in range(TRIES):
            fresh = self._draw(record[which[pending]])
            good = self._is_accepted(fresh)
            for name, column in result.items():
                column[pending[good]] = fresh[name][good]
            pending = pending[~good]
        return result

    def _donor(self, window) -> tuple[np.ndarray, RecordColumns]:
        """The records of the nearest window with accepted draws, and these draws."""
        windows = len(self._model.window_rows)
        donor = self._donors.get(window)
        near = sorted(range(windows), key=lambda other: (abs(other - window), other)) if donor is None else [donor]
        for number in near:
            record = np.arange(self._model.starts[number], self._model.starts[number + 1])
            for _ in range(TRIES):
                drawn = self._draw(record)
                good = self._is_accepted(drawn)
                if good.any():
                    self._donors[window] = number
                    return record[good], {name: column[good] for name, column in drawn.items()}
        if donor is not None:  # the donor had accepted draws before: search again
            del self._donors[window]
            return self._donor(window)
        raise InputError("no prompt of the model is within --min-isl and --max-isl. Try wider limits.")


def _grace(model: Model) -> tuple[float, float]:
    """Blocks, and tokens of last blocks, that the search is forgiving about when a stream begins."""
    hits, new, tail = (
        float((model.bins[name].low + model.bins[name].high)[model.records[name]].mean()) / 2
        for name in ("hits", "new", "tail")
    )
    return GRACE * model.rows * (hits + new), GRACE * model.rows * (tail + 1)


def _feasible(shared, length, longest):
    """The order of rows closest to theirs in which no row shares more blocks than the longest path before it has.

    >>> _feasible(np.array([0, 5, 3]), np.array([4, 6, 7]), 0)
    [0, 2, 1]
    """
    order: list[int] = []
    waiting: list[tuple[int, int]] = []  # heap: the fewest shared blocks first
    for row, blocks in enumerate(shared.tolist()):
        heapq.heappush(waiting, (blocks, row))
        while waiting and waiting[0][0] <= longest:
            order.append(heapq.heappop(waiting)[1])
            longest = max(longest, int(length[order[-1]]))
    return order + [row for _, row in sorted(waiting)]


class _OutputDecks:
    """Output lengths by type and input length: each group is a deck, dealt in random order and then reshuffled."""

    def __init__(self, model, rng):
        self._edges, self._bins, self._rng = model.edges, model.bins["output"], rng
        self._decks = [
            np.repeat(np.array(list(group), dtype=np.int64), list(group.values())) for group in model.outputs
        ]
        all_codes = np.concatenate(self._decks)
        self._decks = [deck if len(deck) else all_codes for deck in self._decks]
        self._left = [deck[:0] for deck in self._decks]

    def deal(self, input_length, which):
        groups = self._edges.shape[1] + 1
        group = np.zeros(len(which), dtype=np.int64)
        for kind in range(len(self._edges)):
            of_kind = which == kind
            group[of_kind] = kind * groups + np.searchsorted(self._edges[kind], input_length[of_kind], side="right")
        codes = np.empty(len(which), dtype=np.int64)
        for number in np.unique(group).tolist():
            rows = np.flatnonzero(group == number)
            codes[rows] = self._deal(number, len(rows))
        return self._bins.draw(codes, self._rng)

    def _deal(self, group, rows):
        while len(self._left[group]) < rows:
            self._left[group] = np.concatenate([self._left[group], self._rng.permutation(self._decks[group])])
        dealt, self._left[group] = self._left[group][:rows], self._left[group][rows:]
        return dealt


def _no_records(model) -> dict[str, Any]:
    return {name: np.empty(0, dtype=np.int64) for name in (*model.records, "shallow", "deep", "input_length", "window")}


@dataclass(frozen=True, eq=False)
class Stream:
    """What a stream draws."""

    model: Model | Tree
    seeds: np.random.SeedSequence
    rows: int
    tenant: int = -1  # of all its rows, -1 = none
    source: int = 0  # index of its model in a mixture
    arrival: np.ndarray | None = None  # row -> ms; None = arrivals of the model


def chunks_of(stream: Stream, seeds: np.random.SeedSequence, knobs: Knobs) -> Iterator[Draft]:
    """The rows of a stream as they are drawn, without stretching."""
    accept = knobs.accepts if knobs.limits_input else None
    if stream.model.method == "tree":
        from .tree import TreeStream

        tree = TreeStream(stream.model, seeds, accept=accept, max_rejections=knobs.max_rejections)  # type: ignore
        return tree.chunks(stream.rows)

    return AttachStream(stream.model, seeds, accept=accept).chunks(stream.rows)  # type: ignore


def reported(drafts: Iterator[Draft], on_progress: Callable[[int], None] | None) -> Iterator[Draft]:
    """The same drafts; the requests of each are reported."""
    for draft in drafts:
        if on_progress:
            on_progress(len(draft))
        yield draft


def draw_stream(stream: Stream, knobs: Knobs, on_progress: Callable[[int], None] | None = None) -> Draft:
    """All rows of one stream, after stretching and limits."""
    own, others = stream.seeds.spawn(2)
    block_size = stream.model.block_size
    draft = joined(list(reported(chunks_of(stream, own, knobs), on_progress)))
    if knobs.stretches:
        from .draft import StretchState, stretched

        core = np.bincount(draft.blocks) >= 2
        draft = stretched(
            draft, core, StretchState(block_size), prefix_len=knobs.prefix_len_multiplier,
            prompt_len=knobs.prompt_len_multiplier, roots=knobs.prefix_root_multiplier,
            rng=np.random.default_rng(others),
        )  # fmt: skip
    if knobs.limits_input:
        draft = within(draft, block_size, knobs.min_isl, knobs.max_isl)
    return draft if stream.arrival is None else replace(draft, arrival=stream.arrival)


def joined(drafts: list[Draft]) -> Draft:
    """Concatenate chunks of one stream, or streams whose numbers differ; extra columns are None where they miss."""
    if len(drafts) == 1:
        return drafts[0]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(draft, name) for draft in drafts])
        for name in ("arrival", "blocks", "tail", "output_length", "session", "parent")
    }
    offsets = offsets_of(np.concatenate([draft.path_blocks for draft in drafts]))
    return Draft(**columns, offsets=offsets, extra=join_extra(drafts))


COARSE_MS = 10  # above this mean gap, times are rounded to whole milliseconds


def merged(parts: list[Draft], streams: list[Stream], model, knobs: Knobs, rng: np.random.Generator) -> Columns:
    """Merge parallel streams by arrival time.

    Args:
        parts: The rows of each stream.
        streams: The streams: whose rows they are.
        model: The model or the mixture of the sample.
        knobs: Factors of times and outputs; `step_rates` replaces the times.
        rng: For these times.
    """
    rows, counts = offsets_of([len(part) for part in parts]), [_block_count(part) for part in parts]
    sessions = offsets_of([int(part.session.max(initial=-1)) + 1 for part in parts])
    if sum(counts) >= 1 << 31:
        raise UsageError("a sample of this size has more than 2^31 blocks. Try fewer requests.")
    whole = joined([
        replace(
            part, blocks=part.blocks[:0], session=np.where(part.session < 0, -1, part.session + session),
            parent=np.where(part.parent < 0, -1, part.parent + row),
        )
        for part, session, row in zip(parts, sessions, rows, strict=False)
    ])  # fmt: skip
    order = np.argsort(whole.arrival, kind="stable")
    blocks, offsets = merge_ids([part.blocks for part in parts], counts, [part.offsets for part in parts], order)
    place = np.empty_like(order)  # row of the streams -> row of the trace
    place[order] = np.arange(len(order))
    parent = np.where(whole.parent < 0, -1, place[whole.parent])[order]
    rows_in_order = Draft(
        whole.arrival[order], offsets, blocks, whole.tail[order],
        whole.output_length[order], whole.session[order], parent,
        {name: column[order] for name, column in whole.extra.items()},
    )  # fmt: skip
    if knobs.step_rates is not None:
        from .arrival_times import step_arrivals

        rows_in_order.arrival = step_arrivals(knobs.step_rates, rng, len(rows_in_order))
        rows_in_order.arrival[:1] = 0.0  # a trace starts with its first request
    first_ms = float(rows_in_order.arrival[0])
    columns = _final(rows_in_order, model, knobs, first_ms, _unit(_gap_ms(rows_in_order, streams, knobs), model, knobs))
    tenant = np.repeat([stream.tenant for stream in streams], np.diff(rows))[order]
    columns.domain = tenant if (tenant >= 0).any() else None
    return columns


def one_by_one(model, drafts: Iterator[Draft], knobs: Knobs) -> Iterator[Columns]:
    """Chunks of one stream with final block numbers, as columns."""
    first, unit = None, _unit(model.duration_ms / model.rows, model, knobs)
    for draft in drafts:
        first = float(draft.arrival[0]) if first is None else first
        yield _final(draft, model, knobs, first, unit)


def _gap_ms(draft, streams, knobs):
    """The mean gap between arrivals: of the model if it gives them, else of the rows."""
    if knobs.step_rates is not None or streams[0].arrival is not None:
        return float(draft.arrival[-1] - draft.arrival[0]) / len(draft)
    return streams[0].model.duration_ms / (streams[0].model.rows * len(streams))


def _final(draft: Draft, model, knobs, first_ms, unit) -> Columns:
    times = (draft.arrival - first_ms) / knobs.speedup_ratio
    offsets, blocks, tokens = draft.offsets, draft.blocks, draft.input_length(model.block_size)
    if effective_tail(model) == "dropped":
        offsets, blocks = _without_tails(draft, model.block_size)
    has_sessions = bool((draft.session >= 0).any())
    return Columns(
        _rounded(times, unit), tokens, knobs.outputs(draft.output_length),
        blocks.astype(np.int64, copy=False), offsets,
        session=draft.session if has_sessions else None, parent=draft.parent if has_sessions else None,
        extra=dict(draft.extra),
    )  # fmt: skip


def _without_tails(draft, block_size):
    """The offsets and blocks of all rows without partial blocks, numbered anew."""
    partial = draft.tail < block_size
    keep = np.ones(len(draft.blocks), dtype=bool)
    keep[draft.offsets[1:][partial] - 1] = False
    return offsets_of(draft.path_blocks - partial), numbering.renumber(draft.blocks[keep])[0]


def _unit(gap_ms, model, knobs):
    """The time unit for rounding, in ms: the step of the fitted times, or so small that times stay apart."""
    if knobs.speedup_ratio == 1 and not knobs.replaces_rates and model.time_step_ms > 1:
        return float(model.time_step_ms)
    return 1.0 if gap_ms / knobs.speedup_ratio >= COARSE_MS else 1e-3


def _rounded(times, unit):
    """Times as multiples of a unit of at least 1 ms; of thousandths, as the doubles nearest to them."""
    return np.round(times, 3) if unit < 1 else np.round(times / unit) * unit


def _block_count(draft):
    return int(draft.blocks.max(initial=-1)) + 1
