"""Sweeps: traces x block sizes x engines x modes x schedules x policies x capacities x seeds -> one tidy table."""

from ..setup import Grid
from .grid import plan
from .running import sweep
from .table import SweepTable

__all__ = ["Grid", "SweepTable", "plan", "sweep"]
