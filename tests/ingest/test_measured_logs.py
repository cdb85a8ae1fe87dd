"""What services measured: each format's fields become columns, bad values count as unknown, and no word shows."""

import copy
import json
import random
import re
from pathlib import Path

import numpy as np
import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.ingest.checkpoint import Checkpoint
from kvtrace.ingest.encoding import Batch
from kvtrace.ingest.encoding_tasks import TaskCheckpoint
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import READERS, open_reader
from kvtrace.ingest.logs.fieldmap import find, unpacked
from kvtrace.trace.columns import MEASURED, measured_of
from tests.attacks.canary import CANARY, NUMBER, require_none
from tests.ingest.flat import anonymize_dataset, anonymize_rows

HERE = Path(__file__).parents[1]
TINY = HERE / "data/tokenizers/tiny"
EXAMPLES = [json.loads(line) for line in (HERE / "data/measured_logs.jsonl").read_text().splitlines()]
NAMES = [f"{one['reader']}: {one['about']}" for one in EXAMPLES]
KEY = Key(bytes(range(16)))
OPTIONS = {"key": KEY, "tokenizer": None, "block_size": 4, "profile": "exact"}
PLAIN = {"timestamp": 1900000000.0, "input": "Hello", "output": 3}


def measured(row, **options):
    """Column -> the value of a row's only request, and the number of values that are not valid."""
    line = json.dumps(row).encode()
    reader = open_reader(options.pop("name", "auto"), [line], untimed=True, **options)
    (record,) = reader.records(line)
    values = reader.measured(record, reader.time_ns(record))
    return {name: getattr(values, name) for name in MEASURED if getattr(values, name) is not None}, values.invalid


def changed(row, path, value):
    """A copy of a row with another value at a path, whose last name may have dots."""
    row = copy.deepcopy(row)
    place, names = row, path.split(".")
    while names[0] in place if isinstance(place, dict) else True:
        name = int(names[0]) if isinstance(place, list) else names[0]
        if len(names) == 1 or not isinstance(place[name], (dict, list)):
            break
        place, names = place[name], names[1:]
    assert ".".join(names) in place or isinstance(place, list)
    place[".".join(names)] = value
    return row


# -- the fields of each format -------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_each_field_of_each_format_is_read(example):
    values, invalid = measured(example["row"], name=example["reader"])
    assert values == {name: one["value"] for name, one in example["measured"].items()}
    assert invalid == 0


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_the_values_are_at_the_paths_that_the_examples_name(example):
    for one in example["measured"].values():
        assert unpacked(find(example["row"], one["path"])) is None  # a value, not an object


def test_each_format_has_an_example():
    assert {example["reader"] for example in EXAMPLES} == set(READERS)


def test_the_docs_name_the_measured_fields_of_each_format():
    section = (
        (HERE.parent / "docs/ingest/logs.md")
        .read_text()
        .partition("## What the service measured\n")[2]
        .partition("\n## ")[0]
    )
    shared, _, rows = section.partition("| format |")
    table = dict(re.findall(r"^\| `([a-z-]+)` \|(.*)$", rows, re.MULTILINE))
    for example in EXAMPLES:
        for one in example["measured"].values():
            field = ".".join(name for name in one["path"].split(".") if not name.isdigit())
            words = [field.removeprefix("attributes."), field.rpartition(".")[2]]
            if field.startswith("attributes."):
                words = words[:1]
            cells = table.get(example["reader"], "") + shared
            assert field in SHARED or any(re.search(rf"[`.]{re.escape(word)}`", cells) for word in words), field
    none = {one["reader"] for one in EXAMPLES} - {
        one["reader"] for one in EXAMPLES if one["measured"] and "no field of its own" not in one["about"]
    }
    assert {*table} == {*READERS} - none


SHARED = ("latency_ms", "duration_s", "end_time")  # of "Ends and durations"


# -- bad values ----------------------------------------------------------------------------------------------------

BAD = (-1, CANARY, f"-{NUMBER}", NUMBER, [1], {"a": CANARY}, True, 2.5, 1e300)


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_a_bad_count_of_cached_tokens_is_unknown_and_counted(example):
    path = example["measured"].get("cached_tokens", {}).get("path")
    for value in BAD if path else ():
        if example["reader"] == "otel" and isinstance(value, dict):
            continue  # attributes below this one
        values, invalid = measured(changed(example["row"], path, value), name=example["reader"])
        assert ("cached_tokens" in values, invalid) == (False, 1), value


@pytest.mark.parametrize("example", EXAMPLES, ids=NAMES)
def test_a_bad_time_to_the_first_token_or_in_the_queue_is_unknown(example):
    for name in ("ttft_ms", "queue_ms"):
        path = example["measured"].get(name, {}).get("path")
        for value in (-1, CANARY, [1], {"a": CANARY}, True, 1e300) if path else ():
            values, invalid = measured(changed(example["row"], path, value), name=example["reader"])
            assert name not in values, value
            assert invalid <= 1


@pytest.mark.parametrize(
    ("row", "values", "invalid"),
    [
        ({"ttft_ms": 250}, {"ttft_ms": 250}, 0),
        ({"ttft_s": 0.0123456}, {"ttft_ms": 12.346}, 0),
        ({"ttft_ms": None, "ttft_s": "", "cached_tokens": None}, {}, 0),
        ({"ttft_ms": CANARY, "time_to_first_token_s": 0.5}, {"ttft_ms": 500}, 0),  # another field has it
        ({"ttft_ms": CANARY, "queue_ms": -1, "cached_tokens": 1.5}, {}, 3),
        ({"latency_ms": CANARY, "ttft_ms": 5}, {"ttft_ms": 5}, 1),
        ({"latency_ms": CANARY, "end_time": 1900000001.0}, {"e2e_ms": 1000}, 0),
        ({"end_time": 1899999999.0}, {}, 1),
        ({"end_time": 1900000001.0, "ttft_ms": 1500}, {"e2e_ms": 1000, "ttft_ms": 1500}, 0),  # clocks of seconds
        ({"end_time": 1900000001.0, "ttft_ms": 2001, "queue_ms": 9000}, {"e2e_ms": 1000}, 2),
        ({"end_time": 1900000001.0, "first_token_time": 1900000001.0}, {"e2e_ms": 1000}, 0),  # not streamed
        ({"first_token_time": 1899999999.0}, {}, 1),
        ({"first_token_time": "2030-03-17T17:46:40.250Z"}, {"ttft_ms": 250}, 0),
        ({"first_token_time": CANARY}, {}, 1),
        ({"cached_tokens": 0, "ttft_ms": 0, "queue_ms": 0}, {"cached_tokens": 0, "ttft_ms": 0, "queue_ms": 0}, 0),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_true_is_unknown(row, values, invalid):
    assert measured(PLAIN | row) == (values, invalid)


def test_a_map_names_the_measured_fields():
    meta = {"hit": "3", "first": 1900000000.5, "ttft": 0.25, "took": 2, "waited": 100, "took_ms": 1500}
    row = PLAIN | {"meta": meta, "cached_tokens": 1, "ttft_ms": 9}
    for target, path, name, value in (
        ("cached_tokens", "meta.hit", "cached_tokens", 3), ("first_token_time", "meta.first", "ttft_ms", 9),
        ("ttft_s", "meta.ttft", "ttft_ms", 250), ("ttft_ms", "meta.waited", "ttft_ms", 100),
        ("e2e_s", "meta.took", "e2e_ms", 2000), ("e2e_ms", "meta.took_ms", "e2e_ms", 1500),
        ("queue_s", "meta.ttft", "queue_ms", 250), ("queue_ms", "meta.waited", "queue_ms", 100),
        ("cached_tokens", "meta.none", "cached_tokens", None),
    ):  # fmt: skip
        assert measured(row, field_map={target: path})[0].get(name) == value, target


@pytest.mark.parametrize("reader", ["helicone", "portkey", "litellm", "otel", "sglang", "dynamo", "langsmith"])
def test_a_map_wins_over_the_fields_of_a_format(reader):
    example = next(one for one in EXAMPLES if one["reader"] == reader)
    row = example["row"] | {"mine": {"cached": 2, "ttft": 44}}
    mapped = measured(row, name=reader, field_map={"cached_tokens": "mine.cached", "ttft_ms": "mine.ttft"})[0]
    assert (mapped["cached_tokens"], mapped["ttft_ms"]) == (2, 44)


def test_an_answer_from_a_cache_of_litellm_measured_nothing_of_the_engine():
    row = next(one["row"] for one in EXAMPLES if one["reader"] == "litellm")
    for value in (True, "True"):
        assert measured(row | {"cache_hit": value}) == ({"e2e_ms": 2500}, 0)
    assert measured(row | {"cache_hit": False})[0]["cached_tokens"] == 4


def test_a_batch_shows_none_of_its_values():
    batch = Batch(cached_tokens=np.array([NUMBER]), ttft_ms=np.array([float(NUMBER)]))
    assert str(NUMBER) not in repr(batch)


# -- traces --------------------------------------------------------------------------------------------------------


def rows(count, seed):
    """Requests out of order. Some times are measured in the first half only, and some values are not valid."""
    draw = random.Random(seed)
    for number in range(count):
        ids = [7] * draw.choice([4, 8, 12]) + [draw.randrange(4) for _ in range(draw.randrange(1, 12))]
        row = {"timestamp": draw.randrange(count) * 300, "prompt_token_ids": ids, "output_length": draw.randrange(9)}
        if draw.random() < 0.8:
            row["cached_tokens"] = draw.choice([0, 1, len(ids) // 2, len(ids), len(ids) + 3, -1, CANARY])
        if number < count // 2 and draw.random() < 0.7:
            row |= {"ttft_ms": draw.choice([0, 17.25, 90]), "service_ms": draw.choice([100, 250.125])}
        if number == 5:
            row["queue_s"] = 0.0625
        yield row | {"session_id": f"s{draw.randrange(count // 6 + 1)}", "user": f"u{draw.randrange(5)}"}


def columns_of(columns):
    return {name: None if (values := getattr(columns, name)) is None else values.tolist() for name in MEASURED}


def joined(pieces):
    pieces = list(pieces)
    return {
        name: None if getattr(pieces[0], name) is None else np.concatenate([getattr(p, name) for p in pieces]).tolist()
        for name in MEASURED
    }


def test_the_columns_of_a_small_log_in_order_of_time(log):
    call = {"prompt_token_ids": [1] * 8, "output_length": 3}
    trace = kvtrace.ingest.anonymize(log([
        call | {"timestamp": 900, "cached_tokens": 8, "ttft_ms": 40, "service_ms": 90},
        call | {"timestamp": 0, "cached_tokens": 4}, call | {"timestamp": 100, "queue_ms": 2.5, "end_time": 150},
    ]), **OPTIONS)  # fmt: skip
    assert trace.cached_tokens.tolist() == [4, -1, 8]
    assert str(trace.ttft_ms.tolist()) == "[nan, nan, 40.0]"
    assert str(trace.e2e_ms.tolist()) == "[nan, 50.0, 90.0]"
    assert str(trace.queue_ms.tolist()) == "[nan, 2.5, nan]"
    assert trace.meta["log"]["measured"] == ["cached_tokens", "ttft_ms", "e2e_ms", "queue_ms"]


def test_a_log_that_measured_nothing_has_no_columns(log):
    call = {"prompt_token_ids": [1] * 8, "output_length": 3}
    trace = kvtrace.ingest.anonymize(log([call | {"timestamp": t} for t in (0, 5)]), **OPTIONS)
    assert set(columns_of(trace).values()) == {None} and "measured" not in trace.meta["log"]


def test_cached_tokens_are_tokens_of_the_prompt(log):
    call = {"prompt_token_ids": [1] * 8, "output_length": 3, "timestamp": 0}
    done = anonymize_rows(log([
        call | {"cached_tokens": 8}, call | {"cached_tokens": 9}, call | {"cached_tokens": 9, "prompt_tokens": 9},
        call | {"cached_tokens": 10, "prompt_tokens": 9}, call | {"cached_tokens": 7, "prompt_tokens": 5},
    ]), **OPTIONS)  # fmt: skip
    # another tokenizer counts more; more than the log's own prompt cannot be; a log's count may leave cached tokens out
    assert done.columns.cached_tokens.tolist() == [8, 8, 8, -1, 7]
    assert (done.counts.lowered_cached, done.counts.invalid_measured) == (2, 1)
    assert done.counts.to_dict().keys().isdisjoint({"lowered_cached", "invalid_measured"})
    assert done.released.notes[-3:] == [
        "1 measured value is not valid: it counts as unknown.",
        "cached tokens of 2 requests exceed the prompt by our tokenizer: they were lowered to its length.",
        "4 of 5 requests have cached tokens, and none has 0 of them: some servers leave a 0 out, so the others may "
        "have had no cached tokens.",
    ]


@pytest.mark.parametrize("keep_order", [False, True])
def test_tasks_and_workers_make_the_same_columns(log, tmp_path, keep_order):
    path, options = log(rows(90, 5)), OPTIONS | {"keep_order": keep_order}
    whole = anonymize_rows(path, workers=1, **options)
    wanted = columns_of(whole.columns)
    assert None not in wanted.values() and whole.counts.invalid_measured > 9
    for partitions in (1, 5):
        runner = kvtrace.privacy.LocalRunner(1)
        with anonymize_dataset(path, runner=runner, work=tmp_path / "work", partitions=partitions, **options) as done:
            assert str(joined(done.made.columns())) == str(wanted)
            assert done.made.meta | {"figures": 0} == whole.meta | {"figures": 0}
            assert keep_order or done.made.account.notes == whole.released.notes
    assert str(columns_of(anonymize_rows(path, workers=2, **options).columns)) == str(wanted)


def test_a_resumed_run_has_the_same_columns(log, tmp_path):
    path = log(rows(90, 6))
    whole = str(columns_of(anonymize_rows(path, workers=1, **OPTIONS).columns))

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.requests > 30:
            raise Stopped

    with pytest.raises(Stopped), Checkpoint(tmp_path / "resume", resume=False) as checkpoint:
        anonymize_rows(path, workers=1, checkpoint=checkpoint, on_progress=stop, **OPTIONS)
    with Checkpoint(tmp_path / "resume", resume=True) as checkpoint:
        again = anonymize_rows(path, workers=1, checkpoint=checkpoint, **OPTIONS)
    assert str(columns_of(again.columns)) == whole and again.counts.invalid_measured > 9
    tasks = {"runner": kvtrace.privacy.LocalRunner(1), "work": tmp_path / "work", "partitions": 6, **OPTIONS}
    with (
        pytest.raises(Stopped),
        TaskCheckpoint(tmp_path / "tasks", resume=False) as checkpoint,
        anonymize_dataset(path, checkpoint=checkpoint, on_progress=stop, **tasks),
    ):
        pass
    with (
        TaskCheckpoint(tmp_path / "tasks", resume=True) as checkpoint,
        anonymize_dataset(path, checkpoint=checkpoint, **tasks) as done,
    ):
        assert str(joined(done.made.columns())) == whole


# -- the command line ----------------------------------------------------------------------------------------------

PLANTED = [one for one in EXAMPLES if one["measured"]]


@pytest.mark.parametrize("example", PLANTED, ids=[f"{one['reader']}: {one['about']}" for one in PLANTED])
def test_the_canary_of_a_measured_field_is_in_nothing_that_a_run_leaves(example, tmp_path, capfd):
    paths = [one["path"] for one in example["measured"].values()]
    wrong = [changed(example["row"], path, value) for path in paths for value in (CANARY, NUMBER, [CANARY])]
    source, out = tmp_path / "log.jsonl", tmp_path / "out"
    source.write_text("".join(json.dumps(row) + "\n" for row in [example["row"], *wrong]))
    out.mkdir()
    sizes = [] if example["reader"] in ("dynamo", "litellm-hashes") else ["--block-size", "4"]
    settings = ["--log-format", example["reader"], "--profile", "exact", "--tokenizer", str(TINY), *sizes]
    trace, rejects = str(out / "trace.jsonl"), str(out / "rejects")
    status = run(["anonymize", str(source), "-o", trace, "--on-error", "skip", "--rejects", rejects, *settings])
    shown = capfd.readouterr()
    assert status == 0, shown.err
    require_none(shown.out + shown.err, where="what was said")
    for path in out.iterdir():
        require_none(path.read_text(), where=path.name)
    trace = kvtrace.read(trace)
    first = {name: values[0] for name, values in measured_of(trace).items()}
    assert first == {name: one["value"] for name, one in example["measured"].items()}
    assert trace.meta["log"]["measured"] == list(first)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ((), []),
        (("--profile", "strict"), []),
        (("--profile", "exact"), list(MEASURED)),
        (("--keep-measured", "ttft_ms,cached_tokens"), ["cached_tokens", "ttft_ms"]),
        (("--profile", "exact", "--keep-measured", "e2e_ms"), ["e2e_ms"]),
        (("--profile", "exact", "--keep-measured", "e2e_ms", "--keep-order"), ["e2e_ms"]),
    ],
)
@pytest.mark.parametrize("runner", [(), ("--runner", "local", "--partitions", "3", "--workers", "1")])
def test_a_trace_has_the_measured_columns_that_its_profile_keeps(log, tmp_path, capfd, options, kept, runner):
    in_order = sorted(rows(60, 9), key=lambda row: row["timestamp"])
    source, out = log(in_order), tmp_path / "trace.jsonl"
    settings = ["--tokenizer", str(TINY), "--block-size", "4", *options, *runner]
    assert run(["anonymize", str(source), "-o", str(out), *settings]) == 0
    shown = capfd.readouterr().err
    trace = kvtrace.read(out)
    assert list(measured_of(trace)) == kept
    assert trace.meta["log"].get("measured", []) == kept
    assert ("measured values are not valid" in shown) == (bool(kept) and "--keep-order" not in options)
    assert ("--keep-measured cached_tokens" in shown) == ("cached_tokens" not in kept and "--keep-order" not in options)
