"""Synthetic traces: fit a model to a trace, and sample new ones of any size from it."""

from .fit import fit
from .knobs import Knobs
from .model import Model
from .sample import sample, write_sample
from .tree import fit_tree

__all__ = ["Knobs", "Model", "fit", "fit_tree", "sample", "write_sample"]
