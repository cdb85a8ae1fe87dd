"""Record live requests as windows of digests, each of which becomes a released, audited trace.

put -> queue -> digester process -> file of the open window -> sealed trace
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from .._base.errors import InputError, KvtraceError, UsageError, named_errors, unwritable, wrong_word
from .._base.file_locks import locked_file
from .._base.options import split_options
from .._base.own_files import MOVE, make_folders, open_own, own_folder, remove_folders
from ..ingest.encoding_options import EncodingOptions
from ..ingest.keys import Key
from ..privacy.linking import SAMPLED
from ..privacy.release_options import ReleaseOptions
from .encoders import LiveEncoding
from .feeder import Feeder
from .intake import QUEUE_BYTES, Intake, Ledger
from .proxy.exchange import ProxyCounts
from .sealing import Sealed, Sealer, sentence_of
from .sources import source_named
from .supervisor import Supervisor
from .windows import (
    STATE,
    SUFFIX,
    SUFFIXES,
    Window,
    WindowFile,
    WindowSettings,
    end_of_window,
    free_name,
    open_windows,
    read_window,
    remove_window,
    require_window,
)


@dataclass
class RecorderCounts:
    """What a recorder has done since it started, and the windows that earlier ones left.

    Each request that came is accepted, dropped or refused.
    """

    accepted: int = 0  # requests that the queue took
    dropped: int = 0  # requests that are missing: the queue was full, or their copies found no memory
    uncopied: int = 0  # those of them whose copies found no memory in the proxy
    refused: int = 0  # requests that a full queue refused, and that their clients send again; each time counts
    digested: int = 0  # requests with digests on the disk
    rejected: int = 0  # rows that could not be read, or whose blocks do not fit those of the window
    left_out: int = 0  # rows that are not requests, and empty prompts
    malformed: int = 0  # requests of payloads that are not valid
    unknown_parents: int = 0  # stores of KV events whose parent was not received: their rows begin without it
    tokens: int = 0  # of prompts
    lost: int = 0  # requests that were accepted, but not digested before a crash
    waiting: int = 0  # payloads in the queue
    waiting_bytes: int = 0
    waiting_limit_bytes: int = 0
    sealed: int = 0  # windows
    failed: int = 0  # windows that could not be sealed; their digests are kept
    restarts: int = 0  # of the digester
    failing: dict[str, int] = field(default_factory=dict)  # part of the service -> 1 if it fails, hangs or has ended
    failures: dict[str, int] = field(default_factory=dict)  # part -> how often it failed
    last_sealed_s: float | None = None  # Unix time
    proxy: dict[str, int] = field(default_factory=dict)  # requests to the proxy: fields of proxy.setup.ProxyCounts
    reasons: dict[str, int] = field(default_factory=dict)  # reason -> rejected rows


BUSY = "{path}: another recorder writes to this folder, or one that was killed is finishing. Choose another folder."
RECEIVED = ("accepted", "dropped", "uncopied", "refused")  # counts of the ledger
DIGESTED = ("rejected", "left_out", "malformed", "unknown_parents", "tokens")  # counts of the digester
UNFINISHED = "the digester process could not end it. Its digests are kept; the next start tries again."
WAIT_LOCK_S = 10.0  # the digester of a killed recorder may still write what it received


class Recorder:
    """Records requests in a folder. Use it as a context manager, or call `close`.

    Args:
        folder: Where sealed windows go; made if it is missing.
        encoding, release: How requests become blocks, and how each window is released.
        window_s: Length of a window in seconds; windows end at whole multiples of it in UTC.
        key: The key of the digests. With a key, a recorder that starts again goes on with the open window. The default
            is a random key for each window, which is forgotten when the window ends.
        link_windows: Use one key for all windows, and write which blocks they share.
        suffix: The end of the names of traces: ".jsonl", ".jsonl.zst" or ".parquet".
        queue_bytes: Limit of the payloads that wait.
        on_message: Receives sentences for an operator, without content.
        clock: The time in seconds since 1970.
        options: Fields of `encoding` and `release`, in place of theirs.

    Raises:
        UsageError: An option is not valid, or another recorder writes to the folder.

    >>> import tempfile
    >>> row = b'{"timestamp": 0, "input": "What is the capital of France?", "output": 3}'
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Recorder(folder, profile="exact", block_size=4) as recorder:
    ...         recorder.put("follow", row)
    ...     [name.partition(".")[2] for name in sorted(os.listdir(folder)) if name.startswith("window")]
    True
    ['jsonl', 'jsonl.card.md', 'jsonl.meta.json']
    """

    def __init__(
        self,
        folder: str | Path,
        encoding: EncodingOptions | None = None,
        release: ReleaseOptions | None = None,
        *,
        window_s: float = 3600.0,
        key: Key | None = None,
        link_windows: bool = False,
        suffix: str = ".jsonl",
        queue_bytes: int = QUEUE_BYTES,
        on_message: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.time,
        **options: Any,
    ):
        if suffix not in SUFFIXES:
            raise wrong_word(suffix, "a --suffix", SUFFIXES)
        self.folder = Path(folder)
        encoding, release = split_options(options, encoding or EncodingOptions, release or ReleaseOptions)
        self._window_s, share = require_window(window_s), _share(release.sample_sessions)
        if link_windows and share != 1:
            raise UsageError(SAMPLED)
        base = key or (Key.random() if link_windows else None)
        live = LiveEncoding.of(encoding, release)
        self._settings = WindowSettings(live, base, key is not None, link_windows, suffix, share)
        self.supervisor, self._clock = Supervisor(on_message), clock  # of all that runs in the background
        self._say = self.supervisor.say
        self.proxy = ProxyCounts()  # of the proxy that feeds this recorder, if there is one
        self._totals = RecorderCounts()
        self._known_lost: dict[str, int] = {}  # window -> requests that an earlier recorder lost
        self._earlier_lost = 0  # the sum of them
        self._full_since: int | None = None  # dropped requests when the disk became full; None = it has room
        self._gave_up = False  # the disk was full to the end
        self._dropped_full = 0  # dropped requests while it was full
        self._stopping = threading.Event()
        self._found: set[str] | None = None  # names in the folder of open windows before the start; None = no folder
        self._made: list[str] = []  # folders around it
        self._lock = self._locked()
        try:
            self._start(queue_bytes)
        except BaseException:
            self._undo()
            os.close(self._lock)
            raise

    def put(self, source: str, payload: bytes, requests: int = 1, *, moved: dict[int, int] | None = None) -> bool:
        """Put a payload of a source into the queue; False if there is no room. Never blocks.

        The requests of a payload that finds no room count as refused if the clients of the source send them again, else
        as dropped. `moved` is a position in a followed file, which the ledger takes with the counts. UsageError if
        there is no source of this name.
        """
        again = source_named(source).comes_again
        return self._intake.put(source, payload, requests, comes_again=again, moved=moved)

    def note_uncopied(self, requests: int) -> None:
        """Count requests as dropped whose copies found no memory before they came to the queue."""
        self._intake.note_uncopied(requests)

    def has_room(self, size: int) -> bool:
        """Whether the queue has room for a payload of so many bytes; never while the disk is full."""
        return self._full_since is None and self._intake.has_room(size)

    @property
    def ledger(self) -> Ledger:
        """The counts of requests, and the positions in followed files."""
        return self._intake.ledger

    @property
    def state(self) -> Path:
        """The folder of what is not sealed yet, which only its owner can enter."""
        return self.folder / STATE

    def counts(self) -> RecorderCounts:
        """What was done so far."""
        counts, totals, intake = self._feeder.counts(), self._totals, self._intake
        received = {name: getattr(intake.ledger, name) - self._before[name] for name in RECEIVED}
        return RecorderCounts(
            **received, digested=counts.get("requests", 0),
            **{name: counts.get(name, 0) for name in DIGESTED},
            lost=totals.lost, waiting=len(intake), waiting_bytes=intake.waiting_bytes,
            waiting_limit_bytes=intake.max_bytes, sealed=totals.sealed, failed=totals.failed,
            restarts=self._feeder.restarts, last_sealed_s=totals.last_sealed_s, proxy=asdict(self.proxy),
            reasons=counts.get("reasons", {}), failing=self.supervisor.failing(), failures=self.supervisor.failures(),
        )  # fmt: skip

    def problem(self) -> str | None:
        """Why the recorder is not healthy, such as "failing: sealer"; None if it is healthy."""
        return self.supervisor.problem()

    def close(self, *, failed: bool = False) -> None:
        """Digest what waits, seal the last window, and end. A second call does nothing.

        A recorder that `failed` before the first request leaves nothing that was not there.
        """
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._windows.join()
        self._intake.close({"finish": True})
        has_ended = self._feeder.end()
        self._sealer.end()
        self._count_unwritten()
        if not (has_ended or self._totals.failed):
            self._totals.failed += 1
            self._say(f"{self._name}: not sealed: {UNFINISHED}")
        if failed and self._intake.ledger.accepted == self._before["accepted"]:
            self._undo()
        os.close(self._lock)

    def shortfall(self) -> str | None:
        """What a recorder that has ended could not record or seal, and what to do; None if nothing.

        Requests that found the queue full count only if the disk was full.
        """
        self._note_full(is_full=False)
        lost, failed = self._totals.lost - self._earlier_lost + self._dropped_full, self.counts().failed
        missing = f"{_lost(lost)} The messages above say why. " if lost else ""
        if failed:
            windows = "1 window was" if failed == 1 else f"{failed:,} windows were"
            again = f"Remove the cause, and run the command again: it seals what is left in {self.folder}."
            return f"{missing}{windows} not sealed. {again}"
        if not (lost or self._gave_up):
            return None
        missing = missing or "the disk was full to the end. "
        return f"{missing}Remove the cause, and run the command again: it goes on in {self.folder}."

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)

    def _undo(self) -> None:
        """Delete what this recorder has made of the folder of open windows, unless a window is in it."""
        with suppress(OSError, UsageError), own_folder(self.state, make=False) as state:
            names = set(state.names()) - (self._found or set())
            if any(name.endswith(SUFFIX) for name in names):
                return
            for name in names:
                state.unlink(name)
            remove_folders(([] if self._found is not None else [os.fspath(self.state)]) + self._made)

    def _locked(self) -> int:
        state = self.state
        try:
            self._made, is_new = make_folders(self.folder), not os.path.lexists(state)
        except OSError as error:
            raise unwritable(self.folder, error) from None
        try:
            with own_folder(state) as opened:
                self._found = None if is_new else set(opened.names())
        except BaseException:
            remove_folders(self._made)
            raise
        with named_errors(state):  # refuses a file that others planted at once, without a wait for its lock
            os.close(open_own(state / "lock", private=True, remedy=MOVE))
        until = time.monotonic() + WAIT_LOCK_S
        while True:
            try:
                return locked_file(
                    os.fspath(state / "lock"), busy=BUSY.replace("{path}", str(self.folder)),
                    remedy=MOVE, private=True,
                    unlockable="{path}: cannot be locked ({fault}). Choose another file system.",
                )  # fmt: skip
            except UsageError:
                if time.monotonic() > until:
                    raise

    def _start(self, queue_bytes: int) -> None:
        ledger = Ledger(self.state / "counts")
        self._before = {name: getattr(ledger, name) for name in RECEIVED}  # by earlier recorders
        self._intake, self._kept_lines = Intake(queue_bytes, ledger=ledger, can_return=True), 0
        settings = {"options": self._settings.encoding.to_message(), "sink": {"kind": "window"}}
        self._feeder = Feeder(
            self._intake, settings, on_report=self._on_report, supervisor=self.supervisor,
            lost="; what it had not digested is lost.", keep=(self._lock,),
        )  # fmt: skip
        self._sealer = Sealer(self.folder, self.supervisor, on_sealed=self._on_sealed)
        self._begin(self._leftovers())
        self._feeder.start()
        self._windows = self.supervisor.part("windows")
        self._windows.start(self._end_windows, self._stopping.is_set)

    def _leftovers(self) -> Window | None:
        """Seal the windows that earlier recorders left; returns the one that this recorder goes on with, if any."""
        continued, ledger = None, self._intake.ledger
        for path in open_windows(self.folder):
            try:
                window = read_window(path)
            except (InputError, UsageError) as error:  # it stays where it is, and hinders no other window
                self._on_unsealed(Sealed(path.stem, [], error=str(error)))
                continue
            if window is None:
                remove_window(path)
                continue
            if window.ending is None:
                goes_on = self._settings.continues(window, self._clock())
                lost = window.lost(ledger.accepted)
                self._lose(window.name, lost)
                self._say_stopped(window.name, lost, " It goes on." if goes_on else "")
                ledger.ended = ledger.accepted
                if goes_on:
                    continued = window
                    continue
                WindowFile(path, window.header, window).finish(accepted=ledger.accepted, dropped=ledger.dropped)
            else:
                self._lose(window.name, window.lost(window.ending["accepted"]))
                ledger.ended = max(ledger.ended, min(window.ending["accepted"], ledger.accepted))
            self._sealer.seal(path)
        if ledger.ended < ledger.accepted:  # a kill came between two windows
            self._totals.lost += ledger.accepted - ledger.ended
            self._say(f"the recorder stopped before a window began; {_lost(ledger.accepted - ledger.ended)}")
            ledger.ended = ledger.accepted
        self._earlier_lost = self._totals.lost
        return continued

    def _on_unsealed(self, result: Sealed) -> None:
        self._on_sealed(result)
        self._say(sentence_of(result) or "")

    def _lose(self, name: str, requests: int) -> None:
        self._totals.lost += requests - self._known_lost.get(name, 0)
        self._known_lost[name] = requests

    def _say_stopped(self, name: str, lost: int, then: str = "") -> None:
        self._say(f"{name}: the recorder stopped before the window ended; {_lost(lost)}{then}")

    def _count_unwritten(self) -> None:
        """Count what is missing in windows that are not sealed, and in one that had no room to begin."""
        if self._gave_up and not self._feeder.restarts:  # a digester that died lost requests in the middle
            self._intake.give_back()
        ledger = self._intake.ledger
        for window in filter(None, map(_readable, open_windows(self.folder))):
            lost = window.lost(ledger.accepted if window.ending is None else window.ending["accepted"])
            self._lose(window.name, lost)
            if window.ending is None:
                self._totals.failed += 1
                self._say_stopped(window.name, lost)
                return
        self._totals.lost += ledger.accepted - ledger.ended
        ledger.ended = ledger.accepted

    def _note_full(self, *, is_full: bool) -> None:
        """Count what a full queue drops while the disk is full."""
        dropped = self._intake.ledger.dropped
        if self._full_since is not None:
            self._dropped_full += dropped - self._full_since
        self._full_since = dropped if is_full else None

    def _begin(self, continued: Window | None = None) -> None:
        """Begin the first window, or go on with the one that an earlier recorder left."""
        now = self._clock()
        if continued is None:
            self._name, self._until = free_name(self.folder, now), end_of_window(now, self._window_s)
        else:
            self._name, self._until = continued.name, continued.header["until"]
        self._intake.mark(self._beginning(self._name, self._until, continues=continued is not None))

    def _end_windows(self) -> None:
        """End each window at its time, and begin the next one."""
        while not self._stopping.wait(min(1.0, max(0.0, self._until - self._clock()))):
            now = self._clock()
            if now >= self._until:
                name, until = free_name(self.folder, now), end_of_window(now, self._window_s)
                self._intake.mark({"finish": True, **self._beginning(name, until, continues=False)})
                self._name, self._until = name, until
            self._windows.works()

    def _beginning(self, name: str, until: float, *, continues: bool) -> dict[str, Any]:
        """The message that begins a window; nothing else holds its key."""
        key, path = self._settings.key(name), self.state / f"{name}{SUFFIX}"
        header = self._settings.header(name, until, key)
        return {"path": os.fspath(path), "continues": continues, "key": key.reveal(), "begin": header}

    def _on_report(self, report: dict[str, Any]) -> None:
        self._gave_up = self._gave_up or report.get("gave_up", False)
        lines = report.get("counts", {}).get("lines", self._kept_lines)
        self._intake.keep(lines - self._kept_lines if lines >= self._kept_lines else lines)
        self._kept_lines = lines
        if "full" in report or "begun" in report:
            self._note_full(is_full=report.get("full", False))
        if path := report.get("finished"):
            self._intake.ledger.ended = report["accepted"]
            self._sealer.seal(Path(path))

    def _on_sealed(self, result: Sealed) -> None:
        self._totals.sealed += result.error is None and bool(result.files)
        self._totals.failed += result.error is not None
        if result.error is None:
            self._totals.last_sealed_s = self._clock()
            self._lose(result.name, max(result.lost, self._known_lost.get(result.name, 0)))
            del self._known_lost[result.name]


def _readable(path: Path) -> Window | None:
    """The window of a file; None if it has none, or is damaged."""
    try:
        return read_window(path)
    except KvtraceError:
        return None


def _lost(requests: int) -> str:
    return {0: "no request was lost.", 1: "1 request was lost."}.get(requests, f"{requests:,} requests were lost.")


def _share(share: float) -> float:
    if not 0 < share <= 1:
        raise UsageError(f"--sample-sessions is {share:g}; it must be above 0 and at most 1.")
    return share
