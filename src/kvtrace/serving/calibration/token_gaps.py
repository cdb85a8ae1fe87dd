"""Where a fit begins, second part: the time between two events, of which the engine's steps are nearly known.

An event is the first or the last token of some request. Between two events the same requests decode, so all steps but
the last cost the same but for their growing contexts; the last one also computes the prompts that end with it. How many
steps there were follows from the costs by rounding, so these must be known to about a fifth; then the gaps give them to
a few percent, without any simulation (as a phase is unwrapped).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .decode_times import expert_seconds

MOST_STEPS = 12  # of a gap; in a longer one, rounding may be off
FLOOR_S = 0.005  # errors of shorter gaps count less


@dataclass(frozen=True, eq=False)
class TokenGaps:
    """One value per gap between two events."""

    seconds: np.ndarray
    batch: np.ndarray  # requests that decode
    context: np.ndarray  # their tokens at the beginning
    prompts: np.ndarray  # requests whose prompt ends with the gap
    prompt_tokens: np.ndarray  # of these prompts, without cached ones
    prompt_steps: np.ndarray  # that these prompts take at least
    pairs: np.ndarray  # of these prompts

    @classmethod
    def of(
        cls, first: np.ndarray, ended: np.ndarray, prompt: np.ndarray, output: np.ndarray, cached: np.ndarray,
        *, step_tokens: int, until: float = np.inf,
    ) -> TokenGaps:  # fmt: skip
        """The gaps in which some request decodes.

        Args:
            first, ended: When each request had its first and its last token, in seconds.
            prompt, output, cached: Its tokens; the cached ones of the prompt are not computed.
            step_tokens: The limit of a step.
            until: When a request arrives that is not among these.

        >>> times = np.array([0.0, 1.0]), np.array([4.0, 2.0])
        >>> gaps = TokenGaps.of(*times, *np.array([[8, 6], [5, 2], [0, 0]]), step_tokens=64)
        >>> gaps.seconds.tolist(), gaps.batch.tolist(), gaps.prompt_tokens.tolist()
        ([1.0, 1.0, 2.0], [1, 2, 1], [6.0, 0.0, 0.0])
        """
        events = np.unique(np.concatenate([first, ended]))
        events = events[events <= until]
        begin, end = events[:-1], events[1:]
        decodes = (first[:, None] <= begin) & (ended[:, None] > begin)  # request, gap
        done = (begin - first[:, None]) / np.maximum(ended - first, 1e-9)[:, None]
        context = (decodes * (prompt[:, None] + 1 + done * (output[:, None] - 1))).sum(axis=0)
        known = np.isin(first, end)
        gap = np.searchsorted(end, first[known])  # request -> the gap that its first token ends
        new = (prompt - cached)[known].astype(np.float64)
        squares = new * (prompt + cached)[known]
        prompts, tokens, pairs = (np.bincount(gap, values, len(end)) for values in (np.ones(len(gap)), new, squares))
        steps = np.maximum(np.ceil(tokens / step_tokens), prompts > 0)
        columns = (end - begin, decodes.sum(axis=0), context, prompts, tokens, steps, pairs)
        busy = decodes.any(axis=0)
        return cls(*(column[busy] for column in columns))

    def steps(self, terms: Mapping[str, float]) -> np.ndarray:
        """The steps of each gap without those of its prompts, as many as fit under the terms of a StepCost."""
        count = np.zeros(len(self.seconds))
        for _ in range(2):  # a second time with the contexts of as many steps
            decoding, prompts = self._seconds(terms, count)
            count = np.maximum(np.rint((self.seconds - prompts) / decoding), self.prompt_steps == 0)
        return count

    def errors(self, terms: Mapping[str, float], steps: np.ndarray) -> np.ndarray:
        """The relative errors of the shorter gaps under the terms of a StepCost, if they have `steps` steps."""
        decoding, prompts = self._seconds(terms, steps)
        short = steps <= MOST_STEPS
        return ((steps * decoding + prompts - self.seconds) / (self.seconds + FLOOR_S))[short]

    def _seconds(self, terms: Mapping[str, float], steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean time of a step that only decodes, and the time of the prompts' steps."""

        def term(name: str) -> float:
            return terms.get(name, 0.0)

        context = self.context + self.batch * steps / 2
        beside = term("overhead_s") + (term("request_s") + term("exchange_s")) * self.batch
        alone = beside + term("attention_read_s") * context
        decoding = np.maximum(term("token_s") * self.batch, term("step_s") + term("read_s") * context) + alone
        decoding = decoding + expert_seconds(terms, self.batch)
        tokens = self.prompt_tokens / np.maximum(self.prompt_steps, 1)
        computing = term("token_s") * (tokens + self.batch) + term("pair_s") * self.pairs
        alone = alone + term("request_s") * self.prompts + term("exchange_s") * tokens
        alone = alone + expert_seconds(terms, tokens + self.batch)
        prompts = np.maximum(computing, term("step_s") + term("read_s") * context) + alone
        return decoding, prompts * self.prompt_steps + term("attention_pair_s") * self.pairs
