"""The savings of hits at a provider that bills tokens, and the time to live of cached prefixes that pays.

The public rule: reading a cached token costs 0.1 of an input token. Writing a token to the cache costs 1.25 if it lives
for 5 minutes after its last use, and 2 if it lives for an hour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._base.errors import UsageError
from .gpus import column, columns, number

TTL_S = {"none": 0.0, "5m": 300.0, "1h": 3600.0}  # time to live -> seconds since the last use

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Prices:
    """USD per token, and the cost of cached reads and writes in input tokens; the defaults are assumptions.

    >>> prices = Prices(input_per_token=3e-6, output_per_token=15e-6)
    >>> prices.cost(hit_tokens=[0, 8000], tokens=10_000, output_tokens=100).round(4).tolist()
    [0.039, 0.0114]
    >>> prices.saved(hit_tokens=[0, 8000], tokens=10_000).round(4).tolist()
    [-0.0075, 0.0201]
    """

    input_per_token: float = 3e-6  # 3 USD a million
    output_per_token: float = 15e-6  # 15 USD a million
    cached_read: float = 0.1
    write_5m: float = 1.25
    write_1h: float = 2.0

    def __post_init__(self) -> None:
        for name in ("input_per_token", "output_per_token", "cached_read", "write_5m", "write_1h"):
            number(name, getattr(self, name), 0, 1e6)

    def cost(self, hit_tokens: ArrayLike, tokens: ArrayLike, output_tokens: ArrayLike = 0, ttl: Any = "5m") -> Any:
        """USD of each request: hits are read; all other prompt tokens are written with the time to live.

        `tokens` are the prompt tokens, with the hits. `ttl` is "none" (nothing is written), "5m" or "1h", one for all
        or one per request. UsageError if hits exceed tokens or a TTL is not one of the three.
        """
        hit, tokens, output, write = columns(
            hit_tokens=hit_tokens, tokens=tokens, output_tokens=output_tokens, ttl=self._write(ttl)
        )
        if (hit > tokens).any():
            raise UsageError(f"hit_tokens exceed tokens in {np.count_nonzero(hit > tokens):,} rows.")
        prompt = self.cached_read * hit + write * (tokens - hit)  # in input tokens
        return self.input_per_token * prompt + self.output_per_token * output

    def saved(self, hit_tokens: ArrayLike, tokens: ArrayLike, ttl: Any = "5m") -> Any:
        """USD that caching saves per request; negative if writing costs more than the hits save."""
        return self.cost(0, tokens, ttl="none") - self.cost(hit_tokens, tokens, ttl=ttl)

    def ttl_costs(self, gaps_s: ArrayLike, tokens: ArrayLike = 1) -> dict[str, float]:
        """USD of all uses of prefixes under each time to live.

        A row is a use of a prefix: `gaps_s` is the time in seconds since its last use, infinite for the first use, and
        `tokens` is its length. A use within the time to live is a read and restarts that time; any other is a write.

        >>> {ttl: round(usd, 6) for ttl, usd in Prices(1e-6).ttl_costs([float("inf"), 60, 400], tokens=1000).items()}
        {'none': 0.003, '5m': 0.0026, '1h': 0.0022}
        """
        gaps = column("gaps_s", gaps_s, endless=True)
        # gaps may be infinite, so only their places are lined up with tokens here
        _, tokens = columns(gaps_s=np.zeros(gaps.shape), tokens=tokens)
        costs = {}
        for ttl, lives_s in TTL_S.items():
            is_read = (gaps <= lives_s) & (ttl != "none")
            each = np.where(is_read, self.cached_read, self._write(ttl))
            costs[ttl] = float((self.input_per_token * each * tokens).sum())
        return costs

    def best_ttl(self, gaps_s: ArrayLike, tokens: ArrayLike = 1) -> str:
        """The time to live with the lowest `ttl_costs`; of equal ones the shortest.

        >>> Prices().best_ttl([float("inf"), 400, 500]), Prices().best_ttl([float("inf"), 400])
        ('1h', 'none')
        """
        costs = self.ttl_costs(gaps_s, tokens)
        return min(costs, key=lambda ttl: costs[ttl])

    def break_even_hit_share(self, ttl: str) -> float:
        """The share of prompt tokens that must hit before caching with this time to live saves money.

        share * cached_read + (1 - share) * write = 1. Infinite if a read costs as much as an input token or more.

        >>> round(Prices().break_even_hit_share("5m"), 3), round(Prices().break_even_hit_share("1h"), 3)
        (0.217, 0.526)
        """
        write = float(self._write(ttl))
        if write <= 1:
            return 0.0
        return (write - 1) / (write - self.cached_read) if self.cached_read < 1 else float("inf")

    def _write(self, ttl):
        """The cost of a written token in input tokens: a number for one time to live, a column for a column."""
        multiples = {"none": 1.0, "5m": self.write_5m, "1h": self.write_1h}
        named = np.asarray(ttl)
        if named.dtype.kind == "O":  # as pandas has texts
            named = named.astype(str)
        if named.dtype.kind != "U" or not np.isin(named, list(multiples)).all():
            raise UsageError(f"A time to live must be one of {', '.join(multiples)}.")
        return np.select([named == name for name in multiples], list(multiples.values()))
