"""What each client gets: files byte for byte, what is normalised for it, and what is said to be lost."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.formats import targets as clients
from kvtrace.formats.targets import TARGETS, libcachesim, portable
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace
from kvtrace.trace.unknown import known_outputs
from tests import make_vectors_clients as plain
from tests.conftest import ROOT
from tests.strategies import traces

VECTORS = json.loads(plain.VECTORS.read_text())
JSON_ROWS = ["aiperf", "vllm", "sglang", "guidellm", "dynamo"]  # rows with ids, all by the portable profile


def smallest():
    """The trace of the vectors."""
    times, isl, osl, ids, session = zip(*plain.ROWS, strict=True)
    offsets = np.cumsum([0] + [len(row) for row in ids])
    columns = Columns(times, isl, osl, [block for row in ids for block in row], offsets, session=session)
    return Trace.from_columns(columns, block_size=plain.BLOCK_SIZE)


def written(trace, path, to, **options):
    """The bytes of a client's file, and what is said of it."""
    return clients.write(trace, path, to, **options), path.read_bytes()


def test_vectors_are_what_the_plain_writers_give():
    assert plain.vectors() == VECTORS


@pytest.mark.parametrize("case", VECTORS)
def test_the_smallest_file(case, tmp_path):
    to, name = case.split()
    _, found = written(smallest(), tmp_path / name, to)
    assert found == (base64.b64decode(VECTORS[case]) if name.endswith("General") else VECTORS[case].encode())


@pytest.mark.parametrize("to", TARGETS)
def test_a_file_that_is_no_trace_has_no_sidecar(to, tmp_path):
    name = "t.csv" if TARGETS[to].SIDECAR is False and to != "guidellm" and to != "lmcache" else "t.jsonl"
    done, _ = written(smallest(), tmp_path / name, to)
    assert (tmp_path / f"{name}.meta.json").exists() == TARGETS[to].SIDECAR == (len(done.files) == 2)
    if TARGETS[to].SIDECAR:
        assert json.loads((tmp_path / f"{name}.meta.json").read_text())["client"] == to
        assert kvtrace.read(tmp_path / name).block_size == 4


@given(traces(unknown_outputs=True))
def test_portable_rows_are_what_every_reader_takes(trace):
    if (trace.input_length < 1).all():
        with pytest.raises(InputError):
            portable.adapt(trace)
        return
    adapted, _ = portable.adapt(trace)
    assert adapted.input_length.min() >= 1 and (adapted.output_length != 0).all()
    assert (adapted.output_length[known_outputs(adapted)] >= 1).all()
    assert (adapted.timestamp == np.round(adapted.timestamp)).all() and adapted.timestamp[0] == 0
    blocks = -(-adapted.input_length // adapted.block_size)
    assert (adapted.prompt_blocks == blocks).all()
    assert adapted.session is None and adapted.parent is None and adapted.output_ids is None and not adapted.extra
    assert all(len(sizes) == 1 for sizes in sizes_of(adapted).values())


def sizes_of(trace):
    """id -> the sizes that its blocks have."""
    found = {}
    for row in range(len(trace)):
        left = int(trace.input_length[row])
        for block in trace.prompt(row).tolist():
            found.setdefault(block, set()).add(min(left, trace.block_size))
            left -= trace.block_size
    return found


def test_tails_that_are_left_out_get_ids_of_their_own():
    #  blocks of 4: 10 tokens as 0 1, 8 tokens as 0 1, 3 tokens as nothing
    columns = Columns([0, 1, 2], [10, 8, 3], [1, 1, 1], [0, 1, 0, 1], [0, 2, 4, 4])
    adapted, losses = portable.adapt(Trace.from_columns(columns, block_size=4, tail="dropped"))
    assert adapted.hash_ids.tolist() == [0, 1, 2, 0, 1, 3] and adapted.tail == "unique"
    assert losses == ["2 dropped tail blocks got new ids."]


def test_an_id_of_two_sizes_becomes_two_ids():
    #  blocks of 4: id 1 is a full block, then a tail of 2 tokens (twice), then one of 3
    columns = Columns([0, 1, 2, 3], [8, 6, 6, 7], [1] * 4, [0, 1] * 4, [0, 2, 4, 6, 8])
    adapted, losses = portable.adapt(Trace.from_columns(columns, block_size=4))
    assert adapted.hash_ids.tolist() == [0, 1, 0, 2, 0, 2, 0, 3]
    assert losses == ["3 tail blocks had ids of blocks of another size and got new ones."]


def test_what_is_lost_is_counted_and_said():
    columns = replace_columns(
        toy("0 1", "0 2", "3", gap_ms=0.4), session=[0, 0, 1], parent=[-1, 0, -1], output_length=[0, 5, 0],
        extra={"type": np.array(["a", "b", "c"], object)},
    )  # fmt: skip
    assert portable.adapt(Trace.from_columns(columns, block_size=1))[1] == [
        "2 output_lengths were raised from 0 to 1.",
        "2 times were rounded to whole milliseconds.",
        "2 sessions were left out: rows are independent.",
        "1 extra column was left out.",
    ]


def test_empty_prompts_are_left_out():
    columns = Columns([0, 5, 9], [0, 1, 1], [1, 1, 1], [0, 1], [0, 0, 1, 2])
    adapted, losses = portable.adapt(Trace.from_columns(columns, block_size=1))
    assert adapted.timestamp.tolist() == [0, 4] and losses == ["1 request with an empty prompt was left out."]


@pytest.mark.parametrize("to", JSON_ROWS)
@pytest.mark.parametrize("first_id", [-1, 2**31 - 4])
def test_ids_stay_within_31_bits(to, first_id, tmp_path):
    with pytest.raises(UsageError, match="2\\^31"):
        clients.write(smallest(), tmp_path / "t.jsonl", to, first_id=first_id)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("to", [*JSON_ROWS, "lmcache", "llm-d"])
def test_clients_that_read_plain_files_only_get_no_packed_ones(to, tmp_path):
    with pytest.raises(UsageError):
        clients.check_output(tmp_path / "t.jsonl.gz", to)


@pytest.mark.parametrize("to", TARGETS)
def test_lengths_and_times_survive_what_is_lost(to, tmp_path):
    if to == "libcachesim":
        return  # has neither
    name = "t.csv" if to in ("vidur", "azure", "burstgpt") else "t.jsonl"
    _, found = written(smallest(), tmp_path / name, to)
    assert len(found.splitlines()) == 3 + (name.endswith(".csv") or to == "dynamo-agentic")  # with a header


def test_lmcache_gets_complete_chunks_only(tmp_path):
    _, found = written(smallest(), tmp_path / "t.jsonl", "lmcache")
    rows = [json.loads(line) for line in found.splitlines()]
    assert [len(row["chunk_hashes"]) for row in rows] == [2, 2, 0]


def test_libcachesim_records_are_24_bytes_and_know_their_next_use(tmp_path):
    _, found = written(toy("0 1", "0"), tmp_path / "t.bin", "libcachesim")
    records = np.frombuffer(found, dtype=libcachesim.RECORD)
    assert libcachesim.RECORD.itemsize == 24 and records["next_access_vtime"].tolist() == [2, -1, -1]


@pytest.mark.parametrize(
    ("to", "flags"),
    [
        ("aiperf", ["--isl-block-size 4", "--fixed-schedule", "aiperf validate mooncake-trace"]),
        ("vllm", ["--timed-trace-chunk-hash-size 4", "--timed-trace-sec-multiplier 0.001", "--num-prompts 3"]),
        ("guidellm", ["hash_id_block_size=4"]),
        ("dynamo", ["trace_block_size=4"]),
        ("sglang", ["--dataset-name mooncake", "--num-prompts 3"]),
    ],
)
def test_the_flags_that_a_client_needs_are_told(to, flags, tmp_path):
    done, _ = written(smallest(), tmp_path / "t.jsonl", to)
    assert all(flag in "\n".join(done.usage) for flag in flags)


def test_the_command_says_what_was_lost_and_what_to_call(tmp_path, capsys):
    from kvtrace.cli import run

    source, out = tmp_path / "t.parquet", tmp_path / "t.jsonl"
    kvtrace.write(smallest(), source)
    assert run(["convert", str(source), "-o", str(out), "--to", "aiperf"]) == 0
    said = capsys.readouterr().err
    assert "lost        1 output_length was raised from 0 to 1." in said and "--isl-block-size 4" in said
    assert "converted   3 of 3 requests" in said and "t.jsonl.meta.json" in said


def test_a_client_can_be_piped_to(capfdbinary):
    from kvtrace.cli import run

    assert run(["convert", str(ROOT / "tests/data/none.jsonl"), "-o", "-", "--to", "aiperf", "-q"]) == 3
    clients.write(smallest(), "-", "vidur")
    assert capfdbinary.readouterr().out.decode() == VECTORS["vidur t.csv"]
