"""Windows of a recorder: the file of an open one, when it ends, its name, and the settings that all have in common.

The file of an open window holds keyed digests, lengths and times of its requests, until it is sealed:

    header   one line of JSON: the window, its release settings, a check value of its key
    frames   kind, length and checksum, then the data:
             SOURCE   how the requests of a source are read and hashed
             BATCH    the requests that a batch answers for, and the batch (`packed` in ingest/checkpoint.py)
             END      the requests accepted and dropped when the window ended

The file has neither text nor the key, and only its owner can read it. A kill may leave an incomplete frame at its end,
which readers leave out.
"""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from .._base.checkpoint import parsed
from .._base.errors import InputError, KvtraceError, UsageError, named_errors, unwritable
from .._base.input_files import unreadable
from .._base.output_files import append_whole
from .._base.own_files import MOVE, open_own, own_folder
from ..formats.sidecar import is_deep
from ..ingest.checkpoint import MALFORMED, consistent, packed, unpacked
from ..ingest.encoding import Batch
from ..ingest.keys import KEY_BYTES, Key
from ..privacy.profiles import profile_of
from ..trace.columns import TAILS
from ..trace.invariants import require_block_size
from .encoders import LiveEncoding

SUFFIX = ".window"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")  # of traces
FORMAT = 1
DIGEST_BYTES = 16
FRAME = struct.Struct(f"<cQ{DIGEST_BYTES}s")
COVERED = struct.Struct("<QQ")  # requests that a batch answers for, and those of them whose payload was not valid
SOURCE, BATCH, END = b"S", b"B", b"E"


class WindowFile:
    """Appends to the file of a window. `path` must not exist, unless `earlier` is what `read_window` found there."""

    def __init__(self, path: str | Path, header: dict[str, Any], earlier: Window | None = None):
        self.path = os.fspath(path)
        self._sources = {} if earlier is None else dict(earlier.sources)
        flags = os.O_RDWR if earlier else os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            self._handle = open_own(self.path, flags, private=True, remedy=MOVE)
        except OSError as error:
            raise unwritable(self.path, error) from None
        self._end = 0
        if earlier is None:
            try:
                self._append(json.dumps({"kvtrace_window": FORMAT, **header}).encode() + b"\n")
                self.sync()
            except BaseException:  # a full disk: no file without a header stays
                os.close(self._handle)
                os.unlink(self.path)
                raise
        else:
            self._end = earlier.end
            with named_errors(self.path):
                os.ftruncate(self._handle, self._end)

    def source(self, name: str, description: dict[str, Any]) -> None:
        """Record how the requests of a source are read and hashed; the first call for a source counts."""
        if name not in self._sources:
            self._frame(SOURCE, json.dumps({"source": name, **description}).encode())
            self._sources[name] = description

    @property
    def first_source(self) -> dict[str, Any] | None:
        """How the requests of the first source are read and hashed; None before the first request."""
        return next(iter(self._sources.values()), None)

    def batch(self, *batches: Batch, covered: int, malformed: int = 0) -> None:
        """Append batches, all or none. StoppedError if the disk is full; earlier ones stay intact."""
        counts = [(covered, malformed)] + [(0, 0)] * (len(batches) - 1)
        pieces = (COVERED.pack(*pair) + packed(batch) for pair, batch in zip(counts, batches, strict=True))
        self._append(b"".join(_framed(BATCH, data) for data in pieces))

    def finish(self, *, accepted: int, dropped: int) -> None:
        """Append the counts at the end of the window, and close the file."""
        self._frame(END, json.dumps({"accepted": accepted, "dropped": dropped}).encode())
        self.close()

    def sync(self) -> None:
        """Flush the file to the disk."""
        with named_errors(self.path):
            os.fsync(self._handle)

    def close(self) -> None:
        """Flush and close the file."""
        if self._handle >= 0:
            self.sync()
            os.close(self._handle)
            self._handle = -1

    def _frame(self, kind: bytes, data: bytes) -> None:
        self._append(_framed(kind, data))

    def _append(self, data: bytes) -> None:
        self._end = append_whole(self._handle, data, self._end, self.path)


@dataclass(frozen=True)
class Window:
    """What a window's file holds, apart from its batches."""

    path: str
    header: dict[str, Any]
    sources: dict[str, dict[str, Any]]  # name -> how its requests are read and hashed
    covered: int  # requests that the batches answer for
    malformed: int  # those of them whose payload was not valid
    ending: dict[str, int] | None  # requests accepted and dropped when the window ended; None if it was interrupted
    end: int  # bytes up to the last complete frame
    size: int  # bytes of the file

    @property
    def name(self) -> str:
        """The name of the window, from its start: `window-20261123T100000Z`."""
        return self.header["name"]

    def lost(self, accepted: int) -> int:
        """The requests that were accepted, but not digested, if `accepted` is the count at the window's end."""
        return max(0, accepted - self.header["accepted"] - self.covered)

    def batches(self) -> Iterator[Batch]:
        """The batches, in order.

        Raises:
            InputError: One of them is damaged.
        """
        with _opened(self.path) as file:
            file.readline()
            for kind, data in _frames(file, self.end):
                if kind == BATCH:
                    with _named_damage(self.path):
                        yield consistent(unpacked(data[COVERED.size :]))


def read_window(path: str | Path) -> Window | None:
    """Read a window's file; None if it has no complete header, as a kill leaves it that came while it was made.

    Raises:
        InputError: it is not the file of a window, of another version, or damaged.
        UsageError: another user could have put it there (`open_own`).
    """
    with _opened(path) as file:
        size, line = os.fstat(file.fileno()).st_size, file.readline(MAX_HEADER)
        if not line.endswith(b"\n") and len(line) < MAX_HEADER:
            return None
        header = _header(line, path)
        sources, covered, malformed, ending, end = {}, 0, 0, None, file.tell()
        with _named_damage(path):
            for kind, data in _frames(file, size):
                if kind == SOURCE:
                    description = parsed(data)
                    sources[description.pop("source", None)] = _required(description, DESCRIPTION)
                elif kind == BATCH:
                    requests, bad = COVERED.unpack_from(data)
                    covered, malformed = covered + requests, malformed + bad
                elif kind == END:
                    ending = _required(parsed(data), ENDING)
                end = file.tell()
            _require_names(sources)
    return Window(os.fspath(path), header, sources, covered, malformed, ending, end, size)


def remove_window(path: str | Path) -> None:
    """Delete a window's file, in the folder of open windows that is this user's alone."""
    place, base = os.path.split(path)
    with own_folder(place, make=False) as folder, suppress(FileNotFoundError):
        folder.unlink(base)


MAX_HEADER = 1 << 20  # bytes
Rules = dict[str, Callable[[Any], bool]]  # key -> whether its value is valid


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 64


def _is_bool(value: Any) -> bool:
    return type(value) is bool


def _is_digest(value: Any) -> bool:
    return type(value) is str and len(value) == 2 * KEY_BYTES


def _is_meta(log: Any, hash: Any, session_mode: Any, rendering: Any = None, **models: Any) -> bool:
    """Whether these are the sections of `ingest.preparation.provenance`."""
    sections, texts = [log, *models.values()], [hash, session_mode]
    if rendering is not None:
        sections, texts = [*sections, rendering], [*texts, rendering["engine"]]
    return (
        models.keys() <= {"tokenizer", "chat_template"} and all(type(text) is str for text in texts)
        and all(section is None or type(section) is dict for section in sections) and log is not None
        and (rendering is None or _is_count(rendering["version"])) and not is_deep(sections)
    )  # fmt: skip


ENDING: Rules = {"accepted": _is_count, "dropped": _is_count}
HEADER: Rules = {
    **ENDING, "until": lambda value: type(value) in (int, float) and 0 <= value < MAX_TIME_S,
    "suffix": lambda value: value in SUFFIXES, "linked": _is_bool, "profile": lambda value: bool(profile_of(value)),
    "session_share": lambda value: type(value) in (int, float) and 0 < value <= 1,
    "isolate_tenants": _is_bool, "key": _is_digest, "options": _is_digest,
}  # fmt: skip
DESCRIPTION: Rules = {
    "meta": lambda value: _is_meta(**value),
    "block_size": lambda value: require_block_size(value) > 0, "tail": lambda value: value in TAILS,
    "outputs": _is_bool, "holds_hashes": _is_bool,
}  # fmt: skip


def _required(values: dict[str, Any], rules: Rules) -> dict[str, Any]:
    """The values; ValueError if one is missing or not valid."""
    if not all(is_valid(values[name]) for name, is_valid in rules.items()):
        raise ValueError("a value is not valid")
    return values


def _require_names(sources: dict[str, Any]) -> None:
    """ValueError unless they are names of sources, with blocks of one form."""
    forms = {(source["block_size"], source["tail"], source["outputs"]) for source in sources.values()}
    if not all(type(name) is str for name in sources) or len(forms) > 1:
        raise ValueError("not sources of one window")


def _header(line: bytes, path: str | Path) -> dict[str, Any]:
    header = parsed(line)
    if header.get("kvtrace_window") != FORMAT:
        raise InputError(f"{path}: not the file of a window of this version of kvtrace. Move it away.")
    with _named_damage(path):
        if header.get("name") != Path(path).stem:  # it names the trace
            raise ValueError("another window's file")
        return _required(header, HEADER)


def _opened(path: str | Path) -> BinaryIO:
    try:
        return open(open_own(path, os.O_RDONLY, private=True, remedy=MOVE), "rb")
    except OSError as error:
        raise unreadable(path, error) from None


@contextmanager
def _named_damage(path: str | Path) -> Iterator[None]:
    """Turn what damaged values cause into an error with the name of the file, and without content."""
    try:
        yield
        return
    except (KvtraceError, *MALFORMED):
        pass
    raise InputError(f"{path}: the file is damaged. Move it away.")


def _frames(file: BinaryIO, size: int) -> Iterator[tuple[bytes, bytes]]:
    """The complete frames from the file's position on."""
    while True:
        head = file.read(FRAME.size)
        if len(head) < FRAME.size:
            return
        kind, length, checksum = FRAME.unpack(head)
        data = file.read(length) if length <= size - file.tell() else b""
        if len(data) < length or _checksum(kind, data) != checksum:
            return
        yield kind, data


def _framed(kind: bytes, data: bytes) -> bytes:
    return FRAME.pack(kind, len(data), _checksum(kind, data)) + data


def _checksum(kind: bytes, data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES, person=kind).digest()


STATE = ".recording"  # the folder of open windows, inside the folder of sealed ones
MAX_TIME_S = 1e11  # since 1970
MIN_WINDOW_S = 1.0
MAX_WINDOW_S = 366 * 86400.0


def require_window(seconds: float) -> float:
    """The length of a window; UsageError if it is not between a second and a year."""
    if not MIN_WINDOW_S <= seconds <= MAX_WINDOW_S:
        raise UsageError("--window must be at least 1s and at most 366d.")
    return seconds


def end_of_window(now_s: float, window_s: float) -> float:
    """When the window of this moment ends: at a whole multiple of its length since 1970, in UTC.

    >>> end_of_window(7_300.0, 3600.0)
    10800.0
    """
    return (now_s // window_s + 1) * window_s


def window_name(start_s: float) -> str:
    """The name of a window, from its start.

    >>> window_name(1_795_428_000.0)
    'window-20261123T100000Z'
    """
    return time.strftime("window-%Y%m%dT%H%M%SZ", time.gmtime(start_s))


def free_name(folder: Path, start_s: float) -> str:
    """A name of a window that no file in the folder has: a number is added to a name that is taken."""
    taken = {name.split(".")[0] for place in (folder, folder / STATE) for name in os.listdir(place)}
    base = name = window_name(start_s)
    number = 1
    while name in taken:
        number += 1
        name = f"{base}-{number}"
    return name


def open_windows(folder: Path) -> list[Path]:
    """The files of windows that are not sealed, oldest first."""
    return sorted((folder / STATE).glob(f"*{SUFFIX}"), key=lambda path: (path.lstat().st_mtime_ns, path.name))


@dataclass(frozen=True)
class WindowSettings:
    """How windows are keyed, encoded and released."""

    encoding: LiveEncoding
    base: Key | None = field(repr=False)  # of the keys of all windows; None = each has a random one
    keeps_key: bool  # the user has the key, so that a recorder that starts again can go on
    linked: bool  # one key for all windows
    suffix: str
    session_share: float

    def key(self, name: str) -> Key:
        """The key of a window."""
        if self.base is None:
            return Key.random()
        return self.base if self.linked else Key(self.base.subkey(f"window {name}"))

    def header(self, name: str, until_s: float, key: Key) -> dict[str, Any]:
        """The header of a window's file: what its release depends on, and what a recorder that goes on must have."""
        values = self.encoding.to_message()
        profile = values.pop("profile")
        return {
            "name": name, "until": until_s, "suffix": self.suffix, "linked": self.linked,
            "profile": profile, "session_share": self.session_share,
            "isolate_tenants": self.encoding.options.isolate_tenants, "key": key.subkey("window check").hex(),
            "options": key.subkey(f"options {sorted(values.items())!r}").hex(),
        }  # fmt: skip

    def continues(self, window: Window, now_s: float) -> bool:
        """Whether a recorder with these settings goes on with a window that was interrupted.

        It must have the window's key and its settings, and the window must not have passed.
        """
        if not self.keeps_key or now_s >= window.header["until"]:
            return False
        expected = self.header(window.name, window.header["until"], self.key(window.name))
        return all(window.header.get(name) == value for name, value in json.loads(json.dumps(expected)).items())
