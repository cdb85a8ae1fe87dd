"""A stream of requests that attach to each other as those of a model did, on and on through the model's windows."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .._base.errors import InputError
from .._native.attach import FULL_KINDS, Growth
from .arrivals import Clock, shuffled
from .draft import Draft
from .model import Model

CHUNK = 10_000  # rows, about, that are drawn together
MARGIN = 2  # blocks are remembered for so many times the greatest age
TRIES = 8  # draws of a request that is not accepted, before another is copied

Drawn = dict[str, np.ndarray]  # name -> row -> value: records with values for bins, and `input_length`


class AttachStream:
    """Requests drawn from a model: each window's records once a round, in random order, with new values.

    `accept` says which input lengths may be; for others a record of the same window is drawn instead, or of the
    nearest window that has one. InputError where no window has one.

    >>> from kvtrace.synthesis.fitting import fit
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
        self._rng, self._clock, self._outputs = records, Clock(model.pace, arrivals), _Outputs(model, outputs)
        hits, age = model.bins["hits"].high[model.records["hits"]], model.bins["age"].high[model.records["age"]]
        self._forest = Growth(int(hits.max()), MARGIN * int(age.max()) + 1, model.block_size)
        self._window, self._ready = 0, _nothing(model)
        self._longest = 0  # blocks of the longest path so far
        self._donors: dict[int, int] = {}  # window without an acceptable record -> the one whose records are used

    def chunks(self, rows: int) -> Iterator[Draft]:
        """The next so many rows, some thousands at a time."""
        while rows > 0:
            draft = self._draft(min(rows, CHUNK))
            rows -= len(draft)
            yield draft

    def _draft(self, rows) -> Draft:
        drawn = self._take(rows)
        length = drawn["hits"] + drawn["new"]
        blocks, tail, session, parent = self._forest.grow(
            drawn["hits"],
            drawn["shallow"],
            drawn["deep"],
            length,
            drawn["age"],
            drawn["kind"],
            drawn["tail"],
            drawn["continues"],
        )
        return Draft(
            arrival=self._clock.take(rows), offsets=np.concatenate([[0], np.cumsum(length)]), blocks=blocks, tail=tail,
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

    def _take(self, rows) -> Drawn:
        """The next so many rows of the windows, one after another."""
        parts, ready = [self._ready], len(self._ready["hits"])
        while ready < rows:
            parts.append(self._more(rows - ready))
            ready += len(parts[-1]["hits"])
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._ready = {name: column[rows:] for name, column in joined.items()}
        return {name: column[:rows] for name, column in joined.items()}

    def _more(self, rows) -> Drawn:
        """The rows of the next windows, about so many."""
        model = self._model
        count = max(1, rows * len(model.window_rows) // int(model.window_rows.sum()))
        window = (self._window + np.arange(count)) % len(model.window_rows)
        self._window = int(window[-1]) + 1
        sizes, wanted = np.diff(model.starts)[window], model.window_rows[window]
        record, place = shuffled(model.starts[window], sizes, -(-wanted // sizes), self._rng)
        first = np.searchsorted(place, np.arange(count))
        used = np.arange(len(place)) - first[place] < wanted[place]  # the last round may be cut short
        record, place = record[used], place[used]
        drawn = self._draw(record)
        if self._accept is not None:
            drawn = self._accepted(drawn, record, window[place])
        return self._after_what_they_need(drawn, place)

    def _after_what_they_need(self, drawn, place) -> Drawn:
        """The same rows, those put off within their window that want to share more blocks than any path has yet."""
        length = drawn["hits"] + drawn["new"]
        longest = np.maximum.accumulate(np.concatenate([[self._longest], length]))
        order = np.arange(len(place))
        for number in np.unique(place[drawn["shallow"] > longest[:-1]]).tolist():
            rows = np.flatnonzero(place == number)
            order[rows] = rows[_feasible(drawn["shallow"][rows], length[rows], int(longest[rows[0]]))]
        self._longest = int(longest[-1])
        return {name: column[order] for name, column in drawn.items()}

    def _draw(self, record) -> Drawn:
        """New values for some records."""
        model, rng = self._model, self._rng
        found = {name: column[record] for name, column in model.records.items()}
        found["shallow"], found["deep"] = (
            edge[found["hits"]] for edge in (model.bins["hits"].low, model.bins["hits"].high)
        )
        for name in ("hits", "new", "age", "tail"):
            found[name] = model.bins[name].draw(found[name], rng)
        found["tail"] += 1
        whole = (found["new"] == 0) & (found["kind"] < FULL_KINDS)
        found["tail"][whole] = model.block_size  # it ends in a full block of another request
        found["input_length"] = (found["hits"] + found["new"] - 1) * model.block_size + found["tail"]
        return found

    # -- where lengths are limited -------------------------------------------------------------------------------

    def _accepted(self, drawn, record, window) -> Drawn:
        """The same rows, those that are not accepted drawn again from records that are."""
        good = self._is_good(drawn)
        for number in np.unique(window[~good]).tolist():
            bad = np.flatnonzero((window == number) & ~good)
            fitting = np.flatnonzero((window == number) & good)
            if len(fitting):
                again = self._again(
                    record[fitting], {name: column[fitting] for name, column in drawn.items()}, len(bad)
                )
            else:
                again = self._again(*self._donor(number), len(bad))
            for name, column in drawn.items():
                column[bad] = again[name]
        return drawn

    def _is_good(self, drawn):
        return np.asarray(self._accept(drawn["input_length"]), dtype=bool)  # type: ignore[misc]

    def _again(self, record, drawn, rows) -> Drawn:
        """So many rows from records of which accepted draws are at hand: drawn anew, or copied where chance fails."""
        which = self._rng.integers(len(record), size=rows)
        found = {name: column[which] for name, column in drawn.items()}
        open_ = np.arange(rows)
        for _ in range(TRIES):
            fresh = self._draw(record[which[open_]])
            good = self._is_good(fresh)
            for name, column in found.items():
                column[open_[good]] = fresh[name][good]
            open_ = open_[~good]
        return found

    def _donor(self, window) -> tuple[np.ndarray, Drawn]:
        """Records, with accepted draws, of the nearest window that has any."""
        windows = len(self._model.window_rows)
        known = self._donors.get(window)
        near = sorted(range(windows), key=lambda other: (abs(other - window), other)) if known is None else [known]
        for number in near:
            record = np.arange(self._model.starts[number], self._model.starts[number + 1])
            for _ in range(TRIES):
                drawn = self._draw(record)
                good = self._is_good(drawn)
                if good.any():
                    self._donors[window] = number
                    return record[good], {name: column[good] for name, column in drawn.items()}
        if known is not None:  # it had one before; chance was against it
            del self._donors[window]
            return self._donor(window)
        raise InputError("no prompt of the model is within the limits on input lengths. Try wider ones.")


def _feasible(wanted, length, longest):
    """An order of rows, as near to theirs as can be, in which each wants no more blocks than the longest before has.

    >>> _feasible(np.array([0, 5, 3]), np.array([4, 6, 7]), 0)
    [0, 2, 1]
    """
    order: list[int] = []
    waiting: list[tuple[int, int]] = []  # the most modest first
    for row, blocks in enumerate(wanted.tolist()):
        heapq.heappush(waiting, (blocks, row))
        while waiting and waiting[0][0] <= longest:
            order.append(heapq.heappop(waiting)[1])
            longest = max(longest, int(length[order[-1]]))
    return order + [row for _, row in sorted(waiting)]


class _Outputs:
    """Output lengths by type and group of input lengths, dealt like cards: all of a group once, then all again."""

    def __init__(self, model, rng):
        self._edges, self._bins, self._rng = model.edges, model.bins["output"], rng
        self._decks = [
            np.repeat(np.array(list(group), dtype=np.int64), list(group.values())) for group in model.outputs
        ]
        every = np.concatenate(self._decks)
        self._decks = [deck if len(deck) else every for deck in self._decks]
        self._left = [deck[:0] for deck in self._decks]

    def deal(self, input_length, which):
        groups = self._edges.shape[1] + 1
        group = np.zeros(len(which), dtype=np.int64)
        for kind in range(len(self._edges)):
            mine = which == kind
            group[mine] = kind * groups + np.searchsorted(self._edges[kind], input_length[mine], side="right")
        codes = np.empty(len(which), dtype=np.int64)
        for number in np.unique(group).tolist():
            rows = np.flatnonzero(group == number)
            codes[rows] = self._next(number, len(rows))
        return self._bins.draw(codes, self._rng)

    def _next(self, group, rows):
        while len(self._left[group]) < rows:
            self._left[group] = np.concatenate([self._left[group], self._rng.permutation(self._decks[group])])
        dealt, self._left[group] = self._left[group][:rows], self._left[group][rows:]
        return dealt


def _nothing(model) -> dict[str, Any]:
    return {name: np.empty(0, dtype=np.int64) for name in (*model.records, "shallow", "deep", "input_length")}
