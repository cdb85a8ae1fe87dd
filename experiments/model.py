"""A small decoder-only transformer with random weights: RMSNorm, rotary positions, gated feed-forward layers.

Its outputs are noise; its cost is real. It does not know where keys and values lie: `attend` stores those of the new
tokens and returns the attention over all tokens so far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvtrace._base.errors import UsageError

from .pytorch import best_device, torch

Attend = Callable[[int, Any, Any, Any], Any]  # layer, queries, keys, values [tokens, heads, dim] -> as the queries


@dataclass(frozen=True)
class Shape:
    """How large the model is; `hidden` is heads * head_dim.

    >>> Shape().hidden, Shape().kv_bytes_per_token
    (128, 4096)
    """

    layers: int = 4
    heads: int = 4
    head_dim: int = 32
    vocabulary: int = 1024
    kv_heads: int = 0  # each is shared by heads / kv_heads heads of queries; 0 = as many as heads
    intermediate: int = 0  # width of the feed-forward layers; 0 = 4 * hidden

    def __post_init__(self):
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "intermediate", self.intermediate or 4 * self.hidden)
        for name in ("layers", "heads", "head_dim", "vocabulary", "kv_heads", "intermediate"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if self.heads % self.kv_heads:
            raise UsageError(f"heads is {self.heads}; it must be a multiple of kv_heads, {self.kv_heads}.")
        if self.head_dim % 2:
            raise UsageError(f"head_dim is {self.head_dim}; it must be even (rotary positions rotate pairs).")

    @property
    def hidden(self) -> int:
        """Width of the residual stream."""
        return self.heads * self.head_dim

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, in float32."""
        return 2 * self.layers * self.kv_heads * self.head_dim * 4


class Transformer:
    """The weights, drawn with a seed, and one forward pass; on a GPU if there is one, unless `device` names another.

    Weights of 16 bits are drawn on the device: billions of them would take minutes on a CPU. UsageError without
    PyTorch.
    """

    def __init__(self, shape: Shape | None = None, *, seed: int = 0, device: str | None = None, dtype: str = "float32"):
        self.shape, self.torch = shape or Shape(), torch()
        self.device, self.dtype = device or best_device(), getattr(self.torch, dtype)
        self._drawn_on = self.device if self.dtype.itemsize == 2 else "cpu"
        self._dice = self.torch.Generator(self._drawn_on).manual_seed(seed)
        hidden, wide = self.shape.hidden, self.shape.intermediate
        width = (self.shape.heads + 2 * self.shape.kv_heads) * self.shape.head_dim
        self.embedding = self._drawn(self.shape.vocabulary, hidden)
        self.head = self._drawn(hidden, self.shape.vocabulary)
        self.layers = [
            {
                "qkv": self._drawn(hidden, width), "out": self._drawn(hidden, hidden),
                "up": self._drawn(hidden, 2 * wide), "down": self._drawn(wide, hidden),
            }
            for _ in range(self.shape.layers)
        ]  # fmt: skip

    def forward(self, tokens: Any, positions: Any, attend: Attend) -> Any:
        """The hidden state of each token, [tokens, hidden]; tokens of several sequences may lie end to end."""
        x = self.embedding[tokens]
        turn = self._turns(positions)
        for number, layer in enumerate(self.layers):
            q, k, v = self._heads(_normed(x) @ layer["qkv"])
            mixed = attend(number, _turned(q, turn), _turned(k, turn), v)
            x = x + mixed.reshape(len(x), -1) @ layer["out"]
            gate, up = (_normed(x) @ layer["up"]).chunk(2, dim=-1)
            x = x + (self.torch.nn.functional.silu(gate) * up) @ layer["down"]
        return _normed(x)

    def logits(self, hidden: Any) -> Any:
        """The score of each token of the vocabulary to come next, [tokens, vocabulary]."""
        return hidden @ self.head

    def _heads(self, qkv):
        shape = self.shape
        heads = qkv.view(len(qkv), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        return heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)

    def _turns(self, positions):
        """Cosine and sine of each position's angles, [tokens, 1, head_dim / 2]; 16 bits do not hold a position."""
        wide = self.torch.promote_types(self.dtype, self.torch.float32)
        half = self.torch.arange(self.shape.head_dim // 2, device=self.device, dtype=wide)
        angles = positions.to(wide)[:, None] * 10_000.0 ** (-2 * half / self.shape.head_dim)
        return angles.cos()[:, None].to(self.dtype), angles.sin()[:, None].to(self.dtype)

    def _drawn(self, rows, columns):
        """Random weights that keep the size of what goes through them."""
        dtype = self.dtype if self.dtype.itemsize == 2 else self.torch.float64
        weights = self.torch.randn(rows, columns, generator=self._dice, dtype=dtype, device=self._drawn_on)
        return weights.mul_(rows**-0.5).to(self.dtype).to(self.device)


def _normed(x):
    """RMSNorm, without learned gains: they would all be 1."""
    return torch().nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)


def _turned(x, turn):
    """Rotary positions: each pair of numbers is turned by the angle of its position."""
    cosine, sine = turn
    one, other = x.chunk(2, dim=-1)
    return torch().cat((one * cosine - other * sine, one * sine + other * cosine), dim=-1)
