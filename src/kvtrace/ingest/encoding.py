"""Encode one piece of a raw log: parse, render, tokenise and hash its requests. Workers run this.

The result is a Batch of lengths, times and digests. The text of a piece is in memory only while it is encoded.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from .._base.arrays import joined, offsets_of
from .._base.errors import EmptyPrompt, FailedCall, LeftOut, OtherCall, RowError
from ..text.preload import is_small
from ..trace.columns import MEASURED, Tail
from ..trace.invariants import require_own_blocks
from ..trace.unknown import UNKNOWN_LENGTH
from .encoding_options import EncodingOptions
from .hashing import NO_CONTEXT, BlockHasher, context, prompt_tokens
from .keys import Key
from .logs.record import Record
from .tokenizer_choice import NO_CHOICE, TokenizerChoice
from .usage import UsageCheck, features_of, usage_of

RENDERING_VERSION = 1  # of the way in which requests become tokens; traces of other versions do not mix


@dataclass(frozen=True)
class Recipe:
    """The settings that a worker needs to encode pieces of a log. It can be pickled; its repr does not show the key."""

    reader: Any  # logs.LogReader
    options: EncodingOptions
    key: Key = field(repr=False)
    block_size: int  # of the run
    tail: Tail
    choice: TokenizerChoice = NO_CHOICE  # of the tokenizer
    keep_domains: bool = False  # ids are equal where text is, and a column says who shares no blocks in the engine
    rendering_version: int = RENDERING_VERSION


@dataclass(repr=False)
class Batch:
    """The encoded requests of one piece of a log, as columns, and its rejects. The repr shows counts only."""

    lines: int = 0  # lines of the piece, to number the lines of the next piece
    time_ns: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    input_length: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    output_length: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # UNKNOWN_LENGTH = no answer
    digests: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.uint64))
    offsets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    output_digests: np.ndarray | None = None
    output_offsets: np.ndarray | None = None
    output_known: np.ndarray | None = None  # request -> True if its output has blocks
    session: np.ndarray | None = None  # request -> digest of its session key, zeros = none
    account: np.ndarray | None = None  # request -> digest of its tenant, account or API key, zeros = none
    user: np.ndarray | None = None  # request -> digest of its user, within the account if it has one, zeros = none
    domain: np.ndarray | None = None  # request -> digest of its isolation domain, zeros = none
    delay_ns: np.ndarray | None = (
        None  # request without a time -> its delay after the session's request before, -1 = none
    )
    service_ns: np.ndarray | None = None  # request -> measured time from its start to its end, -1 = unknown
    cached_tokens: np.ndarray | None = None  # request -> prompt tokens from the service's cache, -1 = unknown
    ttft_ms: np.ndarray | None = None  # request -> measured time to its first token, NaN = unknown
    e2e_ms: np.ndarray | None = None  # request -> measured time to its end, NaN = unknown
    queue_ms: np.ndarray | None = None  # request -> measured time in the engine's queue, NaN = unknown
    invalid_measured: int = 0  # measured values of the log that are not valid, and count as unknown
    lowered_cached: int = 0  # counts of cached tokens above the length of the prompt, lowered to it
    with_cached: int = 0  # requests with a count of cached tokens
    without_hit: int = 0  # ... that is 0
    type: list[str | None] = field(default_factory=list)
    logged_tokens: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  # -1 = unknown
    usage: UsageCheck | None = None  # our counts beside the log's; None = the log states none
    other_models: int = 0  # requests to models with another tokenizer than the one that was chosen
    cut: int = 0  # requests that are incomplete in the log, taken with --allow-truncated
    empty: int = 0  # rows left out: empty prompt
    others: int = 0  # rows left out: not a request
    failed: int = 0  # ... because the call failed
    other_calls: int = 0  # ... because it generates no text, such as an embedding
    lengths_only: int = 0  # requests with lengths but no prompt
    not_rendered: dict[str, int] = field(default_factory=dict)  # field -> requests that have it, and not in the prompt
    unsized_media: int = 0  # media whose number of placeholder tokens is not known
    rejects: list[Reject] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.time_ns)

    def __repr__(self) -> str:  # tracebacks with local variables must not show times or lengths
        return f"Batch({len(self)} requests, {len(self.rejects)} rejects)"

    @property
    def prompts(self) -> np.ndarray:
        """The number of blocks of each prompt."""
        return np.diff(self.offsets)

    @property
    def outputs(self) -> np.ndarray:
        """The number of blocks of each output."""
        return np.zeros(len(self), np.int64) if self.output_offsets is None else np.diff(self.output_offsets)

    @property
    def measured(self) -> dict[str, np.ndarray]:
        """The columns of MEASURED that have a value."""
        columns = {name: getattr(self, name) for name in MEASURED}
        return {
            name: values
            for name, values in columns.items()
            if values is not None and MEASURED[name].is_known(values).any()
        }

    def all_digests(self) -> np.ndarray:
        """The digests of each row, its prompt's and then its output's."""
        if self.output_digests is None:
            return self.digests
        return joined((self.digests, self.prompts), (self.output_digests, self.outputs))


class RowPosition(NamedTuple):
    """The position of a row in its piece."""

    line: int  # from 0
    offset: int  # bytes
    length: int  # bytes


@dataclass(frozen=True)
class Reject:
    """A bad row: its position and the reason, never its content."""

    position: RowPosition
    error: RowError


class Encoder:
    """Encodes pieces of a log with the settings of a recipe."""

    reader: Any
    hasher: BlockHasher
    keeps_messages = False  # True: records keep their messages and tools beside the rendered text

    def __init__(self, recipe: Recipe, like: Encoder | None = None, *, log_bytes: int | None = None):
        """`like` is an encoder with the same tokenizer and template, which are then not loaded again.

        `log_bytes` is the size of the log, if it is known: a small one needs a part of the tokenizer, and does not pay
        for an analysis of the template.
        """
        self.recipe = recipe
        self.reader = recipe.reader
        self._is_small = log_bytes is not None and is_small(log_bytes)
        self.hasher = BlockHasher(recipe.key, block_size=recipe.block_size, tail=recipe.tail)
        self._holds_lengths = recipe.reader.block_size is None and not recipe.reader.holds_prompts
        self.tokenizer = self.template = None
        if recipe.choice.tokenizer is not None:
            self.template, self.tokenizer = (
                _loaded(recipe.options, recipe.choice.tokenizer, log_bytes)
                if like is None
                else (like.template, like.tokenizer)
            )
        if self.template is not None:
            from ..text.chat_requests import render  # not where it is called, once for each request

            self._rendered_chat = render
        self._root = {
            "tokenizer": self.tokenizer and self.tokenizer.sha256,
            "template": self.template and self.template.sha256,
        }
        self._context_of = lru_cache(maxsize=4096)(
            lambda model, adapter, tenant, domain, *media: context(
                **self._root, model=model, adapter=adapter, tenant=tenant, domain=domain, media=list(media)
            )
        )
        self._domain_of = lru_cache(maxsize=4096)(
            lambda tenant, adapter, model, *salts: context(
                tenant=tenant, adapter=adapter, model=model, salts=list(salts)
            )
        )

    def __reduce__(self) -> tuple[Any, ...]:  # a worker that is not forked loads tokenizer and template itself
        return Encoder, (self.recipe,)

    @property
    def can_fork(self) -> bool:
        """Whether forked workers can use the loaded tokenizer."""
        return self.tokenizer is None or self.tokenizer.can_fork

    def __call__(self, piece) -> Batch:
        return self.encoded(piece)[0]

    def encoded(self, piece) -> tuple[Batch, list[Record]]:
        """The batch of a piece, and the rendered requests that it holds."""
        batch = Batch()
        with self.template.remembering() if self.template and not self._is_small else nullcontext():
            requests, positions = self._parse(piece, batch)
        if self._holds_lengths:
            self._make_up(requests)
        prompts, outputs = self._tokenised(requests, positions, batch)
        batch.not_rendered = dict(sorted(Counter(name for r in requests for name in r.not_rendered).items()))
        batch.unsized_media = prompts.unsized
        self._measure(requests, prompts.tokens, outputs, batch)
        self._hash(requests, prompts, outputs, batch)
        return batch, requests

    def _parse(self, piece, batch: Batch) -> tuple[list[Record], list[RowPosition]]:
        """The requests of the piece, with rendered prompts, and their positions. Bad rows go to the batch's rejects."""
        requests, positions, times, service, measured, offset = [], [], [], [], [], 0
        for line in piece.read().split(b"\n"):
            if stripped := line.strip():
                position = RowPosition(batch.lines, offset, len(line))
                try:
                    parsed = self._requests_of(stripped, f"{piece.path}:{piece.start + offset}")
                except LeftOut as reason:
                    batch.empty += isinstance(reason, EmptyPrompt)
                    batch.others += not isinstance(reason, EmptyPrompt)
                    batch.failed += isinstance(reason, FailedCall)
                    batch.other_calls += isinstance(reason, OtherCall)
                except (RowError, RecursionError) as error:
                    row_error = error if isinstance(error, RowError) else RowError("is nested too deeply.")
                    batch.rejects.append(Reject(position, row_error.with_traceback(None)))
                    if not self.recipe.options.max_errors:
                        break
                else:
                    for record, time_ns in parsed:
                        requests.append(record)
                        times.append(time_ns)
                        service.append(self.reader.service_ns(record, time_ns))
                        measured.append(self.reader.measured(record, time_ns))
                        positions.append(position)
            batch.lines += 1
            offset += len(line) + 1
        batch.lines -= 1  # the text after the last newline is not a line
        batch.cut = sum(record.cut is not None or record.lacks is not None for record in requests)
        batch.lengths_only = sum(record.input_length is not None and record.hashes is None for record in requests)
        batch.time_ns = np.array(times, dtype=np.int64)
        if any(record.delay_ms is not None for record in requests):
            delays = [-1 if record.delay_ms is None else round(record.delay_ms * 1e6) for record in requests]
            batch.delay_ns = np.array(delays, dtype=np.int64)
        if any(ns >= 0 for ns in service):
            batch.service_ns = np.array(service, dtype=np.int64)
        batch.invalid_measured = sum(measurement.invalid for measurement in measured)
        for name, number in MEASURED.items():
            logged = [getattr(measurement, name) for measurement in measured]
            if any(value is not None for value in logged):
                values = [number.unknown if value is None else value for value in logged]
                setattr(batch, name, np.array(values, dtype=number.dtype))
        return requests, positions

    def _requests_of(self, line: bytes, place: str) -> list[tuple[Record, int]]:
        """The requests of one line, rendered, with their times. `place` (path:offset) is unique for each line."""
        records = self.reader.records(line)
        requests = []
        for record in records:
            if len(records) > 1 and record.session is None and self.reader.is_conversation:
                record.session = place  # the requests of this line are the turns of one conversation
            time_ns = self.reader.time_ns(record)
            requests.append((self._rendered(record, time_ns, place), time_ns))
        return requests

    def _make_up(self, requests: list[Record]) -> None:
        """Give each request of a log of lengths one token for each block: all of its tokens could be gigabytes."""
        size, partial = self.recipe.block_size, self.recipe.tail == "kept"
        require_own_blocks(np.array([r.input_length for r in requests], dtype=np.int64), size, "prompts")
        for record in requests:
            blocks = ((record.input_length or 0) + (size - 1) * partial) // size
            record.token_ids = array("I", bytes(4 * blocks))

    def _tokenised(self, requests, positions, batch: Batch):
        """Tokens of prompts and outputs. A request that the tokenizer refuses is rejected; the others are retried."""
        while True:
            try:
                prompts = prompt_tokens(requests, self.tokenizer)
                outputs = self._tokens([self._output_text(r) for r in requests], [r.output_ids for r in requests])
                return prompts, outputs
            except RowError as error:
                row = error.index
                if row is None:
                    raise
                batch.rejects.append(Reject(positions.pop(row), error.with_traceback(None)))
                batch.rejects.sort(key=lambda reject: reject.position.line)
                for name in ("time_ns", "delay_ns", "service_ns", *MEASURED):
                    if (values := getattr(batch, name)) is not None:
                        setattr(batch, name, np.delete(values, row))
                del requests[row]

    def _rendered(self, record: Record, time_ns: int, place: str) -> Record:
        if record.hashes is not None:
            self.reader.require_blocks(record, self.recipe.block_size)
            return record
        if record.input_length:  # the log holds only the length: make blocks that no other prompt shares
            tokens = 0 if self._holds_lengths else record.input_length
            record.token_ids, record.media = array("I", bytes(4 * tokens)), [place.encode()]
            return record
        if record.messages is not None:
            if self.template is None:
                raise RowError("the prompt is chat messages, but the tokenizer has no chat template.", hint=NO_TEMPLATE)
            self._render(record, time_ns)
        if not record.text and not record.token_ids:
            raise EmptyPrompt("the prompt is empty.")
        if record.media:  # without a place, they enter the key of the whole prompt
            record.not_rendered |= {"media"}
        if record.token_ids is None and self.tokenizer is None:
            raise RowError("the prompt is text, but no tokenizer is set.", hint="Try --tokenizer deepseek-r1.")
        return record

    def _render(self, record: Record, time_ns: int) -> None:
        """Set the text of a chat request's prompt, cut at its media, and what of the request is not in it."""
        template, messages, shaping = self.template, record.messages, record.shaping or {}
        assert template is not None and messages is not None
        engine, time = self.recipe.options.render_as, max(0, time_ns) / 1e9
        prompt = None
        if self.recipe.options.request_templates and "chat_template" in shaping:
            from ..text.chat_requests import render_with_own

            own = shaping["chat_template"]
            prompt = render_with_own(template, own, messages, record.tools, shaping, engine=engine, time=time)
        if prompt is None:
            prompt = self._rendered_chat(template, messages, record.tools, shaping, engine=engine, time=time)
        record.not_rendered = (
            prompt.not_rendered.union(shaping["invalid"]) if "invalid" in shaping else prompt.not_rendered
        )
        record.text = prompt.texts[0] if len(prompt.texts) == 1 else "".join(prompt.texts)
        if prompt.media:
            record.texts, record.placed = prompt.texts, prompt.media
        record.features, record.turns = features_of(record), len(messages)
        asked = shaping.get("add_special_tokens", record.add_special_tokens)
        record.add_special_tokens = asked and engine == "vllm"  # no other engine has that for chats
        if not self.keeps_messages:
            record.messages = record.tools = None

    def _output_text(self, record: Record) -> str:
        """The output's text if its tokens must be counted or hashed, else ''."""
        if record.output_ids is not None or record.output_text is None:
            return ""
        return record.output_text if self.recipe.options.outputs or record.output_length is None else ""

    def _tokens(self, texts, ids) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of all rows, end to end (uint32), and their offsets. Token ids of the log are used unchanged."""
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
        return np.concatenate(rows), offsets_of([len(row) for row in rows])

    def _measure(self, requests, prompts, outputs, batch: Batch):
        counted = np.diff(outputs[1])
        logged = np.array([-1 if r.output_length is None else r.output_length for r in requests], dtype=np.int64)
        batch.input_length = np.diff(prompts[1])
        if self.reader.block_size is not None or self._holds_lengths:
            batch.input_length = np.array([r.input_length for r in requests], dtype=np.int64)
        is_known = np.array([r.has_output for r in requests], dtype=bool)
        batch.output_length = np.where(logged < 0, np.where(is_known, counted, UNKNOWN_LENGTH), logged)
        batch.logged_tokens = np.array([-1 if r.prompt_tokens is None else r.prompt_tokens for r in requests], np.int64)
        batch.usage = usage_of(requests, batch.input_length, batch.output_length)
        batch.other_models = sum(self.recipe.choice.is_other(r.model) for r in requests)
        self._bound_cached(batch)
        batch.type = [r.type for r in requests]
        if any(r.session is not None for r in requests):
            batch.session = self.hasher.sessions([r.session for r in requests])
        accounts, users = [self._account(r) for r in requests], [self._user(r) for r in requests]
        if any(account is not None for account in accounts):
            batch.account = self.hasher.users(accounts)
        if any(user is not None for user in users):
            batch.user = self.hasher.users(users)
        domains = [self._domain(r) for r in requests] if self.recipe.keep_domains else []
        if any(domain is not None for domain in domains):
            batch.domain = self.hasher.domains(domains)

    def _bound_cached(self, batch: Batch):
        """Cached tokens are tokens of the prompt: of ours, which another tokenizer may count otherwise."""
        if batch.cached_tokens is None:
            return
        beyond = batch.cached_tokens > batch.input_length
        invalid = beyond & (batch.logged_tokens >= 0) & (batch.cached_tokens > batch.logged_tokens)
        batch.invalid_measured += int(invalid.sum())
        batch.lowered_cached = int((beyond & ~invalid).sum())
        batch.cached_tokens = np.where(invalid, -1, np.minimum(batch.cached_tokens, batch.input_length))
        batch.with_cached = int((batch.cached_tokens >= 0).sum())
        batch.without_hit = int((batch.cached_tokens == 0).sum())

    def _hash(self, requests, prompts, outputs, batch: Batch):
        roots = self.hasher.roots([self._context(r) for r in requests])
        if self.reader.block_size is not None:
            batch.digests, batch.offsets = self._engine_digests(requests, roots)
            return
        media, hasher = prompts.media, self.hasher
        if self._holds_lengths:
            hasher = BlockHasher(self.recipe.key, block_size=1, tail="kept")
        batch.digests, batch.offsets = hasher.prompts(prompts.tokens, roots, media)
        if self.recipe.options.outputs:
            # if the logged count differs from the text's tokens (hidden reasoning, for example), the blocks are unknown
            counted = np.diff(outputs[1])
            has_blocks = (counted > 0) & (counted == batch.output_length)
            batch.output_digests, batch.output_offsets = hasher.outputs(
                prompts.tokens, (batch.digests, batch.offsets), outputs, roots, has_blocks, media
            )
            batch.output_known = has_blocks

    def _engine_digests(self, requests, roots):
        """Keyed digests of the block hashes that an engine logged."""
        words = self.reader.hash_words
        rows = [self._block_hashes(r, words) for r in requests]
        offsets = offsets_of([len(row) for row in rows])
        values = np.concatenate(rows) if rows else np.empty((0, words), np.uint64)
        return self.hasher.engine_hashes((values, offsets), roots), offsets

    def _block_hashes(self, record, words) -> np.ndarray:
        hashes = np.frombuffer(record.hashes, dtype=np.uint64).reshape(-1, words)
        return hashes[: record.input_length // self.recipe.block_size] if self.recipe.tail == "dropped" else hashes

    def _account(self, record: Record) -> str | None:
        """The account that k-sharing counts, which a client cannot choose: the tenant, else the account or API key."""
        if record.tenant is not None:
            return f"tenant\0{record.tenant}"
        return None if self.recipe.options.by_tenant or record.account is None else f"account\0{record.account}"

    def _user(self, record: Record) -> str | None:
        """The user within the account: the account of a tenant, else the name that the client sets."""
        if record.tenant is not None and record.account is not None:
            return f"{self._account(record)}\0account\0{record.account}"
        return None if record.user is None else f"{self._account(record) or ''}\0user\0{record.user}"

    def _domain(self, record: Record) -> str | None:
        """The isolation domain: the mapped field, else tenant, adapter, salts and model; None if the log has none."""
        if self.recipe.options.maps_domain:
            return record.domain
        domain = self._domain_of(record.tenant, record.adapter, record.model, *map(_sha256, record.salts))
        return None if domain == NO_CONTEXT else domain

    def _context(self, record: Record) -> str:
        """What the blocks depend on beside their text. With a column of domains, it says what else keeps them apart."""
        tenant = record.tenant if self.recipe.options.isolate_tenants else None
        if self.recipe.keep_domains and not self.recipe.options.maps_domain:
            return self._context_of(None, None, tenant, None, *map(_sha256, record.media))
        domain = None if self.recipe.keep_domains else record.domain
        media = map(_sha256, record.media + record.salts)
        return self._context_of(record.model, record.adapter, tenant, domain, *media)


def _loaded(options: EncodingOptions, tokenizer: str, log_bytes: int | None) -> tuple[Any, Any]:
    """The chat template of the options, and the tokenizer."""
    from ..text import templates, tokenizers

    template = None
    if options.use_template:  # first: it may be tried in a child, and a fork waits for a tokenizer that loads
        template = templates.load(
            tokenizer,
            chat_template=options.chat_template and str(options.chat_template),
            generation_prompt=options.generation_prompt,
        )
    return template, tokenizers.load(tokenizer, log_bytes=log_bytes)


def _sha256(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()


NO_TEMPLATE = "Try --chat-template FILE, or log the templated text."
