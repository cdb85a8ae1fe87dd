"""What can be turned when a trace is synthesised; every knob takes any value, and turns monotonically."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import inf, isfinite

import numpy as np

from .._base.errors import UsageError

ABOVE_ZERO = ("speedup_ratio",)
AT_LEAST_ZERO = ("prefix_len_multiplier", "prompt_len_multiplier", "osl_multiplier")
AT_LEAST_ONE = ("prefix_root_multiplier", "max_rejections")


@dataclass(frozen=True)
class Knobs:
    """The options of `datagen synthesize` by their names, with its defaults.

    >>> Knobs(max_isl=100).accepts(np.array([99, 100, 101]))
    array([ True,  True, False])
    """

    speedup_ratio: float = 1.0  # divides times
    prefix_len_multiplier: float = 1.0  # of the part of a prompt that others share
    prompt_len_multiplier: float = 1.0  # of the part that is a prompt's own
    osl_multiplier: float = 1.0
    prefix_root_multiplier: int = 1  # disjoint copies of what is shared; each request takes one
    min_isl: int | None = None  # requests beyond these are drawn again
    max_isl: int | None = None
    min_osl: int | None = None  # output lengths beyond these are clipped
    max_osl: int | None = None
    max_rejections: int = 10_000
    step_rates: str | None = None  # "RATE@DURATION,...": requests a second, in place of the model's arrivals

    def __post_init__(self) -> None:
        for names, least, said in (
            (AT_LEAST_ZERO, 0, "0 or more"),
            (AT_LEAST_ONE, 1, "1 or more"),
        ):
            for name in names:
                value = getattr(self, name)
                if not (isfinite(value) and value >= least):
                    raise UsageError(f"{_flag(name)} is {value}. Try {said}.")
        if not (isfinite(self.speedup_ratio) and self.speedup_ratio > 0):
            raise UsageError(f"{_flag('speedup_ratio')} is {self.speedup_ratio}. Try a number above 0.")
        for low, high, least in (("min_isl", "max_isl", 1), ("min_osl", "max_osl", 0)):
            for name in (low, high):
                if getattr(self, name) is not None and getattr(self, name) < least:
                    raise UsageError(f"{_flag(name)} is {getattr(self, name)}. Try {least} or more.")
            if (getattr(self, low) or 0) > (inf if getattr(self, high) is None else getattr(self, high)):
                raise UsageError(f"{_flag(low)} is above {_flag(high)}. Try them the other way round.")

    @property
    def stretches(self) -> bool:
        """Whether paths come out other than they were drawn."""
        return (self.prefix_len_multiplier, self.prompt_len_multiplier, self.prefix_root_multiplier) != (1, 1, 1)

    @property
    def limits_input(self) -> bool:
        """Whether input lengths are bounded."""
        return self.min_isl is not None or self.max_isl is not None

    def accepts(self, input_length: np.ndarray) -> np.ndarray:
        """Which prompts are neither too short nor too long."""
        return (input_length >= (self.min_isl or 0)) & (input_length <= (inf if self.max_isl is None else self.max_isl))

    def outputs(self, output_length: np.ndarray) -> np.ndarray:
        """Output lengths multiplied, then clipped."""
        scaled = output_length if self.osl_multiplier == 1 else np.rint(output_length * self.osl_multiplier)
        least = 0 if self.min_osl is None else self.min_osl
        most = np.iinfo(np.int64).max if self.max_osl is None else self.max_osl
        return np.clip(scaled.astype(np.int64), least, most)

    def to_dict(self) -> dict:
        """Those that are not as they are by default."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
