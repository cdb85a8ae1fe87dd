"""Read raw logs: split sources into pieces, parse lines to Records, and convert times to nanoseconds.

A log reader is one module in this folder and one row in READERS. It defines

    read(row)         -> Record, or
    read_all(row)     -> list of Records, for rows that hold a conversation or several spans
    matches(row)      -> True if the row has this reader's format
    small_unit(row)   -> the unit of times that are too small to be epoch times, or None = unknown

and, if its rows hold hashes of blocks instead of prompts, what differs from one hash of 64 bits for each block:

    HASHES            -> the field of the hashes, for errors
    HASH_WORDS        -> 64-bit words of a hash, side by side in `Record.hashes`
    HASHED_TAILS      -> False if partial last blocks have no hash

A reader raises RowError for a bad row and NotARequest for a row that is not a request. Rows hold text, so an error
names the JSON path and the reason but never quotes a value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from ..._base.errors import RowError, wrong_word
from ..._base.json_values import parsed_json
from . import (
    aiperf,
    anthropic,
    azure,
    block_hash,
    burstgpt,
    conversations,
    dynamo,
    fields,
    helicone,
    kv_events,
    langfuse,
    langsmith,
    layouts,
    lengths,
    litellm,
    litellm_hashes,
    openai,
    pairs,
    portkey,
    responses,
    sglang,
    spellings,
    times,
    tokens,
    ucm,
    vllm,
)
from . import otel_spans as otel  # fmt: skip
from .fieldmap import FieldMap, unfolded, unpacked
from .logged_streams import with_responses
from .pairs import require_no_answer
from .record import Record, fitted_size
from .spellings import unknown_form
from .times import NO_TIME, Unit

READERS = {  # detection tries them in this order
    "litellm-hashes": litellm_hashes,
    "litellm": litellm,
    "langfuse": langfuse,
    "langsmith": langsmith,
    "helicone": helicone,
    "portkey": portkey,
    "otel": otel,
    "sglang": sglang,
    "vllm": vllm,
    "kv-events": kv_events,
    "tokens": tokens,
    "dynamo": dynamo,
    "ucm": ucm,
    "azure": azure,
    "burstgpt": burstgpt,
    "aiperf": aiperf,
    "conversations": conversations,
    "responses": responses,
    "anthropic": anthropic,
    "block-hash": block_hash,
    "openai": openai,
    "lengths": lengths,
}


def open_reader(
    name: str,
    sample_rows: Iterable[bytes],
    *,
    field_map: Mapping[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    untimed: bool = False,
) -> LogReader:
    """The reader of that name. `auto` detects the reader, or the unit of time, from sample rows.

    Args:
        sample_rows: the first lines of the log: JSON objects, or rows of a table after its heading.
        untimed: requests need no time.

    Raises:
        UsageError: unknown reader, field or unit.
        RowError: the sample matches no reader or no unit of time.

    >>> reader = open_reader("auto", [b'{"timestamp": 0, "input": "Hello", "output": 3}'])
    >>> reader.describe()
    {'reader': 'block-hash (detected)', 'time': 'milliseconds from the start (detected)'}
    """
    if name != "auto" and name not in READERS:
        raise wrong_word(name, "a log format", ["auto", *READERS])
    stated = None if time_unit == "auto" else times.stated(time_unit)
    fields = FieldMap.of(field_map)
    lines = list(sample_rows)
    columns = layouts.heading(lines[0]) if lines and _row_or_none(lines[0]) is None else None
    rows = [fields.overlay(_with_answers(row)) for line in lines if (row := _row_or_none(line, columns)) is not None]
    chosen = name if name != "auto" else "block-hash" if "input" in fields else detect(rows)
    reader = LogReader(
        chosen, stated, fields, allow_truncated, untimed, columns,
        name_detected=name == "auto", unit_detected=time_unit == "auto",
    )  # fmt: skip
    return reader.with_spellings(rows).informed_by(rows)


def detect(rows: list[dict[str, Any]]) -> str:
    """The name of the reader that matches most rows; RowError if no reader matches any row.

    >>> detect([{"messages": [], "created": 0}])
    'openai'
    """
    fits = Counter(next((name for name, reader in READERS.items() if reader.matches(row)), "none") for row in rows)
    if set(fits) == {"none"}:
        raise unknown_form(rows, READERS)
    del fits["none"]
    return max(fits, key=fits.__getitem__, default="block-hash")  # an empty log has any format


class Measured(NamedTuple):
    """What the service measured of a request; None = unknown. The names are those of a trace's columns."""

    cached_tokens: int | None = None
    ttft_ms: float | None = None
    e2e_ms: float | None = None
    queue_ms: float | None = None
    invalid: int = 0  # columns whose logged value is not valid


NOT_MEASURED = Measured()
DELAYS = (
    "`delay` counts from the end of the answer before it: where the log does not have that time, turns arrive earlier "
    "than in a replay, by the times of the answers"
)
CLOCK_MS = 1000.0  # clocks of whole seconds tell the end of a request too early by less


class ModelNames(tuple[str, ...]):
    """Names of models, which are values of a log: error trackers print local variables, and must not print them.

    >>> ModelNames(["acme/secret"])
    ModelNames of 1 model
    """

    def __repr__(self) -> str:
        return f"ModelNames of {len(self)} model{'' if len(self) == 1 else 's'}"


@dataclass(frozen=True)
class LogReader:
    """Reads the lines of one log. Create it with `open_reader`; all workers use the same one."""

    name: str
    unit: Unit | None  # None = the sample held no times
    fields: FieldMap
    allow_truncated: bool = False
    untimed: bool = False  # requests need no time: an arrival model sets it
    columns: tuple[str, ...] | None = None  # of a table; None = rows are JSON
    block_size: int | None = None  # tokens per block, if the log holds hashes instead of prompts; 0 = not known
    states_block_size: bool = False  # whether rows with hashes state it; else it is the one that fits, or an option's
    name_detected: bool = False
    unit_detected: bool = False
    about_ns: int | None = field(default=None, repr=False)  # median time of the first rows; None = they hold no times
    delays: bool = False  # requests may have a delay after their session's request before them in place of a time
    note: str | None = None  # on fields of the rows that are not used
    models: ModelNames = field(default=ModelNames(), repr=False)  # that the first rows name
    text_models: ModelNames | None = field(default=None, repr=False)  # of rows with text; None = no row has text

    def read(self, line: bytes) -> Record:
        """The only Record of a line. RowError, with JSON path and without content, if it is bad."""
        (record,) = self.records(line)
        return record

    def records(self, line: bytes) -> list[Record]:
        """The Records of one line, in order; none for a table's heading. RowError if one of them is bad."""
        row = self._row(line)
        if row is None:
            return []
        try:
            records = records_of(READERS[self.name], row)
        except RowError as error:
            error.field = self.fields.source(error.field)
            raise
        if not self.allow_truncated:
            for record in records:
                self._require_whole(record)
        return records

    def _require_whole(self, record):
        if record.cut:
            hint = "Log complete texts, or accept cut ones with --allow-truncated."
            raise RowError("was cut short by the logger.", field=self.fields.source(record.cut), hint=hint)
        if record.lacks:
            hint = "Log complete prompts, or accept incomplete ones with --allow-truncated."
            raise RowError(f"the prompt is incomplete: it lacks {record.lacks}.", hint=hint)

    @property
    def is_conversation(self) -> bool:
        """Whether the requests of one line are turns of one conversation, unless they name sessions."""
        return getattr(READERS[self.name], "CONVERSATION", True)

    @property
    def hash_words(self) -> int:
        """The 64-bit words of a block's hash, if the log holds hashes."""
        return getattr(READERS[self.name], "HASH_WORDS", 1)

    @property
    def hashes_tails(self) -> bool:
        """Whether the partial last block of a prompt has a hash, too, if the log holds hashes."""
        return getattr(READERS[self.name], "HASHED_TAILS", True)

    def require_blocks(self, record: Record, block_size: int) -> None:
        """Check that a record's hashes are those of its prompt's blocks; RowError.

        A length that is not known is set to the log's own count, moved into the last block if it is outside it.
        """
        if record.block_size not in (None, block_size):
            raise RowError(f"the block size differs: the first rows have blocks of {block_size:,} tokens.")
        assert record.hashes is not None
        reader, blocks, tokens = READERS[self.name], len(record.hashes) // self.hash_words, record.input_length
        if tokens is None:
            tokens = min(max(record.prompt_tokens or 0, (blocks - 1) * block_size + 1), blocks * block_size)
            record.input_length = tokens
        if blocks != (-(-tokens // block_size) if self.hashes_tails else tokens // block_size):
            kind = "block" if self.hashes_tails else "full block"
            field = self.fields.source(getattr(reader, "HASHES", None))
            hint = None if self.states_block_size else "Another --block-size may fit."
            raise RowError(f"does not have one hash for each {kind} of {block_size:,} tokens.", field=field, hint=hint)

    @property
    def holds_prompts(self) -> bool:
        """Whether the log holds prompts as text or tokens, not only their hashes or lengths."""
        return self.block_size is None and getattr(READERS[self.name], "PROMPTS", True)

    def time_ns(self, record: Record) -> int:
        """The record's time in nanoseconds, or NO_TIME; RowError if it does not fit the log's unit."""
        if record.time is None:
            if self.untimed or self.delays:
                return NO_TIME
            raise RowError("the request has no time.", hint="To make up arrival times, use --arrivals rate=1/s.")
        if self.unit is None:
            raise RowError("the unit of time is unknown: the first rows had no times.", hint="Set --time-unit.")
        time_ns = self.unit.parse(record.time)
        if self.about_ns is not None and abs(time_ns - self.about_ns) > times.MAX_DISTANCE_NS:
            raise RowError("the time is more than five years from the times of the first rows.")
        return time_ns

    def service_ns(self, record: Record, time_ns: int) -> int:
        """The nanoseconds from the record's time to its end, or NO_TIME if the log does not have them.

        An end that is no time, before the start or a month later is a mistake of the log: it counts as unknown.
        """
        if time_ns == NO_TIME:
            return NO_TIME
        if record.service_s is not None:
            return round(record.service_s * 10**9)
        end_ns = None if self.unit is None or record.end_time is None else times.parsed(self.unit, record.end_time)
        if end_ns is None or not 0 <= end_ns - time_ns <= fields.MAX_SERVICE_S * 10**9:
            return NO_TIME
        return end_ns - time_ns

    def measured(self, record: Record, time_ns: int) -> Measured:
        """What the service measured of the record. A value that cannot be true is unknown, and named as invalid.

        A first token at the very end means that the answer was not streamed. A first token after the end, by more than
        clocks of whole seconds explain, and a longer time in the queue are mistakes of the log, often of a unit.
        """
        nothing = record.service_s is record.end_time is record.first_token is record.cached_tokens is None
        if nothing and record.ttft_s is record.queue_s is None and not record.invalid:
            return NOT_MEASURED
        invalid = set(record.invalid)
        service_ns, ttft_ms = self.service_ns(record, time_ns), _milliseconds(record.ttft_s)
        e2e_ms = None if service_ns == NO_TIME else round(service_ns / 1e6, 3)
        if e2e_ms is not None:
            invalid.discard("e2e_ms")
        elif record.end_time is not None and time_ns != NO_TIME:
            invalid.add("e2e_ms")
        if ttft_ms is None and time_ns != NO_TIME and record.first_token not in (None, record.end_time):
            first_ns = times.parsed(self.unit, record.first_token) if self.unit else None
            if first_ns is None:  # tools write dates into spans with nanoseconds
                first_ns = times.parsed(Unit("iso"), record.first_token)
            if first_ns is not None and 0 <= first_ns - time_ns <= fields.MAX_SERVICE_S * 10**9:
                ttft_ms = round((first_ns - time_ns) / 1e6, 3)
            else:
                invalid.add("ttft_ms")
        queue_ms, most_ms = _milliseconds(record.queue_s), float("inf") if e2e_ms is None else e2e_ms + CLOCK_MS
        if ttft_ms is not None and ttft_ms > most_ms:
            ttft_ms = None
            invalid.add("ttft_ms")
        if queue_ms is not None and queue_ms > most_ms:
            queue_ms = None
            invalid.add("queue_ms")
        return Measured(record.cached_tokens, ttft_ms, e2e_ms, queue_ms, len(invalid))

    def detected_fields(self) -> str | None:
        """The fields that are read under another name, in words; None if there are none.

        >>> rows = [b'{"createdAt": "2031-03-04", "input": "Hello", "output": 3}']
        >>> open_reader("auto", rows).detected_fields()
        'timestamp from `createdAt`'
        """
        return ", ".join(f"{target} from `{name}`" for target, name in self.fields.spellings) or None

    def describe(self) -> dict[str, str]:
        """The reader and the unit of time, each with `(detected)` or `(stated)`."""
        unit = "none found in the first rows" if self.unit is None else _with_origin(str(self.unit), self.unit_detected)
        return {"reader": _with_origin(self.name, self.name_detected), "time": unit}

    def with_spellings(self, rows: list[dict[str, Any]]) -> LogReader:
        """This reader with fields that these rows have under another name (spellings.py)."""
        reader, mapped = READERS[self.name], {target for target, _ in self.fields.paths}
        if not getattr(reader, "SPELLINGS", True):
            return replace(self, note=getattr(reader, "NOTE", None))
        read = [_tried(reader, row) for row in rows]
        chosen: dict[str, str] = {}
        if "timestamp" not in mapped and rows and (_lacks_times(read) or _has_times_of_answers(reader, rows)):
            time = spellings.spelling_of_time(rows)
            chosen |= {} if time is None else {"timestamp": time}
            field_map = replace(self.fields, spellings=(*chosen.items(),))
            read = [_tried(reader, self._marked(field_map.overlay(row))) for row in rows]
        records = [record for row_records, _ in read for record in row_records]
        names, note = spellings.spellings_of(rows, records, mapped) if records else ({}, None)
        note = note or getattr(reader, "NOTE", None)
        return replace(self, fields=replace(self.fields, spellings=(*(chosen | names).items(),)), note=note)

    def informed_by(self, rows: list[dict[str, Any]]) -> LogReader:
        """This reader with the unit of time, the block size, the years and the models that these rows show."""
        reader = READERS[self.name]
        rows = [self._overlaid(row) for row in rows]
        records: list[Record] = []
        small: Counter[str | None] = Counter()
        for row in rows:
            try:
                records += records_of(reader, row)
            except RowError:
                continue
            small[reader.small_unit(row)] += 1
        default = max(small, key=small.__getitem__, default=None)
        logged_times = [record.time for record in records]
        unit = self.unit or times.detect(logged_times, default)
        about_ns = None if unit is None else times.median_ns(unit, logged_times)
        block_size, is_stated = self._block_size(records)
        delays = any(record.delay_ms is not None for record in records)
        note = "; ".join(filter(None, (self.note, DELAYS if delays else None))) or None
        texts = [record for record in records if record.messages is not None or record.text is not None]
        models, text_models = (
            ModelNames(sorted({record.model for record in some if record.model is not None}))
            for some in (records, texts)
        )
        return replace(
            self, unit=unit, block_size=block_size, states_block_size=is_stated, about_ns=about_ns, delays=delays,
            note=note, models=models, text_models=None if records and not texts else text_models,
        )  # fmt: skip

    def _block_size(self, records: list[Record]) -> tuple[int | None, bool]:
        """The block size that records with hashes state, or that fits them, None without hashes; whether stated."""
        hashed = [record for record in records if record.hashes is not None]
        stated = next((record.block_size for record in hashed if record.block_size is not None), None)
        if stated is not None or not hashed:
            return stated, stated is not None
        return fitted_size(hashed, self.hash_words, "kept" if self.hashes_tails else "dropped") or 0, False

    def _overlaid(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row with the mapped fields; a reader whose rows hold several calls maps the fields of each."""
        if not self.fields:
            return self._marked(row)
        overlay = getattr(READERS[self.name], "overlay", None)
        return self._marked(self.fields.overlay(row) if overlay is None else overlay(row, self.fields))

    def _marked(self, row: dict[str, Any]) -> dict[str, Any]:
        return row | {fields.UNTIMED: True} if self.untimed else row

    def _row(self, line: bytes) -> dict[str, Any] | None:
        if self.columns is not None:
            cells = layouts.row(line, self.columns)
            return self._overlaid(with_responses(_opened(cells))) if cells else cells
        if self.name == "vllm" and line[:1] != b"{":
            row = vllm.row_of_line(line) or {}
            return self._overlaid(row)
        bad_column = None
        try:
            row = parsed_json(line)
        except orjson.JSONDecodeError as error:
            bad_column = error.colno
        if bad_column is not None:  # raised outside the handler: orjson's error holds the line and must not be chained
            raise _not_json(line, bad_column)
        row = _opened(row)
        if type(row) is not dict:
            hint = ARRAY_HINT if _is_array(line) else "A log holds one JSON object a line."
            raise RowError("is JSON, but not an object.", hint=hint)
        return self._overlaid(with_responses(row))


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def records_of(reader, row: dict[str, Any]) -> list[Record]:
    """The Records of one row, by a reader module's `read_all` or `read`; RowError if its answer cannot be read."""
    records = reader.read_all(row) if hasattr(reader, "read_all") else [reader.read(row)]
    for record in records:
        if not record.has_output:
            require_no_answer(record, row)
    return records


def _tried(reader, row) -> tuple[list[Record], str | None]:
    """The records of a row, and the reason of its error."""
    try:
        return records_of(reader, row), None
    except RowError as error:
        return [], error.reason


def _lacks_times(read):
    """Whether half of the rows or more have no time."""
    return 2 * sum(error == spellings.MISSING_TIME for _, error in read) >= len(read)


def _has_times_of_answers(reader, rows):
    """Whether the reader takes the times from the answers, since no row has one of its own: these are whole seconds."""
    own = ("timestamp", "created", "created_at")
    return reader.small_unit is pairs.small_unit and not any(row.get(name) is not None for row in rows for name in own)


def _row_or_none(line, columns=None):
    try:
        if columns is not None:
            cells = layouts.row(line, columns)
            return _opened(cells) if cells else cells
        row = _opened(parsed_json(line))
    except (orjson.JSONDecodeError, RowError):
        return vllm.row_of_line(line) if columns is None else None
    return row if type(row) is dict else None


def _with_answers(row: dict[str, Any]) -> dict[str, Any]:
    """The row with the answers of its streams; unchanged if one is faulty, which its reader will say."""
    try:
        return with_responses(row)
    except RowError:
        return row


def _opened(row):
    """The row of a line; a logger may have encoded the row, or fields of it, as JSON in a string."""
    row = unpacked(row) if type(row) is str else row
    return unfolded(spellings.with_lower_names(row)) if type(row) is dict else row


def _with_origin(name, detected):
    return f"{name} ({'detected' if detected else 'stated'})"


def _not_json(line, column):
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return RowError(f"not UTF-8 at byte {error.start}.")
    hint = None
    if _is_array(line):
        hint = ARRAY_HINT
    elif line.strip() == b"{":
        hint = "A log holds one JSON object a line. To convert indented JSON, use jq -c."
    return RowError(f"not valid JSON at column {column}.", hint=hint)


ARRAY_HINT = "A log holds one JSON object a line. To convert a JSON array, use jq -c '.[]'."


def _is_array(line):
    """Whether the line starts an array of objects. ShareGPT, for example, is published as one JSON array."""
    text = line.strip()
    return text[:1] == b"[" and text[1:].lstrip()[:1] in (b"", b"{")
