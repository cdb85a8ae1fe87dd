"""The options of synthesis: what a sample is, its tenants, and its knobs.

Each knob is monotonic: a larger value never has the effect of a smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import TYPE_CHECKING, Any, Literal, get_args

from .._base.errors import UsageError
from .._base.options import option

if TYPE_CHECKING:
    import numpy as np

    from .rate_profile import RateProfile

Scale = Literal["duration", "rate"]
SIZE, SHAPE = "Size and load", "Shape"  # groups of --help
ABOVE_ZERO = ("speedup_ratio",)
AT_LEAST_ZERO = ("prefix_len_multiplier", "prompt_len_multiplier", "osl_multiplier")
AT_LEAST_ONE = ("prefix_root_multiplier", "max_rejections")
MOST = {**dict.fromkeys(AT_LEAST_ZERO, 1000), "prefix_root_multiplier": 1_000_000}


@dataclass(frozen=True)
class Knobs:
    """The options of `datagen synthesize`, with the same names and defaults.

    >>> import numpy as np
    >>> Knobs(max_isl=100).accepts(np.array([99, 100, 101]))
    array([ True,  True, False])
    """

    speedup_ratio: float = option(1.0, "Divide times by X.", metavar="X", group=SIZE)
    prefix_len_multiplier: float = option(1.0, "Multiply the length of shared prefixes.", metavar="X", group=SHAPE)
    prompt_len_multiplier: float = option(1.0, "Multiply the length of unique prompt parts.", metavar="X", group=SHAPE)
    osl_multiplier: float = option(1.0, "Multiply output lengths.", metavar="X", group=SHAPE)
    prefix_root_multiplier: int = option(
        1, "Number of disjoint copies of the shared prefixes; each request uses one.", metavar="N", group=SHAPE
    )
    min_isl: int | None = option(None, "Redraw shorter prompts.", metavar="TOKENS", group=SHAPE)
    max_isl: int | None = option(None, "Redraw longer prompts.", metavar="TOKENS", group=SHAPE)
    min_osl: int | None = option(None, "Raise shorter outputs to this length.", metavar="TOKENS", group=SHAPE)
    max_osl: int | None = option(None, "Cut longer outputs to this length.", metavar="TOKENS", group=SHAPE)
    max_rejections: int = option(10_000, "With tree: stop after N redrawn prompts in a row.", metavar="N", group=SIZE)
    step_rates: str | None = option(  # in place of the arrivals of the model
        None, "Arrival rates in requests per second. Example: 5@10m,20@2m.", metavar="RATE@TIME,...", group=SIZE
    )
    rates: RateProfile | None = None  # requests per second over a day, in place of the rate of the model; bursts remain

    def __post_init__(self) -> None:
        for names, minimum in ((AT_LEAST_ZERO, 0), (AT_LEAST_ONE, 1)):
            for name in names:
                value = getattr(self, name)
                if not (isfinite(value) and value >= minimum):
                    raise UsageError(f"{_flag(name)} is {value}; it must be at least {minimum}.")
        for name, most in MOST.items():
            if getattr(self, name) > most:
                raise UsageError(f"{_flag(name)} is {getattr(self, name):,}; it must be at most {most:,}.")
        if not (isfinite(self.speedup_ratio) and self.speedup_ratio > 0):
            raise UsageError(f"{_flag('speedup_ratio')} is {self.speedup_ratio}; it must be above 0.")
        for low, high, minimum in (("min_isl", "max_isl", 1), ("min_osl", "max_osl", 0)):
            for name in (low, high):
                if getattr(self, name) is not None and getattr(self, name) < minimum:
                    raise UsageError(f"{_flag(name)} is {getattr(self, name)}; it must be at least {minimum}.")
            if (getattr(self, low) or 0) > (inf if getattr(self, high) is None else getattr(self, high)):
                raise UsageError(f"{_flag(low)} must not be above {_flag(high)}.")
        if self.step_rates is not None and self.rates is not None:
            raise UsageError("--rates and --step-rates both state the rates. Use one of them.")

    @property
    def stretches(self) -> bool:
        """Whether a knob changes the drawn paths."""
        return (self.prefix_len_multiplier, self.prompt_len_multiplier, self.prefix_root_multiplier) != (1, 1, 1)

    @property
    def replaces_rates(self) -> bool:
        """Whether the rates are not those of the model."""
        return self.step_rates is not None or self.rates is not None

    @property
    def limits_input(self) -> bool:
        """Whether input lengths are bounded."""
        return self.min_isl is not None or self.max_isl is not None

    def accepts(self, input_length: np.ndarray) -> np.ndarray:
        """Mark the input lengths within the limits."""
        return (input_length >= (self.min_isl or 0)) & (input_length <= (inf if self.max_isl is None else self.max_isl))

    def outputs(self, output_length: np.ndarray) -> np.ndarray:
        """Multiply output lengths, then clip them."""
        import numpy as np

        scaled = output_length if self.osl_multiplier == 1 else np.rint(output_length * self.osl_multiplier)
        low = 0 if self.min_osl is None else self.min_osl
        high = np.iinfo(np.int64).max if self.max_osl is None else self.max_osl
        return np.clip(scaled.astype(np.int64), low, high)

    def to_dict(self) -> dict[str, Any]:
        """The knobs that differ from their default."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return changed if self.rates is None else changed | {"rates": self.rates.to_dict()}


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """What is drawn from a model; `sample` describes the fields."""

    n: int | None = None
    sessions: int | None = None
    seed: int = option(0, "The same seed gives the same bytes.", metavar="N", minimum=0, group=SIZE)
    scale: Scale = option(
        "duration",
        "The quantity that grows with N. duration: a longer trace with the load of TRACE. rate: more requests per "
        "second.",
        choices=get_args(Scale),
        group=SIZE,
    )
    knobs: Knobs = Knobs()
    workers: int | None = option(
        None, "Number of streams that are drawn at a time.  [default: one for each core]", metavar="N", minimum=1,
        group="Large inputs",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TenantOptions:
    """The tenants of a sample; `mix` describes the fields."""

    tenants: int | None = option(
        None, "Number of tenants. Each has one model, blocks and a rate of its own; the column domain states it.",
        metavar="N", group=SIZE,
    )  # fmt: skip
    tenant_skew: float = option(
        1.0, "The rate of tenant r is proportional to 1 / r^S; 0 is the same for all.  [default: 1]", metavar="S",
        group=SIZE,
    )  # fmt: skip
    tenant_cv: float | None = option(
        None,
        "Bursts of each tenant: the coefficient of variation of its gaps; 1 is a Poisson process.  [default: tenants "
        "together arrive as their models do]",
        metavar="CV",
        group=SIZE,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
