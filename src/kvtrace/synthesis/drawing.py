"""One stream of a sample: the rows that it draws, after stretching and limits, as a draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.arrays import offsets_of
from ..trace.building import join_extra
from .draft import Draft
from .knobs import Knobs
from .limits import within

if TYPE_CHECKING:
    from .model import Model
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
        from .stretch import StretchState, stretched

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
