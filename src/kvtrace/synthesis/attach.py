"""The attach method: an endless stream of requests that attach to earlier requests as in the fitted trace."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from .._native.growth import FULL_KINDS, Growth
from .arrival_times import ArrivalClock, shuffled
from .attach_fitting import capacity_grid
from .attach_model import RECORDED, Model
from .draft import Draft

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
