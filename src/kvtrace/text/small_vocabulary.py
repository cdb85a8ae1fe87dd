"""Encode a small log with the part of a vocabulary that its words can use.

A vocabulary of 128,000 tokens takes 0.2 to 0.7 s of processor time to load, which a log of some rows does not need.
Byte-pair encoding merges neighbours within a word, so each token that it can write, also on the way, is a part of the
word. A tokenizer with all tokens that are parts of a text's words, their merges in the order of the whole vocabulary,
and their ids, therefore gives the same ids. The library `tokenizers` makes both the words and the ids.

The first use of a tokenizer compiles its vocabulary into the cache folder: tokens sorted by length and bytes, and
merges as numbers. The words' parts are found by binary search. The cached form is that of one file: its name, size,
times and inode.
"""

from __future__ import annotations

import hashlib
import os
from operator import add
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .._base.errors import InputError
from .._base.files import cache_folder
from .._base.output_files import read_cached, write_cached
from .encodings import letters
from .tokenizer_files import TokenizerFiles
from .tokenizer_libraries import ReferenceLibrary, raise_unless_failure

VERSION = 1  # of the cached form
WORTH = 1 << 20  # bytes of a tokenizer.json; a smaller one is loaded whole
MAX_TEXT = 1 << 20  # characters, in all; then the whole vocabulary is faster
FIXED = {"dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
         "fuse_unk": False, "byte_fallback": False}  # fmt: skip
GAP = "\0"  # between words; no token of a byte-level vocabulary has it


class Compiled(NamedTuple):
    """A vocabulary as arrays."""

    sha256: str  # of tokenizer.json
    rest: dict[str, Any]  # tokenizer.json without its vocabulary and merges
    control: dict[str, int]  # control token -> id
    ids: np.ndarray  # token -> id, int32; tokens by length in bytes, then by their bytes
    tokens: list[tuple[int, np.ndarray]]  # length -> its tokens, as bytes of that length
    merges: np.ndarray  # (left, right, result) x merge, as ids, int32, the first to apply first


def cached(path: Path) -> Compiled | None:
    """The compiled vocabulary of a tokenizer.json, if an earlier run left one."""
    import orjson

    try:
        data = read_cached(_place(path))
        if data is None:
            return None
        end = data.index(b"\n") + 1
        header = orjson.loads(data[:end])
        sizes, merges = header["sizes"], header["merges"]
        count = sum(number for _, number in sizes)
        ids = np.frombuffer(data, "<i4", count, end)
        rows = np.frombuffer(data, "<i4", 3 * merges, end + 4 * count).reshape(3, merges)
        start, tokens = end + 4 * count + 12 * merges, []
        for length, number in sizes:
            tokens.append((length, np.frombuffer(data, f"S{length}", number, start)))
            start += length * number
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Compiled(header["sha256"], header["rest"], header["control"], ids, tokens, rows)


def compile_file(path: Path) -> Compiled | None:
    """Compile the vocabulary of a tokenizer.json, and keep it for later runs.

    Returns:
        None if the file is small or not a plain byte-level vocabulary, whose words are made of 256 letters.
    """
    try:
        place = _place(path)
        data = path.read_bytes()
        packed = _packed(data) if len(data) >= WORTH else None
        if packed is None or place != _place(path):
            return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # loading the whole file gives the reason
        return None
    return cached(path) if write_cached(place, packed) else None


def _place(path: Path) -> Path:
    about = os.stat(path)
    stamp = (VERSION, os.path.realpath(path), about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino)
    return cache_folder() / f"vocabulary-{hashlib.sha256(repr(stamp).encode()).hexdigest()[:32]}"


def _packed(data: bytes) -> bytes | None:
    import orjson

    rest = orjson.loads(data)
    model = rest["model"]
    vocabulary, merges = model.pop("vocab"), model.pop("merges")
    control = _control(rest["added_tokens"], vocabulary)
    is_plain = model.get("type", "BPE") == "BPE" and all(model.get(key, value) == value for key, value in FIXED.items())
    if not is_plain or control is None or not _is_bytes(rest["pre_tokenizer"]) or not {*letters()} <= {*vocabulary}:
        return None
    written = GAP.join(vocabulary).encode().split(GAP.encode())
    numbers = np.fromiter(vocabulary.values(), "<i4", len(written))
    lengths = np.fromiter(map(len, written), np.int64, len(written))
    sizes, ids, tokens = [], [], []
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        same = np.array([written[row] for row in rows.tolist()], f"S{length}")
        order = np.argsort(same)
        sizes.append((length, len(rows)))
        ids.append(numbers[rows[order]])
        tokens.append(same[order])
    left, right = _sides(merges)
    steps = [left, right, map(add, left, right)]  # of a merge
    merged = [np.fromiter(map(vocabulary.__getitem__, step), "<i4", len(left)) for step in steps]
    header = {
        "sha256": hashlib.sha256(data).hexdigest(), "rest": rest, "control": control, "merges": len(left),
        "sizes": sizes,
    }  # fmt: skip
    return b"".join([orjson.dumps(header), b"\n", *(array.tobytes() for array in (*ids, *merged, *tokens))])


def _sides(merges) -> tuple[list[str], list[str]]:
    """The left and the right tokens of all merges; newer files have pairs, older ones texts with a space between."""
    if merges and not isinstance(merges[0], str):
        return [left for left, _ in merges], [right for _, right in merges]
    flat = " ".join(merges).split(" ") if merges else []
    return flat[::2], flat[1::2]


def _control(added, vocabulary) -> dict[str, int] | None:
    """The ids of the control tokens; None where the library would not give them the ids of the file."""
    control = {row["content"]: row["id"] for row in added}
    inside = {token: vocabulary[token] for token in control if token in vocabulary}
    others = [number for token, number in control.items() if token not in inside]
    is_same = all(control[token] == number for token, number in inside.items())
    is_next = others == [*range(len(vocabulary), len(vocabulary) + len(others))]
    # a token for whole words only is also a text like any other, which must not become its id
    return control if is_same and is_next and not any(row["single_word"] for row in added) else None


def _is_bytes(step) -> bool:
    """Whether the last step before the model writes bytes as letters."""
    steps = step["pretokenizers"] if step["type"] == "Sequence" else [step]
    return bool(steps) and steps[-1]["type"] == "ByteLevel"


class SmallLibrary(ReferenceLibrary):
    """The library `tokenizers` with the part of a vocabulary that the words so far can use."""

    def __init__(self, files: TokenizerFiles, vocabulary: Compiled):
        super().__init__(files)
        self._vocabulary = vocabulary
        self._words: set[str] = set()
        self._characters = 0
        self._is_wanted = np.zeros(1 + int(vocabulary.ids.max()), bool)  # id -> whether a word may use it
        self._texts: dict[int, str] = {}  # id -> token, of those
        self._add(letters())

    def takes(self, texts: list[str]) -> bool:
        """Whether these texts and those before are few enough."""
        self._characters += sum(map(len, texts))
        return self._characters <= MAX_TEXT

    def encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, end to end, and their offsets."""
        self.ready()
        new = self._words_of(texts) - self._words
        if new:
            self._add(new)
            self._words |= new
            self._loaded = None
        self.ready()
        return self.encode_singly(texts)

    def _words_of(self, texts) -> set[str]:
        """The words that the model gets, as any part of the vocabulary with all letters shows them."""
        words = set()
        for text in texts:
            encoding = self._loaded.encode(text, add_special_tokens=False)
            word, number = "", None
            for token, place in zip(encoding.tokens, encoding.word_ids, strict=True):
                if place != number:
                    words.add(word)
                    word, number = "", place
                word += token
            words.add(word)
        return words - {""}

    def _add(self, words) -> None:
        """Mark the tokens that are parts of the words."""
        text = GAP.join(words).encode()
        longest, first = max(len(word.encode()) for word in words), 0
        for length, tokens in self._vocabulary.tokens:
            if length <= min(longest, len(text)):
                parts = np.ndarray((len(text) - length + 1,), f"S{length}", text, 0, (1,))
                places = np.minimum(np.searchsorted(tokens, parts), len(tokens) - 1)
                for place in {*places[tokens[places] == parts].tolist()}:
                    number = int(self._vocabulary.ids[first + place])
                    self._texts[number] = tokens[place].decode()
                    self._is_wanted[number] = True
            first += len(tokens)

    def _load(self):
        import orjson
        import tokenizers

        rows = self._vocabulary.merges
        left, right, _ = rows[:, self._is_wanted[rows[2]]].tolist()
        texts, rest = self._texts, self._vocabulary.rest
        model = rest["model"] | {
            "vocab": {token: number for number, token in texts.items()} | self._vocabulary.control,
            "merges": [f"{texts[one]} {texts[other]}" for one, other in zip(left, right, strict=True)],
        }
        return tokenizers.Tokenizer.from_str(
            orjson.dumps(rest | {"model": model, "truncation": None, "padding": None}).decode()
        )


def library_of(files: TokenizerFiles, vocabulary: Compiled) -> SmallLibrary | None:
    """The library of a part of the vocabulary; None if the settings add tokens, or the library fails."""
    if any(row["content"] not in vocabulary.control for row in files.added_tokens):
        return None
    try:
        return SmallLibrary(files, vocabulary).ready()
    except InputError:
        return None
    except BaseException as error:
        raise_unless_failure(error)
        return None
