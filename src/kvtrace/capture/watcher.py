"""Watch live requests: their digests go to a gauge in memory, and nothing is stored.

The block size of the sources is determined before the first request where it can be known.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from .._base.errors import RowError, UsageError
from ..ingest import logs
from ..ingest.encoding_options import EncodingOptions
from ..ingest.keys import Key
from ..ingest.logs.sources import find, sample
from ..ingest.preparation import DEFAULT_BLOCK_SIZE, block_size_of
from ..privacy.release_options import ReleaseOptions
from .encoders import LiveEncoding
from .feeder import Feeder
from .gauge import GaugeOptions
from .intake import QUEUE_BYTES, Intake, Ledger
from .live import LiveOptions
from .proxy.exchange import ProxyCounts
from .sources import source_named
from .supervisor import Supervisor


class Watcher:
    """Feeds a gauge with requests. Use it as a context manager, or call `close`.

    Args:
        gauge: What is measured.
        encoding: How requests become blocks.
        queue_bytes: Limit of the payloads that wait.
        on_message: Receives sentences for an operator, without content.
    """

    def __init__(
        self,
        gauge: GaugeOptions,
        encoding: EncodingOptions,
        *,
        queue_bytes: int = QUEUE_BYTES,
        on_message: Callable[[str], None] | None = None,
    ):
        live = LiveEncoding.of(encoding, ReleaseOptions(profile="exact"))  # nothing is released
        self._intake, self.proxy = Intake(queue_bytes), ProxyCounts()
        self._snapshot: dict[str, Any] | None = None
        self._stopping = threading.Event()
        self.supervisor = Supervisor(on_message)  # of all that runs in the background
        settings = {"options": live.to_message(), "sink": {"kind": "gauge", **asdict(gauge)}}
        self._feeder = Feeder(
            self._intake, settings, on_report=self._on_report, supervisor=self.supervisor,
            lost=": the curve begins anew.",
        )  # fmt: skip
        self._intake.mark({"begin": {}, "key": Key.random().reveal()})
        self._feeder.start()

    def put(self, source: str, payload: bytes, requests: int = 1, *, moved: dict[int, int] | None = None) -> bool:
        """Put a payload of a source into the queue; False if there is no room. Never blocks."""
        again = source_named(source).comes_again
        return self._intake.put(source, payload, requests, comes_again=again, moved=moved)

    @property
    def ledger(self) -> Ledger:
        """The counts of requests, and the positions in followed files."""
        return self._intake.ledger

    def note_uncopied(self, requests: int) -> None:
        """Count requests as dropped whose copies found no memory before they came to the queue."""
        self._intake.note_uncopied(requests)

    def has_room(self, size: int) -> bool:
        """Whether the queue has room for a payload of so many bytes."""
        return self._intake.has_room(size)

    def snapshot(self) -> dict[str, Any] | None:
        """The gauge's last snapshot; None before the first. It is at most a second old."""
        return self._snapshot

    def counts(self) -> dict[str, Any]:
        """What was done so far, by name."""
        ledger = self._intake.ledger
        counts = {name: value for name, value in self._feeder.counts().items() if name not in ("covered", "lines")}
        return counts | {
            "accepted": ledger.accepted, "dropped": ledger.dropped, "uncopied": ledger.uncopied,
            "refused": ledger.refused, "proxy": asdict(self.proxy), "waiting": len(self._intake),
            "waiting_bytes": self._intake.waiting_bytes, "waiting_limit_bytes": self._intake.max_bytes,
            "restarts": self._feeder.restarts, "failing": self.supervisor.failing(),
            "failures": self.supervisor.failures(),
        }  # fmt: skip

    def problem(self) -> str | None:
        """Why the watcher is not healthy, such as "hanging: digester"; None if it is healthy."""
        return self.supervisor.problem()

    def close(self) -> None:
        """Digest what waits, take a last snapshot, and end. A second call does nothing."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._intake.close({"finish": True})
            self._feeder.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_report(self, report: dict[str, Any]) -> None:
        if "snapshot" in report:
            self._snapshot = {**report["snapshot"], "received_s": time.time()}


def known_block_size(live: LiveOptions, options: EncodingOptions) -> int | None:
    """The tokens of a block of all sources; None if only requests can tell.

    Text gets blocks of the requested size, or of the default. Followed files that hold hashes have a size of their own.

    Args:
        live: The sources.
        options: How followed files are read, and the requested block size.

    Raises:
        UsageError: the sources have blocks of different sizes, or hashes of another size than the requested one.
    """
    requested = options.block_size
    sizes = {path: about for path in live.follow if (about := _size_of(path, options)) is not None}
    hashed = {
        size: f"--follow {path} has hashes of blocks of {size:,} tokens"
        for path, (size, is_hashed) in sizes.items()
        if is_hashed
    }
    texts = [f"--follow {path}" for path, (_, is_hashed) in sizes.items() if not is_hashed]
    texts += [name for name, runs in (("--otlp", live.otlp), ("--proxy", live.proxy)) if runs]
    text_size = requested or DEFAULT_BLOCK_SIZE
    if len(hashed) > 1:
        raise UsageError(f"{', and '.join(hashed.values())}. Run one kvtrace watch for each.")
    for size, sentence in hashed.items():
        if texts and size != text_size:
            raise UsageError(f"{sentence}, and {texts[0]} would have blocks of {text_size:,}. Add --block-size {size}.")
        return size
    return text_size if texts else requested


def _size_of(path: Path, options: EncodingOptions) -> tuple[int, bool] | None:
    """The size of a file's blocks, and whether it holds hashes; None if the file does not tell."""
    lines = list(_first_lines(path))
    try:
        reader = logs.open_reader(
            options.log_format, lines, field_map=options.field_map, time_unit=options.time_unit,
            allow_truncated=options.allow_truncated,
        )  # fmt: skip
    except RowError:
        return None
    if not lines or not (reader.holds_prompts or reader.block_size is not None):
        return None
    return block_size_of(options.block_size, reader), reader.block_size is not None


def _first_lines(path: Path) -> Iterator[bytes]:
    """The first lines of a file, as the detection of log formats takes them; none if it cannot be read yet."""
    if path.is_file() and path.stat().st_size:
        yield from sample(find([path]))
