"""Try a tokenizer in a child process before it is used here, and compare fastokens with the reference library.

A tokenizer of the user's may panic, abort or hang: the library is written in Rust, it panics on some files, and some
panics end the process. fastokens is compared on a sample, once for each tokenizer and pair of versions. The sample
consists of difficult texts, since tokenizers rarely disagree on plain prose. Verdicts are cached in the user's cache
folder. If the folder is not writable, each run tries again.

fastokens encodes the sample in a forked child, for two reasons. A process that has encoded with it must not be forked
(its helper threads hold locks that the child would wait for), and a crash or an endless loop ends the child only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from .._base.errors import InputError
from .._base.files import cache_folder
from . import trial
from .tokenizer_files import TokenizerFiles
from .tokenizer_libraries import ReferenceLibrary, is_panic, version_of

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
    try:
        return {b"true": True, b"false": False}.get(_cache_path(key, kind).read_bytes())
    except OSError:
        return None


def remember(key: Iterable[str], verdict: bool, kind: str = "agreement") -> None:
    """Cache a verdict for later runs, if the cache folder is writable."""
    path = _cache_path(key, kind)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_bytes(b"true" if verdict else b"false")
        temporary.replace(path)  # atomic, also if two runs write at once
    except OSError:
        pass


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
    key = (sha256, repr(files.added_tokens), version_of("tokenizers"))
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
