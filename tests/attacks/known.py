"""All that an attacker knows of a log, its key apart: texts, rendered templates, tokens, users, and their digests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from kvtrace._base.errors import RowError
from kvtrace.ingest import logs
from kvtrace.ingest.encoding import Encoder, Recipe
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.hashing import BlockHasher
from kvtrace.ingest.keys import Key
from kvtrace.ingest.tokenizer_choice import TokenizerChoice
from tests.attacks import dictionary, examples

TINY = Path(__file__).resolve().parent.parent / "data/tokenizers/tiny"
OTHER_SIZES = (4, 16)  # blocks that engines have, beside those of the run


@dataclass
class Known:
    """What one log says."""

    prompts: list[list[int]] = field(default_factory=list)  # tokens, and those of prompt and output joined
    contexts: list[str] = field(default_factory=list)  # of each prompt: what its chain begins at
    words: set[str] = field(default_factory=set)
    hashes: set[tuple[int, ...]] = field(default_factory=set)  # an engine's, as 64-bit words, where the log holds them
    block_size: int = 4

    def digests(self) -> dict[bytes, str]:
        """Every digest that can be made without the key: digest -> scheme."""
        found = dictionary.of_words(self.words) | dictionary.digests(self.prompts, {self.block_size, *OTHER_SIZES})
        for key in dictionary.GUESSED_KEYS:
            found |= dict.fromkeys(self.keyed(Key(key)), "ours, as the run makes them, key guessed")
        own = {b"".join(word.to_bytes(8, "big") for word in value) for value in self.hashes}
        return found | dict.fromkeys(own, "the log's own hashes")

    def keyed(self, key: Key) -> set[bytes]:
        """The digests that a run under this key makes: of blocks, of the log's hashes, of sessions and users."""
        found: set[bytes] = set()
        for tail in ("kept", "dropped"):
            hasher = BlockHasher(key, block_size=self.block_size, tail=tail)
            roots = hasher.roots(self.contexts)
            tokens = np.array([token for prompt in self.prompts for token in prompt], dtype=np.uint32)
            offsets = np.concatenate([[0], np.cumsum([len(prompt) for prompt in self.prompts])]).astype(np.int64)
            found |= _bytes(hasher.prompts((tokens, offsets), roots)[0]) | _bytes(roots)
            values = np.array(sorted(self.hashes), dtype=np.uint64)
            for root in np.unique(roots, axis=0) if self.hashes else ():
                one = np.array([0, len(values)], dtype=np.int64)
                found |= _bytes(hasher.engine_hashes((values, one), root[None]))
        words = sorted(self.words)
        return found | _bytes(hasher.sessions(words)) | _bytes(hasher.users(words))


def know(path: Path, block_size: int) -> Known:
    """Read a log as an attacker would who has it."""
    lines = examples.lines(path)
    maps = examples.MAPS.get(path.name)
    reader = logs.open_reader("auto", lines, field_map=maps, allow_truncated=True, untimed=True)
    known = Known(block_size=reader.block_size or block_size)
    choice = TokenizerChoice(str(TINY))
    options = EncodingOptions(outputs=True, max_errors=-1)
    encoder = Encoder(Recipe(reader, options, Key(bytes(16)), block_size=known.block_size, tail="kept", choice=choice))
    for line in lines:
        try:
            records = [record for record, _ in encoder._requests_of(line, "here")]
        except RowError:
            continue
        known.words |= set(_texts(json.loads(line))) if line[:1] == b"{" else set(line.decode().split(","))
        for record in records:
            _learn(known, encoder, record)
    return known


def _learn(known, encoder, record):
    if record.hashes is not None:
        words = encoder.reader.hash_words
        known.hashes |= {tuple(record.hashes[i : i + words]) for i in range(0, len(record.hashes), words)}
    known.words |= {word for word in (record.text, record.output_text, record.session, record.user) if word}
    prompt = _tokens(encoder, record.text, record.token_ids)
    output = _tokens(encoder, record.output_text, record.output_ids)
    for tokens in (prompt, prompt + output, output):
        if tokens and not record.input_length:  # of lengths alone there are no tokens to know
            known.prompts.append(tokens)
            known.contexts.append(encoder._context(record))


def _tokens(encoder, text, ids):
    return [int(token) for token in encoder._tokens([text or ""], [ids])[0]]


def _texts(value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _texts(inner)


def _bytes(digests) -> set[bytes]:
    return {digest.tobytes() for digest in np.asarray(digests, dtype=np.uint64).reshape(-1, 2) if digest.any()}
