"""The digester's side of `kvtrace watch`: batches go to a gauge in memory."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from .._base.errors import UsageError
from ..analysis.capacities import parse_capacity
from ..ingest.encoding import Batch
from ..ingest.logs.kv_batches import KvEventCounts
from ..ingest.preparation import DEFAULT_BLOCK_SIZE
from ..ingest.usage import UsageCheck
from .block_form import BlockForm
from .encoders import SourceEncoder
from .gauge import Gauge

MANY_BLOCKS = 1 << 62  # a capacity is not a share of the working set, so that no such number is needed


class GaugeSink:
    """Feeds a gauge, whose block size is that of the first batch.

    Args:
        capacity: Of today's cache, as `--capacity` has it; None = not known.
        kv_bytes_per_token: Of the model; None = not known.
        block_size: What snapshots state before the first request; None = the default.
        options: The other options of a Gauge.
    """

    def __init__(
        self, *, capacity: str | None, kv_bytes_per_token: int | None, block_size: int | None = None, **options: Any
    ):
        self._stores: dict[str, int] = {}  # what engines stored and removed since the start
        self._empty: Gauge | None = None  # before the first request
        self._empty_size = block_size or DEFAULT_BLOCK_SIZE
        self._warning: str | None = None
        self._usage: UsageCheck | None = UsageCheck()  # None = they were found to differ
        self._capacity, self._kv_bytes, self._options = capacity, kv_bytes_per_token, options
        self._gauge: Gauge | None = None
        self._form: BlockForm | None = None  # of the first requests

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """A first snapshot; a gauge has a moving window of its own."""
        return self.tick()

    def add(self, encoder: SourceEncoder, source: str, batch: Batch, *, covered: int, malformed: int) -> None:
        """Feed the gauge with a batch."""
        if not len(batch):
            return
        if self._gauge is None:
            self._gauge, self._form = self._new_gauge(encoder.block_size), encoder.form
        self._gauge.add(batch, time.time())
        self._compare(batch)

    def _compare(self, batch: Batch) -> None:
        """Warn once if the sources' own counts of prompt tokens contradict ours."""
        if batch.usage is None or self._usage is None:
            return
        self._usage += batch.usage
        if self._usage.is_mismatch:
            self._warning, self._usage = self._usage.sentence, None

    def misfit(self, encoder: SourceEncoder) -> str | None:
        """Another block size than that of the first requests; partial blocks may be there or not."""
        return None if self._form is None else replace(encoder.form, tail=self._form.tail).misfit(self._form)

    def finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """A last snapshot."""
        return self.tick()

    def tick(self) -> dict[str, Any]:
        """A snapshot, which has zeros before the first request."""
        gauge = self._gauge
        if gauge is None:
            gauge = self._empty = self._empty or self._new_gauge(self._empty_size)
        else:
            self._empty = None
        if self._stores:
            gauge.set_stores(**self._stores)
        values: dict[str, Any] = {"snapshot": gauge.snapshot(time.time()).to_dict()}
        if self._gauge is not None and self._warning is not None:
            values["error"], self._warning = self._warning, None
        return values

    def stores(self, total: KvEventCounts) -> None:
        """Take what engines stored and removed since the start."""
        self._stores = {"first_stored": total.first, "stored_again": total.again, "removed": total.removed}

    def close(self) -> None:
        """Nothing is open."""

    def _new_gauge(self, block_size: int) -> Gauge:
        blocks = None
        if self._capacity is not None:
            try:
                blocks = parse_capacity(
                    self._capacity, block_size=block_size, working_set=MANY_BLOCKS, kv_bytes_per_token=self._kv_bytes
                )  # fmt: skip
            except UsageError as error:  # less than one block
                self._warning = f"--capacity is not used: {error}"
        return Gauge(block_size, capacity_blocks=blocks, kv_bytes_per_token=self._kv_bytes, **self._options)
