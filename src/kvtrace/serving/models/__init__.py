"""Models: what their layers keep of a token or a prefix, and what multiplying and reading their parameters takes.

    config.py          the fields of a model, by name (catalog.json has those of each, with its source) or from its file
    layers.py          its layers by kind: full, latent, window, chunk, state; what each keeps, and the bytes per token
    engine_layout.py   the cache groups that an engine makes of the layers
    matrices.py        its matrices, layer by layer, and how GPUs share them
    mlps.py            those of its MLPs and experts
    quantisation.py    how a checkpoint stores each
    weights.py         their bytes, of the whole model and of one GPU
    shape.py           its parameters, and the FLOP and bytes of a step
    possible_hits.py   what its cache makes of a trace's possible hits
    listing.py         the catalog as a table

docs/serving/models.md has formulas and assumptions, and how to add a model.
"""

from .config import MODELS, CatalogEntry
from .layers import cache_bytes, kv_bytes_per_token, layer_kinds
from .shape import ModelShape, model_shape

__all__ = [
    "MODELS",
    "CatalogEntry",
    "ModelShape",
    "cache_bytes",
    "kv_bytes_per_token",
    "layer_kinds",
    "model_shape",
]
