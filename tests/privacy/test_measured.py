"""Releases of traces with measured columns: dropped unless named, then coarsened; the audit finds other ways in."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import AuditError, UsageError
from kvtrace.cli import run
from kvtrace.formats.dataset import DatasetWriter
from kvtrace.privacy.numbering.run import LocalRunner
from kvtrace.privacy.profiles import PROFILES, kept_measured, profile
from kvtrace.privacy.releases import release
from kvtrace.privacy.steps import finer_than
from kvtrace.trace.building import toy
from kvtrace.trace.columns import MEASURED, measured_of, replace_columns, rows_of
from kvtrace.trace.trace import Trace
from tests import unaudited
from tests.privacy.test_audit import flagged

NAMES = list(MEASURED)
LISTED = "cached_tokens, ttft_ms, e2e_ms, queue_ms"
ROWS, BLOCK = 24, 16
USERS = np.arange(ROWS)
pytest.importorskip("pyarrow")


def measured_trace(**changed):
    """Requests of one opening, a second and a bit apart; every fifth has unknown numbers."""
    row = np.arange(ROWS)
    known = row % 5 != 4
    columns = replace_columns(
        toy(*(f"0 {one + 1}" for one in row), block_size=BLOCK, gap_ms=1250.0),
        output_length=5 + row % 4, cached_tokens=np.where(known, 1 + row, -1), session=row // 3,
        ttft_ms=np.where(known, 130.5 + 7 * row, np.nan), e2e_ms=np.where(known, 900.25 + 90 * row, np.nan),
        queue_ms=np.where(known, row / 8, np.nan),
    )  # fmt: skip
    return Trace.from_columns(replace_columns(columns, **changed), block_size=BLOCK)


def finding(path, name="measured", **options):
    return next(one for one in kvtrace.privacy.audit(path, **options).findings if one.name == name)


def published(folder, chosen, name="out.jsonl", trace=None):
    done = release(measured_trace() if trace is None else trace, chosen, users=USERS)
    kvtrace.privacy.publish(done.trace, folder / name)
    return folder / name, done


# -- the release -------------------------------------------------------------------------------------------------


def test_an_exact_release_keeps_them():
    trace = measured_trace()
    assert release(trace, PROFILES["exact"]).trace == trace


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_other_releases_drop_them_and_say_so(name):
    trace = measured_trace()
    bare = replace_columns(trace, **dict.fromkeys(NAMES))
    done = release(trace, PROFILES[name], users=USERS)
    assert done.trace == release(Trace(**vars(bare), block_size=BLOCK), PROFILES[name], users=USERS).trace
    assert f"4 measured columns were left out. --keep-measured {LISTED.replace(', ', ',')} keeps them." in done.notes
    assert measured_of(done.trace) == {} and "keep_measured" not in done.meta["release"]["settings"]


@pytest.mark.parametrize("name", ["exact", "standard", "strict"])
def test_only_those_asked_for_by_name_stay(name):
    chosen = profile(name, keep_measured=["e2e_ms", "cached_tokens"])
    done = release(measured_trace(), chosen, users=USERS)
    assert list(measured_of(done.trace)) == ["cached_tokens", "e2e_ms"]
    assert done.meta["release"]["settings"]["keep_measured"] == ["cached_tokens", "e2e_ms"]
    assert "2 measured columns were left out. --keep-measured ttft_ms,queue_ms keeps them." in done.notes


def test_a_profile_that_is_exact_by_name_alone_keeps_none():
    assert kept_measured(profile("exact", k=3)) == () and kept_measured(profile("exact")) == tuple(NAMES)
    assert not profile("exact", keep_measured=["ttft_ms"]).coarsens and PROFILES["standard"].coarsens


def test_a_name_that_is_no_measured_column_is_refused():
    with pytest.raises(UsageError, match=f"'prompt' is not a measured column. Try {LISTED}."):
        profile("standard", keep_measured=["prompt"])
    with pytest.raises(UsageError, match="'prompt' is not a measured column"):
        kvtrace.privacy.audit("t.jsonl", allow_measured=["prompt"])


def test_names_that_the_trace_does_not_have_are_noted():
    done = release(toy("0", block_size=16), profile("standard", keep_measured=NAMES))
    assert f"the trace does not have {LISTED}, which --keep-measured names." in done.notes


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_kept_numbers_are_as_coarse_as_times_and_lengths(name):
    trace, chosen = measured_trace(), profile(name, keep_measured=NAMES)
    done, step = release(trace, chosen, users=USERS).trace, chosen.time_step_ms
    for column in NAMES[1:]:
        values, exact = getattr(done, column), getattr(trace, column)
        assert not finer_than(values, step).any() and np.array_equal(np.isnan(values), np.isnan(exact))
        read = (trace.timestamp + exact) // step * step - trace.timestamp // step * step  # what a clock would show
        assert np.array_equal(values, read, equal_nan=True)
    size = 1 if name == "standard" else BLOCK
    known = trace.cached_tokens >= 0
    assert np.array_equal(done.cached_tokens[known], trace.cached_tokens[known] // size * size)
    assert (done.cached_tokens[~known] == -1).all() and (done.cached_tokens <= done.input_length).all()


@given(st.integers(0, 2**31), st.sampled_from(["standard", "strict"]))
@settings(max_examples=30, deadline=None)
def test_measurements_that_the_clock_cannot_tell_apart_give_the_same_release(seed, name):
    """No kept number reveals an instant more finely than a timestamp does: `timing` states this for service times."""
    rng, step = np.random.default_rng(seed), PROFILES[name].time_step_ms
    trace = measured_trace()
    first = trace.ttft_ms + trace.timestamp
    other = (first // step) * step + rng.random(ROWS) * (step - 1)  # the same reading of the clock
    assert np.array_equal(other // step, first // step, equal_nan=True)
    start = trace.timestamp // step * step
    moved = replace_columns(trace, ttft_ms=np.maximum(other - trace.timestamp, 0))
    chosen = profile(name, keep_measured=["ttft_ms"])
    one, two = (
        release(Trace.from_columns(each, block_size=BLOCK), chosen, users=USERS).trace for each in (trace, moved)
    )
    same = np.maximum(other, trace.timestamp) // step == first // step
    assert np.array_equal(one.ttft_ms[same], two.ttft_ms[same], equal_nan=True) and np.array_equal(one.timestamp, start)


def test_dropped_tails_and_a_step_of_tokens_keep_the_invariant():
    trace = measured_trace(cached_tokens=np.arange(ROWS) + 9)
    for tail, step in (("dropped", "block"), ("unique", 4), ("dropped", 8)):
        done = release(trace, profile("standard", tail=tail, round_input=step, keep_measured=NAMES), users=USERS).trace
        assert (done.cached_tokens % (BLOCK if step == "block" else step) == 0).all()
        assert (done.cached_tokens <= done.input_length).all() and done.cached_tokens.max() > 0


# -- in tasks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("keep", [(), ("cached_tokens", "ttft_ms"), NAMES])
@pytest.mark.parametrize("name", ["standard", "strict"])
def test_a_data_set_is_released_to_the_same_bytes(tmp_path, monkeypatch, partitions, keep, name):
    monkeypatch.setattr("kvtrace.privacy.release_tasks.BLOCKS", 8)  # several encoded parts
    trace, chosen = measured_trace(), profile(name, keep_measured=keep)
    kvtrace.write(trace, tmp_path / "day.dataset")
    opened = kvtrace.formats.open_dataset(tmp_path / "day.dataset")
    with kvtrace.privacy.release_dataset(
        opened, chosen, runner=LocalRunner(1), work=tmp_path / "work", users=USERS, partitions=partitions
    ) as made:
        assert made.bytes, "the release ran in tasks"
        kvtrace.privacy.publish(made, tmp_path / "tasks.jsonl")
        done = release(trace, chosen, users=USERS)
        assert sorted(made.account.notes) == sorted(done.notes)
    kvtrace.privacy.publish(done.trace, tmp_path / "memory.jsonl")
    for end in ("", ".meta.json", ".card.md"):
        assert (tmp_path / f"tasks.jsonl{end}").read_bytes() == (tmp_path / f"memory.jsonl{end}").read_bytes()


@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_a_part_without_numbers_has_unknown_ones(tmp_path, monkeypatch, sample):
    """The first part of a data set lacks a column that the second one has."""
    trace, half = measured_trace(), ROWS // 2
    monkeypatch.setattr("kvtrace.privacy.release_tasks.BLOCKS", 8)
    with DatasetWriter(tmp_path / "day.dataset", rows=half, block_size=BLOCK, tail="kept") as writer:
        writer.add(replace_columns(rows_of(trace, 0, half), cached_tokens=None))
        writer.add(rows_of(trace, half, ROWS))
    whole = kvtrace.read(tmp_path / "day.dataset")
    assert (whole.cached_tokens[:half] == -1).all() and whole.cached_tokens[-2] > 0
    chosen, random = profile("standard", keep_measured=["cached_tokens"]), np.random.default_rng
    options = {"runner": LocalRunner(1), "work": tmp_path / "work", "users": USERS, "session_share": sample}
    opened = kvtrace.formats.open_dataset(tmp_path / "day.dataset")
    with kvtrace.privacy.release_dataset(opened, chosen, rng=random(3), **options) as made:
        columns = [one.cached_tokens for one in made.columns()]
    done = release(whole, chosen, users=USERS, session_share=sample, rng=random(3)).trace
    assert np.array_equal(np.concatenate(columns), done.cached_tokens) and 0 < len(done) <= ROWS


# -- the audit ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["house.jsonl", "house.parquet", "house.dataset"])
def test_the_audit_fails_columns_that_nobody_named(tmp_path, name):
    kvtrace.write(measured_trace(), tmp_path / name)
    found = finding(tmp_path / name)
    assert found.level == "FAIL" and found.figure["measured_not_named"] == NAMES and LISTED in found.sentence
    some = finding(tmp_path / name, allow_measured=NAMES[1:], profile="exact")
    assert some.level == "WARN" and some.figure["measured_not_named"] == []
    some = finding(tmp_path / name, allow_measured=NAMES[1:])
    assert some.level == "FAIL" and some.figure["measured_not_named"] == ["cached_tokens"]


def test_a_trace_without_them_passes(tmp_path):
    kvtrace.write(toy("0 1", block_size=16), tmp_path / "t.jsonl")
    assert (finding(tmp_path / "t.jsonl").level, finding(tmp_path / "t.jsonl").figure["measured_columns"]) == (
        "PASS",
        [],
    )


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet", "out.dataset"])
@pytest.mark.parametrize("chosen", ["standard", "strict"])
def test_named_columns_are_published_and_named_in_sidecar_and_card(tmp_path, name, chosen):
    path, _ = published(tmp_path, profile(chosen, keep_measured=["cached_tokens", "ttft_ms"]), name)
    found = kvtrace.privacy.audit(path)
    assert found.passed and found.own.keep_measured == ("cached_tokens", "ttft_ms")
    assert finding(path).level == "WARN" and "cached_tokens, ttft_ms" in finding(path).sentence
    card = (path / "card.md" if name == "out.dataset" else tmp_path / f"{name}.card.md").read_text()
    assert "| `cached_tokens` | tokens | prompt tokens that the service took from its cache |" in card
    assert "| `keep_measured` | `cached_tokens, ttft_ms` |" in card and "e2e_ms" not in card
    assert "another sender had sent it; k does not hide that" in card and "(ttft_ms)" in card


def test_an_exact_release_is_for_the_house(tmp_path):
    path, _ = published(tmp_path, PROFILES["exact"])
    assert finding(path).level == "WARN" and kvtrace.privacy.audit(path).passed
    assert finding(path, profile="standard").level == "FAIL"
    assert finding(path, profile="standard", allow_measured=NAMES).figure["measured_not_named"] == []


def test_a_release_that_lost_its_sidecar_fails(tmp_path):
    path, _ = published(tmp_path, profile("standard", keep_measured=["cached_tokens"]))
    (tmp_path / "out.jsonl.meta.json").unlink()
    assert finding(path).level == "FAIL"
    assert finding(path, allow_measured=["cached_tokens"]).level == "WARN"


def test_publish_refuses_a_release_to_which_they_were_added(tmp_path):
    done = release(measured_trace(), PROFILES["standard"], users=USERS).trace
    more = replace_columns(done, ttft_ms=np.full(ROWS, 1000.0))
    with pytest.raises(AuditError, match="measured: rows state what the service measured: ttft_ms"):
        kvtrace.privacy.publish(
            Trace(**vars(more), block_size=BLOCK, tail=done.tail, meta=done.meta), tmp_path / "out.jsonl"
        )
    assert list(tmp_path.iterdir()) == []


# -- attacks: a way in by another door -----------------------------------------------------------------------------


def fine_time(columns):
    columns.ttft_ms[3] += 0.5


def digits_below_a_microsecond(columns):
    columns.ttft_ms[3] += 1e-5


def text_in_times(columns):
    columns.ttft_ms = 1000.0 * np.frombuffer(b"the patient has a fever.", np.uint8)


def text_in_tokens(columns):
    columns.input_length[:] = columns.input_length.max()
    columns.cached_tokens = np.frombuffer(b"a fever of the patients!", np.uint8).astype(np.int64) % 128


def more_than_the_prompt(columns):
    columns.cached_tokens[3] = columns.input_length[3] + 1


def no_duration(columns):
    columns.ttft_ms[3] = -1000.0


def another_column(columns):
    columns.queue_ms = np.full(ROWS, 1000.0)


def an_extra_column(columns):
    columns.extra["e2e_ms"] = np.full(ROWS, 1000.0)


def very_long(columns):
    columns.ttft_ms[3] = 4e14


def an_extra_column_of_another_name(columns):
    columns.extra["timestamp"] = np.full(ROWS, 1000.0)


ATTACKS = [
    (fine_time, {"measured": "FAIL"}), (digits_below_a_microsecond, {"measured": "FAIL"}),
    (text_in_times, {"measured": "WARN", "hidden_text": "WARN"}), (more_than_the_prompt, {"measured": "FAIL"}),
    (no_duration, {"measured": "FAIL"}), (another_column, {"measured": "FAIL"}),
    (an_extra_column, {"measured": "WARN", "fields": "FAIL"}),
    (an_extra_column_of_another_name, {"measured": "WARN", "fields": "FAIL"}),
    (very_long, {"measured": "WARN", "fields": "FAIL"}),
]  # fmt: skip


@pytest.mark.parametrize(("attack", "expected"), ATTACKS, ids=[attack.__name__ for attack, _ in ATTACKS])
@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet"])
def test_an_attack_is_flagged(tmp_path, attack, expected, name):
    if attack in (an_extra_column, an_extra_column_of_another_name) and name == "t.jsonl":
        pytest.skip("a key of JSON rows with this name is the measured column itself")
    done = release(measured_trace(), profile("standard", keep_measured=["cached_tokens", "ttft_ms"]), users=USERS)
    columns = replace_columns(done.trace)
    for column in ("ttft_ms", "cached_tokens", "input_length"):
        setattr(columns, column, getattr(columns, column).copy())
    before = kvtrace.privacy.audit(
        unaudited.write(columns, tmp_path / name, meta=done.meta, block_size=BLOCK, tail="unique")[0]
    )
    attack(columns)
    path = unaudited.write(columns, tmp_path / name, meta=done.meta, block_size=BLOCK, tail="unique")[0]
    found = flagged(kvtrace.privacy.audit(path))
    assert {
        check: level for check, level in found.items() if flagged(before).get(check) != level or check == "measured"
    } == expected


def test_text_in_cached_tokens_is_flagged(tmp_path):
    trace = Trace.from_columns(
        replace_columns(toy(*(f"0 {row}" for row in range(1, 25)), block_size=64)), block_size=64
    )
    tokens = np.frombuffer(b"the patient has a fever.", np.uint8).astype(np.int64)
    path = unaudited.write(
        replace_columns(trace, cached_tokens=tokens), tmp_path / "t.jsonl", block_size=64, tail="kept"
    )[0]
    marks = finding(path, "hidden_text").figure["marks"]
    assert {"field": "cached_tokens", "kind": "bytes that encode text"} in marks


def test_a_text_in_place_of_a_number_is_flagged_and_never_shown(tmp_path):
    path, _ = published(tmp_path, profile("standard", keep_measured=["ttft_ms"]))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[5]["ttft_ms"] = "CanaryQz7xKw"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = kvtrace.privacy.audit(path)
    assert finding(path, "fields").level == "FAIL" and "CanaryQz7xKw" not in json.dumps(found.to_dict())


@pytest.mark.parametrize("text", ["-1", "null", "1e3", "1000.0"])
def test_a_number_that_is_written_in_another_way_is_flagged(tmp_path, text):
    path, _ = published(tmp_path, profile("standard", keep_measured=["cached_tokens", "ttft_ms"]))
    name = "cached_tokens" if text == "-1" else "ttft_ms"
    lines = path.read_text().splitlines()
    values = json.loads(lines[4])
    assert name not in values
    lines[4] = lines[4][:-1] + f', "{name}": {text}}}'
    path.write_text("\n".join(lines) + "\n")
    assert finding(path, "canonical").level == "FAIL"


# -- the commands ------------------------------------------------------------------------------------------------


def test_the_commands_take_the_names(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kvtrace.write(measured_trace(), "house.jsonl")
    assert run(["release", "house.jsonl", "-o", "bare.jsonl"]) == 0
    assert "4 measured columns were left out" in capsys.readouterr().err
    assert run(["release", "house.jsonl", "-o", "out.jsonl", "--keep-measured", "cached_tokens, ttft_ms"]) == 0
    assert list(measured_of(kvtrace.read("out.jsonl"))) == ["cached_tokens", "ttft_ms"]
    assert run(["audit", "out.jsonl", "-q"]) == 0 and run(["audit", "bare.jsonl", "-q"]) == 0
    assert run(["audit", "house.jsonl", "-q"]) == 4
    capsys.readouterr()
    assert run(["audit", "house.jsonl", "--allow-measured", ",".join(NAMES), "--json"]) == 4  # of its other faults
    found = {one["name"]: one["level"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert found["measured"] == "FAIL"  # its times are finer than the profile's step
    assert run(["release", "house.jsonl", "-o", "x.jsonl", "--keep-measured", "prompt"]) == 2
    assert "'prompt' is not a measured column" in capsys.readouterr().err


def test_settings_of_another_hand_are_not_a_profile():
    from kvtrace.privacy.profiles import declared

    meta = {"profile": "standard", "release": {"settings": PROFILES["standard"].settings()}}
    assert declared(meta) == PROFILES["standard"]
    meta["release"]["settings"]["keep_measured"] = ["ttft_ms"]
    assert declared(meta) == replace(PROFILES["standard"], keep_measured=("ttft_ms",))
    for wrong in (["prompt"], [["ttft_ms"]], 7, None):
        meta["release"]["settings"]["keep_measured"] = wrong
        assert declared(meta) is None
