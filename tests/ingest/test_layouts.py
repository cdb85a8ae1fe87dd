"""Rows in JSON arrays and in tables with line breaks become one line each, whatever the chunks that are read."""

import csv
import gzip
import io
import json
from datetime import datetime, timedelta
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace import anonymize
from kvtrace._base.errors import InputError
from kvtrace.ingest.logs import layouts, open_reader, sources

TEXTS = st.text(alphabet='ab"\\\n\r[]{},: é', max_size=12)
ROWS = st.lists(
    st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2), min_size=1, max_size=3), min_size=1, max_size=5
)
ROW = {"timestamp": 0, "input": [{"role": "user", "content": 'Is "tin"\na metal? ]}'}], "output": "Yes.\nIt is."}
INDENTED = json.dumps(ROW, indent=2)


def chunks(data, size):
    return [data[i : i + size] for i in range(0, len(data), size)]


@given(ROWS, st.integers(1, 40), st.sampled_from([None, 1]), st.booleans())
def test_the_rows_of_an_array_come_one_a_line(rows, size, indent, escaped):
    data = json.dumps(rows, indent=indent, ensure_ascii=escaped).encode()
    head = 64  # the first chunk shows the layout
    found = list(layouts.json_lines([data[:head], *chunks(data[head:], size)], "log.json"))
    assert [orjson.loads(line) for line in found] == rows
    assert not any(b"\n" in line for line in found)


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=5), st.integers(1, 40))
def test_the_records_of_a_table_come_one_a_line(records, size):
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("first", "second"), *records])
    found = list(layouts.table_lines(chunks(text.getvalue().encode(), size), "log.csv"))
    assert [tuple(orjson.loads(line)) for line in found] == [("first", "second"), *records]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (f"[{INDENTED}, {INDENTED}]", 2),
        (json.dumps([ROW] * 3), 3),
        (f"{INDENTED}\n{INDENTED}\n", 2),
        (json.dumps({"data": [ROW, ROW], "meta": {"page": 1}}), 2),
        (json.dumps({"runs": [ROW]}, indent=1), 1),
        (f"\ufeff\n[\n{INDENTED}\n]\n", 1),
    ],
)
def test_a_log_of_each_layout_is_read_from_a_file_and_a_pipe(text, rows, tmp_path, monkeypatch):
    (tmp_path / "log.json").write_text(text)
    found = sources.find(tmp_path / "log.json")
    reader = open_reader("auto", sources.sample(found))
    lines = [line for piece in sources.pieces(found, size=50) for line in piece.read().splitlines()]
    assert [reader.read(line).messages for line in lines] == [ROW["input"]] * rows
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    piped = [piece.read() for piece in sources.pieces(sources.find("-"))]
    assert b"".join(piped).splitlines() == lines


def test_a_table_of_prompts_is_read(tmp_path):
    text = io.StringIO(newline="")
    cells = ["2031-03-04 05:06:07", json.dumps(ROW["input"]), ROW["output"], "12"]
    csv.writer(text).writerows([("timestamp", "input", "output", "prompt_tokens"), cells])
    (tmp_path / "log.csv").write_text(text.getvalue())
    found = sources.find(tmp_path / "log.csv")
    reader = open_reader("auto", sources.sample(found))
    (heading, line) = [line for piece in sources.pieces(found) for line in piece.read().splitlines()]
    assert reader.records(heading) == []
    record = reader.read(line)
    assert (record.messages, record.output_text, record.prompt_tokens) == (ROW["input"], ROW["output"], 12)


@pytest.mark.parametrize("text", [f"[{INDENTED}", f"[{INDENTED},", INDENTED[:-1], f'[{INDENTED}, {{"a": "'])
def test_a_file_that_ends_inside_its_json_is_an_error(text):
    with pytest.raises(InputError, match=r"^log\.json: ends inside its JSON\. The file is incomplete\.$"):
        list(layouts.json_lines([text.encode()], "log.json"))


def test_what_stands_between_rows_is_a_bad_row():
    assert list(layouts.json_lines([b'[{"a": 1}, 5, {"b": 2} x]'], "log.json")) == [
        b'{"a": 1}',
        b"5",
        b'{"b": 2}',
        b"x",
    ]


def test_a_row_longer_than_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(layouts, "MAX_LINE", 100)
    with pytest.raises(InputError, match="a row is longer than 100 bytes"):
        list(layouts.json_lines([b'[{"a": "', b"x" * 200], "log.json"))


@pytest.mark.parametrize("line", [b'"a,b', b'a,"b" c', b"\xff,b"])
def test_a_broken_record_is_a_bad_row_of_its_table(line):
    (heading, found) = layouts.table_lines([b"one,two\n" + line], "log.csv")
    columns = layouts.heading(heading)
    with pytest.raises(Exception, match="is not a CSV row in UTF-8"):
        layouts.row(found, columns)


def test_tables_of_lengths_keep_one_row_a_line():
    assert layouts.layout_of(b'TIMESTAMP,ContextTokens,GeneratedTokens\n2031,5,"') == "lines"
    assert layouts.layout_of(b"INFO 06-10 23:35:35 [logger.py:39] Received, now\n") == "lines"


# -- Batch: requests and responses in two files -----------------------------------------------------------------------


def batch(tmp_path, answered=("a", "b")):
    """The two files of a Batch; the responses are in another order than the requests."""
    body = {"model": "m", "messages": ROW["input"]}
    requests = [{"custom_id": name, "method": "POST", "body": body} for name in ("b", "a", "c")]
    responses = [
        {"custom_id": name, "response": {"status_code": 200, "body": {
            "created": 1_900_000_000 + number, "choices": [{"message": {"content": f"Answer {name}"}}]}}, "error": None}
        for number, name in enumerate(answered)
    ]  # fmt: skip
    for file, rows in (("requests.jsonl", requests), ("responses.jsonl", responses)):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [tmp_path / "responses.jsonl", tmp_path / "requests.jsonl"]


def test_the_files_of_a_batch_are_joined_on_the_custom_id(tmp_path):
    (found,) = sources.find(batch(tmp_path))
    reader = open_reader("auto", sources.sample([found]))
    first, second, third = [line for piece in sources.pieces([found], size=10) for line in piece.read().splitlines()]
    assert [reader.read(line).output_text for line in (first, second)] == ["Answer b", "Answer a"]
    assert [reader.read(line).id for line in (first, second)] == ["b", "a"]
    assert orjson.loads(third)["custom_id"] == "c" and "response" not in orjson.loads(third)


def test_a_custom_id_with_two_responses_is_an_error(tmp_path):
    found = sources.find(batch(tmp_path, answered=("a", "a")))
    with pytest.raises(InputError, match=r"a custom_id has two responses\. Run each batch by itself\."):
        list(sources.pieces(found))


def test_two_files_of_requests_are_not_joined(tmp_path):
    (_, requests) = batch(tmp_path)
    (tmp_path / "more.jsonl").write_bytes(requests.read_bytes())
    assert [source.layout for source in sources.find([requests, tmp_path / "more.jsonl"])] == ["lines", "lines"]


def test_a_parquet_table_is_read_as_the_same_rows_in_json(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    at = datetime(2031, 5, 1, 10, 0, 0, 250_000)
    rows = [
        {"EVENT_TS": at + timedelta(seconds=n), "CHAT": {"messages": [{"role": "user", "content": f"Is tin {n}?"}]},
         "ANSWER": "Yes." if n else None, "TOKENS": Decimal(3 + n)}
        for n in range(600)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows)
    table = table.set_column(0, "EVENT_TS", table["EVENT_TS"].cast(pa.timestamp("ns")))  # as Spark writes it
    pq.write_table(table, tmp_path / "day.parquet")
    lines = [
        {name: str(value) if name in ("EVENT_TS", "TOKENS") else value for name, value in row.items()} for row in rows
    ]
    (tmp_path / "day.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    fields = {"input": "CHAT", "output": "ANSWER", "output_length": "TOKENS"}
    table, text = (
        anonymize(tmp_path / name, block_size=4, map=fields, profile="exact") for name in ("day.parquet", "day.jsonl")
    )
    assert len(table) == 600 and table == text
    with gzip.open(tmp_path / "day.parquet.gz", "wb") as packed:
        packed.write((tmp_path / "day.parquet").read_bytes())
    with pytest.raises(InputError, match="must be a file that is not compressed"):
        list(sources.pieces(sources.find(tmp_path / "day.parquet.gz")))
