"""Models: what their layers keep of a token or a prefix, and what multiplying and reading their parameters takes.

    catalog.py          models by name; catalog.json has the fields of each, with its source
    config.py           the fields of a model, by name or from its config.json
    layers.py           its layers by kind: full, latent, window, chunk, state
    layer_schedule.py   what each layer keeps; attention_sizes.py, state_sizes.py and compressed.py have the sizes
    kv_bytes.py         KV-cache bytes per token
    shape.py            its parameters, and the FLOP and bytes of a step
    listing.py          the catalog as a table

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
