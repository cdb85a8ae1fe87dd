"""What a model keeps for each token, and how an engine lays it out: layers by kind, and cache groups.

A model is a list of `LayerKind`s, which its config.json states. An engine puts its layers into `CacheGroup`s: each
group has blocks of its own for the same tokens, and all blocks have the same size in bytes, so that one pool holds
them. Full attention is the layout of one group. docs/cache/hybrid.md explains the kinds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd, lcm

from .._base.errors import UsageError, wrong_word
from .._base.results import Described, column

STEP_TOKENS = 8192  # the largest chunk of a prompt: the engines' default on most GPUs
KINDS = ("full", "latent", "window", "chunk", "state")  # latent attends to all tokens, as full does
DRAFT_RULES = ("lookahead", "drop", "bigram")
GROUP_KINDS = ("full", "window", "chunk", "state")


@dataclass(frozen=True)
class Drafting(Described):
    """What a drafter (MTP, EAGLE) changes in an engine's cache: which blocks can hit, and what requests hold.

    The drafter's keys and values of a token depend on the token after it. An engine has one of three rules for that:

    lookahead: the hash of a block covers the token after it too (vLLM 0.33.0; it calls them lookahead block hashes).
    drop: a hit loses its last block (vLLM before, or with a KV connector, or with disable_lookahead_block_hashes).
    bigram: the keys of the tree are pairs of tokens (SGLang).

    A trace does not say whether tokens after a shared prefix are equal: under lookahead and bigram they count as
    different, so a hit can be one block longer than stated, and no longer than without a drafter.

    >>> Drafting("lookahead", tokens=3).needs_next
    True
    """

    rule: str = field(metadata=column())  # one of DRAFT_RULES
    tokens: int = field(default=0, metadata=column())  # that it predicts in a step: vLLM's lookahead slots

    def __post_init__(self) -> None:
        if self.rule not in DRAFT_RULES:
            raise wrong_word(self.rule, "a rule of drafters", DRAFT_RULES)
        if not 0 <= self.tokens <= 64:
            raise UsageError("--speculative predicts 1 to 64 tokens. Example: mtp:3.")

    @property
    def needs_next(self) -> bool:
        """Whether a block hits only before the same next token."""
        return self.rule != "drop"


@dataclass(frozen=True)
class LayerKind(Described):
    """Layers of a model that keep the same for each token.

    >>> LayerKind("window", layers=18, token_bytes=2048, window=128).bytes_per_token
    36864
    """

    kind: str  # one of KINDS
    layers: int
    token_bytes: int = 0  # of one layer and token; of a `state`, 0
    window: int = 0  # tokens that a `window` layer sees, or the length of a `chunk`
    state_bytes: int = 0  # of one layer's state, which holds a whole prefix
    tokens_per_entry: int = 1  # tokens that one entry stands for, where a layer compresses them; token_bytes are its
    indexer: bool = False  # keys that choose which tokens a sparse attention sees, beside what it keeps itself

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise wrong_word(self.kind, "a kind of layer", KINDS)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token in all these layers."""
        return self.layers * self.token_bytes // self.tokens_per_entry


@dataclass(frozen=True)
class CacheGroup(Described):
    """Layers that share blocks: one block holds `block_size` tokens of each of them."""

    kind: str  # one of GROUP_KINDS
    layers: int
    block_size: int  # tokens
    window: int = 0  # tokens that a `window` sees, or the length of a `chunk`

    def __post_init__(self) -> None:
        if self.kind not in GROUP_KINDS:
            raise wrong_word(self.kind, "a kind of cache group", GROUP_KINDS)
        if self.block_size < 1 or self.layers < 1 or (self.window < 1) is (self.kind in ("window", "chunk")):
            raise UsageError(f"a cache group of kind {self.kind} has a size that is not valid: {self}.")


@dataclass(frozen=True)
class CacheLayout(Described):
    """The cache groups of a model in an engine, and which checkpoints of windows and states it retains."""

    _every_field = False
    groups: tuple[CacheGroup, ...] = field(metadata=column())
    block_bytes: int = field(default=0, metadata=column())  # of one block of the pool; 0 = not known
    # tokens between two retained checkpoints of windows and states; 0 = only where a prompt ends and where a shared
    # prefix was seen, None = all
    retention_interval: int | None = field(default=0, metadata=column())
    junctions: bool = True  # make a checkpoint where a shared prefix was seen to end; vLLM before August 2026: False
    step_tokens: int = STEP_TOKENS  # 0 = all of a prompt at once
    # of an engine with a pool for each of two kinds (SGLang): blocks of windows, or states, for each block of full
    # attention; 0 = its default
    second_ratio: float = 0.0
    # tokens between the positions at which a prefill saves states without an end of a step there; 0 = none, so that the
    # scheduler splits prefills. In vLLM on an H100: 1 for Mamba-2, a block for gated delta nets, 0 for Mamba-1
    internal_checkpoint_alignment: int = 0

    def __post_init__(self) -> None:
        if not self.groups:
            raise UsageError("a cache layout needs at least one group.")

    @property
    def is_full(self) -> bool:
        """Whether the layout is that of full attention: one group whose blocks all stay until a request ends."""
        return len(self.groups) == 1 and self.groups[0].kind == "full"

    @property
    def tokens_per_block(self) -> float:
        """Tokens that a block of the capacity holds in all layers.

        With one pool, each group needs blocks of its own; with two (`second_ratio`), the capacity counts the first.

        >>> CacheLayout((CacheGroup("full", 18, 16), CacheGroup("window", 18, 16, 128))).tokens_per_block
        8.0
        """
        if self.second_ratio:
            return float(self.groups[0].block_size)
        return 1 / sum(1 / group.block_size for group in self.groups)

    @property
    def scheduler_block_size(self) -> int:
        """Tokens of which hits are multiples: the least common multiple of the groups' blocks."""
        return lcm(*(group.block_size for group in self.groups))

    @property
    def hash_block_size(self) -> int:
        """Tokens of one hash: the greatest common divisor of the groups' blocks."""
        return gcd(*(group.block_size for group in self.groups))
