"""Crafted releases: an honest release, and one change that hides something in it. Each row has the check that finds it.

`python -m tests.privacy.crafted FOLDER` writes them all into a folder, to try other tools on them.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import kvtrace
from kvtrace.privacy.profiles import PROFILES
from kvtrace.privacy.releases import release
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace

TEXT = "Patient John Smith has hepatitis"
PHONE = 4155550123
HEX = (TEXT * 2)[:32].encode().hex()
BLOCK = 16
FILES = {  # format -> (file, the writer's format)
    "mooncake": ("t.jsonl", "mooncake"),
    "bailian": ("t.jsonl", "bailian"),
    "gzip": ("t.jsonl.gz", "mooncake"),
    "zstd": ("t.jsonl.zst", "mooncake"),
    "parquet": ("t.parquet", "parquet"),
    "dataset": ("t.dataset", "dataset"),
}
JSON_ROWS, PARQUET, ALL = ("mooncake", "bailian"), ("parquet",), tuple(FILES)


def honest(rows: int = 24) -> Trace:
    """A trace of conversations of two turns that share a first block."""
    row = np.arange(rows)
    columns = Columns(
        row * 1000.0, np.full(rows, 2 * BLOCK), 5 + row % 4,
        np.stack([np.zeros(rows, np.int64), row + 1], axis=1).ravel(), 2 * np.arange(rows + 1),
        session=row // 2, parent=np.where(row % 2, row - 1, -1),
        extra={"type": np.array(["text"] * rows, dtype=object), "turn": row % 2 + 1},
    )  # fmt: skip
    meta = {
        "log": {"reader": "openai (detected)", "time": "epoch seconds (detected)"},
        "tokenizer": {"name": "deepseek-ai/DeepSeek-R1", "sha256": "ab" * 32, "backend": "tokenizers 0.21.0"},
        "chat_template": {"name": "chat_template.jinja", "sha256": "cd" * 32, "generation_prompt": None},
        "hash": "SipHash-2-4-128, keyed, chained",
    }
    return Trace.from_columns(columns, block_size=BLOCK, meta=meta)


def publish(folder: Path, format: str, profile: str = "standard", trace: Trace | None = None) -> Path:
    """Publish the honest trace in a format; returns the file or folder."""
    name, to = FILES[format]
    done = release(trace or honest(), PROFILES[profile])
    kvtrace.privacy.publish(done.trace, folder / name, format=to, extra=True)
    return folder / name


@dataclass(frozen=True)
class Crafted:
    """One change of a release, and the check that must fail (or warn) for it."""

    name: str
    format: str
    change: Callable[[Path], None]
    check: str
    level: str = "FAIL"

    def make(self, folder: Path) -> Path:
        """Write the release with the change."""
        path = publish(folder, self.format)
        self.change(path)
        return path


CRAFTED: list[Crafted] = []


def craft(check: str, formats=JSON_ROWS, level: str = "FAIL", **more):
    """Add a change for each format; `more` are options that are tried one by one, by name."""

    def add(change):
        name = change.__name__.replace("_", " ")
        for format in formats:
            for label, options in more.items() or [("", {})]:
                CRAFTED.append(
                    Crafted(f"{name} {label}".strip(), format, lambda path, o=options: change(path, **o), check, level)
                )
        return change

    return add


# -- rows of JSON ------------------------------------------------------------------------------------------------


def edit_row(path: Path, edit: Callable[[str], str], row: int = 3) -> None:
    """Change the text of one row."""
    lines = path.read_text().splitlines(keepends=True)
    lines[row] = edit(lines[row])
    path.write_text("".join(lines))


def value_of(path: Path, key: str, text: str, row: int = 3) -> None:
    """Replace the text of one value of a row, or add it at the end."""

    def edit(line):
        if f'"{key}"' not in line:
            return line.replace("}\n", f', "{key}": {text}}}\n')
        return re.sub(rf'("{key}": )(\[[^]]*\]|[^,}}]*)', lambda match: match[1] + text, line, count=1)

    edit_row(path, edit, row)


def added(before: str) -> Callable[[str], str]:
    """An edit that puts text right after the brace of a row."""
    return lambda line: "{" + before + line[1:]


@craft(
    "canonical",
    prompt=dict(text=f'"prompt": "{TEXT}", "prompt": null, '),
    timestamp=dict(text=f'"timestamp": {PHONE}, '),
    type=dict(text='"type": "text", "type": null, '),
    hash_ids=dict(text=f'"hash_ids": [{PHONE}], '),
    twice_null=dict(text=f'"{TEXT}": null, "{TEXT}": null, '),
)
def repeated_key(path, text):
    edit_row(path, added(text))


@craft(
    "fields",
    null=dict(key="prompt", text="null"),
    text=dict(key="prompt", text=json.dumps(TEXT)),
    empty=dict(key="prompt", text='""'),
    number=dict(key="slo", text="5"),
    boolean=dict(key="flag", text="true"),
    list=dict(key="bytes", text="[80, 97]"),
    empty_list=dict(key="bytes", text="[]"),
    object=dict(key="about", text='{"x": 1}'),
    text_as_name=dict(key=TEXT, text="null"),
    phone_as_name=dict(key=str(PHONE), text="1"),
    session_of_parquet=dict(key="session", text="0"),
    parent_of_parquet=dict(key="parent", text="0"),
    other_script=dict(key="患者", text="null"),
)
def unknown_field(path, key, text):
    value_of(path, key, text)


@craft(
    "fields",
    text=dict(key="type", text=json.dumps(TEXT)),
    type_of_our_own=dict(key="type", text='"hepatitis"'),
    type_as_a_number=dict(key="type", text=str(PHONE)),
    turn_as_text=dict(key="turn", text=json.dumps(TEXT)),
    turn_of_8_digits=dict(key="turn", text="80971168"),
    turn_as_a_fraction=dict(key="turn", text="1.25"),
    turn_as_a_boolean=dict(key="turn", text="true"),
    phone_in_a_length=dict(key="output_length", text=str(PHONE)),
    international_phone=dict(key="output_length", text="4915112345678"),
)
def value_that_no_field_has(path, key, text):
    value_of(path, key, text)


@craft(
    "fields",
    ("mooncake",),
    fraction=dict(text="0.5"),
    float=dict(text="1.0"),
    boolean=dict(text="true"),
    text=dict(text=json.dumps(TEXT)),
    place=dict(text='"Berlin"'),
    phone=dict(text=str(PHONE)),
    coordinates=dict(text="52.5200"),
)
def session(path, text):
    value_of(path, "session_id", text)


@craft("fields", ("bailian",), phone=dict(key="chat_id", text=str(PHONE)), parent=dict(key="parent_chat_id", text="-7"))
def request_name(path, key, text):
    value_of(path, key, text)


@craft(
    "canonical",
    before=dict(edit=lambda line: " \t \t\t" + line),
    after=dict(edit=lambda line: line[:-1] + " \t \t\t\n"),
    between=dict(edit=lambda line: line.replace(", ", ",  ", 1)),
    none=dict(edit=lambda line: line.replace(": ", ":", 1)),
    carriage_return=dict(edit=lambda line: line[:-1] + "\r\n"),
    blank_line=dict(edit=lambda line: line + "\n"),
    blank_lines_of_tabs=dict(edit=lambda line: line + "\t \t\t \n"),
)
def spaces(path, edit):
    edit_row(path, edit)


@craft(
    "canonical",
    exponent=dict(key="input_length", text="3.2e1"),
    point=dict(key="input_length", text="32.000000"),
    digits_of_a_time=dict(key="timestamp", text="3000.0000000000000804155550123"),
    minus_zero=dict(key="timestamp", text="-0.0", row=0),
    ids_as_fractions=dict(key="hash_ids", text="[0.0, 4.0]"),
    ids_with_spaces=dict(key="hash_ids", text="[0,  4]"),
    escaped_word=dict(key="type", text='"\\u0074ext"'),
    type_null=dict(key="type", text="null"),
)
def another_text_of_a_value(path, key, text, row=3):
    value_of(path, key, text, row)


@craft("canonical")
def escaped_key(path):
    edit_row(path, lambda line: line.replace('"input_length"', '"\\u0069nput_length"'))


@craft("canonical")
def other_order_of_keys(path):
    edit_row(path, lambda line: json.dumps(dict(sorted(json.loads(line).items()))) + "\n")


@craft("canonical")
def byte_order_mark(path):
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


@craft("canonical")
def no_end_of_the_last_line(path):
    path.write_bytes(path.read_bytes()[:-1])


@craft("canonical", comment=dict(row=f"# {TEXT}\n"), string=dict(row=json.dumps(TEXT) + "\n"),
       object=dict(row=json.dumps({"prompt": TEXT}) + "\n"), bytes=dict(row="\0\0\0\n"))  # fmt: skip
def row_that_is_no_request(path, row):
    path.write_text(path.read_text() + row)


@craft("numbering", ("mooncake",), level="FAIL")
def order_of_ids(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["hash_ids"] = [24 - block for block in line["hash_ids"]]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@craft("times", ("mooncake",))
def late_start(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["timestamp"] += 5_000_000
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def set_numbers(path: Path, key: str, values: list[int]) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line, value in zip(lines, values, strict=False):
        line[key] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


WORDS = TEXT.encode()


def groups(width: int) -> list[int]:
    data = (TEXT * 4).encode()
    return [int.from_bytes(data[at : at + width]) for at in range(0, 24 * width, width)]


@craft("hidden_text", JSON_ROWS, "WARN", one_byte=dict(width=1), two_bytes=dict(width=2), three_bytes=dict(width=3))
def text_in_output_lengths(path, width):
    set_numbers(path, "output_length", groups(width))


@craft("hidden_text", ("mooncake",), "WARN", bytes=dict(values=groups(1)), counts=dict(values=[1] + [90] * 20))
def text_in_turns(path, values):
    set_numbers(path, "turn", values)


@craft("hidden_text", JSON_ROWS, "WARN")
def text_in_types(path):
    words = ("text", "search", "image", "file", "audio", "video", "thinking", "coder", "other")
    lines = [json.loads(line) for line in path.read_text().splitlines() * 2]  # 48 requests
    for row, line in enumerate(lines):
        line["type"] = words[WORDS[row % len(WORDS)] % 9]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@craft("hidden_text", ("mooncake",), "WARN")
def text_in_times(path):
    set_numbers(path, "timestamp", (1000 * np.cumsum([0, *groups(1)])).tolist())


# -- compression -------------------------------------------------------------------------------------------------


def gzip_header(flags: int, field: bytes, data: bytes, mtime: int = 0) -> bytes:
    """A gzip member with header fields of the given flags."""
    packer = zlib.compressobj(6, wbits=-15)
    body = packer.compress(data) + packer.flush()
    head = struct.pack("<BBBBIBB", 31, 139, 8, flags, mtime, 0, 255)
    return head + field + body + struct.pack("<II", zlib.crc32(data), len(data))


@craft("canonical", ("gzip",),
       name=dict(flags=8, field=WORDS + b"\0"), comment=dict(flags=16, field=WORDS + b"\0"),
       extra=dict(flags=4, field=struct.pack("<H", len(WORDS)) + WORDS),
       time=dict(flags=0, field=b"", mtime=PHONE))  # fmt: skip
def gzip_with(path, flags, field, mtime=0):
    path.write_bytes(gzip_header(flags, field, gzip.decompress(path.read_bytes()), mtime))


@craft("canonical", ("gzip",), level="FAIL", comment=dict(member=gzip_header(16, WORDS + b"\0", b"")),
       empty=dict(member=gzip_header(0, b"", b"")), zeros=dict(member=b"\0" * 64))  # fmt: skip
def second_member(path, member):
    path.write_bytes(path.read_bytes() + member)


@craft("canonical", ("gzip",))
def other_level_of_gzip(path):
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), 1, mtime=0))


@craft("canonical", ("gzip",))
def two_members_of_rows(path):
    data = gzip.decompress(path.read_bytes())
    path.write_bytes(gzip.compress(data[:100], 6, mtime=0) + gzip.compress(data[100:], 6, mtime=0))


SKIPPABLE = struct.pack("<II", 0x184D2A50, len(WORDS)) + WORDS


@craft("canonical", ("zstd",), before=dict(edit=lambda data: SKIPPABLE + data),
       after=dict(edit=lambda data: data + SKIPPABLE),
       empty=dict(edit=lambda data: data + SKIPPABLE[:4] + b"\0" * 4))  # fmt: skip
def skippable_frame(path, edit):
    path.write_bytes(edit(path.read_bytes()))


@craft("canonical", ("zstd",), level_19=dict(options=dict(level=19)), checksum=dict(options=dict(level=3)),
       size=dict(options=dict(level=3, write_checksum=True, write_content_size=True)))  # fmt: skip
def other_settings_of_zstd(path, options):
    import zstandard

    data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    path.write_bytes(zstandard.ZstdCompressor(**options).compress(data))


@craft("canonical", ("gzip", "zstd"))
def spaces_inside_the_compression(path):
    import zstandard

    if path.suffix == ".gz":
        data = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(data.replace(b", ", b",  ", 3), 6, mtime=0))
    else:
        data = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
        path.write_bytes(zstandard.ZstdCompressor(level=3, write_checksum=True).compress(data + b"\n"))


# -- Parquet -----------------------------------------------------------------------------------------------------


def files_of(path: Path) -> Path:
    """The Parquet file of a release."""
    return path / "part-00000.parquet" if path.is_dir() else path


def edit_table(path: Path, edit, **options) -> None:
    """Write the table of a file anew after an edit, as pyarrow writes it."""
    import pyarrow.parquet as pq

    table = edit(pq.read_table(files_of(path)))
    pq.write_table(table, files_of(path), **options)


def parquet_values():
    """name -> a pyarrow array of 24 values of a type that a release does not have."""
    import datetime
    import decimal

    import pyarrow as pa

    return {
        "text": pa.array([TEXT] * 24),
        "binary": pa.array([WORDS] * 24, pa.binary()),
        "fixed binary": pa.array([WORDS] * 24, pa.binary(len(WORDS))),
        "list": pa.array([[80, 97]] * 24),
        "list of text": pa.array([[TEXT]] * 24),
        "struct": pa.array([{"note": TEXT}] * 24),
        "map": pa.array([[(TEXT, 1)]] * 24, pa.map_(pa.string(), pa.int64())),
        "date": pa.array([datetime.date(1975, 1, 3)] * 24),
        "time": pa.array([datetime.datetime(1975, 1, 3, 4, 5)] * 24),
        "decimal": pa.array([decimal.Decimal("4155550123.01")] * 24),
        "numbers": pa.array(range(24)),
        "boolean": pa.array([True] * 24),
        "nothing": pa.array([None] * 24, pa.string()),
        "null": pa.nulls(24),
        "dictionary": pa.DictionaryArray.from_arrays(pa.array([0] * 24), pa.array(["text", TEXT])),
    }


PARQUET_KINDS = ("text", "binary", "fixed binary", "list", "list of text", "struct", "map", "date", "time", "decimal",
                 "numbers", "boolean", "nothing", "null", "dictionary")  # fmt: skip


@craft("fields", ("parquet", "dataset"), **{kind: dict(kind=kind) for kind in PARQUET_KINDS})
def column(path, kind):
    edit_table(path, lambda table: table.append_column("note", parquet_values()[kind]))


def with_extra(table, **arrays):
    """The table with other fields in the struct `extra`."""
    import pyarrow as pa

    old = table.column("extra").combine_chunks()
    fields = {field.name: old.field(place) for place, field in enumerate(old.type)} | arrays
    struct = pa.StructArray.from_arrays(list(fields.values()), names=list(fields))
    return table.set_column(table.column_names.index("extra"), "extra", struct)


@craft("canonical", PARQUET, **{kind: dict(kind=kind) for kind in PARQUET_KINDS})
def column_in_extra(path, kind):
    edit_table(path, lambda table: with_extra(table, note=parquet_values()[kind]))


@craft(
    "canonical", PARQUET, **{kind: dict(kind=kind) for kind in ("binary", "list", "struct", "decimal", "dictionary")}
)
def type_of_requests(path, kind):
    edit_table(path, lambda table: with_extra(table, type=parquet_values()[kind]))


@craft("canonical", ("parquet", "dataset"))
def other_writer(path):
    edit_table(path, lambda table: table)


@craft("canonical", ("parquet", "dataset"), key=dict(metadata={TEXT: "1"}), value=dict(metadata={"note": TEXT}),
       pandas=dict(metadata={"PANDAS_ATTRS": json.dumps({"note": TEXT})}))  # fmt: skip
def metadata_of_the_schema(path, metadata):
    edit_table(path, lambda table: table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}))


@craft("canonical", PARQUET)
def metadata_of_a_field(path):
    import pyarrow as pa

    def edit(table):
        field = table.schema.field("timestamp").with_metadata({"note": TEXT})
        return table.cast(pa.schema([field, *list(table.schema)[1:]], metadata=table.schema.metadata))

    edit_table(path, edit)


@craft("canonical", ("parquet", "dataset"), compression=dict(options=dict(compression="gzip")),
       groups=dict(options=dict(row_group_size=5)), version=dict(options=dict(version="1.0")),
       statistics=dict(options=dict(write_statistics=False)), dictionary=dict(options=dict(use_dictionary=True)),
       schema=dict(options=dict(store_schema=False)), pages=dict(options=dict(data_page_version="2.0")))  # fmt: skip
def settings_of_parquet(path, options):
    edit_table(path, lambda table: table, **options)


@craft("canonical", ("parquet", "dataset"), text=dict(text=WORDS), zeros=dict(text=b"\0" * 32))
def bytes_before_the_footer(path, text):
    file = files_of(path)
    data = file.read_bytes()
    footer = len(data) - 8 - struct.unpack("<I", data[-8:-4])[0]
    file.write_bytes(data[:footer] + text + data[footer:])


@craft("canonical", ("parquet", "dataset"))
def created_by(path):
    file = files_of(path)
    data = file.read_bytes()
    place = data.rindex(b"parquet-cpp-arrow")
    file.write_bytes(data[:place] + b"Patient Smith 007" + data[place + 17 :])


def set_column(path: Path, name: str, values) -> None:
    """Write the release with another column by our own writer, as a careful attacker does."""
    from tests import unaudited

    trace = kvtrace.read(path)
    columns = replace_columns(trace, **{name: values})
    unaudited.write(columns, path, meta=trace.meta, block_size=trace.block_size, tail=trace.tail)


@craft("canonical", PARQUET, phone=dict(name="session", values=np.full(24, PHONE)),
       minus_zero=dict(name="timestamp", values=np.where(np.arange(24) % 2, -0.0, 0.0)),
       other_order=dict(name="session", values=11 - np.arange(24) // 2),
       negative=dict(name="session", values=np.full(24, -7)))  # fmt: skip
def column_by_our_own_writer(path, name, values):
    set_column(path, name, values)


# -- data sets ---------------------------------------------------------------------------------------------------


@craft("sidecar", ("dataset",), file=dict(name="notes.txt"), hidden=dict(name=".notes"),
       part=dict(name="part-9.parquet"), text_as_name=dict(name=TEXT))  # fmt: skip
def file_in_the_folder(path, name):
    (path / name).write_text("")


@craft("sidecar", ("dataset",))
def folder_in_the_folder(path):
    (path / "old").mkdir()


@craft("sidecar", ("dataset",))
def link_in_place_of_a_part(path):
    part = files_of(path)
    part.rename(path.parent / TEXT)
    part.symlink_to(path.parent / TEXT)


@craft("sidecar", ("mooncake", "dataset"))
def folder_in_place_of_a_card(path):
    card_of(path).unlink()
    card_of(path).mkdir()
    (card_of(path) / "notes.txt").write_text(TEXT)


@craft("sidecar", ("dataset",), key=dict(values={"host": "x"}), note=dict(values={"note": [80, 97]}))
def part_of_the_manifest(path, values):
    edit_sidecar(path, lambda meta: meta["parts"][0].update(values))


# -- sidecars ----------------------------------------------------------------------------------------------------


def sidecar_of(path: Path) -> Path:
    """The file of the sidecar."""
    return path / "manifest.json" if path.is_dir() else Path(f"{path}.meta.json")


def edit_sidecar(path: Path, edit) -> None:
    """Change the values of the sidecar, and write them as kvtrace does."""
    from kvtrace.formats.sidecar import dump

    file = sidecar_of(path)
    meta = json.loads(file.read_text())
    edit(meta)
    file.write_bytes(dump(meta))


def put(place: str, value) -> Callable[[dict], None]:
    """An edit that sets the value at a dotted place."""

    def edit(meta):
        *sections, name = place.split(".")
        for section in sections:
            meta = meta.setdefault(section, {})
        meta[name] = value

    return edit


COST = {"step": "original", "hit_blocks": 1, "blocks": 48, "block_hit_rate": 0.0804155550123}
SIDECARS = {
    "text under a name": ("note", TEXT),
    "a name alone": ("note", None),
    "text as a name": (TEXT, 1),
    "bytes of a key": ("seed", list(WORDS)),
    "a firm": ("log.source", "Acme GmbH"),
    "a person": ("log.reader", "John Smith"),
    "a reader of our own": ("log.reader", "acme-gateway (stated)"),
    "a time zone": ("log.time", "seconds in Berlin"),
    "a host": ("log.host", "db1"),
    "a tokenizer's firm": ("tokenizer.name", "acme/smith-clinic"),
    "a tokenizer's path": ("tokenizer.name", "/home/smith/model"),
    "a digest of text": ("tokenizer.sha256", HEX),
    "a short digest": ("tokenizer.sha256", "ab"),
    "a backend": ("tokenizer.backend", "smith 1.0"),
    "a reason": ("tokenizer.why", TEXT),
    "a template": ("chat_template.name", "smith.jinja"),
    "a generation prompt": ("chat_template.generation_prompt", TEXT),
    "a hash": ("hash", TEXT),
    "a mode": ("session_mode", TEXT),
    "prefixes": ("prefixes", TEXT),
    "a version": ("kvtrace.version", "1.0-smith"),
    "a version of the format": ("kvtrace.format_version", 1.5),
    "a setting": ("release.settings.note", TEXT),
    "a contributor": ("release.k_counted", "patients"),
    "a step": ("release.costs", [{"step": TEXT, "block_hit_rate": 0.5}]),
    "a long rate": ("release.costs", [COST]),
    "a count": ("counts.patients", 3),
    "a float count": ("counts.rows", 1.5),
    "a conversion": ("converted.by", "Smith"),
    "a client": ("client", "smith"),
    "a knob": ("synthetic.step_rates", TEXT),
    "a phone as distinct blocks": ("distinct_blocks", PHONE),
    "a phone as first id": ("first_id", PHONE),
    "another first id": ("first_id", 7),
    "a phone as tokens": ("figures.tokens", PHONE),
    "a phone as duration": ("figures.duration_ms", float(PHONE)),
    "a phone as sessions": ("figures.sessions", PHONE),
    "a phone as a count": ("counts.rejected", PHONE),
    "counts that do not add up": ("counts", {"rows": 24, "requests": 24, "rejected": 155}),
    "a phone as blocks of a step": ("release.costs", [{"step": "original", "hit_blocks": 0, "blocks": PHONE,
                                                       "block_hit_rate": 0.0}]),
    "digits of a rate": ("release.costs", [{"step": "original", "block_hit_rate": 0.4155550123}]),
    "a phone as a seed": ("synthetic.seed", 41555501),
    "digits of a ratio": ("converted.speedup_ratio", 4.155550123),
    "digits of a skew": ("synthetic.tenant_skew", 4.155550123),
    "other hits": ("figures.hits.request_hits", 11.4155550123),
    "a phone as a version": ("kvtrace.version", "415.555.0123"),
    "a rate of hits": ("figures.hits.block_hit_rate", 0.0804155550123),
    "hit tokens": ("figures.hits.hit_tokens", PHONE),
    "a name of hits": ("figures.hits.smith", 1),
    "nested text": ("figures.hits.note", {"a": [TEXT]}),
    "output blocks": ("output_blocks", PHONE),
}  # fmt: skip


@craft(
    "sidecar",
    ("mooncake", "dataset"),
    **{name: dict(place=place, value=value) for name, (place, value) in SIDECARS.items()},
)
def sidecar_with(path, place, value):
    edit_sidecar(path, put(place, value))


def edit_text(path: Path, edit: Callable[[str], str]) -> None:
    sidecar_of(path).write_text(edit(sidecar_of(path).read_text()))


@craft("sidecar", ("mooncake", "parquet", "dataset"),
       repeated_name=dict(edit=lambda text: text.replace('"tail"', f'"hash": "{TEXT}",\n  "tail"', 1)),
       spaces=dict(edit=lambda text: text + " \t\n"), one_line=dict(edit=lambda text: json.dumps(json.loads(text))),
       order=dict(edit=lambda text: json.dumps(dict(reversed(json.loads(text).items())), indent=2) + "\n"),
       escapes=dict(edit=lambda text: text.replace('"tail"', '"\\u0074ail"', 1)))  # fmt: skip
def text_of_the_sidecar(path, edit):
    edit_text(path, edit)


def last_digits(section: dict, name: str) -> None:
    """Change a number in the last digits that a double has."""
    section[name] = float(np.nextafter(section[name], np.inf))


@craft("sidecar", ALL, duration=dict(edit=lambda figures: last_digits(figures, "duration_ms")),
       tenth_of_a_nanosecond=dict(edit=lambda figures: put("duration_ms", figures["duration_ms"] + 1e-7)(figures)),
       rate=dict(edit=lambda figures: last_digits(figures["hits"], "block_hit_rate")),
       shares=dict(edit=lambda figures: last_digits(figures["hits"], "request_hits")))  # fmt: skip
def digits_of_a_figure(path, edit):
    edit_sidecar(path, lambda meta: edit(meta["figures"]))


@craft("sidecar", ("mooncake", "parquet", "dataset"))
def number_of_sessions(path):
    edit_sidecar(path, put("figures.sessions", 7))


@craft("sidecar", PARQUET)
def another_sidecar_than_inside(path):
    edit_sidecar(path, lambda meta: meta.pop("hash"))


# -- cards -------------------------------------------------------------------------------------------------------


def card_of(path: Path) -> Path:
    """The file of the card."""
    return path / "card.md" if path.is_dir() else Path(f"{path}.card.md")


@craft("sidecar", ("mooncake", "parquet", "dataset"),
       title=dict(edit=lambda text: text.replace("TODO: title", "Clinic of Dr Smith")),
       sentence=dict(edit=lambda text: text.replace("TODO: describe the service in a sentence.", TEXT)),
       contact=dict(edit=lambda text: text.replace("* Contact: TODO", "* Contact: John Smith")),
       licence=dict(edit=lambda text: text.replace("* Licence: TODO", f"* Licence: {TEXT}")),
       line=dict(edit=lambda text: text + f"{TEXT}\n"), comment=dict(edit=lambda text: text + "<!-- -->"),
       invisible=dict(edit=lambda text: text.replace("trace", "tr\u200bace", 1)),
       number=dict(edit=lambda text: text.replace("| requests | 24 |", f"| requests | {PHONE:,} |")),
       spaces=dict(edit=lambda text: text.replace("\n", " \n", 3)),
       finding=dict(edit=lambda text: re.sub(r"(\| k_sharing \| \w+ \|) [^|]* \|", rf"\1 {TEXT} |", text)),
       k_of_a_finding=dict(edit=lambda text: text.replace("than 3 sessions", "than 41 sessions", 1)))  # fmt: skip
def card(path, edit):
    before = card_of(path).read_text()
    assert edit(before) != before
    card_of(path).write_text(edit(before))


# -- beside the files --------------------------------------------------------------------------------------------


@craft("sidecar", ALL, "WARN")
def missing_card(path):
    card_of(path).unlink()


@craft("sidecar", ALL, "WARN")
def links_to_other_windows(path):
    Path(f"{path}.links").write_text("{}\n")


@craft("sidecar", ALL, trace=dict(of=lambda path: path), sidecar=dict(of=sidecar_of), card=dict(of=card_of))
def attribute(path, of):
    os.setxattr(of(path), "user.note", WORDS)


@craft("sidecar", ("dataset",))
def attribute_of_a_part(path):
    os.setxattr(path / "part-00000.parquet", "user.xdg.origin.url", WORDS)


def main(folder: str) -> None:
    """Write all crafted releases."""
    for crafted in CRAFTED:
        place = Path(folder) / f"{crafted.format} {crafted.name}".replace("/", " ")
        place.mkdir(parents=True)
        crafted.make(place)


if __name__ == "__main__":
    main(sys.argv[1])
