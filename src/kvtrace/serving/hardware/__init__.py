"""The costs of serving: time by a roofline of GPU and model, memory for KV, money at a provider's prices.

    gpus.py      GPUs and links (gpus.json has some, with sources); the savings of hits at a provider's prices
    room.py      room for KV as the engine computes it, and the tokens that its version logs; vllm_memory.py and
                 sglang_memory.py have what each engine sets aside
    roofline.py  seconds of a step, when fetching KV beats computing it

What a model multiplies and keeps is in ../models. docs/serving/models.md has each formula and assumption.
"""

from .gpus import GPUS, LINKS, Gpu, Link, Prices, gpu
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
