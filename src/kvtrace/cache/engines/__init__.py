"""Serving engines' prefix caches: one file and one row each."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module

from ..._base.errors import UsageError


@dataclass(frozen=True)
class Row:
    """Where an engine's model is, and what it takes."""

    module: str
    about: str
    recompute_last: bool = False  # a prompt's last token is always computed, so that there are logits: the n - 1 rule
    policies: tuple[str, ...] | None = None  # the eviction orders that it has; None = all
    any_capacity: bool = False  # it keeps what fits of a request, so it need not hold the longest one
    switches: tuple[str, ...] = ()  # what else of the simulation's options it looks at


ENGINES: dict[str, Row] = {
    "reference": Row("reference", "one hash table, reference counts, a policy", switches=("capacity_counts", "pool")),
    "vllm": Row("vllm", "vLLM 0.33.0", recompute_last=True, policies=("lru",), switches=("free_order",)),
    "nano-vllm": Row("nano_vllm", "nano-vllm", recompute_last=True, policies=("lru",)),
    "sglang": Row(
        "sglang", "SGLang 0.5.23", recompute_last=True,
        policies=("lru", "lfu", "fifo", "mru", "filo", "slru", "priority"),
    ),
    "tensorrt-llm": Row("tensorrt_llm", "TensorRT-LLM 1.3", recompute_last=True, policies=("lru", "priority")),
    "lmcache": Row(
        "lmcache", "LMCache 0.5.6", policies=("lru", "lfu", "fifo", "mru"), switches=("watermark",), any_capacity=True
    ),
}  # fmt: skip


def find(name: str) -> Row:
    """The row of an engine; UsageError where there is none of that name."""
    if name not in ENGINES:
        raise UsageError(f"there is no engine {name!r}. Try {', '.join(ENGINES)}.")
    return ENGINES[name]


def build(name: str, jobs, context, policy: str, **switches):
    """The engine of that name over a trace's jobs, with an eviction order and the switches that it takes."""
    row = find(name)
    if row.policies is not None and policy.partition(":")[0] not in row.policies:
        said = f"its one order is {row.policies[0]}" if len(row.policies) == 1 else f"it has {', '.join(row.policies)}"
        raise UsageError(f"engine {name} has no policy {policy!r}: {said}.")
    for switch, value in switches.items():
        if switch not in row.switches:
            raise UsageError(f"engine {name} does not take {switch.replace('_', '-')} {value}. Leave it out.")
    return import_module(f".{row.module}", __name__).build(jobs, context, policy, **switches)
