"""The options of a closed loop: lanes that play session trees, as AIPerf's AgentX scenario and Dynamo's replay do.

docs/serving/serving.md states the semantics.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from numbers import Integral

from .._base.errors import UsageError

STARTS = ("beginning", "inside")  # where the first tree of each lane starts
NEVER = 1e300  # a time of the kernels that does not come


@dataclass(frozen=True)
class ClosedLoop:
    """Requests arrive when what they wait for has arrived or ended, plus their delay; `lanes` session trees run.

    A lane takes the next tree when all requests of its tree have ended. Without a duration each tree is played once.
    With one, trees are taken in turn until it is over; a tree that is played again has block ids of its own.

    >>> ClosedLoop(lanes=8, duration_s=1800, warm_up=10, start="inside", idle_cap_s=10).lanes
    8
    """

    lanes: int = 1  # session trees that run at once
    duration_s: float | None = None  # of the window; later no request arrives. None: until all trees have ended
    warm_up: int = 0  # requests of each lane before the window opens
    start: str = "beginning"  # of the first tree of each lane: "beginning", or "inside" at a random moment
    start_range: tuple[float, float] = (0.25, 0.75)  # of that moment: shares of the tree's recorded time
    think_scale: float = 1.0  # factor of all delays
    idle_cap_s: float | None = None  # the longest time without any request outstanding
    tree_idle_cap_s: float | None = None  # the longest time without a request of a tree outstanding
    seed: int = 0  # of the moments inside

    def __post_init__(self) -> None:
        for name, number in (("lanes", self.lanes), ("warm-up", self.warm_up), ("seed", self.seed)):
            if not isinstance(number, Integral):
                raise UsageError(f"--{name} must be a whole number, not {number!r}.")
        if self.lanes < 1:
            raise UsageError("--lanes must be at least 1.")
        if self.warm_up < 0:
            raise UsageError("--warm-up must be at least 0 requests of each lane.")
        if self.start not in STARTS:
            raise UsageError(f"{self.start!r} is not a start of a closed loop. Try {' or '.join(STARTS)}.")
        if len(self.start_range) != 2 or not 0 <= self.start_range[0] <= self.start_range[1] <= 1:
            raise UsageError("--start-inside takes two shares from 0 to 1, the smaller one first. Try 25%-75%.")
        if not 0 <= self.think_scale < inf:
            raise UsageError("--think-scale must be at least 0.")
        for name, seconds in (("duration", self.duration_s), ("idle-cap", self.idle_cap_s),
                              ("tree-idle-cap", self.tree_idle_cap_s)):  # fmt: skip
            if seconds is not None and not (seconds > 0 and isfinite(seconds)):
                raise UsageError(f"--{name} must be longer than 0 s.")
