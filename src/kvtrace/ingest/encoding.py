"""One piece of a raw log becomes a Batch: lengths, times and digests, and not a word of text.

This is what a worker does: parse, render, tokenise, hash. The text of a piece lives only while its call lasts.
"""

from __future__ import annotations

import hashlib
from array import array
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from .._base.errors import EmptyPrompt, LeftOut, RowError
from .hashing import BlockHasher, context
from .keys import Key
from .logs.record import Record


@dataclass(frozen=True)
class Recipe:
    """All that a worker needs to encode pieces of a log; it can be pickled, and prints no secret."""

    reader: Any  # logs.LogReader
    tokenizer: str | None  # name or path; None where every prompt is already token ids
    chat_template: str | None  # a file; None = the tokenizer's own
    use_template: bool
    generation_prompt: str | None
    key: Key = field(repr=False)
    block_size: int
    tail: str
    outputs: bool  # also digests of the output's blocks
    stop_at_error: bool
    isolate_tenants: bool = False  # tenants share no blocks, as in engines that salt their caches
    by_tenant: bool = False  # tenants, not users, are who k-sharing counts


@dataclass(repr=False)
class Batch:
    """What is left of one piece of a log: columns over its good requests, and its rejects; prints as their numbers."""

    lines: int = 0  # lines of the piece, to number those of the next
    time_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    input_length: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    output_length: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    digests: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    output_digests: np.ndarray | None = None
    output_offsets: np.ndarray | None = None
    output_known: np.ndarray | None = None  # request -> True where the output has blocks
    session: np.ndarray | None = None  # request -> digest of its session key, zeros = none
    user: np.ndarray | None = None  # request -> digest of its user (or tenant), zeros = none
    type: list[str | None] = field(default_factory=list)
    logged_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # -1 = the log does not say
    cut: int = 0  # requests whose text the logger cut, taken all the same
    empty: int = 0  # rows left out because their prompt is empty
    others: int = 0  # rows left out because they are no requests
    lengths_only: int = 0  # requests of which the log holds lengths, and no word of the prompt
    rejects: list[Reject] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.time_ns)

    def __repr__(self):  # tracebacks that show local variables show no time or length of a row
        return f"Batch({len(self)} requests, {len(self.rejects)} rejects)"


@dataclass(frozen=True)
class Place:
    """Where a row is in its piece."""

    line: int  # from 0
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True)
class Reject:
    """A row that was not taken: where it is and why, never what it holds."""

    place: Place
    error: RowError


class Encoder:
    """Encodes pieces of a log as its recipe says."""

    def __init__(self, recipe: Recipe):
        from ..text import templates, tokenizers

        self.recipe = recipe
        self.reader = recipe.reader
        self.hasher = BlockHasher(recipe.key, block_size=recipe.block_size, tail=recipe.tail)
        self.tokenizer = self.template = None
        if recipe.tokenizer is not None:
            self.tokenizer = tokenizers.load(recipe.tokenizer)
            if recipe.use_template:
                self.template = templates.load(
                    recipe.tokenizer, chat_template=recipe.chat_template, generation_prompt=recipe.generation_prompt
                )
        self._root = {
            "tokenizer": self.tokenizer and self.tokenizer.sha256,
            "template": self.template and self.template.sha256,
        }
        self._context_of = lru_cache(maxsize=4096)(
            lambda model, adapter, tenant, *media: context(
                **self._root, model=model, adapter=adapter, tenant=tenant, media=list(media)
            )
        )

    def __reduce__(self):  # where workers are not forked, each loads tokenizer and template anew
        return Encoder, (self.recipe,)

    @property
    def can_fork(self) -> bool:
        """Whether forked workers can use what is loaded here."""
        return self.tokenizer is None or self.tokenizer.can_fork

    def __call__(self, piece) -> Batch:
        batch = Batch()
        with self.template.remembering() if self.template else nullcontext():
            requests, places = self._parse(piece, batch)
        prompts, outputs = self._tokenised(requests, places, batch)
        self._measure(requests, prompts, outputs, batch)
        self._hash(requests, prompts, outputs, batch)
        return batch

    def _parse(self, piece, batch: Batch) -> tuple[list[Record], list[Place]]:
        """The piece's good rows, their messages rendered to text, and their places; the others are counted."""
        requests, places, times, offset = [], [], [], 0
        for line in piece.read().split(b"\n"):
            if stripped := line.strip():
                place = Place(batch.lines, offset, len(line))
                try:
                    found = self._found(stripped, f"{piece.path}:{piece.start + offset}")
                except LeftOut as reason:
                    batch.empty += isinstance(reason, EmptyPrompt)
                    batch.others += not isinstance(reason, EmptyPrompt)
                except (RowError, RecursionError) as error:
                    known = error if isinstance(error, RowError) else RowError("is nested too deeply.")
                    batch.rejects.append(Reject(place, known.with_traceback(None)))
                    if self.recipe.stop_at_error:
                        break
                else:
                    requests += [record for record, _ in found]
                    times += [time_ns for _, time_ns in found]
                    places += [place] * len(found)
            batch.lines += 1
            offset += len(line) + 1
        batch.lines -= 1  # what follows the last newline is no line
        batch.cut = sum(record.cut is not None or record.lacks is not None for record in requests)
        batch.lengths_only = sum(record.input_length is not None and record.hashes is None for record in requests)
        batch.time_ns = np.array(times, dtype=np.int64)
        return requests, places

    def _found(self, line: bytes, place: str) -> list[tuple[Record, int]]:
        """The requests that one line holds, ready to be tokenised, and their times."""
        records = self.reader.records(line)
        found = []
        for record in records:
            if len(records) > 1 and record.session is None and self.reader.is_conversation:
                record.session = place  # the requests of this line are the turns of one conversation
            time_ns = self.reader.time_ns(record)
            found.append((self._rendered(record, time_ns, place), time_ns))
        return found

    def _tokenised(self, requests, places, batch: Batch):
        """Tokens of prompts and outputs; a request that the tokenizer refuses goes to the rejects, the rest again."""
        while True:
            try:
                prompts = self._tokens([r.text or "" for r in requests], [r.token_ids for r in requests])
                outputs = self._tokens([self._output_text(r) for r in requests], [r.output_ids for r in requests])
                return prompts, outputs
            except RowError as error:
                row = error.index
                if row is None:
                    raise
                batch.rejects.append(Reject(places.pop(row), error.with_traceback(None)))
                batch.rejects.sort(key=lambda reject: reject.place.line)
                batch.time_ns = np.delete(batch.time_ns, row)
                del requests[row]

    def _rendered(self, record: Record, time_ns: int, place: str) -> Record:
        if record.hashes is not None:
            if record.block_size != self.recipe.block_size:
                raise RowError(f"its blocks are not of {self.recipe.block_size:,} tokens, as the others' are.")
            return record
        if record.input_length:  # all that is known: tokens that no other prompt begins with
            record.token_ids, record.media = array("I", bytes(4 * record.input_length)), [place.encode()]
            return record
        if record.messages is not None:
            if self.template is None:
                raise RowError("the prompt is chat messages, and there is no chat template.", hint=NO_TEMPLATE)
            record.text = self.template.render(record.messages, record.tools, time=max(0, time_ns) / 1e9)
            record.messages = record.tools = None
        if not record.text and not record.token_ids:
            raise EmptyPrompt("the prompt is empty.")
        if record.token_ids is None and self.tokenizer is None:
            raise RowError("the prompt is text, and there is no tokenizer.", hint="Try --tokenizer deepseek-r1.")
        return record

    def _output_text(self, record: Record) -> str:
        """The output's text, where its tokens must be counted or hashed."""
        if record.output_ids is not None or record.output_text is None:
            return ""
        return record.output_text if self.recipe.outputs or record.output_length is None else ""

    def _tokens(self, texts, ids) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of each row, end to end (uint32), and their offsets; the log's own ids are taken as they are."""
        if self.tokenizer is not None and any(texts):
            tokens, offsets = self.tokenizer.encode_batch(texts)
        else:
            tokens, offsets = np.empty(0, np.uint32), np.zeros(len(texts) + 1, np.int64)
        if all(row is None for row in ids):
            return tokens, offsets
        rows = [
            tokens[offsets[i] : offsets[i + 1]] if row is None else np.asarray(row, dtype=np.uint32)
            for i, row in enumerate(ids)
        ]
        return np.concatenate(rows), np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)

    def _measure(self, requests, prompts, outputs, batch: Batch):
        counted = np.diff(outputs[1])
        logged = np.array([-1 if r.output_length is None else r.output_length for r in requests], dtype=np.int64)
        batch.input_length = np.diff(prompts[1])
        if self.reader.block_size is not None:
            batch.input_length = np.array([r.input_length for r in requests], dtype=np.int64)
        batch.output_length = np.where(logged < 0, counted, logged)
        batch.logged_tokens = np.array([-1 if r.prompt_tokens is None else r.prompt_tokens for r in requests], np.int64)
        batch.type = [r.type for r in requests]
        if any(r.session is not None for r in requests):
            batch.session = self.hasher.sessions([r.session for r in requests])
        users = [self._user(r) for r in requests]
        if any(user is not None for user in users):
            batch.user = self.hasher.users(users)

    def _hash(self, requests, prompts, outputs, batch: Batch):
        roots = self.hasher.roots([self._context(r) for r in requests])
        if self.reader.block_size is not None:
            batch.digests, batch.offsets = self._engine_digests(requests, roots)
            return
        batch.digests, batch.offsets = self.hasher.prompts(prompts, roots)
        if self.recipe.outputs:
            # where the log counts other tokens than its text has (hidden reasoning, say), the blocks are not known
            counted = np.diff(outputs[1])
            known = (counted > 0) & (counted == batch.output_length)
            batch.output_digests, batch.output_offsets = self.hasher.outputs(
                prompts, (batch.digests, batch.offsets), outputs, roots, known
            )
            batch.output_known = known

    def _engine_digests(self, requests, roots):
        """Digests of the hashes that an engine logged in place of the prompts' blocks."""
        rows = [self._kept(np.frombuffer(r.hashes, dtype=np.uint64), r.input_length) for r in requests]
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        values = np.concatenate(rows) if rows else np.empty(0, np.uint64)
        return self.hasher.engine_hashes((values, offsets), roots), offsets

    def _kept(self, hashes, input_length):
        return hashes[: input_length // self.recipe.block_size] if self.recipe.tail == "dropped" else hashes

    def _user(self, record: Record) -> str | None:
        """Who k-sharing counts: tenants where they were asked for, else users, else the tenants that the log has."""
        return record.tenant if self.recipe.by_tenant or record.user is None else record.user

    def _context(self, record: Record) -> str:
        tenant = record.tenant if self.recipe.isolate_tenants else None
        media = (hashlib.sha256(part).hexdigest() for part in record.media)
        return self._context_of(record.model, record.adapter, tenant, *media)


NO_TEMPLATE = "Try --chat-template FILE, or log the templated text."
