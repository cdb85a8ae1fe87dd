"""Eviction policies: one class and one row each. A user's own policy is a Python class, named `module:Class`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal

from ..._base.errors import InputError, UsageError, docs_page, wrong_word
from ..._base.process import require_built
from ..._base.units import milliseconds

if TYPE_CHECKING:
    from .base import Context


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


def _quantile(text: str) -> float:
    """A quantile written P90."""
    value = float(text.upper().removeprefix("P")) / 100
    if not (text[:1].upper() == "P" and 0 < value <= 1):
        raise ValueError
    return value


def _table(path: str):
    """The table of reuse-density in a file."""
    from ..structures.reuse_table import read_table

    return read_table(path)


PolicyName = Literal[  # of POLICIES; a spec may add a parameter ("slru:0.8"), and a class of the user's has any name
    "lru", "fifo", "mru", "lfu", "lfu-da", "slru", "sieve", "s3fifo", "2q", "arc", "ttl", "mooncake",
    "priority", "pgdsf", "workload", "lhd", "reuse-density", "session-end", "superseded", "tool-ttl", "retain",
    "agent-hints", "oracle-session", "belady", "unlimited",
]  # fmt: skip
HEAPS = 0  # the memory class of policies with heaps or lookahead: formats/memory_needs.py has their bound


@dataclass(frozen=True)
class PolicyRow:
    """The module and class of a policy, and the parameter that may follow its name after a colon."""

    module: str
    cls: str
    about: str
    block_bytes: int | None = None  # bytes of state per distinct block, without queues; HEAPS; None: not known
    parameter: Callable[[str], Any] | None = None  # converts the text after the colon to the class's second argument
    example: str = ""
    tries: tuple[str, ...] = ()  # parameters that `kvtrace tune` tries; "" is none
    required: bool = False
    ghosts: bool = False  # the policy remembers evicted blocks; a live cache can't use it, because it reuses slots
    roots_first: bool = False  # in a flat pool, a parent can be evicted before its children, which then cannot hit
    sessions: bool = False  # the policy needs a trace with sessions
    bound: bool = False  # the policy looks ahead or never evicts: an upper bound that no engine can implement


POLICIES: dict[str, PolicyRow] = {
    "lru": PolicyRow("classic", "LRU", "least recently used", 8),
    "fifo": PolicyRow("classic", "FIFO", "first in, first out", 8, roots_first=True),
    "mru": PolicyRow("classic", "MRU", "most recently used", 16),
    "lfu": PolicyRow("classic", "LFU", "least frequently used, ties by least recently used", 16),
    "lfu-da": PolicyRow("adaptive", "LFUDA", "LFU with dynamic aging", HEAPS),
    "slru": PolicyRow(
        "classic", "SLRU", "segmented LRU: a protected segment for blocks that were hit", 8, _share, "slru:0.8",
        ("0.2", "0.5", "0.7", "0.8", "0.9"),
    ),
    "sieve": PolicyRow(
        "classic", "Sieve", "SIEVE: one FIFO queue, one hand, one visited bit per block", 16, roots_first=True
    ),
    "s3fifo": PolicyRow(
        "adaptive", "S3FIFO", "S3-FIFO: a small, a main and a ghost queue", 16, _share, "s3fifo:0.1",
        ("0.05", "0.1", "0.2", "0.4", "0.7"), ghosts=True, roots_first=True,
    ),
    "2q": PolicyRow(
        "adaptive", "TwoQ", "2Q: a queue of new blocks, ghosts, an LRU main queue", HEAPS, _share, "2q:0.25",
        ("0.1", "0.25", "0.5", "0.75", "0.9"), ghosts=True, roots_first=True,
    ),
    "arc": PolicyRow("adaptive", "ARC", "adapts between recency and frequency", 16, ghosts=True),
    "ttl": PolicyRow(
        "classic", "TTL", "evicts blocks not used for a given time", HEAPS, milliseconds, "ttl:5m",
        ("1m", "5m", "15m", "1h"), required=True,
    ),
    "mooncake": PolicyRow(
        "classic", "Mooncake", "the first lease to end, in passes when a store is nearly full", HEAPS, milliseconds,
        "mooncake:10s", ("", "1s", "1m"), roots_first=True,
    ),
    "priority": PolicyRow(
        "classic", "Priority", "lowest request priority first, as in the trace", HEAPS, milliseconds, "priority:10m",
        ("", "1m", "10m", "1h"),
    ),
    "pgdsf": PolicyRow(
        "adaptive", "PGDSF", "prefix-aware greedy dual size frequency (RAGCache)", HEAPS, _whole, "pgdsf:30000",
        ("3000", "30000", "300000"),
    ),
    "workload": PolicyRow(
        "learned", "Workload", "least likely reuse, learned per category (ATC'25)", HEAPS, milliseconds,
        "workload:10m", ("10s", "1m", "10m", "1h"),
    ),
    "lhd": PolicyRow(
        "learned", "LHD", "least hit density, by depth and use count (NSDI'18)", HEAPS, _whole, "lhd:64",
        ("16", "64", "256"),
    ),
    "reuse-density": PolicyRow(
        "learned", "ReuseDensity", "least chance of reuse per second, by a table learned before", HEAPS, _table,
        "reuse-density",
    ),
    "session-end": PolicyRow("hinted", "SessionEnd", "blocks of closed sessions first, then LRU", HEAPS, sessions=True),
    "superseded": PolicyRow(
        "hinted", "Superseded", "blocks outside every agent's newest context first, then LRU", HEAPS, sessions=True
    ),
    "tool-ttl": PolicyRow(
        "hinted", "ToolTTL", "keeps blocks while a tool runs, up to a quantile of the times so far", HEAPS, _quantile,
        "tool-ttl:P90", ("P50", "P90", "P99"), sessions=True,
    ),
    "retain": PolicyRow(
        "hinted", "Retain", "lowest priority first, by role and turn of the agent", HEAPS, milliseconds, "retain:10m",
        ("", "1m", "10m", "1h"), sessions=True,
    ),
    "agent-hints": PolicyRow(
        "hinted", "AgentHints", "session-end, superseded and tool-ttl together", HEAPS, _quantile,
        "agent-hints:P90", ("P50", "P90", "P99"), sessions=True,
    ),
    "oracle-session": PolicyRow(
        "hinted", "OracleSession", "knows when sessions resume: the last one to resume first", HEAPS,
        sessions=True,
    ),
    "belady": PolicyRow("classic", "Belady", "offline optimum: farthest next use first", HEAPS, bound=True),
    "unlimited": PolicyRow("classic", "LRU", "never evicts", 8, bound=True),
}  # fmt: skip
VERBS = ("insert", "use", "release", "victim", "remove")


def is_users(policy: str) -> bool:
    """Whether a policy is a class of the user's, named `module:Class`.

    >>> is_users("mine:Newest"), is_users("ttl:5m")
    (True, False)
    """
    return ":" in policy and policy.partition(":")[0] not in POLICIES


def name_of(policy: str | type) -> str:
    """The name of a policy: a class of a module, or of a notebook, is `module:Class`.

    >>> from kvtrace._base.units import count
    >>> name_of("lru")
    'lru'
    >>> name_of(count)
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: a policy is a name or a class, not a function. Try "lru".
    """
    if isinstance(policy, str):
        return policy
    if not isinstance(policy, type):
        kind = type(policy).__name__
        remedy = f"Pass the class {kind} itself." if all(hasattr(policy, verb) for verb in VERBS) else 'Try "lru".'
        raise UsageError(f"a policy is a name or a class, not a {kind}. {remedy}")
    if getattr(sys.modules.get(policy.__module__), policy.__qualname__, None) is not policy:
        raise UsageError(f"the policy {policy.__qualname__} is not at the top level of its module. Define it there.")
    return f"{policy.__module__}:{policy.__qualname__}"


def make(spec: str, context):
    """Create the policy of a spec: `lru`, `ttl:60s`, or a Python class as `module:Class`.

    Raises UsageError if the name is unknown, the parameter is wrong, or a class lacks a required verb.

    >>> from kvtrace.cache.policies.base import Context
    >>> make("lru", Context(blocks=4, capacity=2)).keeps_parents
    True
    """
    name, colon, text = spec.partition(":")
    if name in POLICIES:
        return _shipped(name, colon, text, context)
    if colon:
        return _users(name, text, context)
    module, dot, cls = spec.rpartition(".")
    if dot and all(map(str.isidentifier, spec.split("."))) and cls != "py":
        raise UsageError(f"{spec!r} is not a policy. Write a class as module:Class: {module}:{cls}.")
    raise wrong_word(spec, "a policy", POLICIES, ", or a class as module:Class")


def _shipped(name, colon, text, context):
    row, trace = POLICIES[name], context.trace
    if row.sessions and trace is not None and (trace.session is None or not (trace.session >= 0).any()):
        raise InputError(f"policy {name} needs a trace with sessions, and this one has none. Try lru.")
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
    from ..core.pool import PythonPolicy, users_function

    spec = f"{module}:{name}"
    if ":" in name:
        cls, _, text = name.partition(":")
        raise UsageError(
            f"The command line cannot pass a parameter to your class. Write {module}:{cls}, and let its constructor "
            f"set {text!r}."
        )
    if module.endswith(".py"):
        stem = PurePath(module).stem
        raise UsageError(f"{module!r} is a file. Run the command in its folder with the module's name: {stem}:{name}.")
    try:
        cls = getattr(users_function(import_module, spec, "import")(module), name, None)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module exists, and one of its own imports is missing
            raise
        raise UsageError(
            f"{module!r} is neither a policy nor a Python module. Run the command in the module's folder."
        ) from None
    if cls is None:
        raise UsageError(f"Module {module!r} has no class {name!r}. A policy class has the verbs {', '.join(VERBS)}.")
    missing = [verb for verb in VERBS if not callable(getattr(cls, verb, None))]
    if missing:
        raise UsageError(f"Policy {spec} lacks {', '.join(missing)}. A policy needs {', '.join(VERBS)}.")
    return PythonPolicy(context, users_function(cls, spec, name)(context), spec)


def live_policy(policy: Any, context: Context) -> Any:
    """The order that a name or a user's class stands for, for the slots of a live cache.

    UsageError where it is none, or a live cache can't have it.

    >>> from kvtrace.cache.policies.base import Context
    >>> live_policy("lru", Context(blocks=4, capacity=2)).keeps_parents
    True
    """
    from ..core.pool import PythonPolicy

    if isinstance(policy, str):
        row = POLICIES.get(policy.partition(":")[0])
        if row is not None and row.bound:
            raise UsageError(f"{policy} is an upper bound that needs the future; a live cache cannot use it. Try lru.")
        if row is not None and row.ghosts:
            raise UsageError(f"{policy} remembers evicted blocks, but a live cache reuses their slots. Try lru.")
        return make(policy, context)
    missing = [verb for verb in VERBS if not callable(getattr(policy, verb, None))]
    if missing or not callable(policy):
        raise UsageError(
            f"a policy is a name or a class with the verbs {', '.join(VERBS)}; see {docs_page('cache/policies.md')}."
        )
    return PythonPolicy(context, policy(context))
