"""The streams of a sample: each draws rows as a draft; merged by arrival time, they are one trace with final ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import UsageError
from .._native import numbering
from .._native.numbering import merge_ids
from ..trace.building import join_extra
from ..trace.columns import Columns
from .draft import Draft, within
from .knobs import Knobs
from .mixture import effective_tail

if TYPE_CHECKING:
    from .attach_model import Model
    from .tree import Tree


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
    from .attach import AttachStream

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
