"""The sinks of the digester: the file of the open window (`kvtrace record`), or a gauge in memory (`kvtrace watch`)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from .._base.errors import StoppedError, UsageError
from ..analysis.capacities import parse_capacity
from ..ingest.encoding import Batch
from ..ingest.logs.kv_batches import KvEventCounts
from ..ingest.preparation import DEFAULT_BLOCK_SIZE
from ..ingest.usage import UsageCheck
from .encoders import BlockForm, SourceEncoder
from .gauge import Gauge, GaugeOptions
from .windows import WindowFile, read_window, remove_window


class Sink(Protocol):
    """Where batches go: the file of a window, or the gauge."""

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Begin a window; returns values to report."""
        ...

    def add(
        self, encoder: SourceEncoder, source: str, batches: Sequence[Batch], *, covered: int, malformed: int
    ) -> None:
        """Take batches, which answer for `covered` requests; the payloads of `malformed` of them were not valid."""
        ...

    def misfit(self, encoder: SourceEncoder) -> str | None:
        """Why the requests of this encoder cannot be beside those that the sink has; None if they can."""
        ...

    def finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """End the window; returns values to report."""
        ...

    def tick(self) -> dict[str, Any]:
        """Called twice a second; returns values to report."""
        ...

    def stores(self, total: KvEventCounts) -> None:
        """Take what engines stored and removed since the start; called if a source has KV events."""
        ...

    def close(self) -> None:
        """Close files: the service has gone without ending the window."""
        ...


SYNC_S = 2.0  # a power cut loses at most what came in this time


class WindowSink:
    """Appends batches to the file of the window that began last."""

    def __init__(self) -> None:
        self._file: WindowFile | None = None
        self._synced = 0.0

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Make the file of a window, or continue it after an interruption."""
        path = message["path"]
        header = {**message["begin"], "accepted": message["accepted"], "dropped": message["dropped"]}
        earlier = None
        if message["continues"] and os.path.exists(path):
            earlier = read_window(path)
            if earlier is None:  # the digester before this one died while it made the file: nothing is in it
                remove_window(path)
        self._file = WindowFile(path, header, earlier)
        return {"begun": path, "found": 0 if earlier is None else earlier.covered}

    def add(
        self, encoder: SourceEncoder, source: str, batches: Sequence[Batch], *, covered: int, malformed: int
    ) -> None:
        """Append batches, all or none."""
        if self._file is None:
            raise StoppedError("the file of the window is missing.")  # the disk was full when it began
        if any(map(len, batches)):
            self._file.source(source, encoder.description())
        self._file.batch(*batches, covered=covered, malformed=malformed)

    def misfit(self, encoder: SourceEncoder) -> str | None:
        """Another block size, or another treatment of tails, than those of the first source of the window."""
        first = None if self._file is None else self._file.first_source
        return None if first is None else encoder.form.misfit(BlockForm(first["block_size"], first["tail"]))

    def finish(self, message: dict[str, Any]) -> dict[str, Any]:
        """Close the file of the window, which can now be sealed."""
        if self._file is None:
            return {}
        self._file.finish(accepted=message["accepted"], dropped=message["dropped"])
        path, self._file = self._file.path, None
        return {"finished": path, "accepted": message["accepted"]}

    def tick(self) -> dict[str, Any]:
        """Flush the file to the disk every two seconds."""
        if self._file is not None and time.monotonic() - self._synced > SYNC_S:
            self._file.sync()
            self._synced = time.monotonic()
        return {}

    def stores(self, total: KvEventCounts) -> None:
        """Nothing: a window has requests only."""

    def close(self) -> None:
        """Close the file; the window was not ended."""
        if self._file is not None:
            self._file.close()


MANY_BLOCKS = 1 << 62  # a capacity is not a share of the working set, so that no such number is needed


class GaugeSink:
    """Feeds a gauge, whose block size is that of the first batch; the options are those of `GaugeOptions`."""

    def __init__(self, **options: Any):
        self._options = GaugeOptions(**options)
        self._stores: dict[str, int] = {}  # what engines stored and removed since the start
        self._empty: Gauge | None = None  # before the first request
        self._empty_size = self._options.block_size or DEFAULT_BLOCK_SIZE
        self._warning: str | None = None
        self._usage: UsageCheck | None = UsageCheck()  # None = they were found to differ
        self._gauge: Gauge | None = None
        self._form: BlockForm | None = None  # of the first requests

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """A first snapshot; a gauge has a moving window of its own."""
        return self.tick()

    def add(
        self, encoder: SourceEncoder, source: str, batches: Sequence[Batch], *, covered: int, malformed: int
    ) -> None:
        """Feed the gauge with batches."""
        for batch in batches:
            if len(batch):
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
        blocks, options = None, self._options
        kv_bytes = options.kv_bytes_per_token
        if options.capacity is not None:
            try:
                blocks = parse_capacity(
                    options.capacity, block_size=block_size, working_set=MANY_BLOCKS, kv_bytes_per_token=kv_bytes
                )
            except UsageError as error:  # less than one block
                self._warning = f"--capacity is not used: {error}"
        return Gauge(
            block_size, capacity_blocks=blocks, kv_bytes_per_token=kv_bytes, window_s=options.window_s,
            half_life_s=options.half_life_s, sample=options.sample,
        )  # fmt: skip


SINKS = {"window": WindowSink, "gauge": GaugeSink}


def sink_of(settings: dict[str, Any]) -> Sink:
    """The sink that the service named, with its settings."""
    values = dict(settings)
    return SINKS[values.pop("kind")](**values)
