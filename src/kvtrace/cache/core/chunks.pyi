import numpy as np

from ..demand import BlockDemand
from ..policies.base import Context, Policy
from .engine import Engine

class Chunks(Engine):
    def __init__(
        self, context: Context, demand: BlockDemand, policy: Policy, factor: int = 1, watermark: bool = False
    ) -> None: ...
    def residents(self) -> np.ndarray: ...
    def self_check(self) -> str | None: ...
