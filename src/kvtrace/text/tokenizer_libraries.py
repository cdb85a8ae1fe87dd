"""The two tokenizer libraries, `tokenizers` and `fastokens`, with the same interface.

Behaviour of fastokens 0.3.5 with threads and forks, and what we do about it:

* Loading starts no thread and lets other Python threads run. Therefore it continues in the background after
  `tokenizers.load`, while the caller opens its files. `wait`, the first encoding and a fork wait for it.
* Forked children can use the parent's tokenizer. Loading once before the fork (0.9 s) is faster than loading in each of
  two workers (1.3-1.5 s each, and 100 MB each that are not shared).
* The first encoding starts one helper thread for each core but one. Long texts (16 kB) start a second pool if fastokens
  has no scanner for the tokenizer's splitting pattern. Neither pool survives a fork: of 264 children forked right after
  an encoding, 14 waited forever on a lock of the first pool; with the second pool all of them did. Therefore a child of
  a process that has encoded uses the reference. FASTOKENS_BPE_THREADS=1, set before the first encoding, prevents the
  first pool; RAYON_NUM_THREADS=1 does not prevent the second.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import weakref
from contextlib import suppress
from functools import cache
from typing import Any, Self

import numpy as np

from .._base.arrays import offsets_of
from .._base.errors import InputError
from . import preload, trial
from .tokenizer_files import TokenizerFiles


def raise_unless_failure(error: BaseException) -> None:
    """Raise the error again unless it is a failure of the library: an Exception or a Rust panic."""
    if isinstance(error, MemoryError | InputError) or not (is_panic(error) or isinstance(error, Exception)):
        raise error


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Rust code, which is a BaseException."""
    return type(error).__name__ == "PanicException"


class Library:
    """A tokenizer in one library, loaded in the background or when it is first needed."""

    module: str

    def __init__(self, files: TokenizerFiles):
        self._files = files
        self._loaded: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Load in the background."""
        # not a daemon thread: the interpreter can crash if it exits while one runs foreign code
        self._thread = threading.Thread(target=self._try_to_load, name="kvtrace-tokenizer")
        _LOADING.add(self)
        self._thread.start()

    def ready(self) -> Self:
        """Wait until the tokenizer is loaded; InputError if the library cannot read it."""
        if (thread := self._thread) is not None:
            thread.join()
            self._thread = None
        if self._loaded is None:
            with trial.panics_hidden():
                self._loaded = self._load()
        return self

    def usable(self) -> bool:
        """Whether this process can encode with the library."""
        return True

    def can_fork(self) -> bool:
        """Whether forked children can use the loaded tokenizer."""
        return True

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, end to end, and their offsets."""
        raise NotImplementedError

    def _try_to_load(self):
        with suppress(InputError):  # `ready` loads again and reports it
            self._loaded = self._load()

    def _load(self):
        try:
            loaded = self._open(str(self._files.tokenizer))
            loaded.no_truncation()  # some files enable both; only training needs them
            loaded.no_padding()
            self._add_tokens(loaded)
            return loaded
        except BaseException as error:
            raise_unless_failure(error)
            reason = re.sub(r' ("[^"]*"|`\w[^`]*`)', "", str(error).partition("\n")[0])[
                :200
            ]  # without the file's texts
        raise InputError(f"{self._files.tokenizer}: {self.module} cannot read this tokenizer: {reason.rstrip('.')}.")

    def _open(self, path: str) -> Any:
        raise NotImplementedError

    def _add_tokens(self, loaded):
        """Add the control tokens of tokenizer_config.json that tokenizer.json lacks (in older repositories)."""
        if declared := self._files.added_tokens:
            import tokenizers

            present_tokens = self._known_tokens(loaded)
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            loaded.add_tokens([
                tokenizers.AddedToken(row["content"], **{flag: bool(row[flag]) for flag in flags if flag in row})
                for row in declared if row["content"] not in present_tokens
            ])  # fmt: skip

    def _known_tokens(self, loaded) -> set[str]:
        raise NotImplementedError


class ReferenceLibrary(Library):
    module = "tokenizers"

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        loaded = self.ready()._loaded
        with trial.panics_hidden():
            rows = loaded.encode_batch_fast(texts, add_special_tokens=False)
        return _flat([row.ids for row in rows])

    def encode_singly(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Like `encode`, without starting threads, so that the caller can still fork."""
        return _flat([self._loaded.encode(text, add_special_tokens=False).ids for text in texts])

    def affixes(self) -> tuple[np.ndarray, np.ndarray]:
        """The control tokens that the tokenizer puts before and after a text, if it is asked to add them."""
        loaded = self.ready()._loaded
        plain, whole = (loaded.encode("a", add_special_tokens=added).ids for added in (False, True))
        start = next((at for at in range(len(whole)) if whole[at : at + len(plain)] == plain), 0)
        return np.array(whole[:start], np.uint32), np.array(whole[start + len(plain) :], np.uint32)

    def control_tokens(self):
        """The texts of the control tokens."""
        return [token.content for token in self._loaded.get_added_tokens_decoder().values()]

    def _open(self, path):
        import tokenizers

        return tokenizers.Tokenizer.from_file(path)

    def _known_tokens(self, loaded):
        return {token.content for token in loaded.get_added_tokens_decoder().values()}


class FastokensLibrary(Library):
    module = "fastokens"
    used_by: int | None = None  # the first process that encoded: this one or an ancestor

    def installed(self) -> bool:
        """Whether the library is installed."""
        try:
            import fastokens  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            return False
        return True

    def usable(self) -> bool:
        """False in a forked child of a process that has encoded: it would wait for threads that do not exist."""
        return FastokensLibrary.used_by in (None, os.getpid())

    def can_fork(self) -> bool:
        return FastokensLibrary.used_by is None

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        loaded = self.ready()._loaded
        FastokensLibrary.used_by = FastokensLibrary.used_by or os.getpid()
        with trial.panics_hidden():
            ids, offsets = loaded.encode_batch_flat(texts)
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<i8")

    def _open(self, path):
        import fastokens

        return preload.take(path) or fastokens.Tokenizer.from_file(path)

    def _known_tokens(self, loaded):
        return {token["content"] for token in loaded.added_tokens()}


_LOADING: weakref.WeakSet[Library] = weakref.WeakSet()


def _finish_loading():
    """Wait for loading threads before a fork: the child would not have them."""
    while _LOADING:
        if (thread := _LOADING.pop()._thread) is not None:
            thread.join()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(before=_finish_loading)


def _flat(rows):
    """All ids end to end, and the offsets of the lists."""
    offsets = offsets_of([len(row) for row in rows])
    ids = np.fromiter((token for row in rows for token in row), dtype=np.uint32, count=offsets[-1])
    return ids, offsets


@cache
def version_of(module: str) -> str:
    """The installed version of a package, in words."""
    if (version := _named_version(module)) is not None:
        return version
    from importlib import metadata

    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        return "of unknown version"


def has_spec(module: str) -> bool:
    """Whether a module is installed; it is not imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ValueError:
        return False


def _named_version(module: str) -> str | None:
    """The version that the folder beside the module names, if it is a plain one; `importlib.metadata` loads slowly."""
    try:
        spec = importlib.util.find_spec(module)
        names = [] if spec is None or spec.origin is None else os.listdir(os.path.dirname(os.path.dirname(spec.origin)))
    except (ValueError, OSError):
        return None
    versions = [match[1] for name in names if (match := re.fullmatch(rf"{module}-(.+)\.dist-info", name))]
    return versions[0] if len(versions) == 1 and re.fullmatch(r"\d+(\.\d+)*", versions[0]) else None
