"""The knobs of synthesis. Each knob is monotonic: a larger value never has the effect of a smaller one."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .rate_profile import RateProfile

ABOVE_ZERO = ("speedup_ratio",)
AT_LEAST_ZERO = ("prefix_len_multiplier", "prompt_len_multiplier", "osl_multiplier")
AT_LEAST_ONE = ("prefix_root_multiplier", "max_rejections")


@dataclass(frozen=True)
class Knobs:
    """The options of `datagen synthesize`, with the same names and defaults.

    >>> Knobs(max_isl=100).accepts(np.array([99, 100, 101]))
    array([ True,  True, False])
    """

    speedup_ratio: float = 1.0  # divides times
    prefix_len_multiplier: float = 1.0  # multiplies the length of shared prefixes
    prompt_len_multiplier: float = 1.0  # multiplies the length of unique prompt parts
    osl_multiplier: float = 1.0  # multiplies output lengths
    prefix_root_multiplier: int = 1  # disjoint copies of the shared prefixes; each request uses one
    min_isl: int | None = None  # requests outside the limits are redrawn
    max_isl: int | None = None
    min_osl: int | None = None  # output lengths outside the limits are clipped
    max_osl: int | None = None
    max_rejections: int = 10_000  # tree: redrawn requests in a row before an error
    step_rates: str | None = None  # "RATE@DURATION,..." in requests per second, in place of the arrivals of the model
    rates: RateProfile | None = None  # requests per second over a day, in place of the rate of the model; bursts remain

    def __post_init__(self) -> None:
        for names, minimum in ((AT_LEAST_ZERO, 0), (AT_LEAST_ONE, 1)):
            for name in names:
                value = getattr(self, name)
                if not (isfinite(value) and value >= minimum):
                    raise UsageError(f"{_flag(name)} is {value}; it must be at least {minimum}.")
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
        scaled = output_length if self.osl_multiplier == 1 else np.rint(output_length * self.osl_multiplier)
        low = 0 if self.min_osl is None else self.min_osl
        high = np.iinfo(np.int64).max if self.max_osl is None else self.max_osl
        return np.clip(scaled.astype(np.int64), low, high)

    def to_dict(self) -> dict[str, Any]:
        """The knobs that differ from their default."""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        return changed if self.rates is None else changed | {"rates": self.rates.to_dict()}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
