"""The checkpoint of a run that can be resumed: a file beside its output that holds the finished batches.

    header   one line of JSON: versions, a check value of the key, the settings that batches depend on, the inputs
    frames   one a batch, in input order: length and CRC-32 of the batch, then the batch (batch_codec.py)

Batches are a pure function of inputs, settings and key. A resumed run therefore writes the same bytes as an undisturbed
one. The file holds keyed digests, lengths and times, but neither text nor the key, and only its owner can read it. A
frame that a kill left incomplete fails its CRC and is cut off.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, BinaryIO

from .. import __version__
from .._base.errors import InputError, KvtraceError, UsageError
from .._base.files import is_regular
from .._base.output_files import append_whole, named_errors, remove_stale, unwritable
from .batch_codec import packed, unpacked
from .encoding import Batch, Encoder
from .keys import Key
from .logs import sources

FORMAT = 2
MAGIC = b'{"kvtrace_checkpoint": '  # the first bytes of each checkpoint
FRAME_HEADER = struct.Struct("<QI")  # bytes of a batch, and their CRC-32
SYNC_FRAMES = 16  # frames between two fsyncs: a power cut loses at most so many batches
LOCK_TIMEOUT_S = 2.0  # workers of a killed run may hold the lock for a moment
CONTINUES = "finished work is saved: continue with --resume."
STARTS = "no work was finished: --resume starts from the beginning."


class Checkpoint:
    """A file of finished batches. It is deleted if the `with` block ends without an error, and kept otherwise.

    Enter it before any work, call `begin` when the settings are known, read the saved `batches`, and `append` new ones.
    The file is locked while it is open.

    Args:
        resume: continue the checkpoint of an earlier run. Without it, an existing checkpoint is a UsageError.
        outputs: the files that the run writes. Their temporary files, if a killed run left some, are removed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Checkpoint(f"{folder}/day.jsonl.resume") as checkpoint:
    ...         print(os.listdir(folder))
    ...     print(os.listdir(folder))
    ['day.jsonl.resume']
    []
    """

    def __init__(self, path: str | os.PathLike, *, resume: bool = False, outputs=()):
        self.path, self._resume, self._outputs = os.fspath(path), resume, outputs
        self._handle = -1
        self._earlier: dict | None = None  # the header of an earlier run
        self._is_ours = False  # the file belongs to this run, or its settings match
        self._start = self._end = 0  # bytes: start of the first frame, end of the last complete one
        self._frames = 0  # frames read or appended

    def __enter__(self) -> Checkpoint:
        self._handle = _locked(self.path)
        try:
            self._earlier, self._start = _header(self._handle, self.path)
            self._is_ours, self._end = self._earlier is None, self._start
            if self._earlier is not None and not self._resume:
                raise UsageError(
                    f"{self.path}: the checkpoint of an unfinished run exists. Continue it with --resume, or delete it "
                    "to start over."
                )
        except BaseException:
            os.close(self._handle)
            raise
        for output in self._outputs if self._resume else ():
            remove_stale(output)
        return self

    def begin(self, encoder: Encoder, inputs: list[sources.LogSource]) -> None:
        """Record what the batches depend on: the encoder's settings, its key, and the inputs.

        Raises:
            UsageError: the checkpoint was made with other options; the message names them.
            InputError: an input has changed since.
        """
        key, settings = encoder.recipe.key, settings_of(encoder)
        header = {
            "kvtrace_checkpoint": FORMAT,
            "version": __version__,
            "columns": [field.name for field in fields(Batch)],
            "key": key.subkey("resume check").hex(),
            "settings": {
                name: key.subkey(f"resume setting {name}={value!r}").hex() for name, value in settings.items()
            },
            "inputs": [_identity(source, key) for source in inputs],
        }
        if self._earlier is not None:
            self._require_same(header, inputs)
        else:
            line = json.dumps(header).encode() + b"\n"
            with named_errors(self.path):
                os.ftruncate(self._handle, 0)
            self._write(line)
            self._start = len(line)
        self._is_ours = True

    def batches(self) -> Iterator[Batch]:
        """The saved batches, in input order. An incomplete last one is cut off."""
        with open(self._handle, "rb", closefd=False) as file:
            file.seek(self._start)
            while (data := _payload(file, os.fstat(self._handle).st_size - self._end)) is not None:
                self._end += FRAME_HEADER.size + len(data)
                self._frames += 1
                yield unpacked(data)
        with named_errors(self.path):
            os.ftruncate(self._handle, self._end)

    def append(self, batch: Batch) -> None:
        """Save the next batch. StoppedError if the disk is full; earlier batches stay intact."""
        data = packed(batch)
        self._write(FRAME_HEADER.pack(len(data), zlib.crc32(data)) + data)
        self._frames += 1
        if self._frames % SYNC_FRAMES == 0:
            with named_errors(self.path):
                os.fsync(self._handle)

    def __exit__(self, _kind, error, _traceback) -> None:
        holds_work = os.fstat(self._handle).st_size > self._start > 0
        try:
            if self._is_ours and (error is None or not holds_work):
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            elif self._is_ours:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                error.add_note(CONTINUES)
            if not (error is None or holds_work or isinstance(error, Exception)):
                error.add_note(STARTS)  # a signal came before the first batch was saved
        finally:
            os.close(self._handle)

    def _require_same(self, header, inputs) -> None:
        earlier: dict = self._earlier or {}
        start_over = f"Or delete {self.path} to start over."
        if any(earlier.get(name) != header[name] for name in ("kvtrace_checkpoint", "version", "columns")):
            raise UsageError(f"{self.path}: made by another version of kvtrace. Use that version. {start_over}")
        if earlier.get("key") != header["key"]:
            raise UsageError(f"{self.path}: made with another key. Use the same --key-file. {start_over}")
        before, now = earlier.get("settings", {}), header["settings"]
        if changed := sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
            raise UsageError(f"{self.path}: made with another {', '.join(changed)}. Use the same options. {start_over}")
        before, now = earlier.get("inputs", []), header["inputs"]
        if [path for path, *_ in before] != [path for path, *_ in now]:
            raise InputError(
                f"{self.path}: made with other inputs, or in another order. Use the same inputs. {start_over}"
            )
        for source, identity_before, identity_now in zip(inputs, before, now, strict=True):
            if identity_before != identity_now:
                raise InputError(
                    f"{source.path}: has changed since the interrupted run. Delete {self.path} to start over."
                )

    def _write(self, data: bytes) -> None:
        """Append all of the bytes, or none."""
        self._end = append_whole(self._handle, data, self._end, self.path)


def path_beside(output: str | os.PathLike) -> str:
    """The path of the checkpoint of an output.

    >>> path_beside("day.jsonl")
    'day.jsonl.resume'
    """
    return f"{os.fspath(output)}.resume"


def why_not_resumable(inputs, output: str | os.PathLike, key_file: str | os.PathLike | None) -> str | None:
    """The reason why a run cannot be resumed, or None.

    >>> why_not_resumable("-", "day.jsonl", "day.key")
    '--resume requires files as inputs: stdin and pipes cannot be read twice.'
    """
    if key_file is None:
        return "--resume requires --key-file: finished batches can only be reused under the same key."
    if not is_regular(str(output)):
        return "--resume requires a file as output: stdout, pipes and devices cannot be rewritten."
    if any(source.form is None for source in sources.find(inputs)):
        return "--resume requires files as inputs: stdin and pipes cannot be read twice."
    if importlib.util.find_spec("fcntl") is None:
        return "--resume requires file locks, which this system does not have."
    return None


def settings_of(encoder: Encoder) -> dict[str, Any]:
    """Option -> value, for all settings that the batches depend on, beside the inputs and the key.

    Later steps (profile, sample, format), the number of workers and the handling of bad rows do not matter: a batch
    with a bad row is saved only if the row was skipped.
    """
    recipe = encoder.recipe
    settings = {field.name: getattr(part, field.name) for part in (recipe.reader, recipe) for field in fields(part)}
    for name in ("reader", "key", "stop_at_error", "name_detected", "unit_detected"):
        del settings[name]
    settings["tokenizer"] = encoder.tokenizer and encoder.tokenizer.sha256
    settings["chat_template"] = encoder.template and encoder.template.sha256
    settings["piece_bytes"] = sources.PIECE_BYTES
    return {f"--{OPTIONS.get(name, name).replace('_', '-')}": value for name, value in settings.items()}


OPTIONS = {
    "name": "log_format", "unit": "time_unit", "fields": "map", "columns": "heading", "untimed": "arrivals",
    "use_template": "no_chat_template", "by_tenant": "tenant_field",
}  # fmt: skip


def _identity(source: sources.LogSource, key: Key) -> list:
    """The identity of an input: a keyed digest of its path, its size, its time of change."""
    try:
        about = os.stat(source.path)
    except OSError as error:
        raise InputError(f"{source.path}: cannot be read: {error.strerror}.") from None
    return [key.subkey(f"resume input {source.path}").hex(), about.st_size, about.st_mtime_ns]


def _locked(path) -> int:
    """Open the file, or create it, and lock it for this run."""
    import fcntl  # missing on some systems, which then have no checkpoints

    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle  # else the run that held the lock has finished and deleted the file
            fault = None
        except OSError as error:
            fault = error
        os.close(handle)
        if fault and not isinstance(fault, BlockingIOError):
            raise KvtraceError(f"{path}: cannot be locked ({fault.strerror}). Write to another file system.")
        if fault and time.monotonic() > deadline:
            raise UsageError(f"{path}: another run is writing this output. Wait for it, or choose another output.")
        time.sleep(0.02)


def _opened(path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise unwritable(path, error) from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or (about.st_size and about.st_mode & 0o077):
        os.close(handle)
        raise UsageError(
            f"{path}: not a checkpoint: it is not a regular file, or other users can read or write it. Choose another "
            "output."
        )
    return handle


def _header(handle: int, path) -> tuple[dict | None, int]:
    """The header of an earlier run, and the start of its frames; None and 0 if the header is incomplete."""
    with open(handle, "rb", closefd=False) as file:
        line = file.readline()
    if not (line.startswith(MAGIC) or MAGIC.startswith(line)):
        raise UsageError(f"{path}: not a checkpoint, but the run needs this file name. Choose another output.")
    if not line.endswith(b"\n"):
        return None, 0  # killed while writing the header
    header = None
    with contextlib.suppress(ValueError):
        header = json.loads(line)
    if not isinstance(header, dict):
        raise UsageError(f"{path}: the checkpoint is damaged. Delete it to start over.")
    return header, len(line)


def _payload(file: BinaryIO, remaining: int) -> bytes | None:
    """The bytes of the next batch; None at the end of the file and if the frame is incomplete or damaged."""
    header = file.read(FRAME_HEADER.size)
    if len(header) < FRAME_HEADER.size:
        return None
    size, check = FRAME_HEADER.unpack(header)
    data = file.read(size) if 0 < size <= remaining else b""  # a power cut leaves zeros, and the CRC of b"" is 0
    return data if data and len(data) == size and zlib.crc32(data) == check else None
