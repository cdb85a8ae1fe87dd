"""How costs are fitted: two first estimates without a simulation, then bounded least squares through it.

First estimate: costs for which each request's decoding takes as long as it took. A request with n output tokens takes
n - 1 steps from its first to its last token. The recording shows which requests run beside it and which prompts end
meanwhile, so that the time of these steps is a sum over known counts (the equation error of system identification). It
is smooth in the costs, where the times of a simulation jump; but requests that were preempted and prompts in several
chunks blur it, so the simulation has the last word.

Second estimate: the time between two events, the first or the last token of some request. Between two events the same
requests decode, so all steps but the last cost the same but for their growing contexts; the last one also computes the
prompts that end with it. How many steps there were follows from the costs by rounding, so these must be known to about
a fifth; then the gaps give them to a few percent (as a phase is unwrapped).

The residuals of a simulation jump where a step takes other requests. A derivative is therefore the difference over a
step of 10 % of a term, the loss is robust, and a simplex search ends the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from ..._base.errors import UsageError

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

    @classmethod
    def joined(cls, parts: Sequence[DecodeTimes]) -> DecodeTimes:
        """The counts of all data-parallel ranks, one after another: only requests on one rank run beside each other."""
        before = np.cumsum([0, *(len(part.prompt_steps) for part in parts[:-1])])
        moved = [
            replace(part, begins=part.begins + place, ends=part.ends + place)
            for part, place in zip(parts, before, strict=True)
        ]
        return cls(*_columns_of(moved))

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
        decoding = np.maximum(term("token_s") * self.batch, reading) + routed_and_exchanged(terms, self.batch)
        prompts = np.maximum(term("token_s") * self.prompt_tokens, term("step_s"))
        prompts = prompts + routed_and_exchanged(terms, self.prompt_tokens)
        launched = launched_seconds(terms, self.prompt_tokens, prompts + term("overhead_s"))
        prompts = (launched - term("overhead_s")) * self.prompt_steps
        alone = term("overhead_s") + term("request_s") * self.batch + term("attention_read_s") * self.context
        among_prompts = self._within(self.prompt_steps)
        pairs = (term("pair_s") + term("attention_pair_s")) * self.pairs
        return self._within(prompts) + (self.steps - among_prompts) * decoding + self.steps * alone + pairs

    def _within(self, values: np.ndarray) -> np.ndarray:
        """Request -> the sum over the moments of its decoding."""
        sums = np.concatenate([[0.0], np.cumsum(values)])
        return sums[self.ends] - sums[self.begins]


def _columns_of(parts: Sequence[Any]) -> Iterator[np.ndarray]:
    """Each field of some records of arrays, one record after another."""
    for field in fields(parts[0]):
        yield np.concatenate([getattr(part, field.name) for part in parts])


def expert_seconds(terms: Mapping[str, float], tokens: np.ndarray) -> np.ndarray:
    """Seconds that the routed experts take in steps of `tokens` tokens, as `StepCost` defines them.

    >>> expert_seconds({"expert_step_s": 1.0, "expert_share": 0.5}, np.array([1.0, 2.0])).tolist()
    [0.5, 0.75]
    """
    touched = 1 - (1 - terms.get("expert_share", 0.0)) ** tokens
    return np.maximum(terms.get("expert_token_s", 0.0) * tokens, terms.get("expert_step_s", 0.0) * touched)


def step_seconds(
    terms: Mapping[str, float], tokens: np.ndarray, pairs: np.ndarray, read: np.ndarray, requests: np.ndarray | float
) -> np.ndarray:
    """Seconds of steps, as `StepCost` defines them, without the launches of steps that have no CUDA graph.

    >>> steps = [np.array([8.0]), np.array([0.0]), np.array([800.0])]  # 8 requests decode in contexts of 100
    >>> step_seconds({"token_s": 0.001, "attention_read_s": 0.0001}, *steps, 8.0).tolist()
    [0.088]
    """

    def term(name: str) -> float:
        return terms.get(name, 0.0)

    window = term("window_tokens")
    computing = term("token_s") * tokens + term("pair_s") * pairs
    products = np.maximum(computing, term("step_s") + term("read_s") * read) + routed_and_exchanged(terms, tokens)
    alone = term("overhead_s") + term("request_s") * requests
    attention = term("attention_pair_s") * pairs + term("attention_read_s") * read
    windows = term("window_read_s") * np.minimum(read, window * requests)
    return products + alone + attention + windows + term("window_pair_s") * np.minimum(pairs, 2 * window * tokens)


def exchange_seconds(terms: Mapping[str, float], tokens: np.ndarray) -> np.ndarray:
    """Seconds of what GPUs exchange in steps of `tokens` tokens, by the way that takes less, as `StepCost` defines it.

    >>> terms = {"exchange_s": 1.0, "bulk_exchange_s": 0.25, "bulk_exchange_step_s": 3.0}
    >>> exchange_seconds(terms, np.array([1.0, 100.0])).tolist()
    [1.0, 28.0]
    """
    seconds = terms.get("exchange_s", 0.0) * tokens
    if (bulk_s := terms.get("bulk_exchange_s", 0.0)) > 0:
        bulk, most = terms.get("bulk_exchange_step_s", 0.0) + bulk_s * tokens, terms.get("bulk_exchange_tokens", 0.0)
        seconds = np.where((bulk < seconds) | ((most > 0) & (tokens > most)), bulk, seconds)
    return seconds


def launched_seconds(terms: Mapping[str, float], tokens: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Seconds of steps of `tokens` tokens that compute prompts: without a CUDA graph at least `launch_s`.

    >>> terms = {"launch_s": 3.0, "graph_tokens": 8.0}
    >>> launched_seconds(terms, np.array([8, 9, 9]), np.array([1.0, 1.0, 4.0])).tolist()
    [1.0, 3.0, 4.0]
    """
    least = np.where(tokens > terms.get("graph_tokens", 0.0), terms.get("launch_s", 0.0), 0.0)
    return np.maximum(seconds, least)


def routed_and_exchanged(terms: Mapping[str, float], tokens: np.ndarray) -> np.ndarray:
    """Seconds of the routed experts and of what GPUs exchange, in steps of `tokens` tokens."""
    return expert_seconds(terms, tokens) + exchange_seconds(terms, tokens)


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
        progress = (begin - first[:, None]) / np.maximum(ended - first, 1e-9)[:, None]
        context = (decodes * (prompt[:, None] + 1 + progress * (output[:, None] - 1))).sum(axis=0)
        ends_gap = np.isin(first, end)
        gap = np.searchsorted(end, first[ends_gap])  # request -> the gap that its first token ends
        new = (prompt - cached)[ends_gap].astype(np.float64)
        squares = new * (prompt + cached)[ends_gap]
        prompts, tokens, pairs = (np.bincount(gap, values, len(end)) for values in (np.ones(len(gap)), new, squares))
        steps = np.maximum(np.ceil(tokens / step_tokens), prompts > 0)
        columns = (end - begin, decodes.sum(axis=0), context, prompts, tokens, steps, pairs)
        busy = decodes.any(axis=0)
        return cls(*(column[busy] for column in columns))

    @classmethod
    def joined(cls, parts: Iterable[TokenGaps]) -> TokenGaps:
        """The gaps of all data-parallel ranks."""
        return cls(*_columns_of(list(parts)))

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
        alone = term("overhead_s") + term("request_s") * self.batch + term("attention_read_s") * context
        decoding = np.maximum(term("token_s") * self.batch, term("step_s") + term("read_s") * context) + alone
        decoding = decoding + routed_and_exchanged(terms, self.batch)
        tokens = self.prompt_tokens / np.maximum(self.prompt_steps, 1) + self.batch
        computing = term("token_s") * tokens + term("pair_s") * self.pairs
        alone = alone + term("request_s") * self.prompts + routed_and_exchanged(terms, tokens)
        prompts = np.maximum(computing, term("step_s") + term("read_s") * context) + alone
        prompts = launched_seconds(terms, tokens, prompts)
        return decoding, prompts * self.prompt_steps + term("attention_pair_s") * self.pairs


STEP = 0.1  # of the logarithm of a term, for derivatives
BOUND = 3.0  # a term is between exp(-3) and exp(3) times its start
OUTLIER = 0.05  # a residual beyond it counts linearly, not squared
STARTS = 6
SPREAD = 0.05  # of the logarithms of the random starts, around the last one that is given
FINALISTS = 2  # starts that are followed to the end
ROUNDS = 12  # of least squares from each start, at most
FINE = 0.03  # likewise, near the end
SIMPLEXES = ((STEP, 150), (FINE, 100))  # the size of the first simplex, and the simulations at most

Residuals = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class Fit:
    """The logarithms of the terms, relative to their starts, and the loss that they reach."""

    x: np.ndarray
    loss: float


def scipy_optimize() -> Any:
    """The module scipy.optimize; UsageError if the extra is not installed."""
    try:
        from scipy import optimize
    except ImportError:
        optimize = None
    if optimize is None:
        raise UsageError("Calibration needs SciPy. Install it with: pip install 'kvtrace[calibrate]'")
    return optimize


def fit(
    residuals: Residuals,
    size: int,
    *,
    points: Sequence[np.ndarray] | None = None,
    starts: int = STARTS,
    seed: int = 0,
) -> Fit:
    """The terms with the smallest robust loss.

    Args:
        residuals: From the logarithms of the terms to the relative errors.
        size: The number of terms.
        points: Starting points; zeros by default.
        starts: The number of starting points; those beyond `points` are random, near the last of them.
        seed: Of the random starts.

    >>> target = np.array([0.5, -0.25])
    >>> fit(lambda x: x - target, 2, starts=1).x.round(2).tolist()
    [0.5, -0.25]
    """
    optimize = scipy_optimize()
    random = np.random.default_rng(seed)
    begin = [np.zeros(size)] if points is None else list(points)
    begin += [begin[-1] + random.normal(0, SPREAD, size) for _ in range(starts - len(begin))]
    fits = [_least_squares(optimize, residuals, point, STEP) for point in begin]
    best = sorted(fits, key=lambda result: result.cost)[:FINALISTS]
    return min((_polished(optimize, residuals, result.x) for result in best), key=lambda result: result.loss)


def robust_loss(values: np.ndarray) -> float:
    """Squares of small residuals, and the size of large ones (soft L1)."""
    return float(OUTLIER**2 * (np.sqrt(1 + (values / OUTLIER) ** 2) - 1).sum())


def _least_squares(optimize: Any, residuals: Residuals, point: np.ndarray, step: float) -> Any:
    return optimize.least_squares(
        residuals, np.clip(point, -0.99 * BOUND, 0.99 * BOUND), jac=lambda x: _jacobian(residuals, x, step),
        bounds=(-BOUND, BOUND), loss="soft_l1", f_scale=OUTLIER, max_nfev=ROUNDS,
    )  # fmt: skip


def _jacobian(residuals: Residuals, x: np.ndarray, step: float) -> np.ndarray:
    """Central differences over a step that is wider than the jumps."""
    steps = step * np.eye(len(x))
    return np.column_stack([(residuals(x + shift) - residuals(x - shift)) / (2 * step) for shift in steps])


def _polished(optimize: Any, residuals: Residuals, x: np.ndarray) -> Fit:
    """The best point near x: of least squares with finer derivatives, and of simplex searches."""
    result = _least_squares(optimize, residuals, x, FINE)
    best = Fit(result.x, robust_loss(result.fun))
    for step, simulations in SIMPLEXES:
        best = _simplex(optimize, residuals, best, step, simulations)
    return best


def _simplex(optimize: Any, residuals: Residuals, begin: Fit, step: float, simulations: int) -> Fit:
    """The best point of a simplex search that begins at a fit."""
    signs = np.where(np.arange(len(begin.x)) % 2, -1.0, 1.0)
    simplex = np.clip(np.vstack([begin.x, begin.x + step * np.diag(signs)]), -BOUND, BOUND)
    options = {"initial_simplex": simplex, "maxfev": simulations, "xatol": 1e-4, "fatol": 1e-7}
    result = optimize.minimize(lambda at: robust_loss(residuals(at)), begin.x, method="Nelder-Mead", options=options,
                             bounds=[(-BOUND, BOUND)] * len(begin.x))  # fmt: skip
    return min(Fit(result.x, float(result.fun)), begin, key=lambda candidate: candidate.loss)
