"""Attention of a batch over its pages, in several ways: a row of WAYS each.

All write the keys and values of the step before they read any, so that a request can use blocks that another computes
in the same step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.paged import BlockStore, PromptAttention, StepAttention
from experiments.pytorch import torch

from .batch import Batch


class PagedAttention:
    """The attention of a batch: `chunks` of prompts, and requests that have one token, `steps`."""

    def __init__(self, store: BlockStore, batch: Batch):
        self.store, self.batch, self.torch = store, batch, torch()
        self.places = self.on_device(batch.places)
        self.split = int(batch.counts[: batch.chunks].sum())  # tokens of the chunks
        self.whole, self.single = batch.chunks > 0, batch.chunks < len(batch.counts)
        self.prepare()

    def prepare(self) -> None:
        """Make what all layers share."""
        raise NotImplementedError

    def chunks(self, layer: int, queries: Any) -> Any:
        """The attention of the chunks."""
        raise NotImplementedError

    def steps(self, layer: int, queries: Any) -> Any:
        """The attention of the requests that have one token."""
        raise NotImplementedError

    def __call__(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """See `model.Attend`."""
        self.store.write(layer, self.places, keys, values)
        mixed = []
        if self.whole:
            mixed.append(self.chunks(layer, queries[: self.split]))
        if self.single:
            mixed.append(self.steps(layer, queries[self.split :]))
        return mixed[0] if len(mixed) == 1 else self.torch.cat(mixed)

    def on_device(self, array: np.ndarray) -> Any:
        """An array on the device of the store."""
        return self.torch.from_numpy(np.ascontiguousarray(array)).to(self.store.blocks.device)

    def pages(self, layer: int) -> tuple[Any, Any]:
        """Keys and values of a layer, [blocks, block size, heads, dim]."""
        return self.store.blocks[layer, 0], self.store.blocks[layer, 1]


class Gathered(PagedAttention):
    """PyTorch's scaled_dot_product_attention over copies of the pages, on any device."""

    def prepare(self) -> None:
        """See PagedAttention."""
        batch, store = self.batch, self.store
        parts = range(batch.chunks)
        contexts = [self.on_device(batch.context(part)) for part in parts]
        counts = batch.counts[: batch.chunks].tolist()
        self._chunks = PromptAttention(store, None, None, contexts, counts, self.torch)
        if self.single:
            ends = batch.ends[batch.chunks :]
            places = batch.tables[batch.chunks :].astype(np.int64)[:, :, None] * batch.block_size
            padded = (places + np.arange(batch.block_size)).reshape(len(ends), -1)[:, : ends.max()]
            self._steps = StepAttention(store, None, self.on_device(padded), self.on_device(ends), self.torch)

    def chunks(self, layer: int, queries: Any) -> Any:
        """See PagedAttention."""
        return self._chunks.attend(layer, queries)

    def steps(self, layer: int, queries: Any) -> Any:
        """See PagedAttention."""
        return self._steps.attend(layer, queries)


class PackedFlash(PagedAttention):
    """PyTorch's flash attention for sequences end to end, over copies of the pages; on a GPU, in 16 bits."""

    def prepare(self) -> None:
        """See PagedAttention."""
        batch, parts = self.batch, np.arange(len(self.batch.counts))
        self._of_chunks = self._sequences(parts[: batch.chunks]) if self.whole else None
        self._of_steps = self._sequences(parts[batch.chunks :]) if self.single else None

    def _sequences(self, parts):
        """The places of all contexts end to end, and where each sequence begins."""
        counts, ends, size = self.batch.counts[parts], self.batch.ends[parts], self.batch.block_size
        begins, total = self._starts(ends), int(ends.sum())
        tables, lengths = self.on_device(self.batch.tables[parts].astype(np.int64)), self.on_device(ends)
        device = tables.device
        part = self.torch.arange(len(parts), device=device).repeat_interleave(lengths, output_size=total)
        place = self.torch.arange(total, device=device) - begins[part]
        places = tables[part, place // size] * size + place % size
        return places, self._starts(counts), begins, int(counts.max()), int(ends.max())

    def _starts(self, counts):
        return self.on_device(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))

    def chunks(self, layer: int, queries: Any) -> Any:
        """See PagedAttention."""
        return self._flash(layer, queries, *self._of_chunks)

    def steps(self, layer: int, queries: Any) -> Any:
        """See PagedAttention."""
        return self._flash(layer, queries, *self._of_steps)

    def _flash(self, layer, queries, places, begin_q, begin_k, most_q, most_k):
        k, v = self.store.read(layer, places)
        flash = self.torch.ops.aten._flash_attention_forward
        return flash(queries.contiguous(), k, v, begin_q, begin_k, most_q, most_k, 0.0, True, False)[0]


class PagedFlash(PackedFlash):
    """PyTorch's flash attention over the pages where they are; needs a PyTorch that has `block_table`."""

    def _sequences(self, parts):
        """The blocks of each sequence, and their lengths."""
        counts, ends = self.batch.counts[parts], self.batch.ends[parts]
        tables = self.batch.tables[parts, : -(-ends.max() // self.batch.block_size)]
        used = self.on_device(ends.astype(np.int32))
        return (
            (self.on_device(tables), used),
            self._starts(counts),
            self._starts(ends),
            int(counts.max()),
            int(ends.max()),
        )

    def _flash(self, layer, queries, places, begin_q, begin_k, most_q, most_k):
        tables, used = places
        k, v = self.pages(layer)
        flash = self.torch.ops.aten._flash_attention_forward
        return flash(
            queries.contiguous(), k, v, begin_q, begin_k, most_q, most_k, 0.0, True, False,
            seqused_k=used, block_table=tables,
        )[0]  # fmt: skip


class TritonDecode(PackedFlash):
    """A Triton kernel reads the pages of requests that have one token; chunks are as in PackedFlash."""

    def prepare(self) -> None:
        """See PagedAttention."""
        batch, parts = self.batch, np.arange(len(self.batch.counts))
        self._of_chunks = self._sequences(parts[: batch.chunks]) if self.whole else None
        if self.single:
            ends = batch.ends[batch.chunks :].astype(np.int32)
            tables = batch.tables[batch.chunks :, : -(-ends.max() // batch.block_size)]
            self._of_steps = self.on_device(tables), self.on_device(ends), int(ends.max())

    def steps(self, layer: int, queries: Any) -> Any:
        """See PagedAttention."""
        from .triton_decode import decode

        tables, ends, longest = self._of_steps
        return decode(queries, *self.pages(layer), tables, ends, longest)


WAYS: dict[str, Callable[[BlockStore, Batch], PagedAttention]] = {
    "gathered": Gathered, "packed-flash": PackedFlash, "paged-flash": PagedFlash, "triton": TritonDecode,
}  # fmt: skip
