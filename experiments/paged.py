"""Keys and values in blocks, [layers, 2, blocks, block_size, heads, dim], and attention over them.

A place is a token's index in the store: slot * block_size + offset. Attention first writes the keys and values of new
tokens to their places, in every layer before any is read, so a request may share a block with another that computes it
in the same pass.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .model import Shape, Transformer


class BlockStore:
    """The KV of all slots of a cache."""

    def __init__(self, model: Transformer, slots: int, block_size: int):
        shape: Shape = model.shape
        self.slots, self.block_size = slots, block_size
        self.blocks = model.torch.empty(
            (shape.layers, 2, slots, block_size, shape.kv_heads, shape.head_dim), dtype=model.dtype, device=model.device
        ).zero_()  # touched now, so that no run pays for memory that it is the first to use
        self._flat = self.blocks.view(shape.layers, 2, slots * block_size, shape.kv_heads, shape.head_dim)

    def copy(self, source: int, target: int, count: int) -> None:
        """Copy the first tokens of a block: the cache's `on_copy`."""
        self.blocks[:, :, target, :count] = self.blocks[:, :, source, :count]

    def write(self, layer: int, places: Any, keys: Any, values: Any) -> None:
        """Put down one layer's keys and values."""
        self._flat[layer, 0, places] = keys
        self._flat[layer, 1, places] = values

    def read(self, layer: int, places: Any) -> tuple[Any, Any]:
        """One layer's keys and values at some places, of their shape."""
        return self._flat[layer, 0, places], self._flat[layer, 1, places]


def places_of(blocks: list[int], block_size: int, length: int) -> np.ndarray:
    """The place of each token of a sequence.

    >>> places_of([5, 2], 4, 6)
    array([20, 21, 22, 23,  8,  9])
    """
    return (np.asarray(blocks)[:, None] * block_size + np.arange(block_size)).reshape(-1)[:length]


class PromptAttention:
    """Attention of the last tokens of each of some prompts over all their tokens, one prompt after the other."""

    def __init__(self, store: BlockStore, wrote: Any, places: Any, contexts: list[Any], counts: list[int], torch: Any):
        self.store, self.wrote, self.places = store, wrote, places  # rows that are put down, and where
        self.contexts, self.counts, self.torch = contexts, counts, torch  # each prompt's places; its rows here
        self.masks = [self._mask(len(context), count) for context, count in zip(contexts, counts, strict=True)]

    def __call__(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """See `model.Attend`."""
        self.store.write(layer, self.places, keys[self.wrote], values[self.wrote])
        return self.attend(layer, queries)

    def attend(self, layer: int, queries: Any) -> Any:
        """The attention, with the keys and values of this pass in the store."""
        attention = self.torch.nn.functional.scaled_dot_product_attention
        mixed = []
        for query, context, mask in zip(queries.split(self.counts), self.contexts, self.masks, strict=True):
            k, v = (part.transpose(0, 1)[None] for part in self.store.read(layer, context))
            shared = {"enable_gqa": True} if query.shape[1] != k.shape[1] else {}  # from PyTorch 2.5 on
            attended = attention(query.transpose(0, 1)[None], k, v, attn_mask=mask, **shared)
            mixed.append(attended[0].transpose(0, 1))
        return self.torch.cat(mixed)

    def _mask(self, length, count):
        """Which tokens of the context each of the last `count` may see: those up to itself."""
        seen = self.torch.arange(length, device=self.store.blocks.device)
        return seen <= seen[length - count :, None]


class StepAttention:
    """Attention of one token of each of some sequences, all together; shorter ones are padded."""

    def __init__(self, store: BlockStore, places: Any, contexts: Any, lengths: Any, torch: Any):
        self.store, self.places, self.contexts, self.torch = (
            store,
            places,
            contexts,
            torch,
        )  # contexts: [batch, longest]
        reach = torch.arange(contexts.shape[1], device=store.blocks.device)
        self.mask = (reach < lengths[:, None])[:, None, None]

    def __call__(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """See `model.Attend`."""
        self.store.write(layer, self.places, keys, values)
        return self.attend(layer, queries)

    def attend(self, layer: int, queries: Any) -> Any:
        """The attention, with the keys and values of this pass in the store."""
        k, v = (part.transpose(1, 2) for part in self.store.read(layer, self.contexts))
        grouped = queries.unflatten(1, (k.shape[1], -1))  # the heads that share keys attend to them together
        attention = self.torch.nn.functional.scaled_dot_product_attention
        return attention(grouped, k, v, attn_mask=self.mask).flatten(1, 2)
