"""Raw logs become a Trace: pieces are encoded by workers, and their digests numbered by first appearance in time order.

    logs -> pieces -> (workers: parse, render, tokenise, hash) -> digests -> ids -> sort -> release profile -> Trace

The text of a log is in memory only a few pieces at a time; of a block there stay 4 bytes a reference and about 40 for
each distinct one, and 8 more a reference at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ._kernels.ids import DigestIndex, number_rows
from .encode import Batch, Encoder, Recipe
from .errors import InputError, RowError, UsageError
from .files import name_of
from .keys import Key
from .logs.arrival_model import ArrivalModel
from .privacy import profiles
from .privacy.profiles import TAILS, Profile
from .privacy.release import Released, release
from .privacy.steps import tails_of
from .trace import Columns, Trace, TraceBuilder
from .workers import cores, ordered_map

if TYPE_CHECKING:
    from .spool import Spool

NS_PER_MS = 1_000_000
MOST = 1 << 24  # tokens a block
SMALL = 4 << 20  # bytes of log that one process encodes sooner than several would


@dataclass(frozen=True)
class Progress:
    """How far a run has come."""

    done: int  # bytes of input
    total: int  # bytes of input, 0 where it is not known
    requests: int
    tokens: int


@dataclass
class Counts:
    """What happened to the rows of a log: rows = requests + filtered + rejected.

    A row that holds several requests, a whole conversation say, counts as so many.
    """

    rows: int = 0
    requests: int = 0
    filtered: int = 0  # left out: empty prompts, and rows that are no requests
    rejected: int = 0
    others: int = 0  # of those filtered, the ones that are no requests
    lengths_only: int = 0  # requests of which the log holds lengths only: what they share is not known
    unsampled: int = 0  # requests that a sample of the sessions left out, after all were read
    cut: int = 0  # requests whose text the logger cut, taken because --allow-truncated said so
    with_logged_tokens: int = 0  # requests whose log says how many tokens the prompt has
    equal_to_logged: int = 0  # ... and where our count is the same
    logged_difference: int = 0  # sum of |ours - logged| over them
    without_output_blocks: int = 0  # with --outputs: the log has no text, or counts other tokens than it has
    reasons: Counter = field(default_factory=Counter)  # why rows were rejected


@dataclass
class Rows:
    """Anonymised rows in the order they will be written, and what is known of them."""

    columns: Columns
    block_size: int
    tail: str
    meta: dict[str, Any]
    counts: Counts
    users: np.ndarray | None = None  # request -> user, -1 = unknown; never written
    released: Released | None = None  # what the profile did; None where rows keep the log's order

    def trace(self) -> Trace:
        """The rows as a verified Trace; rows that were kept in input order are put in time order first."""
        if (np.diff(self.columns.timestamp) >= 0).all():  # ids are in place: no second array of them
            fields = {name: getattr(self.columns, name) for name in Columns.__dataclass_fields__}
            return Trace(**fields, block_size=self.block_size, tail=self.tail, meta=self.meta)
        return Trace.from_columns(self.columns, block_size=self.block_size, tail=self.tail, meta=self.meta)


def anonymize(inputs, **options) -> Trace:
    """The Trace of raw logs: text replaced by chained block ids under a key that is forgotten.

    `inputs` is a path, directory or glob, or several. The options are those of `anonymize_rows`.
    """
    return anonymize_rows(inputs, **options).trace()


def anonymize_rows(
    inputs: str | Path | Iterable,
    *,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    tokenizer: str | None = "deepseek-r1",
    chat_template: str | Path | None = None,
    use_template: bool = True,
    generation_prompt: str | None = None,
    block_size: int | None = None,
    outputs: bool = False,
    profile: Profile | str = "standard",
    sample_sessions: float = 1.0,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    arrivals: str | None = None,
    key: Key | None = None,
    spool: Spool | None = None,
    keep_order: bool = False,
    workers: int | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict], None] | None = None,
    **settings,
) -> Rows:
    """Anonymise raw logs; docs/cli.md says what each option means.

    `settings` stand over the profile's own: k, tail and what else privacy.Profile has. `block_size` is 512 unless the
    log holds an engine's hashes, whose blocks have theirs. `max_errors` rows may be bad (-1 = any number) and are
    handed to `on_reject`; one more ends the run with its error.
    With a `spool` and a key, what is done is kept until its block ends well.
    """
    from . import logs
    from .logs import sources

    chosen = profiles.profile(profile, **settings) if isinstance(profile, str) else replace(profile, **settings)
    model = None if arrivals is None else ArrivalModel.parse(arrivals)
    _check_options(block_size, chosen, keep_order, outputs)
    files = sources.find(inputs)
    unread = None
    try:
        reader = logs.open_reader(
            log_format, sources.sample(files), field_map=_with_tenant(field_map, tenant_field), time_unit=time_unit,
            allow_truncated=allow_truncated, untimed=model is not None,
        )  # fmt: skip
    except RowError as error:
        unread = InputError(f"{name_of(files[0].path)}: {error}")
    if unread is not None:  # raised out here, so that no frame of the reader's, which holds rows, hangs on it
        raise unread
    if spool is not None and key is None:
        raise UsageError("a run that can be resumed needs the same key again: pass key=load_key(path).")
    key = key or Key.random()
    recipe = Recipe(
        reader=reader, tokenizer=tokenizer if reader.holds_prompts else None,
        chat_template=None if chat_template is None else str(chat_template),
        use_template=use_template, generation_prompt=generation_prompt, key=key,
        block_size=_block_size(block_size, reader, outputs), tail="dropped" if chosen.tail == "drop" else "kept",
        outputs=outputs, stop_at_error=max_errors == 0, isolate_tenants=isolate_tenants,
        by_tenant=tenant_field is not None and not isolate_tenants,
    )  # fmt: skip
    encoder = Encoder(recipe)
    meta = _provenance(recipe, encoder, model)
    if on_start:
        on_start(meta)
    total = sources.total(files)
    collector = Collector(recipe, max_errors, on_reject, model)
    pieces = _noted(sources.pieces(files), collector)
    processes = 1 if 0 < total < SMALL or not encoder.can_fork else workers or cores()
    if spool is not None:
        spool.begin(encoder, files)
    with closing(_batches(encoder, pieces, processes, spool)) as batches:
        for batch in batches:
            done = collector.add(batch)
            if on_progress:
                on_progress(Progress(done, total, collector.counts.requests, collector.tokens))
    if not collector.counts.requests:
        raise _nothing_read(files, collector.counts)
    rows = collector.finish(meta, keep_order=keep_order)
    if keep_order:
        return _in_order(rows, chosen)
    return _released(rows, chosen, sample_sessions, isolate_tenants, np.random.default_rng(key.number("sample")))


def _check_options(block_size, profile, keep_order, outputs):
    if block_size is not None:
        _check_block_size(block_size)
    if keep_order and replace(profile, tail="shared").coarsens:
        raise UsageError(
            "rows in the log's order are for use inside the house: --keep-order goes with --profile exact."
        )
    if outputs and (profile.round_input, profile.round_output) != ("exact", "exact"):
        raise UsageError(
            "blocks of outputs would show the lengths that are rounded: --outputs goes with exact lengths."
        )


def _block_size(given, reader, outputs):
    """Tokens a block: those of the log's own blocks where it holds hashes."""
    logged = reader.block_size
    if logged is None:
        return 512 if given is None else given
    if given not in (None, logged):
        hint = (
            f"Leave --block-size out; kvtrace convert --fold {given // logged} makes larger blocks."
            if given > logged
            else ""
        )
        raise UsageError(f"the log holds hashes of blocks of {logged:,} tokens, not {given:,}. {hint}".rstrip())
    if outputs:
        raise UsageError("the log holds hashes of its prompts only: there are no outputs for --outputs.")
    _check_block_size(logged)
    return logged


def _with_tenant(field_map, tenant_field):
    return field_map if tenant_field is None else {**(field_map or {}), "tenant": tenant_field}


def _check_block_size(block_size):
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UsageError(f"block size is {block_size!r}; it is a whole number of tokens, 1 or more.")
    if block_size > MOST:
        raise UsageError(f"block size is {block_size}; no engine has blocks of more than {MOST:,} tokens.")


def _released(rows: Rows, profile: Profile, session_share: float, isolated: bool, rng) -> Rows:
    """The rows as their profile lets others see them; counts of a sample's whole are not written."""
    rows.columns, whole = TraceBuilder().columns(), rows.trace()
    done = release(whole, profile, users=rows.users, session_share=session_share, rng=rng)
    done.isolated = isolated
    if "prefixes" in rows.meta:  # nothing is shared, so there is nothing to lose or to warn of
        done.steps, done.notes = [], []
    rows.counts.unsampled = len(whole) - len(done.trace)
    counts = {} if done.sampled else {"counts": _plain(rows.counts)}
    rows.columns, rows.tail, rows.released = done.trace, done.trace.tail, done
    rows.meta = rows.meta | done.meta | counts
    return rows


def _in_order(rows: Rows, profile: Profile) -> Rows:
    """The rows in the log's order: no Trace, so that no step but that of the tails is taken."""
    tail = TAILS[profile.tail]
    rows.columns, rows.tail = tails_of(rows.columns, rows.tail, tail, rows.block_size), tail
    settings = {"settings": profile.settings(), "sampled": False}
    rows.meta = rows.meta | {"profile": profile.name, "release": settings, "counts": _plain(rows.counts)}
    return rows


def _nothing_read(files, counts: Counts) -> InputError:
    where = name_of(files[0].path) if len(files) == 1 else f"{len(files)} files"
    if not counts.rows:
        return InputError(f"{where}: no rows; a log is one JSON object a line.")
    if not counts.rejected:
        return InputError(f"{where}: all {counts.rows:,} prompts are empty. Try --map input=FIELD.")
    reason, times = counts.reasons.most_common(1)[0]
    rejected = f"{counts.rejected:,} rows were rejected, {times:,} of them so: {reason}"
    return InputError(f"{where}: no request was read: {rejected}")


def _noted(pieces, collector):
    """The pieces on their way to the workers, each noted so that its batch can be matched with its place."""
    for piece in pieces:
        collector.expect(piece)
        yield piece


def _batches(encoder, pieces, processes, spool: Spool | None) -> Generator[Batch, None, None]:
    """The batches of all pieces, in order: those that the spool holds, then new ones, which it is given."""
    if spool is not None:
        for batch in spool.kept():
            if next(pieces, None) is None:
                raise InputError("the inputs have become shorter since the run that is to be resumed began.")
            yield batch
    for batch in ordered_map(encoder, pieces, processes):
        yield batch
        if spool is not None:  # once it was taken in: a batch with a bad row that ends the run is not kept
            spool.append(batch)


def _provenance(recipe: Recipe, encoder: Encoder, model: ArrivalModel | None) -> dict[str, Any]:
    """What the sidecar says of a trace's making; no key, host, path or user is in it."""
    return {
        "log": recipe.reader.describe() | ({} if model is None else {"arrivals": model.describe()}),
        "tokenizer": encoder.tokenizer and encoder.tokenizer.describe(),
        "chat_template": encoder.template and encoder.template.describe(),
        "hash": "SipHash-2-4-128, keyed, chained",
        "session_mode": "cumulative",
    }


class Collector:
    """Gathers batches in input order, numbering digests as they come, and puts the rows in their final order."""

    def __init__(self, recipe: Recipe, max_errors: int, on_reject, arrivals: ArrivalModel | None = None):
        self.block_size, self.tail, self.outputs = recipe.block_size, recipe.tail, recipe.outputs
        self._arrivals = arrivals
        self.counts, self.tokens = Counts(), 0
        self._max_errors, self._on_reject = max_errors, on_reject
        self._expected: list = []  # pieces whose batches are still to come
        self._line = 1  # line of the current file that the next piece begins with
        self._path = None
        self._index, self._sessions, self._users = DigestIndex(), DigestIndex(), DigestIndex()
        self._found, self._output_found = bytearray(), bytearray()  # provisional numbers, int32
        self._columns: dict[str, list[np.ndarray]] = {}  # name -> one array a batch
        self._types: list[str | None] = []

    def expect(self, piece) -> None:
        self._expected.append(piece)

    def add(self, batch: Batch) -> int:
        """Take in the next batch; returns the bytes of input that are done."""
        piece = self._expected.pop(0)
        self._reject(batch, piece)
        self.counts.requests += len(batch)
        self.counts.rows += len(batch) + batch.empty + batch.others + len(batch.rejects)
        self.counts.filtered += batch.empty + batch.others
        self.counts.others += batch.others
        self.counts.lengths_only += batch.lengths_only
        self.counts.cut += batch.cut
        self.tokens += int(batch.input_length.sum())
        self._compare(batch)
        blocks = self._number(self._found, batch.digests, batch.offsets)
        lengths = {"input_length": batch.input_length, "output_length": batch.output_length}
        self._keep(time=batch.time_ns, blocks=blocks, **lengths)
        if batch.output_known is not None:
            output_blocks = self._number(self._output_found, batch.output_digests, batch.output_offsets)
            self._keep(output_blocks=output_blocks)
            self.counts.without_output_blocks += int((~batch.output_known).sum())
        self._keep(session=_numbers(self._sessions, batch.session, len(batch)))
        self._keep(user=_numbers(self._users, batch.user, len(batch)))
        self._types.extend(batch.type)
        return piece.done

    def _reject(self, batch, piece):
        """Count the batch's rejects, each with its file, line and offset; stop at one too many."""
        if piece.path != self._path:
            self._path, self._line = piece.path, 1
        for reject in batch.rejects:
            place, path = reject.place, name_of(piece.path)
            error = reject.error.at(path, self._line + place.line, piece.start + place.offset, place.length)
            self.counts.rejected += 1
            self.counts.reasons[error.reason] += 1
            if self._on_reject:
                self._on_reject(error)
            if self._max_errors == 0:
                error.hint = error.hint or "Try --on-error skip --max-errors N to leave such rows out."
                raise error
            if 0 < self._max_errors < self.counts.rejected:
                raise InputError(f"{error} That is bad row {self.counts.rejected:,}; --max-errors {self._max_errors}.")
        self._line += batch.lines

    def _compare(self, batch):
        logged = batch.logged_tokens >= 0
        difference = np.abs(batch.input_length - batch.logged_tokens)[logged]
        self.counts.with_logged_tokens += int(logged.sum())
        self.counts.equal_to_logged += int((difference == 0).sum())
        self.counts.logged_difference += int(difference.sum())

    def _number(self, found: bytearray, digests, offsets) -> np.ndarray:
        """Append the numbers of each row's blocks; returns blocks by row."""
        found += self._index.add(digests).data
        return np.diff(offsets)

    def _keep(self, **columns):
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values)

    def finish(self, meta: dict, *, keep_order: bool) -> Rows:
        """All rows by time (stable), or as they came, with ids numbered in that order."""
        column = {name: np.concatenate(self._columns.pop(name)) for name in list(self._columns)}
        if self._arrivals is not None:
            column["time"] = self._arrivals.times_ns(column["time"], column["session"])
        by_time = np.argsort(column["time"], kind="stable")
        order = np.arange(len(by_time)) if keep_order else by_time
        hash_ids, output_ids = number_rows(
            np.frombuffer(self._found, np.int32), _offsets(column["blocks"]), order,
            np.frombuffer(self._output_found, np.int32) if self.outputs else None,
            _offsets(column["output_blocks"]) if self.outputs else None,
        )  # fmt: skip
        columns = Columns(
            timestamp=((column["time"] - column["time"].min()) // NS_PER_MS)[order],
            input_length=column["input_length"][order], output_length=column["output_length"][order],
            hash_ids=hash_ids, offsets=_offsets(column["blocks"][order]), extra=self._extra(order),
            output_ids=output_ids, output_offsets=_offsets(column["output_blocks"][order]) if self.outputs else None,
        )  # fmt: skip
        if self._sessions.distinct:
            _link_sessions(columns, column["session"], by_time, order)
        users = column["user"][order] if self._users.distinct else None
        if self.counts.lengths_only:
            meta = meta | {"prefixes": "unknown: the log holds lengths only, so no block is shared"}
        return Rows(columns, self.block_size, self.tail, meta, self.counts, users)

    def _extra(self, order):
        if all(kind is None for kind in self._types):
            return {}
        return {"type": np.array([kind or "text" for kind in self._types], dtype=object)[order]}


def _numbers(index: DigestIndex, digests, rows) -> np.ndarray:
    """The number of each row's digest, -1 where it has none."""
    numbers = np.full(rows, -1, dtype=np.int64)
    if digests is not None:
        known = digests.any(axis=1)
        numbers[known] = index.add(digests[known])
    return numbers


def _offsets(lengths) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _link_sessions(columns: Columns, session, by_time, order) -> None:
    """Number sessions in time order, and find each request's parent (the turn before it) and its turn, from 1."""
    place = np.empty_like(order)  # row as it came -> row as it is written
    place[order] = np.arange(len(order))
    number: dict[int, int] = {}
    last: dict[int, int] = {}  # session -> row of its latest turn
    turn: dict[int, int] = {}
    columns.session, columns.parent = np.full(len(order), -1), np.full(len(order), -1)
    turns = np.ones(len(order), dtype=np.int64)
    for row in by_time.tolist():
        key, at = int(session[row]), place[row]
        if key < 0:
            continue
        columns.session[at] = number.setdefault(key, len(number))
        columns.parent[at] = last.get(key, -1)
        turns[at] = turn[key] = turn.get(key, 0) + 1
        last[key] = at
    columns.extra["turn"] = turns


def _plain(counts: Counts) -> dict:
    return {name: value for name, value in asdict(counts).items() if name != "reasons"}
