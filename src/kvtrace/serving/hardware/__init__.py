"""The costs of serving: time by a roofline of GPU and model, memory for KV, money at a provider's prices.

    gpus.py      a GPU's peaks, the shares that it reaches, memory and price; gpus.json has some by name, with sources
    links.py     what connects the GPUs of an instance, and the time of an all-reduce
    models.py    a model's shape: its parameters, and the bytes of its weights and KV; model_table.py has some by name
    kv_bytes.py  KV-cache bytes per token
    roofline.py  seconds of a step, room for KV, when fetching KV beats computing it
    prices.py    the savings of hits at a provider's prices, and the time to live that pays

Each formula, source and assumption is in docs/serving/serving-model.md.
"""

from .gpus import GPUS, Gpu, gpu
from .links import LINKS, Link
from .model_table import MODELS
from .models import ModelShape, model_shape
from .prices import Prices
from .roofline import Roofline, roofline_of

__all__ = [
    "GPUS",
    "LINKS",
    "MODELS",
    "Gpu",
    "Link",
    "ModelShape",
    "Prices",
    "Roofline",
    "gpu",
    "model_shape",
    "roofline_of",
]
