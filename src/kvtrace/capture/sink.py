"""What takes the batches of the digester."""

from __future__ import annotations

from typing import Any, Protocol

from ..ingest.encoding import Batch
from ..ingest.logs.kv_batches import KvEventCounts
from .encoders import SourceEncoder


class Sink(Protocol):
    """Where batches go: the file of a window, or the gauge."""

    def begin(self, message: dict[str, Any]) -> dict[str, Any]:
        """Begin a window; returns values to report."""
        ...

    def add(self, encoder: SourceEncoder, source: str, batch: Batch, *, covered: int, malformed: int) -> None:
        """Take a batch, which answers for `covered` requests; the payloads of `malformed` of them were not valid."""
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
