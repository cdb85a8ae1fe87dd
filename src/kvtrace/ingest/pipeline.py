"""Raw logs become a Trace: pieces are encoded by workers, and their digests numbered by first appearance in time order.

    logs -> pieces -> (workers: parse, render, tokenise, hash) -> digests -> ids -> sort -> release profile -> Trace

The text of a log is in memory only a few pieces at a time; of a block there stay 4 bytes a reference and about 40 for
each distinct one, and 8 more a reference at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from .._base.errors import InputError, RowError, UsageError
from .._base.files import name_of
from .._base.row_counts import Counts
from .._base.workers import cores, ordered_map
from .._native.ids import DigestIndex, number_rows
from ..privacy import profiles
from ..privacy.profiles import TAILS, Profile
from ..privacy.releases import Released, release
from ..privacy.steps import tails_of
from ..trace.building import TraceBuilder
from ..trace.columns import Columns
from ..trace.trace import Trace
from .encoding import Batch, Encoder, Recipe
from .keys import Key
from .logs.arrival_model import ArrivalModel
from .row_counts import Progress, RowCounter

if TYPE_CHECKING:
    from .checkpoint import Checkpoint

Inputs = str | Path | Iterable[str | Path]  # paths, directories or globs

NS_PER_MS = 1_000_000
MOST = 1 << 24  # tokens a block
SMALL = 4 << 20  # bytes of log that one process encodes sooner than several would


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


def anonymize(
    inputs: Inputs,
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
    k: int | None = None,
    k_counts: str | None = None,
    tail: str | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    sample_sessions: float = 1.0,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    arrivals: str | None = None,
    key: Key | None = None,
    workers: int | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Trace:
    """Turn raw logs into a Trace: text becomes chained block ids, hashed under a secret key.

    Args:
        inputs: A path, a directory or a glob, or several of these.
        log_format: Name of a reader in docs/ingest/logs.md; "auto" looks at the first rows.
        field_map: Field to JSON path, as in {"session": "meta.conversation"}.
        time_unit: "s", "ms", "us", "ns" or "iso"; "auto" looks at the first rows.
        allow_truncated: Accept prompts that the logger cut short.
        tokenizer: A built-in name, a tokenizer.json or its folder, or a Hugging Face id; None for logs of hashes.
        chat_template: A jinja file that replaces the tokenizer's own template.
        use_template: False for prompts that are templated text already.
        generation_prompt: Text that ends each prompt, instead of the template's own.
        block_size: Tokens a block. The default is 512, or the block size of the hashes in the log.
        outputs: Also make ids for the blocks of the outputs.
        profile: A release profile or its name; the next seven options replace single settings of it.
        k: Blocks with fewer contributors than k are split, one copy each; 1 never splits.
        k_counts: What k counts: "users", "sessions", "requests" or "auto".
        tail: The last, partial block of a prompt: "shared", "unique" or "drop".
        time_step_ms: Times are rounded down to such steps; 0 keeps milliseconds.
        round_input: Input lengths are rounded up to so many tokens, or to "block"; "exact" keeps them.
        round_output: Output lengths are rounded up to so many tokens, or to "pow2"; "exact" keeps them.
        drop_sessions: Leave out sessions, turns and parents.
        sample_sessions: Share of the sessions to release, each whole: above 0, at most 1.
        tenant_field: JSON path of the tenant; k then counts tenants.
        isolate_tenants: Tenants share no blocks, as in engines that keep their caches apart.
        arrivals: Arrival model for a log without times, as in "rate=2/s,think=30s,seed=1".
        key: Key of the hash (see `load_key`). The default is random and never stored.
        workers: Processes; the default is one a core.
        max_errors: Number of bad rows that are left out before one ends the run; -1 is no limit.
        on_reject: Receives the error of each bad row.
        on_progress: Receives the progress after each batch.

    Returns:
        The trace after the steps of its release profile; its `meta` holds what a sidecar file says.

    Raises:
        UsageError: Options do not fit together.
        InputError: A log cannot be read, or has more than `max_errors` bad rows.

    >>> import json, tempfile
    >>> rows = [{"timestamp": time, "prompt": "a b c d e f g h", "output_length": 1} for time in (0, 1)]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as log:
    ...     _ = log.write("".join(json.dumps(row) + "\\n" for row in rows)), log.flush()
    ...     anonymize(log.name, block_size=4, profile="exact")
    Trace(2 requests, 4 blocks, 2 distinct, block_size=4, tail=kept)
    """
    return anonymize_rows(
        inputs, log_format=log_format, field_map=field_map, time_unit=time_unit, allow_truncated=allow_truncated,
        tokenizer=tokenizer, chat_template=chat_template, use_template=use_template,
        generation_prompt=generation_prompt, block_size=block_size, outputs=outputs, profile=profile, k=k,
        k_counts=k_counts, tail=tail, time_step_ms=time_step_ms, round_input=round_input, round_output=round_output,
        drop_sessions=drop_sessions, sample_sessions=sample_sessions, tenant_field=tenant_field,
        isolate_tenants=isolate_tenants, arrivals=arrivals, key=key, workers=workers, max_errors=max_errors,
        on_reject=on_reject, on_progress=on_progress,
    ).trace()  # fmt: skip


class LogOptions(TypedDict, total=False):
    """The options of `prepared` that `anonymize_rows` hands on; `anonymize` says what each means."""

    log_format: str
    field_map: dict[str, str] | None
    time_unit: str
    allow_truncated: bool
    tokenizer: str | None
    chat_template: str | Path | None
    use_template: bool
    generation_prompt: str | None
    block_size: int | None
    outputs: bool
    profile: Profile | str
    k: int | None
    k_counts: str | None
    tail: str | None
    time_step_ms: int | None
    round_input: str | int | None
    round_output: str | int | None
    drop_sessions: bool | None
    tenant_field: str | None
    isolate_tenants: bool
    arrivals: str | None
    key: Key | None


def anonymize_rows(
    inputs: Inputs,
    *,
    sample_sessions: float = 1.0,
    checkpoint: Checkpoint | None = None,
    keep_order: bool = False,
    workers: int | None = None,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    on_start: Callable[[dict], None] | None = None,
    **options: Unpack[LogOptions],
) -> Rows:
    """Anonymise raw logs; the other options are those of `prepared`, and docs/cli/cli.md says what each means.

    `max_errors` rows may be bad (-1 = any number) and are handed to `on_reject`; one more ends the run with its error.
    With a `checkpoint` and a key, what is done is kept until its block ends well.
    """
    from .logs import sources

    if checkpoint is not None and options.get("key") is None:
        raise UsageError("a run that can be resumed needs the same key again: pass key=load_key(path).")
    job = prepared(inputs, keep_order=keep_order, stop_at_error=max_errors == 0, **options)
    if on_start:
        on_start(job.meta)
    total = sources.total(job.files)
    collector = Collector(job.recipe, max_errors, on_reject, job.model)
    pieces = _noted(sources.pieces(job.files), collector)
    processes = 1 if 0 < total < SMALL or not job.encoder.can_fork else workers or cores()
    if checkpoint is not None:
        checkpoint.begin(job.encoder, job.files)
    row_counter = collector.row_counter
    with closing(_batches(job.encoder, pieces, processes, checkpoint)) as batches:
        for batch in batches:
            done = collector.add(batch)
            if on_progress:
                on_progress(Progress(done, total, row_counter.counts.requests, row_counter.tokens))
    if not row_counter.counts.requests:
        raise nothing_read(job.files, row_counter.counts)
    rows = collector.finish(job.meta, keep_order=keep_order)
    if keep_order:
        return _in_order(rows, job.profile)
    rng = np.random.default_rng(job.recipe.key.number("sample"))
    return _released(rows, job.profile, sample_sessions, job.recipe.isolate_tenants, rng)


@dataclass(frozen=True)
class Prepared:
    """All that is settled before the first row is read."""

    files: list  # logs.sources.Source
    recipe: Recipe
    encoder: Encoder
    profile: Profile
    model: ArrivalModel | None
    meta: dict[str, Any]  # what the sidecar says of the trace's making


def prepared(
    inputs: Inputs,
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
    k: int | None = None,
    k_counts: str | None = None,
    tail: str | None = None,
    time_step_ms: int | None = None,
    round_input: str | int | None = None,
    round_output: str | int | None = None,
    drop_sessions: bool | None = None,
    tenant_field: str | None = None,
    isolate_tenants: bool = False,
    arrivals: str | None = None,
    key: Key | None = None,
    keep_order: bool = False,
    stop_at_error: bool = True,
) -> Prepared:
    """What raw logs are, and how they will be anonymised; UsageError where options do not fit.

    `anonymize` says what each option means.
    """
    from . import logs
    from .logs import sources

    chosen = profiles.profile(
        profile, k=k, k_counts=k_counts, tail=tail, time_step_ms=time_step_ms, round_input=round_input,
        round_output=round_output, drop_sessions=drop_sessions,
    )  # fmt: skip
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
    recipe = Recipe(
        reader=reader, tokenizer=tokenizer if reader.holds_prompts else None,
        chat_template=None if chat_template is None else str(chat_template),
        use_template=use_template, generation_prompt=generation_prompt, key=key or Key.random(),
        block_size=_block_size(block_size, reader, outputs), tail="dropped" if chosen.tail == "drop" else "kept",
        outputs=outputs, stop_at_error=stop_at_error, isolate_tenants=isolate_tenants,
        by_tenant=tenant_field is not None and not isolate_tenants,
    )  # fmt: skip
    encoder = Encoder(recipe)
    return Prepared(files, recipe, encoder, chosen, model, _provenance(recipe, encoder, model))


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
    counts = {} if done.sampled else {"counts": rows.counts.to_dict()}
    rows.columns, rows.tail, rows.released = done.trace, done.trace.tail, done
    rows.meta = rows.meta | done.meta | counts
    return rows


def _in_order(rows: Rows, profile: Profile) -> Rows:
    """The rows in the log's order: no Trace, so that no step but that of the tails is taken."""
    tail = TAILS[profile.tail]
    rows.columns, rows.tail = tails_of(rows.columns, rows.tail, tail, rows.block_size), tail
    settings = {"settings": profile.settings(), "sampled": False}
    rows.meta = rows.meta | {"profile": profile.name, "release": settings, "counts": rows.counts.to_dict()}
    return rows


def nothing_read(files, counts: Counts) -> InputError:
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


def _batches(encoder, pieces, processes, checkpoint: Checkpoint | None) -> Generator[Batch, None, None]:
    """The batches of all pieces, in order: those that the checkpoint holds, then new ones, which it is given."""
    if checkpoint is not None:
        for batch in checkpoint.kept():
            if next(pieces, None) is None:
                raise InputError("the inputs have become shorter since the run that is to be resumed began.")
            yield batch
    for batch in ordered_map(encoder, pieces, processes):
        yield batch
        if checkpoint is not None:  # once it was taken in: a batch with a bad row that ends the run is not kept
            checkpoint.append(batch)


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
        self.row_counter = RowCounter(max_errors, on_reject)
        self._expected: list = []  # pieces whose batches are still to come
        self._index, self._sessions, self._users = DigestIndex(), DigestIndex(), DigestIndex()
        self._found, self._output_found = bytearray(), bytearray()  # provisional numbers, int32
        self._columns: dict[str, list[np.ndarray]] = {}  # name -> one array a batch
        self._types: list[str | None] = []

    def expect(self, piece) -> None:
        self._expected.append(piece)

    def add(self, batch: Batch) -> int:
        """Take in the next batch; returns the bytes of input that are done."""
        piece = self._expected.pop(0)
        self.row_counter.add(batch, piece)
        blocks = self._number(self._found, batch.digests, batch.offsets)
        lengths = {"input_length": batch.input_length, "output_length": batch.output_length}
        self._keep(time=batch.time_ns, blocks=blocks, **lengths)
        if batch.output_known is not None:
            self._keep(output_blocks=self._number(self._output_found, batch.output_digests, batch.output_offsets))
        self._keep(session=_numbers(self._sessions, batch.session, len(batch)))
        self._keep(user=_numbers(self._users, batch.user, len(batch)))
        self._types.extend(batch.type)
        return piece.done

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
        counts = self.row_counter.counts
        return Rows(columns, self.block_size, self.tail, meta | counts.unknown, counts, users)

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
