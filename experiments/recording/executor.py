"""Execute the steps of a scheduler with a transformer, and measure each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.model import Transformer
from experiments.paged import BlockStore

from .attention import WAYS
from .batch import Batch, Part
from .prompts import Tokens


@dataclass(frozen=True)
class Step:
    """What a step did, and its measured seconds."""

    begin: float  # seconds of the recording's clock
    seconds: float
    decodes: int  # requests whose prompt is computed
    chunks: int  # requests that compute tokens of their prompt, or compute them again
    tokens: int
    pairs: int  # sum of n^2 - p^2 over the chunks, which extend prompts from p to n tokens
    context: int  # cached tokens that are read: of decodes with their own token, of chunks those before
    held: int  # blocks that requests hold


@dataclass(eq=False)
class Executor:
    """A `step_timer`: runs each step through the model and returns the seconds that this took.

    The seconds are those of the arrays of the step, their copy to the device, the pass, the logits of the tokens that
    give an output token, and the copy of the chosen tokens back. The chosen tokens are not used: outputs are those of
    `tokens`, so that every run computes the same.
    """

    model: Transformer
    store: BlockStore
    tokens: Tokens
    cache: Any  # a PagedCache with at most the blocks of the store
    way: str = "gathered"
    clock: Callable[[], float] = time.perf_counter
    on_step: Callable[[Batch, Any], None] | None = None  # receives the logits
    steps: list[Step] = field(default_factory=list)

    def __call__(self, begin: float, parts: list[Part]) -> float:
        """The measured seconds of a step."""
        for row, *_ in parts:
            self.tokens.of(row)  # made before the clock starts
        seconds, batch, logits = self._timed(lambda: Batch.of(parts, self.tokens, self.cache))
        if self.on_step is not None:
            self.on_step(batch, logits)
        before, counts = batch.before, batch.counts
        decodes = (counts == 1) & (before >= np.maximum(self.tokens.trace.input_length[batch.rows], 1))
        pairs, queue = counts * (2 * before + counts), self.cache.queue
        self.steps.append(
            Step(
                begin, seconds, int(decodes.sum()), int((~decodes).sum()), len(batch.tokens), int(pairs[~decodes].sum()),
                int(before.sum() + decodes.sum()), queue.capacity - queue.free,
            )
        )  # fmt: skip
        return seconds

    def measured(self, batch: Batch) -> float:
        """The seconds of one batch."""
        return self._timed(lambda: batch)[0]

    def execute(self, batch: Batch) -> Any:
        """The logits of each token that gives an output token."""
        attend = WAYS[self.way](self.store, batch)
        with self.model.torch.inference_mode():
            hidden = self.model.forward(attend.on_device(batch.tokens), attend.on_device(batch.positions), attend)
            return self.model.logits(hidden[attend.on_device(batch.last)])

    def _timed(self, make):
        """The seconds of a batch, the batch, and its logits."""
        self._wait()
        start = self.clock()
        batch = make()
        logits = self.execute(batch)
        logits.argmax(-1).cpu()  # waits for the device
        self._wait()
        return self.clock() - start, batch, logits

    def _wait(self):
        if self.model.device.startswith("cuda"):
            self.model.torch.cuda.synchronize()


def totals(steps: list[Step]) -> dict[str, np.ndarray]:
    """The steps as columns."""
    return {name: np.array([getattr(step, name) for step in steps]) for name in Step.__dataclass_fields__}
