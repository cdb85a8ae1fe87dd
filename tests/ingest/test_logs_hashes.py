"""Logs of hashes: UCM's traces and LiteLLM's prefix block hashes. What is read, what is refused, what is shared."""

import gzip
import hashlib
import json
import re
from array import array
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import EmptyPrompt, InputError, NotARequest, RowError, UsageError
from kvtrace.ingest.logs import READERS, open_reader, records_of
from tests.conftest import drawn
from tests.ingest.flat import anonymize_rows
from tests.ingest.test_logs import assert_silent

HERE = Path(__file__).parents[1]
DATA = HERE / "data" / "logs"
EXAMPLES = {  # example -> reader, unit of times, requests, rows that are none
    "ucm.jsonl": ("ucm", "seconds from the start", 3, 0),
    "litellm_hashes.jsonl": ("litellm-hashes", "ISO 8601, UTC where no zone is given", 3, 1),
}
CANARY = "canary-7c1f"
HEX_32 = "hash_ids: is not a list of hashes: each must be a text of 32 hexadecimal digits."
HEX_16 = "metadata.prefix_block_hashes: is not a list of hashes: each must be a text of 16 hexadecimal digits."


def rows_of(name):
    return [orjson.loads(line) for line in (DATA / name).read_bytes().splitlines()]


def read(row, name):
    (record,) = records_of(READERS[name], row)
    return record


def refused(row, name, error=RowError):
    with pytest.raises(error) as caught:
        records_of(READERS[name], row)
    assert_silent(caught.value)
    return str(caught.value)


def written(folder, rows, name="log.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


def prompts(trace):
    return [trace.hash_ids[a:b].tolist() for a, b in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)]


def md5(*blocks):
    """A chain of MD5, as UCM hashes the blocks of a prompt."""
    found, before = [], b"UCM_HASH_SEED"
    for block in blocks:
        before = hashlib.md5(before + block.encode()).digest()
        found.append(before.hex())
    return found


def ucm(hashes, input_length, time=5021.5, **more):
    return {"timestamp": time, "input_length": input_length, "output_length": 128, "hash_ids": hashes} | more


def spend(hashes, prompt_tokens=40, **more):
    return {
        "call_type": "acompletion", "startTime": 1900000000.5, "prompt_tokens": prompt_tokens, "completion_tokens": 7,
        "messages": "{}", "response": "{}", "metadata": {"prefix_block_hashes": hashes},
    } | more  # fmt: skip


# -- both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_form_is_recognised_and_becomes_a_trace(name):
    reader, unit, requests, others = EXAMPLES[name]
    lines = (DATA / name).read_bytes().splitlines()
    opened = open_reader("auto", lines)
    assert opened.describe() == {"reader": f"{reader} (detected)", "time": f"{unit} (detected)"}
    assert {open_reader("auto", [line]).name for line in lines[:requests]} == {reader}
    rows = anonymize_rows(DATA / name, tokenizer=None, profile="exact")
    assert (rows.counts.requests, rows.counts.others) == (requests, others) and rows.trace().is_chained


@settings(deadline=None, max_examples=drawn(300))
@given(
    st.sampled_from([(name, row) for name in EXAMPLES for row in rows_of(name)]),
    st.sampled_from([CANARY, [CANARY], {CANARY: CANARY}, -1, 2.5, None, "", [], [CANARY * 4], True]),
    st.data(),
)
def test_any_row_with_one_value_changed_gives_a_record_or_an_error_without_content(example, value, data):
    name, row = example
    row = orjson.loads(orjson.dumps(row))
    places = [(row, key) for key in row]
    if isinstance(row.get("metadata"), dict):
        places += [(row["metadata"], key) for key in row["metadata"]]
    place, key = data.draw(st.sampled_from(places))
    place[key] = value
    try:
        reader = open_reader(EXAMPLES[name][0], [orjson.dumps(row)], time_unit="ns")
        for record in reader.records(orjson.dumps(row)):
            assert record.hashes is not None and record.output_length != -1
            reader.require_blocks(record, reader.block_size or 16)
    except RowError as error:
        assert_silent(error)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("format", ["mooncake", "parquet"])
def test_no_hash_of_the_log_is_in_the_output(tmp_path, name, format):
    kvtrace.privacy.publish(
        kvtrace.ingest.anonymize(DATA / name, profile="exact"), tmp_path / f"trace.{format}", format=format
    )
    out = b"\n".join(path.read_bytes() for path in tmp_path.iterdir())
    hashes = set(re.findall(r'"([0-9a-f]{16}|[0-9a-f]{32})\\?"', (DATA / name).read_text()))
    assert len(hashes) >= 3
    for value in hashes:
        words = [int(value[i : i + 16], 16) for i in range(0, len(value), 16)]
        forms = [value.encode(), bytes.fromhex(value), bytes.fromhex(value)[::-1]]
        forms += [str(word).encode() for word in words]
        assert not any(form in out for form in forms)


# -- UCM -------------------------------------------------------------------------------------------------------------


def test_ucm_rows_hold_full_blocks():
    first = rows_of("ucm.jsonl")[0]
    record = read(first, "ucm")
    assert (record.time, record.input_length, record.output_length) == (1834502.128113, 1100, 256)
    assert record.hashes == array("Q", [int(h[i : i + 16], 16) for h in first["hash_ids"] for i in (0, 16)])
    assert record.block_size is None and record.session is None
    trace = kvtrace.ingest.anonymize(DATA / "ucm.jsonl", profile="exact")
    assert (trace.block_size, trace.tail, prompts(trace)) == (512, "dropped", [[0, 1], [0, 1, 2], [0]])
    assert trace.timestamp.tolist() == [0, 512, 5121]


def test_hashes_are_told_apart_by_all_their_bits(tmp_path):
    rows = [ucm([high * 16 + low * 16], 600, time=5.0 + i) for i, (high, low) in enumerate(["00", "01", "10", "00"])]
    trace = kvtrace.ingest.anonymize(written(tmp_path, rows), profile="exact", block_size=512)
    assert prompts(trace) == [[0], [1], [2], [0]]


@settings(deadline=None, max_examples=drawn(50))
@given(st.lists(st.tuples(st.lists(st.integers(0, 2), max_size=5), st.integers(0, 15)), min_size=1, max_size=12))
def test_ids_share_prefixes_exactly_as_hashes_do(tmp_path_factory, paths):
    folder = tmp_path_factory.mktemp("ucm")
    paths = [([0], 0), *((blocks, tail) for blocks, tail in paths if blocks or tail)]
    rows = [
        ucm(md5(*map(str, blocks)), 16 * len(blocks) + tail, time=5.0 + i) for i, (blocks, tail) in enumerate(paths)
    ]
    ids: dict[str, int] = {}
    expected = [[ids.setdefault(hash_, len(ids)) for hash_ in row["hash_ids"]] for row in rows]
    trace = kvtrace.ingest.anonymize(written(folder, rows), profile="exact", block_size=16)
    assert prompts(trace) == expected and trace.input_length.tolist() == [row["input_length"] for row in rows]


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_ucm_traces_are_released_without_tails(tmp_path, profile):
    rows = [ucm(md5("a", str(i % 3), str(i)), 60, time=5.0 + i) for i in range(9)]
    trace = kvtrace.ingest.anonymize(written(tmp_path, rows), profile=profile, block_size=16)
    assert trace.tail == "dropped" and np_counts(trace) == [3] * 9


def np_counts(trace):
    return (trace.offsets[1:] - trace.offsets[:-1]).tolist()


def test_the_block_size_is_the_one_that_fits_or_the_option_s(tmp_path):
    one = written(tmp_path, [ucm(md5("a"), 700), ucm([], 300)])  # 351 to 700 fit: 512 is the power of two
    assert kvtrace.ingest.anonymize(one, profile="exact").block_size == 512
    assert kvtrace.ingest.anonymize(one, profile="exact", block_size=600).block_size == 600
    several = written(tmp_path, [ucm(md5("a"), 300)], "several.jsonl")  # 151 to 300: 256
    assert kvtrace.ingest.anonymize(several, profile="exact").block_size == 256
    none = written(tmp_path, [ucm(md5("a", "b"), 700), ucm(md5("a"), 100)], "none.jsonl")
    with pytest.raises(UsageError, match=r"hashes of blocks, but not their size in tokens. Set it: --block-size N."):
        kvtrace.ingest.anonymize(none, profile="exact")
    wrong = r"log.jsonl:1: hash_ids: does not have one hash for each full block of 128 tokens. Another --block-size may"
    with pytest.raises(InputError, match=wrong):
        kvtrace.ingest.anonymize(one, profile="exact", block_size=128)


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (ucm(["0" * 31], 700), HEX_32),
        (ucm(["g" * 32], 700), HEX_32),
        (ucm(["0x" + "0" * 30], 700), HEX_32),
        (ucm(["0" * 31 + "\uff11"], 700), HEX_32),
        (ucm([CANARY], 700), HEX_32),
        (ucm([7], 700), HEX_32),
        (ucm([None], 700), HEX_32),
        (ucm(CANARY, 700), "hash_ids: is a string; expected a list of hashes."),
        (ucm(None, 700), "hash_ids: is missing; expected a list of hashes."),
        (ucm([], 0), "input_length: the prompt is empty."),
        (ucm([], -1), "input_length: is negative."),
        (ucm([], None), "input_length: is missing. It must hold the length of the prompt in tokens."),
        (ucm([], CANARY), "input_length: is a string; expected a whole number of tokens."),
        (ucm([], 700, time=None), "timestamp: is missing. A trace needs the time of each request. "
         "Try --map timestamp=FIELD."),
    ],
)  # fmt: skip
def test_a_bad_row_of_ucm_is_refused(row, line):
    assert refused(row, "ucm", EmptyPrompt if "empty" in line else RowError) == line


def test_a_trace_of_numbers_is_no_log_of_ucm_and_the_other_way_round(tmp_path):
    trace = written(tmp_path, [ucm([0, 1], 700)], "trace.jsonl")
    with pytest.raises(InputError, match="is a trace, not a raw log"):
        kvtrace.ingest.anonymize(trace)
    log = written(tmp_path, [ucm(md5("a"), 700)])
    with pytest.raises(InputError, match="is a raw log, not a trace. To make a trace of it: kvtrace anonymize"):
        kvtrace.read(log)


def test_outputs_have_no_hashes():
    with pytest.raises(UsageError, match="the log holds hashes of prompts only. Leave out --outputs."):
        kvtrace.ingest.anonymize(DATA / "ucm.jsonl", profile="exact", outputs=True)


# -- LiteLLM ---------------------------------------------------------------------------------------------------------

A, B, C = "00000000000000aa", "00000000000000bb", "00000000000000CC"


def test_ids_of_litellm_are_a_list_or_the_list_of_an_object():
    for value in ([A, B], {"ids": [A, B], "version": 1}, {"hash_ids": [A, B], "others": [1]}, json.dumps([A, B])):
        assert read(spend(value), "litellm-hashes").hashes == array("Q", [0xAA, 0xBB])
    assert read(spend([C]), "litellm-hashes").hashes == array("Q", [0xCC])
    row = spend(None, prefix_block_hashes=[A, B])  # beside the metadata, as in a table of columns
    assert read(row, "litellm-hashes").hashes == array("Q", [0xAA, 0xBB])
    assert read(row | {"metadata": json.dumps({"prefix_block_hashes": [A]})} | {"prefix_block_hashes": None},
                "litellm-hashes").hashes == array("Q", [0xAA])  # fmt: skip
    assert read(spend({"block_size": 64, "hash_ids": [A]}), "litellm-hashes").block_size == 64
    mapped = spend(None, metadata={"other": {"name": [A, B]}})
    reader = open_reader("auto", [orjson.dumps(mapped)], field_map={"hashes": "metadata.other.name"})
    assert reader.name == "litellm-hashes"
    assert reader.read(orjson.dumps(mapped)).hashes == array("Q", [0xAA, 0xBB])


def test_a_row_with_its_prompt_is_read_from_its_prompt():
    row = spend([A], messages=[{"role": "user", "content": "Hello"}])
    assert open_reader("auto", [orjson.dumps(row)]).name == "litellm"
    row = spend([A], proxy_server_request='{"messages": [{"role": "user", "content": "Hello"}]}')
    assert open_reader("auto", [orjson.dumps(row)]).name == "litellm"
    assert open_reader("auto", [orjson.dumps(spend([A]))]).name == "litellm-hashes"


def test_the_example_of_litellm_keeps_sessions_users_and_measured_values():
    _, second, _, other = rows_of("litellm_hashes.jsonl")
    record = read(second, "litellm-hashes")
    assert (record.session, record.tenant, record.account, record.user) == ("s-1", "bakers", "8d3a", "owner")
    assert (record.cached_tokens, record.output_length, record.prompt_tokens, record.block_size) == (32, 12, 70, 32)
    assert refused(other, "litellm-hashes", NotARequest) == "call_type: is not a text generation call."
    trace = kvtrace.ingest.anonymize(DATA / "litellm_hashes.jsonl", profile="exact", keep_domains=False)
    assert prompts(kvtrace.trace.in_domains(trace)) == [[0, 1], [0, 2, 3], [0]] and trace.block_size == 32
    assert trace.cached_tokens.tolist() == [0, 32, -1] and trace.session.tolist() == [0, 0, 1]
    assert trace.ttft_ms.tolist() == [400, 400, 400]


def test_a_length_of_another_tokenizer_is_moved_into_the_last_block(tmp_path):
    """The provider counts the tokens; LiteLLM's tokenizer cuts the blocks."""
    rows = [spend([A, B], tokens, startTime=1900000000.5 + tokens) for tokens in (5, 17, 32, 40)]
    trace = kvtrace.ingest.anonymize(written(tmp_path, rows), profile="exact", block_size=16)
    assert trace.input_length.tolist() == [17, 17, 32, 32] and np_counts(trace) == [2] * 4
    assert anonymize_rows(tmp_path / "log.jsonl", profile="exact", block_size=16).counts.requests == 4


def test_the_block_size_is_stated_by_the_option_or_by_the_rows(tmp_path):
    unstated = written(tmp_path, [spend([A, B])])
    with pytest.raises(UsageError, match="Set it: --block-size N."):
        kvtrace.ingest.anonymize(unstated, profile="exact")
    stated = written(tmp_path, [spend({"block_size": 32, "ids": [A, B]}), spend([A])], "stated.jsonl")
    assert kvtrace.ingest.anonymize(stated, profile="exact").block_size == 32
    with pytest.raises(UsageError, match="the log holds hashes of blocks of 32 tokens, not 16. Leave out"):
        kvtrace.ingest.anonymize(stated, profile="exact", block_size=16)
    sizes = [spend({"block_size": size, "ids": [A, B]}) for size in (32, 16)]
    with pytest.raises(InputError, match="log.jsonl:2: the block size differs: the first rows have blocks of 32"):
        kvtrace.ingest.anonymize(written(tmp_path, sizes), profile="exact")


@pytest.mark.parametrize(
    ("row", "line"),
    [
        (spend(None), "metadata.prefix_block_hashes: is missing; expected a list of hashes."),
        (spend(5), "metadata.prefix_block_hashes: is a number; expected a list of hashes."),
        (spend([A[1:]]), HEX_16),
        (spend([A, 7]), HEX_16),
        (spend([A, CANARY]), HEX_16),
        (spend({"a": [A], "b": [B]}), "metadata.prefix_block_hashes: is an object; expected a list of hashes."),
        (spend({CANARY: [A, CANARY]}), HEX_16),  # a key of the log is content too
        (spend({CANARY: [7]}), "metadata.prefix_block_hashes: is an object; expected a list of hashes."),
        (spend({"ids": [A], "block_size": 0}),
         "metadata.prefix_block_hashes.block_size: must be a number of tokens above 0."),
        (spend([]), "metadata.prefix_block_hashes: the prompt is empty."),
        (spend([A], None), "prompt_tokens: is missing. It must hold the length of the prompt in tokens."),
    ],
)  # fmt: skip
def test_a_bad_row_of_litellm_s_hashes_is_refused(row, line):
    assert refused(row, "litellm-hashes", EmptyPrompt if "empty" in line else RowError) == line


# -- Dynamo's segments -----------------------------------------------------------------------------------------------


def test_the_segments_of_dynamo_are_read_as_one_log(tmp_path):
    """`DYN_REQUEST_TRACE_FILE_FORMAT=jsonl_gz` writes PREFIX.000000.jsonl.gz, PREFIX.000001.jsonl.gz, ..."""
    lines = (DATA / "dynamo.jsonl").read_bytes().splitlines(keepends=True)
    for number in range(2):
        segment = gzip.compress(b"".join(lines[2 * number : 2 * number + 2]))
        (tmp_path / f"trace.{number:06}.jsonl.gz").write_bytes(segment)
    whole = kvtrace.ingest.anonymize(DATA / "dynamo.jsonl", profile="exact")
    for inputs in (tmp_path, tmp_path / "trace.*.jsonl.gz", sorted(tmp_path.iterdir())):
        trace = kvtrace.ingest.anonymize(inputs, profile="exact")
        assert prompts(trace) == prompts(whole) and trace.input_length.tolist() == whole.input_length.tolist()
