"""A cure: one change of a setup, and the prompt tokens that would then be hits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NotRequired, TypedDict

BASES = {
    "simulated": "the same trace simulated with this change",
    "estimated": "computed from the explained simulation",
    "bound": "no more than this is possible",
}


class AmountDict(TypedDict):
    """How much of a cure reaches a share of what its cause costs."""

    share: float
    tokens: int
    blocks: NotRequired[int]
    gib: NotRequired[float]
    ttl_ms: NotRequired[float]


class CureDict(TypedDict):
    """The result of `Cure.to_dict`; docs/serving/explain.md explains the keys."""

    name: str
    tokens: int
    share: float
    basis: str
    sentence: str
    prefill_s: float | None
    usd: float | None
    provider_usd: float | None
    amounts: list[AmountDict]


@dataclass(frozen=True)
class Amount:
    """How much of a cure reaches a share of what its cause costs: blocks of each instance, or a time to live."""

    share: float  # of the tokens of the cause, that was to be reached
    tokens: int  # that it makes hits
    blocks: int | None = None
    gib: float | None = None  # of these blocks, if the bytes of a token are known
    ttl_ms: float | None = None

    def to_dict(self) -> AmountDict:
        """Keys as docs/serving/explain.md lists them, without those that do not apply."""
        values: AmountDict = {"share": self.share, "tokens": self.tokens}
        if self.blocks is not None:
            values["blocks"] = self.blocks
        if self.gib is not None:
            values["gib"] = self.gib
        if self.ttl_ms is not None:
            values["ttl_ms"] = self.ttl_ms
        return values


@dataclass(frozen=True)
class Cure:
    """One change, the prompt tokens that it makes hits, and what these are worth."""

    name: str
    tokens: int  # more hit tokens than now
    share: float  # of all prompt tokens
    basis: str  # a key of BASES
    advice: str  # what to change, and what it brings, in one sentence
    prefill_s: float | None = None  # seconds of prefill that it saves on one instance's GPUs
    usd: float | None = None  # of these GPUs
    provider_usd: float | None = None  # that it saves on the bill of a provider
    amounts: tuple[Amount, ...] = ()

    @property
    def sentence(self) -> str:
        """The advice with its figures.

        >>> Cure("merged_domains", 1200, 0.03, "simulated", "Share equal blocks.", prefill_s=90, usd=0.05).sentence
        'Share equal blocks. Gain: 1,200 prompt tokens (3.0 %), 1.5 min of prefill, 0.05 USD of GPUs.'
        """
        at_most = "at most " if self.basis == "bound" else ""
        worth = [f"{at_most}{self.tokens:,} prompt tokens ({100 * self.share:.1f} %)"]
        if self.prefill_s is not None:
            worth.append(f"{duration(self.prefill_s)} of prefill")
        if self.usd is not None:
            worth.append(f"{self.usd:,.2f} USD of GPUs")
        if self.provider_usd is not None:
            worth.append(f"{self.provider_usd:,.2f} USD on a provider's bill")
        return f"{self.advice} Gain: {', '.join(worth)}."

    def to_dict(self) -> CureDict:
        """Keys as docs/serving/explain.md lists them."""
        return {
            "name": self.name, "tokens": self.tokens, "share": self.share, "basis": self.basis,
            "sentence": self.sentence, "prefill_s": self.prefill_s, "usd": self.usd,
            "provider_usd": self.provider_usd,
            "amounts": [amount.to_dict() for amount in self.amounts],
        }  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds as people write them.

    >>> duration(0.25), duration(42), duration(90), duration(9000), duration(300_000)
    ('0.25 s', '42 s', '1.5 min', '2.5 h', '83.3 h')
    """
    for unit, size in (("h", 3600), ("min", 60)):
        if abs(seconds) >= size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.3g} s"


def percent(part: float, whole: float) -> str:
    """A share of a whole as people write it, from 0 to 100 %.

    >>> percent(1, 3), percent(-1, 3), percent(4, 3)
    ('33 %', '0 %', '100 %')
    """
    return f"{100 * min(max(part / whole, 0), 1):.0f} %"
