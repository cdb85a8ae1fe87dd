"""Arrays in files under one folder, local or on any file system of fsspec. A task writes each file once, atomically."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np

from ..._base.errors import KvtraceError, UsageError, unwritable
from ..._base.files import FolderHandle
from ..._base.own_files import make_folders, own_folder, remove_folders

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
    made: tuple[str, ...] = ()  # folders around it that are deleted with it

    @classmethod
    def at(cls, place: str | os.PathLike[str], *, resume: bool = False) -> Store:
        """A store in a folder, by its absolute path, or at a URL.

        A run deletes its store in the end, so a folder that is not empty is a UsageError, unless a run is resumed. A
        folder that exists must belong to this user, and no other may write to it.
        """
        text = os.fspath(place)
        store = cls(text if "://" in text else os.path.abspath(text))
        if not resume and store._has_content():
            raise UsageError(
                f"{text}: the work folder is not empty, and a run deletes it in the end. Delete it or name a new one."
            )
        if store.is_local and os.path.lexists(store.url):
            own_folder(text, make=False).close()
        return cls(store.url, tuple(make_folders(os.path.dirname(store.url)))) if store.is_local else store

    def has(self, name: str) -> bool:
        """Whether a file was written."""
        if self.is_local:
            try:
                with self._folder(name) as (folder, base):
                    return stat.S_ISREG(folder.about(base).st_mode)
            except (OSError, UsageError):
                return False
        files, path = self._remote()
        return files.exists(f"{path}/{name}")

    def _has_content(self) -> bool:
        if self.is_local:
            if os.path.islink(self.url):
                return False  # `own_folder` refuses it
            return os.path.exists(self.url) and not (os.path.isdir(self.url) and not os.listdir(self.url))
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
            remove_folders(list(self.made))
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
        try:
            with self._folder(name, make=True) as (folder, base):
                part = f"{base}.{secrets.token_hex(6)}.part"
                try:
                    with os.fdopen(folder.create(part, 0o600), "wb") as file:
                        yield file
                    folder.replace(part, base)
                except OSError:
                    with suppress(OSError):
                        folder.unlink(part)
                    raise
        except OSError as error:
            raise unwritable(self.url, error) from None

    @contextmanager
    def _file(self, name: str) -> Iterator[BinaryIO]:
        try:
            if self.is_local:
                with self._folder(name) as (folder, base):
                    handle = folder.open(base, os.O_RDONLY)
                with open(handle, "rb", buffering=0) as file:
                    yield file  # type: ignore[misc]
            else:
                files, path = self._remote()
                with files.open(f"{path}/{name}", "rb") as file:
                    yield file
        except FileNotFoundError:
            raise KvtraceError(f"{self.url}: {name} was deleted during the run.") from None

    @contextmanager
    def _folder(self, name: str, make: bool = False) -> Iterator[tuple[FolderHandle, str]]:
        """The folder of a file, opened without following links, and the file's name in it."""
        inner, _, base = name.rpartition("/")
        if make:
            os.makedirs(os.path.dirname(self.url), exist_ok=True)
        with own_folder(self.url, make=make) as root:
            if make and inner:
                root.make_folder(inner)
            with root.folder(inner) if inner else nullcontext(root) as folder:
                yield folder, base

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
    filled = 0
    while filled < len(room):
        count = file.readinto(room[filled:])
        if not count:
            raise KvtraceError("a file in the work folder became shorter during the run.")
        filled += count
