"""The row kernels agree with their twins: scanning with orjson row by row, printing with json.dumps."""

import importlib.util
import io
import json
import struct
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base.errors import InputError, RowError
from kvtrace._native import rows as kernel
from kvtrace._native import texts
from kvtrace.formats import jsonl_read
from kvtrace.formats.jsonl_write import milliseconds, print_rows
from tests.conftest import drawn
from tests.reference import rows as slow_rows
from tests.reference import rows_out as slow_rows_out

SOURCE = Path(jsonl_read.__file__).parent.parent / "_native/rows.py"

# -- rows as text, in every way JSON allows and some it does not ---------------------------------------------------

space = st.sampled_from(["", "", " ", "  ", "\t", "\r", " \t "])
digits = st.integers(0, 10**21).map(str)
whole = st.one_of(
    st.integers(0, 300).map(str),
    st.integers(-(2**65), 2**65).map(str),
    st.sampled_from(
        ["0", "-0", "00", "01", "-1", "1e3", "1E+2", "12e-1", "5.0", "5.5", "1.", ".5", "+1", "1e400", "-"]
    ),
    st.sampled_from([str(2**k + d) for k in (31, 53, 63, 64) for d in (-1, 0, 1)] + [str(-(2**63)), str(-(2**63) - 1)]),
    st.sampled_from(["9" * n for n in range(14, 22)] + ["1" + "0" * n for n in range(14, 22)]),
)
decimal = st.one_of(
    whole,
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.tuples(st.integers(0, 10**9), st.integers(0, 999)).map(lambda t: f"{t[0]}.{t[1]:03}"),
    st.tuples(digits, digits).map(".".join),
    st.tuples(digits, digits, st.integers(-330, 330)).map(lambda t: f"{t[0]}.{t[1]}e{t[2]}"),
)
string = st.one_of(
    st.text(max_size=5).map(json.dumps),
    st.text(max_size=5).map(lambda s: json.dumps(s, ensure_ascii=False)),
    st.sampled_from(['"text"', '""', '"\x7f"', '"\\ud800"', '"tab\there"', '"\\"', '"a']),
)
scalar = st.one_of(whole, decimal, string, st.sampled_from(["true", "false", "null", "nul", "True", "NaN"]))
nested = st.sampled_from(["{}", "[]", "[1, 2]", '{"a": [1]}', "[1,]", "{"])
KEYS = ["timestamp", "input_length", "output_length", "hash_ids"]
names = st.sampled_from(
    ["turn", "type", "session_id", "x", "", "timestamp ", "hash_id", "hash_ids\\", "output_", "output_hash", "input_le"]
    + [r"hash\u005fids", "größe", "timestamp", "input_length", "output_hash_ids"]
)


sound_scalar = st.one_of(
    st.integers(-(2**63), 2**63 - 1).map(str),
    st.floats(0, 1e9).map(repr),
    st.text("abc \u00e9", max_size=3).map(json.dumps),
    st.sampled_from(["true", "false", "null"]),
)


@st.composite
def id_lists(draw, number):
    inside = ",".join(draw(space) + value + draw(space) for value in draw(st.lists(number, max_size=6)))
    return "[" + (inside or draw(space)) + "]"


@st.composite
def fields(draw, lengths_only=False):
    """The fields of a row: half of them sound, else with wrong kinds, keys missing, twice or unknown.

    With `lengths_only`, most sound rows have no hash_ids.
    """
    sound = draw(st.booleans())
    small = st.integers(0, 99).map(str)
    values = {
        "timestamp": st.one_of(small, st.floats(0, 1e6).map(lambda t: repr(round(t, 3)))) if sound else decimal,
        "input_length": small if sound else whole,
        "output_length": st.one_of(small, small, st.just("null")) if sound else whole,
        "hash_ids": id_lists(st.integers(-1, 2**64 - 1).map(str) if sound else whole),
    }
    if sound:
        keys = KEYS[:-1] if lengths_only and draw(st.integers(0, 9)) else KEYS
        keys = [key for key in keys if key != "output_length" or draw(st.integers(0, 9))]
        renamed = draw(
            st.sampled_from([{}, {}, {}, {"input_length": "input_tokens"}, {"output_length": "output_tokens"}])
        )
        found = [(renamed.get(key, key), draw(values[key])) for key in keys]
        others = st.sampled_from(["turn", "type", "x", "input_tokens"])
        found += draw(st.lists(st.tuples(others, sound_scalar), max_size=3))
    else:
        found = [(key, draw(draw(st.sampled_from([values[key]] * 19 + [scalar])))) for key in KEYS]
        found += draw(st.lists(st.tuples(names, st.one_of(scalar, scalar, nested)), max_size=3))
        if draw(st.integers(0, 9)) == 0:
            found.pop(draw(st.integers(0, 3)))
    if draw(st.integers(0, 4)) == 0:
        found.append(("output_hash_ids", draw(id_lists(small))))
    return draw(st.permutations(found)) if draw(st.booleans()) else found


@st.composite
def lines(draw, lengths_only=False):
    if draw(st.integers(0, 9)) == 0:
        return draw(
            st.sampled_from([b"", b" ", b"\t\r", b"[]", b"7", b"null", b"{}", b"{", b"\xff", b"{\xc3\xa9}", b"\0"])
        )
    inside = ",".join(
        f'{draw(space)}"{k}"{draw(space)}:{draw(space)}{v}{draw(space)}' for k, v in draw(fields(lengths_only))
    )
    line = (draw(space) + "{" + inside + "}" + draw(space)).encode()
    if draw(st.integers(0, 19)) == 0:  # one byte lost, changed or added
        at = draw(st.integers(0, len(line) - 1))
        line = line[:at] + draw(st.sampled_from([b"", b"\0", b'"', b"}", b"\xff", b","])) + line[at + 1 :]
    return line


@st.composite
def files(draw):
    end = draw(st.sampled_from([b"\n", b"\r\n"]))
    data = end.join(draw(st.lists(lines(draw(st.integers(0, 3)) == 0), max_size=12)))
    bom = draw(st.sampled_from([b"", b"", b"\xef\xbb\xbf"]))
    return bom + data + draw(st.sampled_from([b"", end]))


def read(data, *, piece=1 << 21, threads=1):
    """What the fast way finds, as the twin shows it."""
    bad = []
    with mock.patch.object(jsonl_read, "PIECE", piece):
        found = jsonl_read.read_rows(
            io.BufferedReader(io.BytesIO(data)), "f", on_error=lambda error: bad.append(error.line), threads=threads
        )
    return as_rows(found), bad


def as_rows(found):
    rows = []
    for row in range(len(found.timestamp)):
        line = row + 1 if found.lines is None else int(found.lines[row])
        ids = found.hash_ids[found.offsets[row] : found.offsets[row + 1]].tolist()
        outputs = None
        if found.output_ids is not None:
            outputs = found.output_ids[found.output_offsets[row] : found.output_offsets[row + 1]].tolist()
        others = {name: values[row] for name, values in found.others.items()}
        lengths = int(found.input_length[row]), int(found.output_length[row])
        rows.append((line, float(found.timestamp[row]), *lengths, ids, outputs, others))
    return rows


def comparable(rows):
    """Rows with times bit for bit; a key that is null is one that is missing, and so are no outputs and empty ones."""
    return [
        (
            line, struct.pack("d", time), isl, osl, ids, outputs or None,
            {key: (value, isinstance(value, (bool, np.bool_))) for key, value in others.items() if value is not None},
        )
        for line, time, isl, osl, ids, outputs, others in rows
    ]  # fmt: skip


def agree(data, **how):
    rows, bad = read(data, **how)
    slow, slow_bad = slow_rows.read(data)
    assert bad == slow_bad
    assert comparable(rows) == comparable(slow)


@settings(max_examples=drawn(400), deadline=None)
@given(files())
def test_scanning_equals_its_twin(data):
    agree(data)


@settings(max_examples=drawn(100), deadline=None)
@given(files(), st.integers(1, 200), st.integers(1, 3))
def test_pieces_and_threads_change_nothing(data, piece, threads):
    agree(data, piece=piece, threads=threads)


@settings(deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e18), st.integers(0, 10**12).map(lambda ms: ms / 1000)), min_size=1))
def test_times_are_read_to_the_last_bit(times):
    data = b"".join(row(timestamp=time) for time in times)
    assert [found[1] for found in read(data)[0]] == times


@pytest.mark.parametrize(
    "text", ["9007199254740993", "0.1", "123456789.123456789", "1.7976931348623157e308", "4.9e-324"]
)
def test_a_time_that_the_fast_path_cannot_read_exactly_is_read_exactly(text):
    data = row().replace(b'"timestamp": 0', f'"timestamp": {text}'.encode())
    assert read(data)[0][0][1] == float(text)


def row(**changed):
    return (
        json.dumps({"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [7, 8]} | changed).encode()
        + b"\n"
    )


def test_ids_of_64_bits_keep_their_bits():
    ids = [2**63 - 1, 2**63, 2**64 - 1, -(2**63), -1]
    found = read(row(hash_ids=ids))[0][0][4]
    assert np.array(found).astype(np.uint64).tolist() == [value % 2**64 for value in ids]


def test_an_id_past_64_bits_or_a_fraction_is_refused():
    for value in (2**64, 1.5, "7", None, True):
        assert read(row(hash_ids=[value])) == ([], [1])


def test_blank_lines_shift_line_numbers():
    rows, bad = read(b"\n" + row() + b"\n \n" + row() + b"no row\n" + row())
    assert [found[0] for found in rows] == [2, 5, 7]
    assert bad == [6]


def test_a_last_line_without_newline_a_bom_and_crlf_are_fine():
    data = b"\xef\xbb\xbf" + row() + row(timestamp=3).replace(b"\n", b"\r\n") + row(timestamp=5).rstrip()
    assert [found[1] for found in read(data)[0]] == [0, 3, 5]


def test_of_a_key_that_comes_twice_the_last_wins():
    data = row().replace(b"[7, 8]", b'[7, 8], "hash_ids": [9], "turn": 1, "turn": 2')
    assert read(data)[0][0][4:] == ([9], None, {"turn": 2})


def test_an_output_length_that_is_null_or_missing_is_unknown():
    without = row().replace(b'"output_length": 1, ', b"")
    assert [found[3] for found in read(row(output_length=None) + row() + without)[0]] == [-1, 1, -1]
    assert [found[3] for found in read(without + row(output_length=None))[0]] == [-1, -1]


def test_tokens_are_another_name_of_lengths():
    data = b'{"timestamp": 0, "input_tokens": 9, "output_tokens": 1}\n{"timestamp": 1, "input_length": 7}\n'
    assert [found[2:4] for found in read(data)[0]] == [(9, 1), (7, -1)]


def lengths(**changed):
    values = {"timestamp": 0, "input_length": 9, "output_length": 1} | changed
    return json.dumps(values).encode() + b"\n"


def test_rows_of_a_file_have_ids_as_its_first_row_has():
    assert read(lengths() + row() + lengths()) == ([read(lengths())[0][0], (3, *read(lengths())[0][0][1:])], [2])
    assert read(row() + lengths() + row())[1] == [2]
    assert read(b"{}\n" + lengths() + lengths(output_hash_ids=[1]))[1] == [1, 3]
    for data, message in (
        (lengths() + row(), "^f:2: the row has hash_ids, but the first row has none. Give all rows hash_ids, or none."),
        (row() + lengths(), "^f:2: hash_ids is missing."),
    ):
        with pytest.raises(RowError, match=message):
            jsonl_read.read_rows(io.BufferedReader(io.BytesIO(data)), "f")


def test_what_is_nested_is_left_out_and_counted():
    data = row(tags=["a"], model="m") + row(model="n")
    found = jsonl_read.read_rows(io.BufferedReader(io.BytesIO(data)), "f")
    assert found.nested == {"tags": 1}
    assert found.others["model"].tolist() == ["m", "n"]


def test_only_keys_to_keep_are_kept():
    found = jsonl_read.read_rows(io.BufferedReader(io.BytesIO(row(a=1, b="x"))), "f", keep={"b"})
    assert list(found.others) == ["b"]


def test_lines_that_are_not_whole_are_refused():
    # the scanner has no bounds checks, so it looks at what it is given first
    scanner, line = kernel.Scanner(100), row()
    for data, stop in [
        (line, len(line)),
        (line[:-1] + bytes(kernel.PAD), len(line) - 1),
        (bytes(900), 200),
        (bytes(50), -1),
    ]:
        with pytest.raises(ValueError):
            scanner.scan(data, 0, stop)


def test_more_other_keys_than_the_scanner_tells_apart_are_kept_too():
    keys = {f"k{n}": n for n in range(kernel.MAX_KEYS + 9)}
    found = jsonl_read.read_rows(io.BufferedReader(io.BytesIO(row(**keys) + row(k1="x"))), "f")
    assert found.others["k70"].tolist() == [70, None]
    assert found.others["k1"].tolist() == [1, "x"]


def test_a_line_longer_than_a_piece_is_read_whole():
    data = row() + row(hash_ids=list(range(5000))) + row()
    rows, bad = read(data, piece=64, threads=2)
    assert [len(found[4]) for found in rows] == [2, 5000, 2] and not bad


def test_a_line_without_end_is_refused():
    with mock.patch.object(jsonl_read, "MAX_LINE", 1000), mock.patch.object(jsonl_read, "PIECE", 100):
        stream = io.BufferedReader(io.BytesIO(row() + b"[" * 5000))
        with pytest.raises(InputError, match=rf"^f: the line at byte {len(row())} is longer than 1,000 bytes\."):
            jsonl_read.read_rows(stream, "f")


@pytest.mark.parametrize("threads", [1, 2])
def test_the_first_bad_row_is_told_with_line_byte_and_length(threads):
    data = row() * 50 + b"\n" + b'{"timestamp": 5}\n' + b"nonsense\n" * 50
    with (
        mock.patch.object(jsonl_read, "PIECE", 200),
        pytest.raises(RowError, match="^f:52: input_length is missing") as bad,
    ):
        jsonl_read.read_rows(io.BufferedReader(io.BytesIO(data)), "f", threads=threads)
    assert (bad.value.line, bad.value.offset, bad.value.length) == (52, 50 * len(row()) + 1, 17)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_wrong_with_the_stream_is_told_after_what_is_wrong_before(threads):
    class Failing(io.RawIOBase):
        data = io.BytesIO(row() * 20 + b"bad\n" + row() * 20)

        def readable(self):
            return True

        def readinto(self, buffer):
            if not (size := self.data.readinto(buffer)):
                raise InputError("cut short")
            return size

    with mock.patch.object(jsonl_read, "PIECE", 200), pytest.raises(RowError, match="^f:21: the row is not JSON"):
        jsonl_read.read_rows(io.BufferedReader(Failing(), 100), "f", threads=threads)


def test_no_message_holds_what_a_row_holds():
    secret = "c4n4ry"
    rows = [{secret: secret}, [secret], secret, {"timestamp": secret}]
    rows += [json.loads(row()) | {key: secret} for key in [*KEYS, "output_hash_ids"]]
    rows += [json.loads(row()) | {"hash_ids": [secret]}]
    for text in [json.dumps(value).encode() for value in rows] + [f'{{"{secret}'.encode(), secret.encode()]:
        with pytest.raises(RowError) as bad:
            jsonl_read.read_rows(io.BufferedReader(io.BytesIO(text)), "f")
        assert secret not in str(bad.value) and bad.value.__cause__ is None


# -- the same source without a compiler ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def plain():
    """The scanner's source run by Python, as a fuzzer that follows coverage runs it."""
    pytest.importorskip("Cython")
    spec = importlib.util.spec_from_file_location("plain_rows", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@settings(max_examples=drawn(60), deadline=None)
@given(data=files())
def test_the_uncompiled_scanner_equals_the_twin(plain, data):
    with mock.patch.object(jsonl_read, "Scanner", plain.Scanner):
        agree(data)


# -- printing ------------------------------------------------------------------------------------------------------

int64 = st.integers(-(2**63), 2**63 - 1)
printable = st.fixed_dictionaries(
    {
        "n": int64,
        "ms": st.integers(-(10**15), 10**15) | st.integers(0, 5000),
        "text": st.one_of(st.text(max_size=3), st.none(), st.floats(allow_nan=False)).map(
            lambda v: json.dumps(v).encode()
        ),
        "ids": st.lists(st.integers(-(2**62), 2**62), max_size=5),
        "more": st.lists(st.integers(0, 1000), max_size=3),
    }
)


def ragged(lists, dtype=np.int64):
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in lists])]).astype(np.int64)
    return np.array([value for values in lists for value in values], dtype=dtype), offsets


@settings(deadline=None)
@given(st.lists(printable, min_size=1, max_size=8), st.integers(-5, 2**40))
def test_printing_equals_its_twin(rows, first_id):
    column = {key: [found[key] for found in rows] for key in rows[0]}
    fields = [
        (b'{"n": ', texts.WHOLE, np.array(column["n"], dtype=np.int64)),
        (b', "s": ', texts.SECONDS, np.array(column["ms"], dtype=np.int64)),
        (b', "t": ', texts.MICROSECONDS, np.array(column["ms"], dtype=np.int64)),
        (b', "text": ', texts.TEXT, ragged(column["text"], np.uint8)),
        (b', "ids": ', texts.IDS, ragged(column["ids"])),
        (b', "more": ', texts.IDS, ragged(column["more"])),
    ]
    slow = [
        {"n": r["n"], "s": r["ms"] / 1000, "t": whole_or_not(r["ms"] / 1000), "text": r["text"], "ids": r["ids"],
         "more": r["more"]}
        for r in rows
    ]  # fmt: skip
    assert bytes(texts.dump(fields, len(rows), first_id)) == slow_rows_out.dump(slow, first_id)


def whole_or_not(time):
    return int(time) if time.is_integer() else time


times = st.integers(-(10**15), 10**15).map(lambda us: us / 1000) | st.floats(-1e18, 1e18) | st.integers(0, 9).map(float)


@settings(deadline=None)
@given(st.lists(times, min_size=1, max_size=6) | st.lists(times.filter(float.is_integer), min_size=1))
def test_times_are_printed_as_python_prints_them(values):
    printed = print_rows({"t": milliseconds(np.array(values))}, 0, len(values))
    assert bytes(printed) == slow_rows_out.dump([{"t": whole_or_not(time)} for time in values])


@pytest.mark.parametrize("first", [0, 7, 95, 9_990, 99_999_990, 10**8, 10**18 - 5, -5])
def test_ids_that_count_up_are_printed_as_by_the_twin(first):
    ids = [*range(first, first + 25), first, first + 1, first + 1, first]
    fields = [(b'{"ids": ', texts.IDS, (np.array(ids), np.array([0, 20, 20, len(ids)])))]
    slow = [{"ids": ids[:20]}, {"ids": []}, {"ids": ids[20:]}]
    for first_id in (0, 3):
        assert bytes(texts.dump(fields, 3, first_id)) == slow_rows_out.dump(slow, first_id)


def test_a_part_of_longer_columns_is_printed():
    ids = np.arange(9), np.array([0, 2, 5, 9])
    fields = [(b'{"n": ', texts.WHOLE, np.array([4])), (b', "ids": ', texts.IDS, (ids[0], ids[1][1:3]))]
    assert bytes(texts.dump(fields, 1)) == b'{"n": 4, "ids": [2, 3, 4]}\n'


def test_columns_that_do_not_fit_are_refused():
    # the loops have no bounds checks, so what is handed to them is looked at first
    one = (b'{"n": ', texts.WHOLE, np.array([4]))
    wrong = [np.array([0]), np.array([0, 5]), np.array([2, 0]), np.array([-1, 2])]
    for offsets in wrong:
        with pytest.raises(IndexError):
            texts.dump([one, (b', "ids": ', texts.IDS, (np.arange(3), offsets))], 1)
    with pytest.raises(IndexError):
        texts.dump([one], 2)
    with pytest.raises(OverflowError):
        texts.dump([(b'{"i": ', texts.IDS, (np.array([2**63 - 1]), np.array([0, 1])))], 1, first_id=1)
    with pytest.raises(ValueError):
        texts.dump([(b"", texts.IDS, (np.arange(1), np.array([0, 1])))] * 3, 1)
