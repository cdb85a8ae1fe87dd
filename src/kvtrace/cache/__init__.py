"""Prefix caches: `PrefixCache`, a live one that an engine can use, and simulations of a trace through one."""

from .core.sequence import Sequence
from .manager import OutOfBlocks, PrefixCache
from .policies.base import Context
from .simulate import Setting, Simulation, simulate
from .sweep import settings_of, sweep
from .tiers import simulate_tiers

__all__ = [
    "Context", "OutOfBlocks", "PrefixCache", "Sequence", "Setting", "Simulation", "settings_of", "simulate",
    "simulate_tiers", "sweep",
]  # fmt: skip
