"""Where a fit begins: costs for which each request's decoding takes as long as it took, without any simulation.

A request with n output tokens takes n - 1 steps from its first to its last token. The recording shows which requests
run beside it and which prompts end meanwhile, so that the time of these steps is a sum over known counts (the equation
error of system identification). It is smooth in the costs, where the times of a simulation jump; but requests that were
preempted and prompts in several chunks blur it, so the simulation has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

FLOOR = 0.05  # of the mean time: errors of shorter times count less


@dataclass(frozen=True, eq=False)
class DecodeTimes:
    """The counts behind the time from first to last token: one value per request, where not stated otherwise."""

    first: np.ndarray  # when it had its first token, in seconds
    ended: np.ndarray  # when it had its last token
    steps: np.ndarray
    batch: np.ndarray  # mean number of requests that run beside it, and itself
    context: np.ndarray  # mean number of tokens of these requests
    pairs: np.ndarray  # of the prompts that end meanwhile
    prompt_steps: np.ndarray  # one value per moment at which prompts end: the steps that they take
    prompt_tokens: np.ndarray  # likewise: the tokens of such a step, with those of the requests that decode
    begins: np.ndarray  # index of the first such moment of a request
    ends: np.ndarray  # index after its last one

    @classmethod
    def of(
        cls, first: np.ndarray, ended: np.ndarray, prompt: np.ndarray, output: np.ndarray, cached: np.ndarray,
        *, step_tokens: int,
    ) -> DecodeTimes:  # fmt: skip
        """The counts of a recording.

        Args:
            first, ended: When each request had its first and its last token, in seconds.
            prompt, output, cached: Its tokens; the cached ones of the prompt are not computed.
            step_tokens: The limit of a step.

        >>> times = np.array([0.0, 1.0]), np.array([4.0, 2.0])
        >>> one = DecodeTimes.of(*times, *np.array([[8, 6], [5, 2], [0, 0]]), step_tokens=64)
        >>> one.steps.tolist(), one.batch.tolist(), one.prompt_tokens.tolist(), one.pairs.tolist()
        ([4.0, 1.0], [1.25, 2.0], [8.0, 7.0], [36.0, 0.0])
        """
        new = (prompt - cached).astype(np.float64)
        moments, which = np.unique(first, return_inverse=True)
        tokens = np.bincount(which, weights=new)
        steps = np.maximum(1.0, np.ceil(tokens / step_tokens))
        running = np.searchsorted(np.sort(first), moments) - np.searchsorted(np.sort(ended), moments)
        begins, ends = (np.searchsorted(moments, times, "right") for times in (first, ended))
        pairs = np.concatenate([[0.0], np.cumsum(np.bincount(which, weights=new * (prompt + cached)))])
        batch, context = _means(first, ended, prompt, output)
        return cls(
            first, ended, output - 1.0, batch, context, pairs[ends] - pairs[begins], steps, tokens / steps + running,
            begins, ends,
        )  # fmt: skip

    def errors(self, terms: Mapping[str, float], rows: np.ndarray) -> np.ndarray:
        """The relative errors of some requests under the terms of a StepCost; those with one output token have none."""
        rows = rows & (self.steps > 0) & (self.ended > self.first)
        measured = (self.ended - self.first)[rows]
        floor = FLOOR * measured.mean() if len(measured) else 1.0
        return (self.predicted(terms)[rows] - measured) / (measured + floor)

    def predicted(self, terms: Mapping[str, float]) -> np.ndarray:
        """Seconds from first to last token under the terms of a StepCost."""

        def term(name: str) -> float:
            return terms.get(name, 0.0)

        reading = term("step_s") + term("read_s") * self.context
        decoding = np.maximum(term("token_s") * self.batch, reading) + expert_seconds(terms, self.batch)
        prompts = np.maximum(term("token_s") * self.prompt_tokens, term("step_s"))
        prompts = (prompts + expert_seconds(terms, self.prompt_tokens)) * self.prompt_steps
        alone = (
            term("overhead_s") + (term("request_s") + term("exchange_s")) * self.batch
            + term("attention_read_s") * self.context
        )  # fmt: skip
        among_prompts = self._within(self.prompt_steps)
        pairs = (term("pair_s") + term("attention_pair_s")) * self.pairs
        return self._within(prompts) + (self.steps - among_prompts) * decoding + self.steps * alone + pairs

    def _within(self, values: np.ndarray) -> np.ndarray:
        """Request -> the sum over the moments of its decoding."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[self.ends] - sums[self.begins]


def expert_seconds(terms: Mapping[str, float], tokens: np.ndarray) -> np.ndarray:
    """Seconds that the routed experts take in steps of `tokens` tokens, as `StepCost` defines them.

    >>> expert_seconds({"expert_step_s": 1.0, "expert_share": 0.5}, np.array([1.0, 2.0])).tolist()
    [0.5, 0.75]
    """
    touched = 1 - (1 - terms.get("expert_share", 0.0)) ** tokens
    return np.maximum(terms.get("expert_token_s", 0.0) * tokens, terms.get("expert_step_s", 0.0) * touched)


def _means(
    first: np.ndarray, ended: np.ndarray, prompt: np.ndarray, output: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The means over each request's decoding of the requests that decode, and of their tokens."""
    rate = output / np.maximum(ended - first, 1e-9)  # tokens a second; a context grows from its prompt
    times = np.concatenate([first, ended])
    order = np.argsort(times, kind="stable")
    times = times[order]
    widths = np.diff(times, append=times[-1])
    batch = np.cumsum(np.concatenate([np.ones(len(first)), -np.ones(len(first))])[order])
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    jump = np.cumsum(np.concatenate([prompt, -(prompt + output)]).astype(np.float64)[order])
    grown = np.concatenate([[0.0], np.cumsum(slope * widths)[:-1]])  # since the last event, tokens that came in between
    context = jump + grown  # at each event
    sums = [
        np.concatenate([[0.0], np.cumsum(values * widths)[:-1]]) for values in (batch, context + slope * widths / 2)
    ]
    length = np.maximum(ended - first, 1e-9)
    mean = [(np.interp(ended, times, total) - np.interp(first, times, total)) / length for total in sums]
    alone = ended <= first
    return np.where(alone, 1.0, mean[0]), np.where(alone, prompt, mean[1])
