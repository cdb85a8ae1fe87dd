"""A tier of blocks, and the text of `--tiers`: `hbm=5000,dram=50000@host@25GB/s,pool=1M@cluster@10GB/s@30us@lru`.

A tier belongs to one rank (an instance), to the instances of a host, or to all instances of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import isfinite
from typing import Any, Literal, get_args

from .._base.errors import UsageError, wrong_word
from .._base.units import milliseconds, size_bytes
from .policies import POLICIES

TierScope = Literal["rank", "host", "cluster"]
TierCopies = Literal["on-eviction", "write-through", "write-back"]
SCOPES: tuple[TierScope, ...] = get_args(TierScope)
COPIES: tuple[TierCopies, ...] = get_args(TierCopies)
EXAMPLE = "Try --tiers hbm=5000,dram=50000."
WORDS = (
    "a rate (25GB/s), a latency (30us), rank, host, cluster, on-eviction, write-through, write-back, a policy (lru), "
    "peers, or the tokens of its own block (256tokens)"
)


@dataclass(frozen=True)
class Tier:
    """A tier: its capacity in blocks, the times of its link, and the instances that share it.

    Engines that write blocks to the tier as they compute them (vllm) use `store_seconds`. A scheduler refuses a field
    that it does not model.

    Raises:
        UsageError: A time is negative or not finite, or another value is not valid.

    >>> Tier("dram", 200, 0.0005).scope
    'rank'
    """

    name: str
    capacity: int
    fetch_seconds: float = 0.0  # seconds per block: bytes of a block / bandwidth
    store_seconds: float | None = None  # seconds per block in the other direction; None: as fetch_seconds
    policy: str | None = None  # order of eviction; None: the engine's own, of engine reference that of the first tier
    scope: TierScope = "rank"  # who shares the tier: nobody, the instances of a host, or all instances
    copies: TierCopies | None = None  # when a block is copied to the tier; None: the engine's own way
    latency_s: float = 0.0  # of a transfer, before its first byte
    peers: bool = False  # instances read each other's tier of this name
    block_tokens: int | None = None  # tokens of a block of the tier; None: as the trace

    def __post_init__(self) -> None:
        if self.scope not in SCOPES:
            raise wrong_word(self.scope, "a scope of a tier", SCOPES)
        if self.copies is not None and self.copies not in COPIES:
            raise wrong_word(self.copies, "a way of copies to a tier", COPIES)
        for name in ("fetch_seconds", "store_seconds", "latency_s"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0):
                raise UsageError(f"{name} of tier {self.name} must be at least 0, and finite.")
        if self.block_tokens is not None and self.block_tokens < 1:
            raise UsageError(f"block_tokens of tier {self.name} must be at least 1.")

    def shown(self, name: str) -> str:
        """A field as `--tiers` has it.

        >>> Tier("pool", 9, latency_s=3e-5).shown("latency_s")
        '30us'
        """
        value = getattr(self, name)
        words = {"latency_s": f"{self.latency_s * 1e6:g}us", "peers": "peers", "block_tokens": f"{value}tokens"}
        return words.get(name, str(value))


DEFAULTS = {part.name: part.default for part in fields(Tier)}
OPTIONAL = ("scope", "copies", "policy", "latency_s", "peers", "block_tokens")  # that a scheduler may not model


def require_fields(tiers: Sequence[Tier], modelled: Collection[str], who: str) -> None:
    """UsageError for a tier with a field that is not modelled there, so that none is ignored.

    >>> require_fields([Tier("dram", 9, scope="host")], (), "The scheduler vllm")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: The scheduler vllm does not model dram=...@host in --tiers. Leave out host.
    """
    for tier in tiers:
        for name in OPTIONAL:
            if name not in modelled and getattr(tier, name) != DEFAULTS[name]:
                word = tier.shown(name)
                raise UsageError(f"{who} does not model {tier.name}=...@{word} in --tiers. Leave out {word}.")


def as_tiers(tiers: Mapping[str, int] | Sequence[Tier] | None) -> tuple[Tier, ...]:
    """Tiers, also from names with capacities in blocks.

    >>> [tier.capacity for tier in as_tiers({"hbm": 4, "dram": 8})]
    [4, 8]
    """
    if isinstance(tiers, Mapping):
        return tuple(Tier(name, capacity) for name, capacity in tiers.items())
    return tuple(tiers or ())


@dataclass(frozen=True)
class TierText:
    """A tier as it is written: the text of its capacity, its rate in bytes per second, and its other fields."""

    name: str
    capacity: str
    rate: int | None = None
    words: dict[str, Any] = field(default_factory=dict)

    def tier(self, blocks: Callable[[str], int], block_bytes: float | None = None) -> Tier:
        """The tier; `blocks` turns its capacity into blocks. UsageError for a rate if a block's bytes are not known."""
        seconds = 0.0
        if self.rate is not None:
            if block_bytes is None:
                raise UsageError(
                    f"Without --gpu, tier {self.name} has no rate. Leave it out, or add --gpu and --model."
                )
            seconds = block_bytes / self.rate
        return Tier(self.name, blocks(self.capacity), seconds, **self.words)


def split_tiers(text: str) -> list[TierText]:
    """The tiers of a text, the first one first: NAME=CAPACITY, then words behind @ in any order.

    Raises:
        UsageError: The text does not name tiers in this form.

    >>> split_tiers("hbm=5,000,pool=1M@cluster@lru@10GB/s")[1]
    TierText(name='pool', capacity='1M', rate=10000000000, words={'scope': 'cluster', 'policy': 'lru'})
    """
    tiers: dict[str, TierText] = {}
    for part in re.split(r",(?!\d{3}\b)", text):  # hbm=5,000 is one tier
        name, equals, amount = (piece.strip() for piece in part.partition("="))
        capacity, *words = (piece.strip() for piece in amount.split("@"))
        if not (name and equals and capacity) or name in tiers:
            raise UsageError(f"{part.strip()!r} is not a tier, or repeats a name. {EXAMPLE}")
        values: dict[str, Any] = {}
        for word in words:
            key, value = _word(name, word)
            if key in values:
                raise UsageError(f"Tier {name} has two words of one kind: {word!r} is one too many.")
            values[key] = value
        tiers[name] = TierText(name, capacity, values.pop("rate", None), values)
    return list(tiers.values())


def _word(name: str, word: str) -> tuple[str, Any]:
    """The field that a word behind @ sets, and its value."""
    if word in SCOPES:
        return "scope", word
    if word in COPIES:
        return "copies", word
    if word == "peers":
        return "peers", True
    if word.partition(":")[0] in POLICIES:
        return "policy", word
    if tokens := re.fullmatch(r"([1-9]\d{0,8}) ?tokens?", word):
        return "block_tokens", int(tokens[1])
    if micro := re.fullmatch(r"(\d+(?:\.\d+)?) ?(?:us|µs)", word):
        return "latency_s", float(micro[1]) / 1e6
    if re.fullmatch(r"\d[\d.]* ?m?s", word):
        return "latency_s", milliseconds(word) / 1000
    if re.match(r"\d", word) and (rate := size_bytes(word.removesuffix("/s").strip())):
        return "rate", rate
    raise UsageError(f"{word!r} is not valid for tier {name}. A tier can have {WORDS}.")


def parse_tiers(text: str, blocks: Callable[[str], int], block_bytes: float | None = None) -> tuple[Tier, ...]:
    """Parse tiers, the first one first.

    Args:
        text: `hbm=5000,dram=50000@host`: NAME=CAPACITY, then words behind @ in any order.
        blocks: Turns the text of a capacity into blocks.
        block_bytes: The bytes of a block, for tiers with a rate; None is not known.

    Raises:
        UsageError: The text does not name tiers in this form.

    >>> [(tier.name, tier.capacity, tier.scope) for tier in parse_tiers("hbm=10,dram=200@host", int)]
    [('hbm', 10, 'rank'), ('dram', 200, 'host')]
    """
    return tuple(tier.tier(blocks, block_bytes) for tier in split_tiers(text))


TIMED = "Try hbm=5000,dram=50000@25GB: the first tier, then others with their bytes per second."


def parse_timed_tiers(text: str, blocks: Callable[[str], int], block_bytes: float) -> tuple[int, tuple[Tier, ...]]:
    """Parse the tiers of a simulation in time: each but the first one has a rate.

    Returns:
        The blocks of the first tier, and the tiers below it.

    Raises:
        UsageError: As in `parse_tiers`; also for a tier without a rate.

    >>> first, (dram,) = parse_timed_tiers("hbm=10,dram=200@4GB/s", int, 2e6)
    >>> first, dram.capacity, dram.fetch_seconds
    (10, 200, 0.0005)
    """
    first, *lower = split_tiers(text)
    if first.rate is not None or first.words or not lower:
        raise UsageError(f"With --gpu, --tiers names a tier without a rate and tiers below it. {TIMED}")
    for tier in lower:
        if not tier.rate:
            raise UsageError(f"With --gpu, tier {tier.name} needs a rate. {TIMED}")
    return blocks(first.capacity), tuple(tier.tier(blocks, block_bytes) for tier in lower)
