"""Prefill and decode on different workers: how many there are of each kind, and how the KV cache gets across."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from .._base.errors import UsageError, wrong_word
from .._base.options import option
from .._base.units import size_bytes
from .deciders import ConditionalDisagg
from .deployment import TIME
from .fleet_schedule import MAX_INSTANCES
from .routers import RouterName, check_router

if TYPE_CHECKING:
    from .workers import Workers

TransferTiming = Literal["full_prompt", "destination_missing"]
TIMINGS: tuple[TransferTiming, ...] = ("full_prompt", "destination_missing")
Granularity = Literal["prompt", "chunk", "layer"]
GRANULARITIES: tuple[Granularity, ...] = ("prompt", "chunk", "layer")


def bytes_per_second(text: str) -> float:
    """A bandwidth in bytes per second.

    >>> bytes_per_second("50GB/s")
    50000000000.0
    """
    with suppress(UsageError):
        if rate := float(size_bytes(text.strip().removesuffix("/s"))):
            return rate
    raise UsageError(f"{text!r} is not a bandwidth. Examples: 50GB/s, 800MB/s.")


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
        None, "With dynamo, what a KV transfer carries: full_prompt, or destination_missing, the tokens that the "
        "decode worker does not hold, which other engines send.  [default: full_prompt]", choices=TIMINGS,
        metavar="MODE", group=TIME,
    )  # fmt: skip

    kv_transfer_granularity: Granularity | None = option(
        None, "With vllm and sglang, when a KV cache is sent: when its prompt is computed (prompt), each chunk "
        "when it is computed, or each layer of a chunk.  [default: prompt; with sglang chunk]",
        choices=GRANULARITIES, metavar="WHEN", group=TIME,
    )  # fmt: skip
    max_local_prefill_length: int | None = option(
        None, "With vllm: a decode worker computes a prompt itself that has at most N tokens without a hit there. "
        "Dynamo's name; llm-d's nonCachedTokens is N + 1.", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip
    max_prefill_queue_size: int | None = option(
        None, "With vllm: a decode worker computes prompts itself while N requests or more wait for a prefill worker. "
        "Dynamo's name.", metavar="N", minimum=0, group=TIME,
    )  # fmt: skip
    router_conditional_disagg_config: str | None = option(
        None, "With vllm, and in place of these two: Dynamo's conditional disaggregation. "
        "Example: policy=isl_or_load,eff_isl_threshold=2048,prefill_busy_threshold=1.", metavar="K=V,...",
        group=TIME,
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
        others = (self.max_local_prefill_length, self.max_prefill_queue_size)
        if self.conditional is not None and others != (None, None):
            raise UsageError(
                "--router-conditional-disagg-config does not go with --max-local-prefill-length and "
                "--max-prefill-queue-size, which are another router's. Leave out one of them."
            )
        if self.kv_transfer_timing_mode not in (None, *TIMINGS):
            raise wrong_word(self.kv_transfer_timing_mode, "a value of --kv-transfer-timing-mode", TIMINGS)

        if self.kv_transfer_granularity not in (None, *GRANULARITIES):
            raise wrong_word(self.kv_transfer_granularity, "a value of --kv-transfer-granularity", GRANULARITIES)

    def _check_numbers(self) -> None:
        for name, number in (("prefill-workers", self.prefill_workers), ("decode-workers", self.decode_workers)):
            if number is not None and not 1 <= number <= MAX_INSTANCES:
                raise UsageError(f"--{name} must be from 1 to {MAX_INSTANCES:,}.")
        for name in ("decode_capacity", "kv_transfer_bytes_per_token"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 1.")
        for name in ("max_local_prefill_length", "max_prefill_queue_size"):
            number = getattr(self, name)
            if number is not None and number < 0:
                raise UsageError(f"--{name.replace('_', '-')} must be at least 0.")
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
            (self.kv_transfer_granularity, None), (self.max_prefill_queue_size, None),
            (self.router_conditional_disagg_config, None),
            (self.prefill_options, None), (self.decode_options, None),
        ]  # fmt: skip

    @property
    def conditional(self) -> ConditionalDisagg | None:
        """Dynamo's conditional disaggregation; UsageError if an option is not valid."""
        text = self.router_conditional_disagg_config
        return None if text is None else ConditionalDisagg.of(text)

    @property
    def decides(self) -> str | None:
        """The first option that can keep a prompt on its decode worker."""
        names = ("max_local_prefill_length", "max_prefill_queue_size", "router_conditional_disagg_config")
        first = next((name for name in names if getattr(self, name) is not None), None)
        return first and f"--{first.replace('_', '-')}"

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
