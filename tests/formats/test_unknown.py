"""Unknown output lengths and unknown shared prefixes, through every format, client and conversion."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, RowError, UnknownError
from kvtrace.cli import run
from kvtrace.formats import targets, writing
from kvtrace.formats.dataset import open_dataset
from kvtrace.formats.lazy import LazyTrace
from kvtrace.formats.violations import check
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.conversion import assume_outputs
from kvtrace.trace.meta import PREFIXES_UNKNOWN
from kvtrace.trace.trace import Trace
from kvtrace.trace.unknown import known_outputs
from tests.conftest import drawn
from tests.strategies import traces

FORMATS = {  # file -> format
    "t.jsonl": "mooncake", "b.jsonl": "bailian", "a.jsonl": "agentic-mooncake", "t.parquet": "parquet",
    "t.dataset": "dataset", "t.sessions": "weka",
}  # fmt: skip
EACH_FORMAT = pytest.mark.parametrize("name", FORMATS)
LENGTHS = '{"timestamp": 0, "input_length": 9, "output_length": 3}\n{"timestamp": 5, "input_length": 4}\n'


def partly(meta=None):
    """Blocks of 4: three requests, the output of the second is unknown."""
    columns = Columns([0, 10, 20], [5, 8, 3], [3, -1, 2], [0, 1, 0, 2, 3], [0, 2, 4, 5])
    return Trace.from_columns(columns, block_size=4, meta=meta)


def unshared():
    """Three requests of a log of lengths."""
    columns = replace_columns(partly(), hash_ids=np.arange(5), output_length=[3, 4, 2])
    return Trace(**vars(columns), block_size=4, meta={"prefixes": PREFIXES_UNKNOWN})


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def put(text, name="t.jsonl"):
    Path(name).write_text(text)
    return name


# -- unknown output lengths ----------------------------------------------------------------------------------------


@EACH_FORMAT
@settings(max_examples=drawn(40), deadline=None)
@given(trace=traces(unknown_outputs=True))
def test_what_is_written_is_read_back_with_its_unknown_outputs(tmp_path_factory, name, trace):
    if name in ("a.jsonl", "t.sessions"):  # formats without empty prompts, or without blocks of outputs
        rows = np.flatnonzero(trace.input_length > 0)
        if not len(rows):
            return
        trace = trace.select(rows)
    if name == "t.sessions":
        columns = replace_columns(trace, output_ids=None, output_offsets=None)
        trace = Trace.from_columns(columns, block_size=trace.block_size)
    path = tmp_path_factory.mktemp("t") / name
    writing.write(trace, path, format=FORMATS[name])
    back = kvtrace.read(path)
    if name == "t.sessions":  # sessions that begin at once are in the order of their files
        assert pairs(back) == pairs(trace)
        return
    for column in ("input_length", "output_length", "hash_ids", "offsets", "output_ids"):
        assert np.array_equal(getattr(back, column), getattr(trace, column)), column
    if name in ("t.parquet", "t.dataset"):
        assert back == trace


def pairs(trace):
    """The lengths of all requests."""
    return sorted(zip(trace.input_length.tolist(), trace.output_length.tolist(), strict=True))


def test_null_is_the_text_of_an_unknown_length_and_null_or_no_key_are_read_as_one():
    writing.write(partly(), "t.jsonl")
    text = Path("t.jsonl").read_text()
    assert text.splitlines()[1] == '{"timestamp": 10, "input_length": 8, "output_length": null, "hash_ids": [0, 2]}'
    os.remove("t.jsonl.meta.json")
    assert kvtrace.read(put(text.replace('"output_length": null, ', "")), block_size=4) == partly()
    writing.write(partly(), "b.jsonl", format="bailian")
    assert json.loads(Path("b.jsonl").read_text().splitlines()[1])["output_length"] is None
    writing.write(partly(), "s.sessions")
    files = map(json.loads, (path.read_text() for path in Path("s.sessions").iterdir()))
    outputs = [session["requests"][0]["out"] for session in files]
    assert sorted(outputs, key=str) == [2, 3, None]


def test_a_minus_one_of_a_file_is_negative_and_not_unknown():
    rows = [{"timestamp": 0, "input_length": 4, "output_length": length, "hash_ids": [0]} for length in (1, -1)]
    put("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RowError, match=r"^t\.jsonl:2: output_length is negative\.$"):
        kvtrace.read("t.jsonl", block_size=4)
    pa = pytest.importorskip("pyarrow")
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    for lengths, expected in (([-1, None], None), ([1, None], [1, -1])):
        table = {"timestamp": [0, 1], "input_length": [4, 4], "output_length": lengths, "hash_ids": [[0], [0]]}
        pa.parquet.write_table(pa.table(table), "t.parquet")
        if expected is None:
            with pytest.raises(RowError, match="output_length is negative"):
                kvtrace.read("t.parquet", block_size=4)
        else:
            assert kvtrace.read("t.parquet", block_size=4).output_length.tolist() == expected


def test_only_minus_one_is_unknown_and_an_unknown_output_has_no_blocks():
    with pytest.raises(InputError, match=r"^row 0: output_length is negative\.$"):
        Trace([0], [4], [-2], [0], [0, 1], block_size=4)
    with pytest.raises(InputError, match=r"^row 0: 1 output_hash_ids, but output_length is unknown\."):
        Trace([0], [4], [-1], [0], [0, 1], output_ids=[1], output_offsets=[0, 1], block_size=4)


def test_check_finds_nothing_wrong_with_unknown_lengths():
    writing.write(partly(), "t.jsonl")
    assert check("t.jsonl") == [] == check(put(LENGTHS, "lengths.jsonl"))


def test_arrow_has_null_and_a_notebook_says_unknown():
    assert partly().to_arrow()["output_length"].to_pylist() == [3, None, 2]
    assert "<td>unknown</td>" in partly()._repr_html_()


def test_selecting_folding_joining_and_streaming_keep_unknown_lengths():
    trace = partly()
    assert trace[1:].output_length.tolist() == [-1, 2]
    assert kvtrace.trace.convert(trace, factor=2).output_length.tolist() == [3, -1, 2]
    assert kvtrace.trace.concat([trace, trace]).output_length.tolist() == [3, -1, 2, 3, -1, 2]
    writing.write(trace, "t.dataset")
    lazy = LazyTrace(open_dataset("t.dataset"))
    assert lazy.output_length.tolist() == [3, -1, 2]
    assert [piece.output_length.tolist() for _, piece in lazy.pieces()] == [[3, -1, 2]]


# -- clients -------------------------------------------------------------------------------------------------------

NULL = {"aiperf"}  # its MooncakeTrace has `output_length: int | None`
WITHOUT = {"lmcache", "libcachesim"}  # their files have no output lengths


def file_for(to):
    return "o.csv" if to in ("vidur", "azure", "burstgpt") else "o.oracleGeneral" if to == "libcachesim" else "o.jsonl"


@pytest.mark.parametrize("to", targets.TARGETS)
def test_each_client_gets_null_or_no_file(to, capsys):
    writing.write(partly(), "t.jsonl")
    if to in NULL | WITHOUT:
        targets.write(partly(), file_for(to), to)
        if to in NULL:
            assert [json.loads(row)["output_length"] for row in Path(file_for(to)).read_text().splitlines()] == [
                3,
                None,
                2,
            ]
        return
    message = (
        f"{to} needs the length of each output: output lengths are unknown for 1 of 3 requests. Log the answers or "
        "their token counts. Or assume a length: kvtrace convert --assume-output TOKENS."
    )
    with pytest.raises(UnknownError) as error:
        targets.write(partly(), file_for(to), to)
    assert str(error.value) == message and not os.path.exists(file_for(to))
    assert run(["convert", "t.jsonl", "-o", file_for(to), "--to", to, "--quiet"]) == 6
    assert capsys.readouterr().err == f"kvtrace: {message}\n"
    assert run(["convert", "t.jsonl", "-o", file_for(to), "--to", to, "--quiet", "--assume-output", "77"]) == 0
    assert "77" in Path(file_for(to)).read_text()


def test_an_assumed_length_is_stated():
    assert kvtrace.trace.convert(partly(), assume_output=64).output_length.tolist() == [3, 64, 2]
    assert assume_outputs(unshared(), 64).meta == {"prefixes": PREFIXES_UNKNOWN}  # nothing was assumed
    writing.write(partly(), "t.jsonl")
    assert run(["convert", "t.jsonl", "-o", "u.jsonl", "--assume-output", "64", "--quiet"]) == 0
    assert json.loads(Path("u.jsonl.meta.json").read_text())["converted"] == {"assumed_output": 64}
    assert known_outputs(kvtrace.read("u.jsonl")).all()
    with pytest.raises(kvtrace.UsageError, match=r"^--assume-output must be from 0 to 16,777,216 tokens, not -1\.$"):
        kvtrace.trace.convert(partly(), assume_output=-1)


@pytest.mark.parametrize("to", targets.TARGETS)
def test_a_client_is_told_that_prefixes_are_unknown(to):
    if to in WITHOUT:  # they compute hits and nothing else
        with pytest.raises(UnknownError, match=f"^the file for {to} is unknown: the log has lengths only"):
            targets.write(unshared(), file_for(to), to)
        return
    losses = targets.write(unshared(), file_for(to), to).losses
    said = [loss for loss in losses if loss.startswith("shared prefixes are unknown")]
    assert len(said) == (to not in ("vidur", "azure", "burstgpt"))  # these replay lengths
    assert not any("hash_id" in loss for loss in losses)


# -- unknown shared prefixes ---------------------------------------------------------------------------------------


def prefixes(trace):
    return trace.meta.get("prefixes")


def test_rows_of_lengths_are_a_trace_whose_prefixes_are_unknown():
    trace = kvtrace.read(put(LENGTHS), block_size=4)
    assert trace.prompt_blocks.tolist() == [3, 1] and trace.hash_ids.tolist() == [0, 1, 2, 3]
    assert trace.output_length.tolist() == [3, -1] and prefixes(trace) == PREFIXES_UNKNOWN
    assert kvtrace.read("t.jsonl").block_size == 512
    tokens = '{"timestamp": 0, "input_tokens": 9, "output_tokens": 3}\n'
    assert kvtrace.read(put(tokens), block_size=4).prompt_blocks.tolist() == [3]


def test_a_trace_with_an_id_list_in_some_rows_is_refused_by_line():
    put(LENGTHS + '{"timestamp": 6, "input_length": 4, "output_length": 1, "hash_ids": [0]}\n')
    with pytest.raises(RowError, match=r"^t\.jsonl:3: the row has hash_ids, but the first row has none\."):
        kvtrace.read("t.jsonl", block_size=4)


def test_a_trace_that_a_data_frame_wrote_as_csv_is_named_and_its_other_forms_are_read():
    pytest.importorskip("pandas")
    trace = kvtrace.toy("0 1", "0 2", block_size=4)
    rows = trace.to_pandas()
    rows.to_csv("t.csv", index=False), rows.to_parquet("t.parquet")
    rows.to_json("t.jsonl", orient="records", lines=True)
    with pytest.raises(InputError, match=r"^t\.csv: is CSV, and a trace is JSON Lines or Parquet\. A data frame"):
        kvtrace.read("t.csv")
    assert kvtrace.read("t.parquet", block_size=4) == kvtrace.read("t.jsonl", block_size=4) == trace


def test_a_log_with_text_and_lengths_is_still_a_raw_log():
    put('{"timestamp": 0, "input_length": 2, "output_length": 3, "prompt": "Hello"}\n')
    with pytest.raises(InputError, match=r"^t\.jsonl: is a raw log, not a trace\."):
        kvtrace.read("t.jsonl")


def test_a_prompt_too_long_for_made_up_blocks_is_refused():
    put('{"timestamp": 0, "input_length": 10000000000000, "output_length": 3}\n')
    with pytest.raises(RowError, match=r"^t\.jsonl:1: input_length is 10,000,000,000,000 tokens; the limit is"):
        kvtrace.read("t.jsonl")


def test_parquet_without_ids_has_lengths_only():
    pa = pytest.importorskip("pyarrow")
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table({"timestamp": [0, 5], "input_length": [9, 4]}), "t.parquet")
    trace = kvtrace.read("t.parquet", block_size=4)
    assert trace.prompt_blocks.tolist() == [3, 1] and prefixes(trace) and not known_outputs(trace).any()


@EACH_FORMAT
def test_every_format_keeps_unknown_prefixes(name):
    writing.write(unshared(), name, format=FORMATS[name])
    back = kvtrace.read(name)
    assert prefixes(back) == PREFIXES_UNKNOWN and np.array_equal(back.hash_ids, np.arange(len(back.hash_ids)))
    if name == "a.jsonl":
        os.remove("a.jsonl.meta.json")  # its header says so, too
        assert prefixes(kvtrace.read(name)) == PREFIXES_UNKNOWN


def test_every_operation_keeps_unknown_prefixes():
    trace = unshared()
    for part in (
        trace[1:], trace.window(0, 15), trace.chained(), kvtrace.trace.convert(trace, factor=2, ratio=2.0, limit=2),
        kvtrace.trace.concat([trace, partly()]), kvtrace.trace.concat([partly(), trace], overlay=True),
        assume_outputs(trace, 1),
    ):  # fmt: skip
        assert prefixes(part) == PREFIXES_UNKNOWN
    assert not prefixes(kvtrace.trace.concat([partly(), partly()]))
    writing.write(trace, "t.jsonl", meta={"note": "ours"})
    assert prefixes(kvtrace.read("t.jsonl")) == PREFIXES_UNKNOWN
    writing.write(trace, "t.dataset")
    assert prefixes(LazyTrace(open_dataset("t.dataset"))) == PREFIXES_UNKNOWN
    assert run(["convert", "t.dataset", "-o", "u.jsonl", "--limit", "2", "--quiet"]) == 0
    assert prefixes(kvtrace.read("u.jsonl")) == PREFIXES_UNKNOWN


def test_a_pipe_has_no_sidecar_and_therefore_no_made_up_ids():
    writing.write(unshared(), "t.jsonl")
    command = [sys.executable, "-m", "kvtrace", "convert", "t.jsonl", "-o", "-", "--quiet"]
    for more in ([], ["--to", "bailian"]):
        text = subprocess.run([*command, *more], capture_output=True, check=True, text=True).stdout
        assert "hash_ids" not in text
        trace = kvtrace.read(put(text, "piped.jsonl"), block_size=4)
        assert prefixes(trace) == PREFIXES_UNKNOWN and trace.input_length.tolist() == [5, 8, 3]


@settings(max_examples=drawn(60), deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(1, 9))
def test_made_up_blocks_are_of_one_prompt_each(tmp_path_factory, lengths, block_size):
    path = tmp_path_factory.mktemp("lengths") / "t.jsonl"
    path.write_text("".join(f'{{"timestamp": {row}, "input_length": {n}}}\n' for row, n in enumerate(lengths)))
    trace = kvtrace.read(path, block_size=block_size)
    assert trace.prompt_blocks.tolist() == [-(-n // block_size) for n in lengths]
    assert trace.hash_ids.tolist() == list(range(len(trace.hash_ids)))
