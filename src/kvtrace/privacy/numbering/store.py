"""Arrays in files under one folder, local or on any file system of fsspec. A task writes each file once, atomically."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np

from ..._base.errors import KvtraceError, UsageError
from ..._base.output_files import unwritable

HEAD = struct.Struct("<I")  # size of the JSON that describes the arrays


@dataclass(frozen=True)
class Store:
    """A folder of array files, by its path or URL; only the owner can read them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = Store(folder)
    ...     _ = store.write("ranges/3", {"made_by": "me"}, time=np.array([5, 6, 7]))
    ...     with store.open("ranges/3") as arrays:
    ...         print(arrays["time"], arrays["time", 1:2], arrays.about["made_by"])
    [5 6 7] [6] me
    """

    url: str

    @classmethod
    def at(cls, place: str | os.PathLike, *, resume: bool = False) -> Store:
        """A store in a folder, by its absolute path, or at a URL.

        A run deletes its store in the end, so a folder that is not empty is a UsageError, unless a run is resumed. That
        of an earlier run must belong to this user alone.
        """
        text = os.fspath(place)
        store = cls(text if "://" in text else os.path.abspath(text))
        if resume:
            store._require_own(text)
        elif store._has_content():
            raise UsageError(
                f"{text}: the work folder is not empty, and a run deletes it in the end. Delete it or name a new one."
            )
        return store

    def _require_own(self, text: str) -> None:
        """UsageError if another user owns the folder or can write to it, or it is a link."""
        if not self.is_local or not os.path.lexists(self.url):
            return
        about = os.lstat(self.url)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise UsageError(
                f"{text}: the work folder belongs to another user, or others can write to it. Name a new one."
            )

    def has(self, name: str) -> bool:
        """Whether a file was written."""
        if self.is_local:
            return os.path.isfile(os.path.join(self.url, name))
        files, path = self._remote()
        return files.exists(f"{path}/{name}")

    def _has_content(self) -> bool:
        if self.is_local:
            return os.path.lexists(self.url) and not (os.path.isdir(self.url) and not os.listdir(self.url))
        files, path = self._remote()
        return files.exists(path) and (not files.isdir(path) or bool(files.ls(path)))

    @property
    def is_local(self) -> bool:
        """Whether it is a folder on this machine."""
        return "://" not in self.url

    def write(self, name: str, about: dict[str, Any] | None = None, /, **arrays: np.ndarray) -> int:
        """Write a file of arrays, and JSON values about them; returns its size in bytes. It appears complete."""
        contiguous = {key: np.ascontiguousarray(values) for key, values in arrays.items()}
        places, at = {}, 0
        for key, values in contiguous.items():
            places[key] = {"dtype": values.dtype.str, "shape": values.shape, "at": at}
            at += values.nbytes
        plain = json.dumps({"about": about or {}, "arrays": places}).encode()
        with self._whole(name) as file:
            file.write(HEAD.pack(len(plain)))
            file.write(plain)
            for values in contiguous.values():
                file.write(values.reshape(-1).view(np.uint8).data)
        return HEAD.size + len(plain) + at

    @contextmanager
    def open(self, name: str) -> Iterator[StoredArrays]:
        """The arrays of a file, each read on access."""
        with self._file(name) as file:
            (size,) = HEAD.unpack(file.read(HEAD.size))
            header = json.loads(file.read(size))
            yield StoredArrays(file, header["about"], header["arrays"], HEAD.size + size)

    def remove(self) -> None:
        """Delete the folder with its files."""
        if self.is_local:
            shutil.rmtree(self.url, ignore_errors=True)
        else:
            files, path = self._remote()
            with suppress(FileNotFoundError):
                files.rm(path, recursive=True)

    @contextmanager
    def _whole(self, name: str) -> Iterator[BinaryIO]:
        if not self.is_local:
            files, path = self._remote()
            files.makedirs(f"{path}/{os.path.dirname(name)}", exist_ok=True)
            with files.open(f"{path}/{name}", "wb") as file:  # object stores publish a file on close
                yield file
            return
        path = os.path.join(self.url, name)
        part = f"{path}.{secrets.token_hex(6)}.part"
        try:
            for folder in (self.url, os.path.dirname(path)):  # the mode applies to the last folder of a path only
                os.makedirs(folder, mode=0o700, exist_ok=True)
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                yield file
            os.replace(part, path)
        except OSError as error:
            with suppress(OSError):
                os.unlink(part)
            raise unwritable(self.url, error) from None

    @contextmanager
    def _file(self, name: str) -> Iterator[BinaryIO]:
        try:
            if self.is_local:
                with open(os.path.join(self.url, name), "rb", buffering=0) as file:
                    yield file  # type: ignore[misc]
            else:
                files, path = self._remote()
                with files.open(f"{path}/{name}", "rb") as file:
                    yield file
        except FileNotFoundError:
            raise KvtraceError(f"{self.url}: {name} was deleted during the run.") from None

    def _remote(self):
        try:
            import fsspec
        except ImportError:
            raise UsageError("a work folder with a URL needs fsspec. Try `pip install 'kvtrace[cloud]'`.") from None
        return fsspec.core.url_to_fs(self.url)


@dataclass
class StoredArrays:
    """The content of a file: `arrays["name"]` is an array, `arrays["name", 3:5]` some rows, `about` the JSON values."""

    _file: BinaryIO
    about: dict[str, Any]
    _places: dict[str, dict[str, Any]]
    _start: int

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def __getitem__(self, key: str | tuple[str, slice]) -> np.ndarray:
        name, rows = (key, slice(None)) if isinstance(key, str) else key
        place = self._places[name]
        dtype, (length, *others) = np.dtype(place["dtype"]), place["shape"]
        start, stop, _ = rows.indices(length)
        width = dtype.itemsize * prod(others)
        values = np.empty((max(0, stop - start), *others), dtype=dtype)
        self._file.seek(self._start + place["at"] + start * width)
        _read_into(self._file, values.reshape(-1).view(np.uint8).data)
        return values


def _read_into(file, room: memoryview) -> None:
    done = 0
    while done < len(room):
        count = file.readinto(room[done:])
        if not count:
            raise KvtraceError("a file in the work folder became shorter during the run.")
        done += count
