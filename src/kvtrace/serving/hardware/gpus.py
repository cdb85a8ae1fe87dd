"""GPUs, the links between them, and prices: what reads and checks the figures, which are in gpus.json.

A GPU is a row of GPUS or a JSON file: gpus.json has arithmetic, bandwidth, memory, price and the sources. Peaks are the
vendors' public data-sheet figures, without sparsity, and shares are public measurements; prices are assumptions: an
hour's rent on demand. A link has the bandwidth and the latency of the all-reduces of tensor parallelism. No figure was
fitted to a recording of a served model. docs/serving/models.md has the table. The formulas take numbers and columns of
numbers, which are checked here: float64, not negative, all of one shape.

A provider bills tokens. Reading a cached token costs 0.1 of an input token. Writing a token to the cache costs 1.25 if
it lives for 5 minutes after its last use, and 2 if it lives for an hour.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from ..._base.errors import UsageError, wrong_word
from ..._base.input_files import read_object

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


MOST = float(1 << 53)  # up to here float64 represents every whole number


def columns(**given: Any) -> tuple[np.ndarray, ...]:
    """Each named number or array as float64, broadcast to one shape; UsageError names the faulty one.

    >>> [column.tolist() for column in columns(new=[1, 2], cached=3)]
    [[1.0, 2.0], [3.0, 3.0]]
    """
    checked = [column(name, values) for name, values in given.items()]
    shape: tuple[int, ...] | None = None
    with suppress(ValueError):
        shape = np.broadcast_shapes(*(values.shape for values in checked))
    if shape is None:
        raise UsageError(f"{', '.join(given)}: columns of different lengths. Give each one row per request.")
    return tuple(np.broadcast_to(values, shape) for values in checked)


def column(name: str, values: Any, *, endless: bool = False) -> np.ndarray:
    """A number or an array as float64, from 0 to 2**53; infinite values are valid only with `endless`."""
    array: np.ndarray | None = None
    with suppress(TypeError, ValueError):  # lists of different lengths
        array = np.asarray(values)
    if array is None or array.dtype.kind not in "iuf":
        raise UsageError(f"{name}: not a number or an array of numbers.")
    wide = array.astype(np.float64)
    fine = (wide >= 0) & ((wide <= MOST) | (endless & np.isinf(wide)))
    if not fine.all():
        raise UsageError(f"{name}: negative, not finite or beyond 2**53 in {np.count_nonzero(~fine):,} places.")
    return wide


def number(name: str, value: Any, least: float, greatest: float) -> None:
    """Raise UsageError unless the value is a number within the bounds, inclusive."""
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not least <= value <= greatest:  # nan is not within any bounds
        raise UsageError(f"{name} must be a number from {least:g} to {greatest:g}.")


FIGURES: dict[str, Any] = orjson.loads(Path(__file__).with_name("gpus.json").read_bytes())


ASSUMED_PRICE: str = FIGURES["sources"]["price"]  # where the prices of the table come from
ALL_REDUCES = 2  # of a layer: after attention, after the MLP
ACTIVATION_BYTES = 2  # of a value that GPUs exchange: bf16
DISPATCHED_BYTES = 1  # of one that DeepEP sends to an expert: FP8 (https://github.com/deepseek-ai/DeepEP)


@dataclass(frozen=True)
class Link:
    """What connects the GPUs of one instance; UsageError if a figure is not valid.

    >>> round(Link(35e9, 20e-6).all_reduce_s(1 << 20, gpus=2) * 1e6)
    50
    """

    bytes_per_s: float = 24.7e9  # that an all-reduce reaches on each GPU, the bus bandwidth of nccl-tests
    latency_s: float = 20e-6  # of an all-reduce by a ring
    peer_bytes_per_s: float | None = None  # at which a GPU reads from another one; None: engines do not use that
    peer_latency_s: float = 10e-6  # of an all-reduce in which each GPU reads all that the others have
    peer_gpus: int = 8  # the most GPUs for which engines use it
    peer_bytes: float = 8 << 20  # the most bytes of an all-reduce for which they do

    def __post_init__(self) -> None:
        number("a link's bytes_per_s", self.bytes_per_s, 1, 1e30)
        number("a link's latency_s", self.latency_s, 0, 3600)
        number("a link's peer_latency_s", self.peer_latency_s, 0, 3600)
        number("a link's peer_gpus", self.peer_gpus, 0, 1e6)
        number("a link's peer_bytes", self.peer_bytes, 1, 1e18)
        if self.peer_bytes_per_s is not None:
            number("a link's peer_bytes_per_s", self.peer_bytes_per_s, 1, 1e30)

    def all_reduce_s(self, size: float, gpus: int) -> float:
        """Seconds of an all-reduce of `size` bytes, by the faster of its ways; above `peer_bytes` by a ring.

        In a ring each GPU sends 2 (n - 1) / n of the bytes. With peer access, each reads the bytes of all others.
        """
        ways = [fixed + slope * size for fixed, slope in self.ways(gpus)]
        return (ways[-1] if size > self.peer_bytes else min(ways)) if ways else 0.0

    def ways(self, gpus: int) -> list[tuple[float, float]]:
        """Of each way of an all-reduce: its fixed seconds, and seconds per byte; the ring is last."""
        if gpus < 2:
            return []
        ring = (self.latency_s, 2 * (gpus - 1) / gpus / self.bytes_per_s)
        if self.peer_bytes_per_s is None or gpus > self.peer_gpus:
            return [ring]
        return [(self.peer_latency_s, (gpus - 1) / self.peer_bytes_per_s), ring]


def _link(row: dict[str, Any]) -> Link:
    return Link(**{name: value for name, value in row.items() if name != "sources"})


LINKS = {name: _link(row) for name, row in FIGURES["links"].items()}
PCIE = Link()  # PCIe 4.0 with 16 lanes and peer access


def link_of(name: object) -> Link:
    """A link by its name; UsageError if there is none.

    >>> link_of("pcie-5").bytes_per_s
    35000000000.0
    """
    link = LINKS.get(name) if isinstance(name, str) else None
    if link is None:
        raise wrong_word(name, "a link", LINKS)
    return link


@dataclass(frozen=True)
class Gpu:
    """One GPU, by its data sheet; UsageError if a figure is not valid."""

    name: str
    flops: float  # dense BF16 FLOP a second
    bandwidth: float  # bytes a second between HBM and the chip
    memory: float  # bytes that the driver reports to programs, else those of the data sheet
    price_per_hour: float  # USD
    matmul_share: float = 0.8  # of `flops` that BF16 products reach; the default is the median of the table
    bandwidth_share: float = 0.9  # of `bandwidth` that streaming reaches
    fp8_flops: float | None = None  # dense FP8 FLOP a second; None: it computes FP8 weights in BF16
    fp4_flops: float | None = None  # dense FP4 FLOP a second; None: it computes FP4 weights in BF16
    link: Link = PCIE  # to the other GPUs of an instance

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError("A GPU's name must be a text.")
        for field, greatest in (("flops", 1e30), ("bandwidth", 1e30), ("memory", 1e18)):
            number(f"a GPU's {field}", getattr(self, field), 1, greatest)
        for field in ("fp8_flops", "fp4_flops"):
            if getattr(self, field) is not None:
                number(f"a GPU's {field}", getattr(self, field), 1, 1e30)
        number("a GPU's price_per_hour", self.price_per_hour, 0, 1e9)
        for field in ("matmul_share", "bandwidth_share"):
            number(f"a GPU's {field}", getattr(self, field), 1e-6, 1)
        if not isinstance(self.link, Link):
            raise UsageError(f"a GPU's link must be a Link, or in a file one of {', '.join(LINKS)}.")


def _row(name: str, row: dict[str, Any]) -> Gpu:
    figures = {key: value for key, value in row.items() if key not in ("label", "link", "sources")}
    return Gpu(name, **figures, link=LINKS[row["link"]])


GPUS = {name: _row(name, row) for name, row in FIGURES["gpus"].items()}
KEYS = [field.name for field in fields(Gpu)]
REQUIRED = [field.name for field in fields(Gpu) if field.default is MISSING]
HINT = f"Try {', '.join(GPUS)}, or a JSON file with {', '.join(REQUIRED)}."


def gpu(name_or_path: str | Path | Gpu) -> Gpu:
    """A row of GPUS by its name, or the GPU of a JSON file; UsageError for anything else, with the names that are near.

    A Gpu is returned as it is.

    >>> gpu("H100").flops
    989400000000000.0
    >>> gpu("4090")
    Traceback (most recent call last):
    kvtrace._base.errors.UsageError: '4090' is not a GPU or a file. Did you mean rtx-4090?
    """
    if isinstance(name_or_path, Gpu):
        return name_or_path
    if not isinstance(name_or_path, (str, Path)):
        raise UsageError(f"A GPU is a name or a file. {HINT}")
    if str(name_or_path).lower() in GPUS:
        return GPUS[str(name_or_path).lower()]
    near = near_names(str(name_or_path))
    if near and not Path(name_or_path).exists():
        raise UsageError(f"{str(name_or_path)!r} is not a GPU or a file. Did you mean {' or '.join(near)}?")
    described = read_object(name_or_path, UsageError, HINT)
    missing = [key for key in REQUIRED if key not in described]
    if missing:
        raise UsageError(f"{name_or_path}: lacks {', '.join(missing)}. {HINT}")
    if not described.keys() <= set(KEYS):
        raise UsageError(f"{name_or_path}: has unknown keys. {HINT}")
    wrong = None
    try:
        return Gpu(**described | ({"link": link_of(described["link"])} if "link" in described else {}))
    except UsageError as error:
        wrong = str(error)
    raise UsageError(f"{name_or_path}: {wrong}")


def gpu_label(name: str) -> str:
    """The name of a GPU in a sentence.

    >>> gpu_label("h100"), gpu_label("mine")
    ('H100', 'mine')
    """
    return name.upper() if name in GPUS else name


def near_names(name: str) -> list[str]:
    """Up to three names of GPUS that are like a wrong one: they contain it, are within it, or are spelt alike.

    >>> near_names("NVIDIA RTX PRO 6000 Server"), near_names("H100SXM"), near_names("b9000")
    (['rtx-pro-6000-server', 'rtx-pro-6000'], ['h100'], [])
    """
    flat = _letters(name)
    if len(flat) < 3:
        return []
    inside = [row for row in GPUS if _letters(row) in flat or flat in _letters(row)]
    inside.sort(key=lambda row: (abs(len(_letters(row)) - len(flat)), row))
    return inside[:3] or get_close_matches(name.lower(), GPUS, n=3, cutoff=0.7)


def _letters(name: str) -> str:
    """Letters and digits alone.

    >>> _letters("RTX-4090")
    'rtx4090'
    """
    return re.sub(r"[^a-z0-9]", "", name.lower())


TTL_S = {"none": 0.0, "5m": 300.0, "1h": 3600.0}  # time to live -> seconds since the last use


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
