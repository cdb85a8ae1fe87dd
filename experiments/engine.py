"""A real engine, small: continuous batching over a transformer whose KV lies in the blocks that a PrefixCache names.

The cache's `on_write` says which tokens must be computed and where their KV goes; all others are read where they are.
Without caching the same engine runs on blocks that are never shared (`PlainBlocks`): the two differ in nothing else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvtrace._base.errors import UsageError

from .model import Transformer
from .paged import BlockStore, PromptAttention, StepAttention, places_of
from .plain_blocks import PlainBlocks
from .prompts import Request
from .serving import Live, ServingRun, serve
from .settings import Serving


class Engine:
    """A model, its KV and its blocks, for requests of at most `longest` tokens, output included.

    With `temperature` 0 outputs are greedy, else drawn with each request's own seed. `computed_tokens` counts the
    prompt tokens that went through the model. With `keep_logits`, `logits` is what each output token was chosen by,
    row -> list of arrays. UsageError for a temperature below 0.
    """

    def __init__(
        self,
        model: Transformer,
        serving: Serving,
        longest: int,
        *,
        caching: bool = True,
        temperature: float = 1.0,
        keep_logits: bool = False,
    ):
        if temperature < 0:
            raise UsageError(f"temperature is {temperature:g}; it must be at least 0.")
        self.model, self.serving, self.temperature = model, serving, temperature
        slots = serving.slots(longest)
        self.store = BlockStore(model, slots, serving.block_size)
        self.cache: Any = (
            serving.cache(longest, on_write=self._note, on_copy=self.store.copy)
            if caching
            else PlainBlocks(slots, serving.block_size, on_write=self._note)
        )
        self.computed_tokens = 0
        self.logits: dict[int, list[np.ndarray]] | None = {} if keep_logits else None
        self._writes: list[np.ndarray] = []  # places of tokens whose KV the cache wants written
        self._context: dict[int, np.ndarray] = {}  # row -> the place of each of its tokens
        self._dice: dict[int, np.ndarray] = {}  # row -> a number from 0 to 1 for each token of its output

    def serve(self, requests: list[Request]) -> ServingRun:
        """Answer requests, `serving.batch` of them at a time."""
        with self.model.torch.inference_mode():
            return serve(requests, self.cache, self, batch=self.serving.batch)

    def prefill(self, admitted: list[Live]) -> list[int]:
        """Compute what the prompts' blocks lack, all prompts in one pass; the first token of each request."""
        places, torch = self._written(), self.model.torch
        tokens, positions, wrote, counts, contexts = [], [], [], [], []
        for live in admitted:
            prompt, hit = live.request.prompt, live.sequence.hit_tokens
            first = min(hit, len(prompt) - 1)  # the last token is computed for its logits, even if its KV is cached
            tokens.append(prompt[first:])
            positions.append(np.arange(first, len(prompt)))
            wrote.append(positions[-1] >= hit)
            counts.append(len(prompt) - first)
            contexts.append(self._start(live))
        self.computed_tokens += sum(counts)
        attend = PromptAttention(
            self.store, self._on_device(np.flatnonzero(np.concatenate(wrote))), self._on_device(places),
            [self._on_device(context) for context in contexts], counts, torch,
        )  # fmt: skip
        hidden = self._forward(np.concatenate(tokens), np.concatenate(positions), attend)
        return self._choose(admitted, hidden[self._on_device(np.cumsum(counts) - 1)])

    def decode(self, live: list[Live]) -> list[int]:
        """Compute the token that was just appended to each sequence; the next one of each request."""
        places, size = self._written(), self.serving.block_size
        lengths = np.array([one.sequence.length for one in live])
        contexts = np.zeros((len(live), lengths.max()), dtype=np.int64)
        for row, one in enumerate(live):
            context, length = self._context[one.row], lengths[row]
            begin = (length - 1) // size * size  # copy-on-write may have moved the last block
            context[begin:length] = places[row] - (length - 1) + np.arange(begin, length)
            contexts[row, :length] = context[:length]
        attend = StepAttention(
            self.store, self._on_device(places), self._on_device(contexts), self._on_device(lengths), self.model.torch
        )
        tokens = np.array([one.output[len(one.output) - 1] for one in live])
        return self._choose(live, self._forward(tokens, lengths - 1, attend))

    def _note(self, slot: int, first: int, count: int) -> None:
        """The cache wants the KV of a sequence's tokens first ... first + count - 1 in a slot."""
        begin = slot * self.serving.block_size + first % self.serving.block_size
        self._writes.append(np.arange(begin, begin + count))

    def _written(self):
        """All places that the cache reported since the last call."""
        places = np.concatenate(self._writes) if self._writes else np.zeros(0, dtype=np.int64)
        self._writes.clear()
        return places

    def _start(self, live):
        """Remember where the tokens of a request are; room for its output follows its prompt."""
        prompt, output = len(live.request.prompt), live.request.output_length
        places = places_of(live.sequence.blocks, self.serving.block_size, prompt)
        self._context[live.row] = np.concatenate([places, np.zeros(output, dtype=np.int64)])
        self._dice[live.row] = np.random.default_rng(live.request.seed).random(output)
        return places

    def _forward(self, tokens, positions, attend):
        return self.model.forward(self._on_device(tokens), self._on_device(positions), attend)

    def _choose(self, live, hidden):
        """A token for each request, greedy or drawn."""
        logits = self.model.logits(hidden)
        if self.logits is not None:
            for one, row in zip(live, logits.cpu().numpy(), strict=True):
                self.logits.setdefault(one.row, []).append(row)
        if self.temperature == 0:
            return logits.argmax(-1).tolist()
        reached = (logits / self.temperature).softmax(-1).cumsum(-1)
        dice = np.array([[self._dice[one.row][len(one.output)]] for one in live])
        drawn = self.model.torch.searchsorted(reached, self._on_device(dice).to(reached.dtype) * reached[:, -1:])
        return drawn[:, 0].clamp(max=self.model.shape.vocabulary - 1).tolist()

    def _on_device(self, array: np.ndarray) -> Any:
        """An array on the model's device."""
        return self.model.torch.from_numpy(np.ascontiguousarray(array)).to(self.model.device)
