"""Eviction policies: one file and one row for each. A user's policy is a Python class, named `module:Class`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..._base.built import require_built
from ..._base.errors import UsageError
from ..._base.units import milliseconds

require_built(__file__)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value < 1:
        raise ValueError
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


HEAPS = 0  # the memory class of policies with heaps or a look ahead: formats/memory_needs.py has their bound


@dataclass(frozen=True)
class Row:
    """Where an eviction order is, and what may follow its name after a colon."""

    module: str
    cls: str
    about: str
    block_bytes: int | None = None  # of state for each distinct block, beside queues; HEAPS; None: not known
    parameter: Callable[[str], Any] | None = None  # turns the text after the colon into the class's second argument
    example: str = ""
    required: bool = False
    ghosts: bool = False  # it remembers blocks that are gone, so it is not for a live cache, whose slots are used again
    bound: bool = False  # it looks ahead or never evicts: a bound, not a policy that an engine could have


POLICIES: dict[str, Row] = {
    "lru": Row("lru", "LRU", "least recently used", 8),
    "fifo": Row("fifo", "FIFO", "first in, first out", 8),
    "mru": Row("mru", "MRU", "most recently used goes first", 16),
    "lfu": Row("lfu", "LFU", "least frequently used, then least recently", 16),
    "lfu-da": Row("lfu_da", "LFUDA", "LFU with dynamic aging", HEAPS),
    "slru": Row("slru", "SLRU", "segmented LRU: a protected share for what was hit", 8, _share, "slru:0.8"),
    "sieve": Row("sieve", "Sieve", "SIEVE: a hand over a queue, one bit a block", 16),
    "s3fifo": Row(
        "s3fifo", "S3FIFO", "S3-FIFO: a small, a main and a ghost queue", 16, _share, "s3fifo:0.1", ghosts=True
    ),
    "arc": Row("arc", "ARC", "adaptive between recency and frequency", 16, ghosts=True),
    "ttl": Row("ttl", "TTL", "gone after so long without use", HEAPS, milliseconds, "ttl:5m", required=True),
    "priority": Row(
        "priority", "Priority", "the trace's priorities, lowest first", HEAPS, milliseconds, "priority:10m"
    ),
    "pgdsf": Row("pgdsf", "PGDSF", "prefix-aware greedy dual size frequency (RAGCache)", HEAPS, _whole, "pgdsf:30000"),
    "workload": Row(
        "workload", "Workload", "by reuse time of the category (ATC'25)", HEAPS, milliseconds, "workload:10m"
    ),
    "belady": Row("belady", "Belady", "the offline optimum: the furthest next use goes first", HEAPS, bound=True),
    "unlimited": Row("lru", "LRU", "nothing is ever evicted", 8, bound=True),
}  # fmt: skip
VERBS = ("insert", "use", "release", "victim", "remove")


def make(spec: str, context):
    """Make the eviction policy that a text names: `lru`, `ttl:60s`, or a Python class as `module:Class`.

    UsageError for an unknown name, a wrong parameter, or a class that lacks a verb.

    >>> from kvtrace.cache.policies.base import Context
    >>> make("lru", Context(blocks=4, capacity=2)).keeps_parents
    True
    """
    name, colon, text = spec.partition(":")
    if name in POLICIES:
        return _shipped(name, colon, text, context)
    if colon:
        return _users(name, text, context)
    raise UsageError(f"{spec!r} is not a policy. Try {', '.join(POLICIES)}, or a class as module:Class.")


def _shipped(name, colon, text, context):
    row = POLICIES[name]
    cls = getattr(import_module(f".{row.module}", __name__), row.cls)
    if not colon:
        if row.required:
            raise UsageError(f"Policy {name} needs a parameter. Try {row.example}.")
        return cls(context)
    if row.parameter is None:
        raise UsageError(f"Policy {name} has no parameter. Leave out {text!r}.")
    try:
        value = row.parameter(text)
    except (ValueError, UsageError):
        raise UsageError(f"{text!r} is not a valid parameter of policy {name}. Try {row.example}.") from None
    return cls(context, value)


def _users(module, name, context):
    from ..core.python_policy import PythonPolicy

    try:
        cls = getattr(import_module(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module exists, but one of its imports does not
            raise
        raise UsageError(
            f"{module!r} is neither a policy nor a Python module. Run the command in the module's folder."
        ) from None
    if cls is None:
        raise UsageError(f"Module {module!r} has no class {name!r}. A policy class has the verbs {', '.join(VERBS)}.")
    missing = [verb for verb in VERBS if not callable(getattr(cls, verb, None))]
    if missing:
        raise UsageError(f"Policy {module}:{name} lacks {', '.join(missing)}. A policy needs {', '.join(VERBS)}.")
    return PythonPolicy(context, cls(context))
