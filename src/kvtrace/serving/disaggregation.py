"""Prefill and decode on different workers: how many there are of each kind, and how the KV cache gets across."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from .._base.errors import UsageError, wrong_word
from .._base.options import option
from .._base.units import size_bytes
from .deployment import TIME
from .routers import RouterName, check_router

if TYPE_CHECKING:
    from .workers import Workers

TransferTiming = Literal["full_prompt", "destination_missing"]
TIMINGS: tuple[TransferTiming, ...] = ("full_prompt", "destination_missing")


def bytes_per_second(text: str) -> float:
    """A bandwidth in bytes per second.

    >>> bytes_per_second("50GB/s")
    50000000000.0
    """
    return float(size_bytes(text.strip().removesuffix("/s"), "bandwidth"))


@dataclass(frozen=True)
class Disaggregation:
    """Workers of two kinds, with a router for each: a prompt is computed on one, and its output on another.

    The KV cache of a prompt moves when the prompt is complete. It takes `kv_transfer_latency_s`, and the bytes of the
    tokens over `kv_transfer_bandwidth`: those of the whole prompt, or of what the decode worker does not hold.

    Raises:
        UsageError: One kind of worker is missing, or a number is not valid.

    >>> Disaggregation(2, 2, kv_transfer_bandwidth=50e9, kv_transfer_bytes_per_token=100_000).seconds_per_token
    2e-06
    """

    prefill_workers: int | None = option(
        None, "Number of workers that compute prompts; with --decode-workers, in place of --instances.",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    decode_workers: int | None = option(
        None, "Number of workers that compute outputs, from the KV cache that a prefill worker sends.",
        metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    decode_router: RouterName | None = option(
        None, "Router of the decode workers; --router is that of the prefill workers.  [default: as --router]",
        metavar="R", group=TIME,
    )  # fmt: skip
    decode_capacity: int | None = option(
        None, "Blocks in the cache of a decode worker.  [default: as --capacity]", metavar="BLOCKS", minimum=1,
        group=TIME,
    )  # fmt: skip
    kv_transfer_bandwidth: float | None = option(
        None, "Bandwidth of a KV transfer from a prefill to a decode worker, such as 50GB/s.  [default: unlimited]",
        metavar="RATE", parse=bytes_per_second, group=TIME,
    )  # fmt: skip
    kv_transfer_latency_s: float = option(
        0.0, "Time that each KV transfer takes beside its bytes.  [default: 0]", name="kv-transfer-latency",
        metavar="TIME", parse=lambda ms: ms / 1000, group=TIME,
    )  # fmt: skip
    kv_transfer_bytes_per_token: int | None = option(
        None, "Bytes of a token in a KV transfer.  [default: those of --model]", metavar="N", minimum=1, group=TIME,
    )  # fmt: skip
    kv_transfer_timing_mode: TransferTiming | None = option(
        None, "With dynamo, what a KV transfer carries: full_prompt, or destination_missing, the tokens that the decode "
        "worker does not hold, which other engines send.  [default: full_prompt]", choices=TIMINGS, metavar="MODE",
        group=TIME,
    )  # fmt: skip

    max_local_prefill_length: int | None = option(
        None, "With vllm: a decode worker computes a prompt itself that has at most N tokens without a hit there. "
        "Dynamo's name; llm-d's nonCachedTokens is N + 1.", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip
    prefill_options: str | None = option(
        None, "Options of the engine's serve command in which prefill workers differ. Example: '-tp 4'.",
        metavar="OPTIONS", group=TIME,
    )  # fmt: skip
    decode_options: str | None = option(
        None, "Options of the engine's serve command in which decode workers differ.", metavar="OPTIONS", group=TIME
    )
    prefill: Workers | None = None  # what they are, with a deployment; None: as the instances of the run
    decode: Workers | None = None

    def __post_init__(self) -> None:
        if self.decode_router is not None:
            check_router(self.decode_router)
        if (self.prefill_workers is None) != (self.decode_workers is None):
            raise UsageError("--prefill-workers and --decode-workers need each other.")
        if self.prefill_workers is None and any(value != default for value, default in self._others()):
            raise UsageError("Options of prefill and decode workers need --prefill-workers and --decode-workers.")
        self._check_numbers()
        if self.kv_transfer_timing_mode not in (None, *TIMINGS):
            raise wrong_word(self.kv_transfer_timing_mode, "a value of --kv-transfer-timing-mode", TIMINGS)

    def _check_numbers(self) -> None:
        for name in ("prefill_workers", "decode_workers", "decode_capacity", "kv_transfer_bytes_per_token"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
        if self.max_local_prefill_length is not None and self.max_local_prefill_length < 0:
            raise UsageError("--max-local-prefill-length must be at least 0.")
        if self.kv_transfer_bandwidth is not None and not 0 < self.kv_transfer_bandwidth < inf:
            raise UsageError("--kv-transfer-bandwidth must be above 0, and finite.")
        if not 0 <= self.kv_transfer_latency_s < inf:
            raise UsageError("--kv-transfer-latency must be at least 0, and finite.")

    def _others(self) -> list[tuple[object, object]]:
        """The values of the fields that need workers, and their defaults."""
        return [
            (self.decode_router, None), (self.decode_capacity, None), (self.kv_transfer_bandwidth, None),
            (self.kv_transfer_latency_s, 0.0), (self.kv_transfer_bytes_per_token, None),
            (self.kv_transfer_timing_mode, None), (self.max_local_prefill_length, None),
            (self.prefill_options, None), (self.decode_options, None),
        ]  # fmt: skip

    @property
    def workers(self) -> tuple[int, int]:
        """The numbers of prefill and of decode workers; UsageError if there are none."""
        if self.prefill_workers is None or self.decode_workers is None:
            raise UsageError("--prefill-workers and --decode-workers need each other.")
        return self.prefill_workers, self.decode_workers

    @property
    def seconds_per_token(self) -> float:
        """Seconds to send the KV cache of a token; 0 without a bandwidth. UsageError if its bytes are not known."""
        if self.kv_transfer_bandwidth is None:
            return 0.0
        if self.kv_transfer_bytes_per_token is None:
            raise UsageError("--kv-transfer-bandwidth needs --kv-transfer-bytes-per-token, or a --model.")
        return self.kv_transfer_bytes_per_token / self.kv_transfer_bandwidth
