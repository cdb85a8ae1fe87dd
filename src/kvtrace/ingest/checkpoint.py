"""The checkpoint of a run that can be resumed: the batches it has made so far, in a file beside its output.

    header   one line of JSON: versions, a check value of the key, what the batches depend on, and the inputs
    frames   one a batch, in input order: length and CRC-32 of what follows, then the batch (packing.py)

Batches are a pure function of inputs, settings and key, so a run that finds some of them here gives the same bytes as
one that makes them all. The file holds keyed digests, lengths and times: never text, never the key; its owner alone may
read it. What was being written when a run was killed fails its CRC, and is cut off.
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

FORMAT = 1
MARK = b'{"kvtrace_spool": '  # what each begins with
HEAD = struct.Struct("<QI")  # bytes of a batch, and their CRC-32
SYNC = 16  # frames after which the disk is asked to hold them: a power cut costs no more than that many pieces
PATIENCE = 2.0  # seconds that workers of a killed run may take to let go of the lock
GOES_ON, BEGINS = "what was done is kept: --resume goes on.", "nothing was done yet: --resume begins."


class Checkpoint:
    """Keeps the batches of a run until its output has its name: a block that ends well deletes it, any other keeps it.

    Enter it before any work, `begin` it when the settings are known, take what is `kept` and `append` the rest. It is
    locked while it is open. With `resume`, a file that an earlier run left is taken up; else it is a UsageError.
    `outputs` are the files that the run writes: what a killed run left of them under temporary names is removed.

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
        self._found: dict | None = None  # the header that an earlier run wrote
        self._ours = False  # what the file holds is of this run, or fits it
        self._start = self._end = 0  # of the frames, and of those that are whole
        self._frames = 0  # that were taken or appended

    def __enter__(self) -> Checkpoint:
        self._handle = _locked(self.path)
        try:
            self._found, self._start = _header(self._handle, self.path)
            self._ours, self._end = self._found is None, self._start
            if self._found is not None and not self._resume:
                begin_anew = "--resume goes on with it; remove it to begin anew."
                raise UsageError(f"{self.path}: is there: it holds what an unfinished run did. {begin_anew}")
        except BaseException:
            os.close(self._handle)
            raise
        for output in self._outputs if self._resume else ():
            remove_stale(output)
        return self

    def begin(self, encoder: Encoder, inputs: list[sources.Source]) -> None:
        """State what the batches depend on: an encoder's settings, its key, and the inputs.

        Where the file holds those of another run: UsageError, which names the options that differ, or InputError, which
        names the input that has changed.
        """
        key, settings = encoder.recipe.key, settings_of(encoder)
        stated = {
            "kvtrace_spool": FORMAT,
            "version": __version__,
            "columns": [field.name for field in fields(Batch)],
            "key": key.subkey("resume check").hex(),
            "settings": {
                name: key.subkey(f"resume setting {name}={value!r}").hex() for name, value in settings.items()
            },
            "inputs": [_identity(source, key) for source in inputs],
        }
        if self._found is not None:
            self._require_same(stated, inputs)
        else:
            line = json.dumps(stated).encode() + b"\n"
            with named_errors(self.path):
                os.ftruncate(self._handle, 0)
            self._write(line)
            self._start = len(line)
        self._ours = True

    def kept(self) -> Iterator[Batch]:
        """The batches that the file holds, from the first on; a torn last one is cut off."""
        with open(self._handle, "rb", closefd=False) as file:
            file.seek(self._start)
            while (data := _payload(file, os.fstat(self._handle).st_size - self._end)) is not None:
                self._end += HEAD.size + len(data)
                self._frames += 1
                yield unpacked(data)
        with named_errors(self.path):
            os.ftruncate(self._handle, self._end)

    def append(self, batch: Batch) -> None:
        """Keep the next batch. StoppedError where the disk is full; the batches before it stay whole."""
        data = packed(batch)
        self._write(HEAD.pack(len(data), zlib.crc32(data)) + data)
        self._frames += 1
        if self._frames % SYNC == 0:
            with named_errors(self.path):
                os.fsync(self._handle)

    def __exit__(self, _kind, error, _traceback) -> None:
        holds_work = os.fstat(self._handle).st_size > self._start > 0
        try:
            if self._ours and (error is None or not holds_work):
                with contextlib.suppress(OSError):
                    os.unlink(self.path)
            elif self._ours:
                with contextlib.suppress(OSError):
                    os.fsync(self._handle)
                error.add_note(GOES_ON)
            if not (error is None or holds_work or isinstance(error, Exception)):
                error.add_note(BEGINS)  # a signal came before there was anything to keep
        finally:
            os.close(self._handle)

    def _require_same(self, stated, inputs) -> None:
        found: dict = self._found or {}
        anew = f"Remove {self.path} to begin anew."
        if any(found.get(name) != stated[name] for name in ("kvtrace_spool", "version", "columns")):
            raise UsageError(f"{self.path}: another version of kvtrace began it. {anew}")
        if found.get("key") != stated["key"]:
            raise UsageError(f"{self.path}: was begun with another key. Try its --key-file. {anew}")
        before, now = found.get("settings", {}), stated["settings"]
        if others := sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name)):
            raise UsageError(f"{self.path}: was begun with another {', '.join(others)}. {anew}")
        before, now = found.get("inputs", []), stated["inputs"]
        if [path for path, *_ in before] != [path for path, *_ in now]:
            raise InputError(f"{self.path}: was begun with other inputs, or in another order. {anew}")
        for source, was, is_now in zip(inputs, before, now, strict=True):
            if was != is_now:
                raise InputError(f"{source.path}: has changed since the run that is to be resumed began. {anew}")

    def _write(self, data: bytes) -> None:
        """Append the bytes, or leave the file as it was."""
        self._end = append_whole(self._handle, data, self._end, self.path)


def path_beside(output: str | os.PathLike) -> str:
    """Where the checkpoint of an output is.

    >>> path_beside("day.jsonl")
    'day.jsonl.resume'
    """
    return f"{os.fspath(output)}.resume"


def why_not(inputs, output: str | os.PathLike, key_file: str | os.PathLike | None) -> str | None:
    """Why a run can't be resumed; None where it can.

    >>> why_not("-", "day.jsonl", "day.key")
    '--resume needs inputs that are files: stdin and pipes can be read but once.'
    """
    if key_file is None:
        return (
            "--resume needs --key-file: a key that no file holds ended with its run, and under another one nothing "
            "that was done would fit the rest."
        )
    if not is_regular(str(output)):
        return "--resume needs an output that is a file: what was written to stdout, a pipe or a device is gone."
    if any(source.form is None for source in sources.find(inputs)):
        return "--resume needs inputs that are files: stdin and pipes can be read but once."
    if importlib.util.find_spec("fcntl") is None:
        return "--resume needs locks on files, which this system does not have."
    return None


def settings_of(encoder: Encoder) -> dict[str, Any]:
    """What batches depend on beside inputs and key, by the option that states it.

    Not among them: what is done after all batches are there (profiles, samples, formats), how many workers there are,
    and what becomes of bad rows: batches with one are kept only where it was skipped.
    """
    recipe = encoder.recipe
    found = {field.name: getattr(part, field.name) for part in (recipe.reader, recipe) for field in fields(part)}
    for name in ("reader", "key", "stop_at_error", "name_detected", "unit_detected"):
        del found[name]
    found["tokenizer"] = encoder.tokenizer and encoder.tokenizer.sha256
    found["chat_template"] = encoder.template and encoder.template.sha256
    found["piece_bytes"] = sources.PIECE_BYTES
    return {f"--{OPTIONS.get(name, name).replace('_', '-')}": value for name, value in found.items()}


OPTIONS = {
    "name": "log_format", "unit": "time_unit", "fields": "map", "columns": "heading", "untimed": "arrivals",
    "use_template": "no_chat_template", "by_tenant": "tenant_field",
}  # fmt: skip


def _identity(source: sources.Source, key: Key) -> list:
    """What tells whether an input is the one it was: its name, as a keyed digest, its size and when it changed."""
    try:
        about = os.stat(source.path)
    except OSError as error:
        raise InputError(f"{source.path}: can't be read: {error.strerror}.") from None
    return [key.subkey(f"resume input {source.path}").hex(), about.st_size, about.st_mtime_ns]


def _locked(path) -> int:
    """The file, made if missing, open and locked for this run alone."""
    import fcntl  # not every system has it; those that lack it have no spools

    deadline = time.monotonic() + PATIENCE
    while True:
        handle = _opened(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle  # else the run that had the lock ended well, and deleted it
            fault = None
        except OSError as error:
            fault = error
        os.close(handle)
        if fault and not isinstance(fault, BlockingIOError):
            raise KvtraceError(f"{path}: cannot be locked ({fault.strerror}). Write to another file system.")
        if fault and time.monotonic() > deadline:
            raise UsageError(f"{path}: another run is writing this output. Wait for it, or name another output.")
        time.sleep(0.02)


def _opened(path) -> int:
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise unwritable(path, error) from None
    about = os.fstat(handle)
    if not stat.S_ISREG(about.st_mode) or (about.st_size and about.st_mode & 0o077):
        os.close(handle)
        raise UsageError(f"{path}: others may read or write it, or it is no file; a run's own is. Name another output.")
    return handle


def _header(handle: int, path) -> tuple[dict | None, int]:
    """What an earlier run stated, and where its frames begin; None and 0 where it had not got so far."""
    with open(handle, "rb", closefd=False) as file:
        line = file.readline()
    if not (line.startswith(MARK) or MARK.startswith(line)):
        raise UsageError(f"{path}: is no file of kvtrace's, and the run needs this name. Name another output.")
    if not line.endswith(b"\n"):
        return None, 0  # killed before it had stated all
    stated = None
    with contextlib.suppress(ValueError):
        stated = json.loads(line)
    if not isinstance(stated, dict):
        raise UsageError(f"{path}: is damaged. Remove it to begin anew.")
    return stated, len(line)


def _payload(file: BinaryIO, left: int) -> bytes | None:
    """The next frame's batch; None at the end, and where it is torn: shorter than it says, or other bytes."""
    head = file.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    size, check = HEAD.unpack(head)
    data = file.read(size) if 0 < size <= left else b""  # a power cut leaves zeros, and the CRC of nothing is 0
    return data if data and len(data) == size and zlib.crc32(data) == check else None
