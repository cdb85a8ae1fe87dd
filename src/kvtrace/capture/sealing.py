"""Seal a window: number its blocks from 0, release it by its profile, audit it, and write it with its data card.

The digests go when the files of the window have their names. Sealing needs no key, so that a window can be sealed whose
key died with its recorder. Windows are sealed as they end, one at a time: a thread waits for a process of its own,
because sealing takes a moment.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

from .._base.errors import AuditError, InputError, KvtraceError, UsageError
from .._base.file_locks import only_writer
from .._base.output_files import appear_together
from .._base.own_files import is_own
from .._base.process import STOPPING, forbid_core_dumps
from .._base.row_counts import rounded
from .._base.workers import guarded
from ..formats.links import links_path, write_links
from ..formats.sidecar import sidecar_path
from ..formats.writing import card_path
from ..ingest.collector import Collector
from ..ingest.pipeline import linked_rows, released_rows
from ..ingest.preparation import ReleaseSettings
from ..ingest.row_counts import RowCounter
from ..ingest.usage import UsageCheck
from ..privacy.checks.finding import Audit
from ..privacy.linking import LinkIndex
from ..privacy.profiles import profile_of
from ..privacy.publishing import Published, publish
from ..trace.meta import Meta, RecordingSection, merge, rendering_of
from .supervisor import FIRST_WAIT_S, LAST_ATTEMPTS, Supervisor, reason_of
from .windows import Window, read_window, remove_window

PATIENCE_S = 600.0  # sealing takes longer than other rounds
LONGEST_WAIT_S = 600.0  # until a window is tried again
POLL_S = 0.5
INDEX = "links"  # the numbers of the recording, in the folder of open windows


@dataclass(frozen=True)
class Sealed:
    """The result of sealing a window."""

    name: str
    files: list[str]  # empty: the window had no requests
    requests: int = 0
    lost: int = 0  # accepted, but not digested before a crash
    dropped: int = 0  # not accepted, because the queue was full
    rejected: int = 0  # rows that could not be read, and payloads that were not valid
    audit: str = ""
    note: str | None = None  # on the requests' own counts of prompt tokens
    error: str | None = None  # why the window could not be sealed; its digests are kept
    is_final: bool = True  # another attempt of the same recorder would fail, too


def seal(path: str | Path, folder: str | Path) -> Sealed:
    """Seal one window that has ended, and delete its digests.

    Args:
        path: The window's file.
        folder: Where the trace goes.

    Raises:
        AuditError: The window does not keep the promises of its profile; nothing was written, the digests stay.
    """
    window = read_window(path)
    if window is None:
        remove_window(path)
        return Sealed(Path(path).stem, [])
    ending = window.ending or window.header  # a recorder ends each window before it seals it
    lost, missed = window.lost(ending["accepted"]), max(0, ending["dropped"] - window.header["dropped"])
    output = os.path.join(folder, window.name + window.header["suffix"])
    with only_writer(output, [sidecar_path(output), card_path(output), links_path(output)]):
        result = Sealed(window.name, [], lost=lost, dropped=missed, rejected=window.malformed)
        if not _is_sealed(output):  # else a recorder died after the trace was written
            result = _publish(window, output, result)
    remove_window(path)  # after the lock: what a kill leaves in between goes when the window is sealed again
    return result


def _is_sealed(output: str) -> bool:
    """Whether a window's trace was written; UsageError if another user's file or a link has its name."""
    try:
        about = os.lstat(output)
    except FileNotFoundError:
        return False
    if not stat.S_ISREG(about.st_mode) or not is_own(about, others=0):
        raise UsageError(f"{output}: this file is not one of this recorder's. Move it away.")
    return True


def _publish(window: Window, output: str, result: Sealed) -> Sealed:
    """Write the window's trace; nothing if it has no requests."""
    header, counter = window.header, RowCounter(max_errors=-1)
    first = next(iter(window.sources.values()), None)
    collector = first and Collector(block_size=first["block_size"], tail=first["tail"], outputs=first["outputs"])
    for batch in window.batches():
        counter.add(batch, _Piece(window.path))
        if collector:
            collector.add(batch)
    counts = counter.counts
    if not collector or not counts.requests:  # killed, or the disk was full, before the first batch
        return replace(result, rejected=result.rejected + counts.rejected)
    settings = ReleaseSettings(
        profile_of(header["profile"]), _meta(window, result, counter.usage), secrets.randbits(64),
        any(source["holds_hashes"] for source in window.sources.values()), header["isolate_tenants"],
    )  # fmt: skip
    if header["linked"]:
        written = _publish_linked(window, output, collector, settings, counts)
    else:
        rows = released_rows(collector, settings, counts, keep_order=False, session_share=header["session_share"])
        written = publish(rows.trace(), output)
    return Sealed(
        window.name, written.files, counts.requests - counts.unsampled, result.lost, result.dropped,
        result.rejected + counts.rejected, _verdict(written.audit),
        counter.usage.sentence if counter.usage.is_mismatch else None,
    )  # fmt: skip


def _verdict(audit: Audit) -> str:
    """The level of an audit, and the checks that have it where that is no PASS."""
    names = [finding.name for finding in audit.findings if finding.level == audit.level != "PASS"]
    return f"{audit.level} ({', '.join(names)})" if names else audit.level


def _publish_linked(window, output, collector, settings, counts) -> Published:
    """Write the window's trace and its links to the other windows of the recording."""

    def open_index(start_ns: int) -> LinkIndex:
        path, rendering = Path(window.path).parent / INDEX, rendering_of(settings.meta)
        return LinkIndex(path, check=window.header["key"], start_ns=start_ns, rendering=rendering)

    rows, links = linked_rows(collector, settings, counts, open_index=open_index)
    with appear_together():
        write_links(links, output)
        return publish(rows.trace(), output)


def _meta(window: Window, result: Sealed, usage: UsageCheck) -> Meta:
    """The sections of the sidecar before the release: those of the first source, and what was recorded."""
    names = list(window.sources)
    section: RecordingSection = {
        "sources": names, "lost": rounded(result.lost), "dropped": rounded(result.dropped)
    }  # fmt: skip
    sections = merge(window.sources[names[0]]["meta"], {"recording": section})
    return cast(Meta, merge(sections, usage.section() if window.header["session_share"] == 1 else {}))


@dataclass(frozen=True)
class _Piece:
    """The place of a batch, for the counter of rows."""

    path: str
    start: int = 0


def seal_in_process(path: Path, folder: Path) -> Sealed:
    """Seal a window in a process of its own. An error is in the result: the window's file is kept, to try again."""
    code = "from kvtrace.capture.sealing import run; run()"
    message = json.dumps({"path": os.fspath(path), "folder": os.fspath(folder)})
    process = subprocess.run(
        [sys.executable, "-P", "-c", code], input=message, capture_output=True, text=True, start_new_session=True
    )
    lines = process.stdout.splitlines()
    if not lines:
        return Sealed(path.stem, [], error="the process that seals was killed.", is_final=False)
    values = json.loads(lines[-1])
    return Sealed(**values) if "name" in values else Sealed(path.stem, [], **values)


def run() -> None:
    """Seal the window that stdin names, and report on stdout."""
    forbid_core_dumps()
    for number in STOPPING:
        signal.signal(number, signal.SIG_IGN)
    message = json.loads(sys.stdin.read())
    try:
        result = guarded(lambda values: seal(**values), message).value()
        report = asdict(result)
    except KvtraceError as error:
        report = {"error": str(error), "is_final": isinstance(error, (AuditError, InputError))}
    sys.stdout.write(json.dumps(report) + "\n")


@dataclass
class _Job:
    """A window to seal."""

    path: Path
    attempts: int = 0
    due_s: float = 0.0  # of the monotonic clock


class Sealer:
    """Seals the windows that it is given, in order; one that cannot be sealed is tried again later.

    Args:
        folder: Where sealed windows go.
        supervisor: Runs its thread, and tells an operator about each window.
        on_sealed: Called with the result of each.
    """

    def __init__(self, folder: Path, supervisor: Supervisor, *, on_sealed: Callable[[Sealed], None]):
        self._folder, self._supervisor, self._on_sealed = folder, supervisor, on_sealed
        self._jobs: deque[_Job] = deque()
        self._changed, self._ends = threading.Event(), False
        self._part = supervisor.part("sealer", patience_s=PATIENCE_S)
        self._part.start(self._work, lambda: self._ends)

    def seal(self, path: Path) -> None:
        """Seal a window when those before it are sealed."""
        self._jobs.append(_Job(path))
        self._changed.set()

    def end(self) -> None:
        """Seal what waits, and try the windows again that could not be sealed."""
        for job in list(self._jobs):
            job.attempts, job.due_s = 0, 0.0
        self._ends = True
        self._changed.set()
        self._part.join()

    def _work(self) -> None:
        while self._jobs or not self._ends:
            now_s = time.monotonic()
            job = next((job for job in self._jobs if job.due_s <= now_s), None)
            if job is None:
                self._changed.wait(POLL_S)
                self._changed.clear()
            else:
                self._try(job)
            if any(other.attempts for other in self._jobs):
                self._part.beat()
            else:
                self._part.works()

    def _try(self, job: _Job) -> None:
        try:
            result = seal_in_process(job.path, self._folder)
        except Exception as error:  # no descriptor or process is left
            result = Sealed(job.path.stem, [], error=reason_of(error), is_final=False)
        if result.error is None or result.is_final or (self._ends and job.attempts + 1 >= LAST_ATTEMPTS):
            self._jobs.remove(job)
            for other in self._jobs if result.error is None else ():  # what kept them from it may have gone
                other.due_s = 0.0
            self._on_sealed(result)
            if sentence := sentence_of(result):
                self._supervisor.say(sentence)
            return
        job.attempts += 1
        wait_s = FIRST_WAIT_S if self._ends else min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(job.attempts, 16))
        job.due_s = time.monotonic() + wait_s
        self._part.failed(f"a window is not sealed: {result.error}")


def sentence_of(result: Sealed) -> str | None:
    """What became of a window, for an operator; None if it had nothing.

    >>> sentence_of(Sealed("window-20261123T100000Z", ["a.jsonl"], 1200, lost=3, audit="k-anonymous"))
    'window-20261123T100000Z: sealed; 1,200 requests, 3 lost; audit k-anonymous.'
    """
    if result.error is not None:
        return f"{result.name}: not sealed: {result.error} Its digests are kept; the next start tries again."
    missing = [f"{count:,} {what}" for what in ("lost", "dropped", "rejected") if (count := getattr(result, what))]
    if not result.files:
        return f"{result.name}: no request was recorded; {', '.join(missing)}." if missing else None
    requests = f"{result.requests:,} request{'' if result.requests == 1 else 's'}"
    counts = ", ".join([requests, *missing])
    note = f" {result.note[0].upper()}{result.note[1:]}" if result.note else ""
    return f"{result.name}: sealed; {counts}; audit {result.audit}.{note}"
