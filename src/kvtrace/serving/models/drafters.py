"""The layers of a drafter: those of the model itself that predict further tokens (MTP), or an EAGLE head's.

Models whose MTP layers vLLM 0.33.0 serves, and what each keeps, are in `MTP` (config/speculative.py and the classes of
its models). An EAGLE head is a small model with a config.json of its own; it is divided over GPUs as the model is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._base.errors import UsageError
from .config import Fields, layer_schedule, numbers, read_config

if TYPE_CHECKING:
    from ..deployment import Deployment

NEXT = "num_nextn_predict_layers"
MTP: dict[str, tuple[str, str, int]] = {  # how a model type begins -> field, what a layer keeps, layers by default
    "deepseek_v4": (NEXT, "window", 0), "deepseek": (NEXT, "full", 0), "ernie4_5_moe": (NEXT, "full", 0),
    "glm4_moe": (NEXT, "full", 0), "glm_moe_dsa": (NEXT, "full", 0), "hy_v3": (NEXT, "full", 0),
    "mimo_v2": ("", "window", 1), "mimo": (NEXT, "full", 0), "qwen3_next": (NEXT, "full", 1),
    "qwen3_5": ("mtp_num_hidden_layers", "full", 0),
}  # fmt: skip


def drafter_words(fields: Fields, deployment: Deployment) -> tuple[Fields, list[str]]:
    """The config of a deployment's drafter, and a word for each of its layers; no words without a drafter.

    UsageError if the model has no layers for it that are modelled, or if an EAGLE head has no config.

    >>> from kvtrace.serving.deployment import Deployment, Drafter
    >>> fields = read_config("deepseek-v3")
    >>> drafter_words(fields, Deployment("deepseek-v3", speculative=Drafter("mtp", 3)))[1]
    ['full']
    """
    drafter = deployment.speculative
    if drafter is None:
        return fields, []
    if drafter.method != "mtp":
        if drafter.model is None:
            raise UsageError(f"--speculative {drafter} needs the config.json of its head: METHOD:TOKENS:MODEL.")
        head = read_config(drafter.model)
        return head, layer_schedule(head)
    model_type = str(fields.values.get("model_type", ""))
    field, word, default = next((row for start, row in MTP.items() if model_type.startswith(start)), ("", "", 0))
    layers = fields.whole(field, default, least=0) if field else default
    if word == "window" and "compress_ratios" in fields and field not in fields:  # rows beyond the layers
        layers = int(len(numbers(fields, fields.values, "compress_ratios")) > fields.whole("num_hidden_layers"))
    if not layers:
        raise UsageError(f"{fields.name}: no layers that predict further tokens (mtp) are modelled for it.")
    return fields, [word] * layers
