"""A dictionary attacker: of prompts that it knows, every digest that an engine or a careless tool would write.

Each scheme here turns the tokens of one prompt into one digest a block (bytes). They are written from the engines'
documentation, on hashlib, pickle and xxhash, and share nothing with the package but SipHash itself.

* Dynamo: XXH3-64 over little-endian 32-bit tokens, seed 1337; a sequence's over (parent, local).
* vLLM: sha256 or XXH3-128 over (parent, tokens, extra keys), pickled or in canonical CBOR; earlier, Python's hash().
* nano-vllm: XXH64 over the parent and 64-bit tokens. SGLang: sha256 over parent and tokens. llm-d: FNV-1a-64 over CBOR.
* Block Hash, the gist that this project grew from: Python's hash() of tuples, chained by a sum.
* Ours, under a key that is zero or easily guessed.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import product

import numpy as np
import xxhash

from kvtrace._native import numbering

Scheme = Callable[[list[int], int], list[bytes]]  # tokens, block size -> a digest a block

U64 = 2**64 - 1
GUESSED_KEYS = [bytes(16), bytes([255]) * 16, bytes(range(16)), b"kvtrace".ljust(16, b"\0"), b"0123456789abcdef",
                hashlib.md5(b"password").digest(), hashlib.md5(b"kvtrace").digest(), bytes([0] * 15 + [1])]  # fmt: skip


def digests(prompts: Iterable[list[int]], block_sizes: Iterable[int]) -> dict[bytes, str]:
    """Every digest of every block of the prompts: digest -> the scheme that made it."""
    found: dict[bytes, str] = {}
    for tokens, size in product(prompts, block_sizes):
        for name, scheme in SCHEMES.items():
            for digest in scheme(tokens, size):
                found.setdefault(digest, name)
    return found


def of_words(words: Iterable[str]) -> dict[bytes, str]:
    """What tools make of names and texts: digest -> how."""
    found = {}
    for word in words:
        data = word.encode("utf-8", "surrogatepass")
        for name in ("md5", "sha1", "sha224", "sha256", "sha512", "blake2b", "blake2s", "sha3_256"):
            found[hashlib.new(name, data).digest()] = f"{name} of a text"
        for seed in (0, 1337):
            found[xxhash.xxh64_digest(data, seed)] = "XXH64 of a text"
            found[xxhash.xxh3_64_digest(data, seed)] = "XXH3-64 of a text"
            found[xxhash.xxh3_128_digest(data, seed)] = "XXH3-128 of a text"
        for key in GUESSED_KEYS:
            for purpose in (b"", b"sessions", b"users", b"roots"):
                subkey = numbering.siphash128(key, purpose) if purpose else key
                found[numbering.siphash128(subkey, data)] = "SipHash of a text, key guessed"
    return found


# -- schemes ---------------------------------------------------------------------------------------------------------


def blocks(tokens: list[int], size: int) -> Iterator[list[int]]:
    """The blocks of a prompt, a partial last one as well."""
    for start in range(0, len(tokens), size):
        yield tokens[start : start + size]


def words(tokens: list[int], width: int = 4) -> bytes:
    """Tokens as little-endian words."""
    return struct.pack(f"<{len(tokens)}{'IQ'[width == 8]}", *tokens)


def dynamo_local(tokens, size, seed=1337):
    return [xxhash.xxh3_64_intdigest(words(block), seed).to_bytes(8, "big") for block in blocks(tokens, size)]


def dynamo_sequence(tokens, size, seed=1337):
    found: list[bytes] = []
    for local in dynamo_local(tokens, size, seed):
        joined = found[-1][::-1] + local[::-1] if found else None
        found.append(local if joined is None else xxhash.xxh3_64_intdigest(joined, seed).to_bytes(8, "big"))
    return found


def vllm(encode, hash_of, root):
    """vLLM's chain: a hash over (parent, tokens, extra keys)."""

    def chained(tokens, size):
        found = []
        for block in blocks(tokens, size):
            found.append(hash_of(encode((found[-1] if found else root, tuple(block), None))))
        return found

    return chained


def sglang(tokens, size):
    found = []
    for block in blocks(tokens, size):
        found.append(hashlib.sha256((found[-1] if found else b"") + words(block)).digest())
    return found


def llm_d(seed: bytes):
    def chained(tokens, size):
        found, parent = [], fnv1a_64(seed)
        for block in blocks(tokens, size):
            parent = fnv1a_64(cbor([parent, block, None]))
            found.append(parent.to_bytes(8, "big"))
        return found

    return chained


def nano_vllm(width):
    def chained(tokens, size):
        found = []
        for block in blocks(tokens, size):
            before = found[-1][::-1] if found else b""
            found.append(xxhash.xxh64_intdigest(before + words(block, width)).to_bytes(8, "big"))
        return found

    return chained


def founding_gist(tokens, size):
    found, before = [], 0
    for block in blocks(tokens, size):
        before = hash(hash(tuple(block)) + before)
        found.append(_signed(before))
    return found


def old_vllm(tokens, size):
    found, before = [], None
    for block in blocks(tokens, size):
        before = hash((before is None, before, *block))
        found.append(_signed(before))
    return found


def python_hash(root):
    def chained(tokens, size):
        found, before = [], root
        for block in blocks(tokens, size):
            before = hash((before, tuple(block), None))
            found.append(_signed(before))
        return found

    return chained


def plain(name, prefix):
    """A digest of each block alone, or of all up to its end."""

    def hashed(tokens, size):
        digests, running = [], hashlib.new(name)
        for block in blocks(tokens, size):
            running = running if prefix else hashlib.new(name)
            running.update(words(block))
            digests.append(running.digest())
        return digests

    return hashed


def ours(key, purpose):
    """Our own chain, its root all zeros, under a master key or the subkey made of it."""

    def chained(tokens, size):
        subkey = numbering.siphash128(key, purpose) if purpose else key
        offsets, root = np.array([0, len(tokens)]), np.zeros((1, 2), np.uint64)
        return [digest.tobytes() for digest in numbering.chain(subkey, tokens, offsets, root, size, True)[0]]

    return chained


def fnv1a_64(data: bytes) -> int:
    found = 0xCBF29CE484222325
    for byte in data:
        found = (found ^ byte) * 0x100000001B3 & U64
    return found


def cbor(value) -> bytes:
    """Canonical CBOR of whole numbers, bytes, lists and None.

    >>> cbor([1, 24, b"a", None]).hex()
    '840118184161f6'
    """
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    return _head(4, len(value)) + b"".join(map(cbor, value))


@cache
def _head(major, number):
    if number < 24:
        return bytes([major << 5 | number])
    for code, width in ((24, 1), (25, 2), (26, 4)):
        if number < 256**width:
            return bytes([major << 5 | code]) + number.to_bytes(width, "big")
    return bytes([major << 5 | 27]) + number.to_bytes(8, "big")


def _pickled(value):
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def _sha256(data):
    return hashlib.sha256(data).digest()


def _signed(number):
    return (number & U64).to_bytes(8, "big")


SCHEMES: dict[str, Scheme] = {
    "Dynamo local": dynamo_local,
    "Dynamo sequence": dynamo_sequence,
    "Dynamo sequence, seed 0": lambda tokens, size: dynamo_sequence(tokens, size, 0),
    "SGLang": sglang,
    "llm-d": llm_d(b""),
    "llm-d, seed 0": llm_d(b"0"),
    "nano-vllm": nano_vllm(8),
    "nano-vllm, 32-bit tokens": nano_vllm(4),
    "founding gist": founding_gist,
    "vLLM, Python's hash of all": old_vllm,
}
for _encoding, _encode in (("pickle", _pickled), ("CBOR", cbor)):
    for _name, _hash in (("sha256", _sha256), ("XXH3-128", xxhash.xxh3_128_digest)):
        _roots = {"None": None, "0": 0, "zeros": bytes(32), "seed 0": _hash(_pickled("0")), "'0'": _sha256(b"\x610")}
        for _root_name, _root in _roots.items():
            SCHEMES[f"vLLM {_name} of {_encoding}, root {_root_name}"] = vllm(_encode, _hash, _root)
for _number in (None, 0, -1, 1337):
    SCHEMES[f"vLLM, Python's hash, root {_number}"] = python_hash(_number)
for _hashed in ("md5", "sha1", "sha256", "blake2b"):
    SCHEMES[f"{_hashed} of each block"] = plain(_hashed, False)
    SCHEMES[f"{_hashed} of each prefix"] = plain(_hashed, True)
for _index, _key in enumerate(GUESSED_KEYS):
    SCHEMES[f"ours, guessed key {_index}"] = ours(_key, b"blocks")
    SCHEMES[f"ours, guessed key {_index} as it is"] = ours(_key, b"")
