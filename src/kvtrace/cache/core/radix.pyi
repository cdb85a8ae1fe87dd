import numpy as np

from ..demand import BlockDemand
from ..policies.base import Context
from .locked_tree import LockedTree

ORDERS: dict[str, int]

class Radix(LockedTree):
    def __init__(
        self, context: Context, demand: BlockDemand, policy: str = "lru", priority: np.ndarray | None = None,
        unified: bool = True,
    ) -> None: ...  # fmt: skip
    def residents(self) -> np.ndarray: ...
    def nodes(self) -> int: ...
    def self_check(self) -> str | None: ...
