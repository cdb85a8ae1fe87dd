"""The prefix caches of serving engines: one row for each; engines with one kind of cache share a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal

from ..._base.errors import UsageError, wrong_word
from ..layout import CacheLayout, Drafting
from ..policies import POLICIES, is_users

EngineName = Literal["reference", "vllm", "dynamo", "nano-vllm", "sglang", "tensorrt-llm", "lmcache"]  # of ENGINES
CapacityCounts = Literal["total", "idle"]
PoolOrder = Literal["flat", "leaf-first"]
FreeOrder = Literal["prepend", "append"]
Tree = Literal["unified", "radix"]
Watermark = Literal["off", "on"]
HicacheWritePolicy = Literal["write_through", "write_through_selective", "write_back"]


@dataclass(frozen=True)
class EngineRow:
    """The module of an engine's model, and the options that it supports."""

    module: str
    builder: str  # the function of the module that builds the cache
    about: str
    recompute_last: bool = False  # a prompt's last token is always computed, for its logits: the n - 1 rule
    policies: tuple[str, ...] | None = None  # eviction policies; None = all
    any_capacity: bool = False  # it caches the part of a request that fits, so it need not hold the longest one
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)  # engine option -> its values, the default first
    chunk_tokens: int = 1  # the tokens of a chunk; hits are whole chunks
    layouts: bool = False  # it models windows and states, not only full attention
    drafters: tuple[str, ...] = ()  # the rules for a drafter that it models, the default first


ENGINES: dict[str, EngineRow] = {
    "reference": EngineRow(
        "reference", "build", "one hash table, reference counts, a policy",
        options={"capacity_counts": ("total", "idle"), "pool": ("flat", "leaf-first")},
    ),
    "vllm": EngineRow(
        "vllm", "build", "vLLM 0.33.0", recompute_last=True, policies=("lru",), layouts=True,
        options={"free_order": ("prepend", "append")}, drafters=("lookahead", "drop"),
    ),
    "dynamo": EngineRow(
        "vllm", "build_dynamo", "the mocked engine of Dynamo 1.6.1", recompute_last=True, policies=("lru",),
    ),
    "nano-vllm": EngineRow("vllm", "build_nano_vllm", "nano-vllm", recompute_last=True, policies=("lru",)),
    "sglang": EngineRow(
        "sglang", "build", "SGLang 0.5.23", recompute_last=True,
        policies=("lru", "lfu", "fifo", "mru", "filo", "slru", "priority"),
        options={
            "tree": ("unified", "radix"),
            "hicache_write_policy": ("write_through", "write_through_selective", "write_back"),
        },
        layouts=True, drafters=("bigram",),
    ),
    "tensorrt-llm": EngineRow(
        "tensorrt_llm", "build", "TensorRT-LLM 1.3", recompute_last=True, policies=("lru", "priority"),
    ),
    "lmcache": EngineRow(
        "lmcache", "build", "LMCache 0.5.6", policies=("lru", "lfu", "fifo", "mru"), any_capacity=True,
        chunk_tokens=256, options={"watermark": ("off", "on")},
    ),
}  # fmt: skip

# engine option -> its default, over all engines
DEFAULTS = {name: values[0] for row in ENGINES.values() for name, values in row.options.items()}


def find(name: str) -> EngineRow:
    """The row of an engine; UsageError for an unknown name."""
    if name not in ENGINES:
        raise wrong_word(name, "an engine", ENGINES)
    return ENGINES[name]


def drafting(name: str, tokens: int, rule: str | None = None) -> Drafting:
    """What a drafter that predicts `tokens` tokens a step changes in the cache of an engine, by one of its rules.

    UsageError for an engine whose drafters are not modelled, and for a rule that it does not have.

    >>> drafting("vllm", 3), drafting("sglang", 3)
    (Drafting(rule='lookahead', tokens=3), Drafting(rule='bigram', tokens=0))
    """
    rules = find(name).drafters
    if not rules:
        able = " or ".join(name for name, row in ENGINES.items() if row.drafters)
        raise UsageError(
            f"A drafter (--speculative) is not modelled with --engine {name}. Leave it out, or use {able}."
        )
    if rule is not None and rule not in rules:
        raise UsageError(f"Engine {name} does not have the rule {rule!r} for drafters. Try {' or '.join(rules)}.")
    return Drafting(rule or rules[0], tokens if name == "vllm" else 0)


def non_default(options: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The engine options that differ from their defaults, for a Setting; TypeError for one that no engine has.

    >>> non_default({"pool": "leaf-first", "watermark": "off"})
    (('pool', 'leaf-first'),)
    """
    if unknown := options.keys() - DEFAULTS.keys():
        raise TypeError(f"unexpected argument {min(unknown)!r}; engine options are {', '.join(DEFAULTS)}")
    return tuple((name, options[name]) for name, default in DEFAULTS.items() if options.get(name, default) != default)


def build(name: str, demand, context, policy: str, layout: CacheLayout | None = None, **options: str):
    """Build an engine for a block demand.

    Args:
        name: The name of the engine.
        demand: The BlockDemand of the trace.
        context: The Context of the policy.
        policy: One of the engine's eviction policies.
        layout: The cache groups of a model; None is full attention.
        options: Engine options; the others have their defaults.

    Raises:
        UsageError: The engine lacks the policy, an option or layouts, or an option lacks the value.
    """
    row = find(name)
    check(row, name, policy, options)
    extra: dict[str, Any] = dict(options)
    if layout is not None and not layout.is_full:
        if not row.layouts:
            able = " or ".join(name for name, row in ENGINES.items() if row.layouts)
            raise UsageError(f"Engine {name} models full attention only. For windows and states use --engine {able}.")
        extra["layout"] = layout
    module = import_module(f".{row.module}", __name__)
    return getattr(module, row.builder)(demand, context, policy, **extra)


def check(row: EngineRow, name: str, policy: str, options: Mapping[str, str]) -> None:
    """UsageError for a policy or an option that an engine lacks, or a value that the option lacks."""
    if row.policies is not None and policy.partition(":")[0] not in row.policies:
        if policy.partition(":")[0] not in POLICIES and not is_users(policy):
            raise wrong_word(policy, f"a policy of engine {name}", row.policies)
        own = " Your own policies run in the reference engine." if is_users(policy) else ""
        raise UsageError(f"Engine {name} does not support policy {policy!r}. Try {', '.join(row.policies)}.{own}")
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if option not in row.options:
            raise UsageError(f"Engine {name} does not have the option {flag} ({value}). Leave it out.")
        if value not in row.options[option]:
            raise wrong_word(value, f"a value of {flag}", row.options[option])
