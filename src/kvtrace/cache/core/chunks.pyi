import numpy as np

from ..demand import Jobs
from ..policies.base import Context, Policy
from .engine import Engine

class Chunks(Engine):
    def __init__(
        self, context: Context, jobs: Jobs, policy: Policy, factor: int = 1, watermark: bool = False
    ) -> None: ...
    def residents(self) -> np.ndarray: ...
    def self_check(self) -> str | None: ...
