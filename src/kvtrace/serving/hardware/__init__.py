"""The costs of serving: time by a roofline of GPU and model, memory for KV, money at a provider's prices.

    gpus.py      a GPU's peaks, the shares that it reaches, memory and price; gpus.json has some by name, with sources
    links.py     what connects the GPUs of an instance, and the time of an all-reduce
    roofline.py  seconds of a step, room for KV, when fetching KV beats computing it
    prices.py    the savings of hits at a provider's prices, and the time to live that pays

What a model multiplies and keeps is in ../models. docs/serving/models.md has each formula and assumption.
"""

from .gpus import GPUS, LINKS, Gpu, Link, gpu
from .prices import Prices
from .roofline import Roofline, roofline_of

__all__ = [
    "GPUS",
    "LINKS",
    "Gpu",
    "Link",
    "Prices",
    "Roofline",
    "gpu",
    "roofline_of",
]
