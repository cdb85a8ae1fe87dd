"""A mixture of models: the workload of a service that several workloads share, perhaps from many tenants.

Each model draws its share of the requests. Tenants are clients as in ServeGen (Xiang et al., 2025): each has a rate of
its own, and the rates are heavy-tailed. `clients` says who they are, `client_streams` when their requests arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .._base.errors import UsageError
from .._base.results import Result
from .arrival_processes import flow_of

if TYPE_CHECKING:
    from ..trace.columns import Tail
    from .attach_model import Model
    from .session_model import SessionModel
    from .tree import Tree

MAX_TENANTS = 100_000
MAX_SKEW = 10.0
LEAST_CV, MOST_CV = 0.05, 20


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(Result):
    """Models and their shares of the requests; `mix` makes one."""

    method = "mixture"
    fidelity = None  # each model has its own
    models: list[Model | Tree]
    shares: list[float]  # model -> its share of the requests; they sum to 1
    names: list[str]  # model -> its name in sidecars
    tenants: int | None = None  # number of tenants; None = requests have no tenant
    tenant_skew: float = 1.0  # the rate of the tenant of rank r is proportional to r ** -tenant_skew
    tenant_cv: float | None = None  # of the gaps of each tenant; None = tenants together arrive as the models do

    def _headline(self) -> str:
        tenants = "" if self.tenants is None else f", {self.tenants:,} tenants"
        return f"{len(self.models):,} models{tenants}, block_size={self.block_size}"

    def _columns(self) -> dict[str, np.ndarray]:
        """One row for each model: its share and its fitted requests."""
        return {"share": np.array(self.shares), "requests": np.array([model.rows for model in self.models])}

    @property
    def rows(self) -> int:
        """The fitted requests of all models."""
        return sum(model.rows for model in self.models)

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return self.models[0].block_size

    @property
    def tail(self) -> Tail:
        """Treatment of partial blocks: of samples, where `unique` and `kept` are the same."""
        return effective_tail(self.models[0])

    @property
    def rate(self) -> float:
        """Requests per ms: the mean of the rates of the models, weighted by their shares."""
        rates = [flow_of(model).rate for model in self.models]
        return sum(share * rate for share, rate in zip(self.shares, rates, strict=True))

    def speed(self, model: int) -> float:
        """How many times as fast as a model alone the whole mixture is."""
        return self.rate / flow_of(self.models[model]).rate

    @property
    def time_step_ms(self) -> int:
        """All times are multiples of it."""
        return min(model.time_step_ms for model in self.models)

    @property
    def smallest(self) -> int:
        """A limit on input lengths that each model has prompts below."""
        return max(model.smallest for model in self.models)

    def to_dict(self) -> dict[str, Any]:
        """What a sidecar states."""
        models = [
            {"name": name, "method": model.method, "share": share, "fitted_requests": model.rows}
            | ({} if model.fidelity is None else {"fidelity": model.fidelity.to_dict()})
            for model, share, name in zip(self.models, self.shares, self.names, strict=True)
        ]
        tenants = {} if self.tenants is None else {"tenants": self.tenants, "tenant_skew": self.tenant_skew}
        if self.tenant_cv is not None:
            tenants["tenant_cv"] = self.tenant_cv
        return {"models": models} | tenants


def mix(
    models: Sequence[Model | Tree | SessionModel],
    shares: Sequence[float] | None = None,
    *,
    tenants: int | None = None,
    tenant_skew: float = 1.0,
    tenant_cv: float | None = None,
    names: Sequence[str] | None = None,
) -> Mixture:
    """Mix models: `sample` and `write_sample` take the mixture as they take a model.

    Each model draws its share of the requests, in a forest of its own: no block is shared between models or tenants.
    The rate of the mixture is the mean of the models' rates, weighted by the shares. Each model keeps its bursts, and
    its drift in time.

    Args:
        models: Models of `fit` or `fit_tree`, with one block size and one rule for partial blocks.
        shares: The share of each model, of all requests. They need not sum to 1. Default: equal shares.
        tenants: The number of tenants. Each has one model, a forest, arrivals and a rate of its own, and the samples
            have the column `domain`. Default: one client for each model, without the column.
        tenant_skew: The rate of the tenant of rank r is proportional to r ** -tenant_skew (Zipf); 0 = equal rates.
            Rates are then scaled, so that the tenants of each model have its share.
        tenant_cv: The coefficient of variation of the gaps between the requests of a tenant: 1 is a Poisson process,
            more has bursts. Default: the requests of a model are dealt to its tenants, and together arrive as it does.
        names: The name of each model, for sidecars. Default: `model 1`, `model 2`, ...

    Raises:
        UsageError: The models do not fit together, or an argument is out of range.

    >>> from kvtrace.synthesis.attach_fitting import fit
    >>> from kvtrace.synthesis.sampling import sample
    >>> from kvtrace.trace.building import toy
    >>> chats, scans = fit(toy("0 1", "0 1 2", "0 3", "0 1")), fit(toy("0", "1", "2", "3"))
    >>> mixture = mix([chats, scans], [3, 1], tenants=4)
    >>> mixture.shares, len(np.unique(sample(mixture, 400, seed=7).domain))
    ([0.75, 0.25], 4)
    """
    mixed = _mixable(models)
    shares = [1.0] * len(mixed) if shares is None else [float(share) for share in shares]
    names = [f"model {place}" for place in range(1, len(mixed) + 1)] if names is None else list(names)
    if len(shares) != len(mixed) or len(names) != len(mixed):
        raise UsageError(f"{len(mixed)} models have {len(shares)} shares and {len(names)} names. Give one for each.")
    for share in shares:
        if not 0 < share < float("inf"):
            raise UsageError(f"the share is {share:g}; it must be above 0.")
    if tenants is not None and not len(mixed) <= tenants <= MAX_TENANTS:
        raise UsageError(
            f"--tenants is {tenants:,}; it must be from {len(mixed)}, one for each model, to {MAX_TENANTS:,}."
        )
    if not 0 <= tenant_skew <= MAX_SKEW:
        raise UsageError(f"--tenant-skew is {tenant_skew:g}; it must be from 0 to {MAX_SKEW:g}.")
    if tenant_cv is not None and (tenants is None or not LEAST_CV <= tenant_cv <= MOST_CV):
        raise UsageError(f"--tenant-cv is {tenant_cv:g}; it needs --tenants, and must be from {LEAST_CV} to {MOST_CV}.")
    largest = max(shares)
    weights = [share / largest for share in shares]  # no overflow
    total = sum(weights)
    return Mixture(mixed, [weight / total for weight in weights], names, tenants, float(tenant_skew), tenant_cv)


def effective_tail(model) -> Tail:
    """Treatment of partial blocks in samples of a model."""
    return "kept" if model.tail == "unique" else model.tail


def _mixable(models) -> list[Model | Tree]:
    """The models; UsageError if they do not fit together."""
    if not models:
        raise UsageError("a mixture needs at least one model.")
    if any(model.method not in ("attach", "tree") for model in models):
        raise UsageError(
            "session models cannot be mixed: their requests wait for each other. "
            "Use --method attach, or overlay samples of each model with kvtrace.trace.concat."
        )
    if len({(model.block_size, effective_tail(model)) for model in models}) > 1:
        kinds = sorted({f"{model.block_size} tokens ({effective_tail(model)} tails)" for model in models})
        raise UsageError(f"models with different block sizes or tails cannot be mixed: {', '.join(kinds)}.")
    return list(models)
