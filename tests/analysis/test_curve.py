"""`kvtrace curve` as its user meets it."""

import csv
import io
import json

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "trace.jsonl"
    kvtrace.write(toy("0 1", "2", "0 1", "0 3", block_size=16), found)
    return str(found)


def shown(capsys, *arguments):
    assert run(["curve", *arguments]) == 0
    return capsys.readouterr().out


def test_a_table_with_the_unlimited_cache_last(path, capsys):
    lines = shown(capsys, path, "--capacity", "3,1,2", "--kv-bytes-per-token", "1048576").splitlines()
    assert "blocks of 16 tokens" in lines[0] and "GiB" in lines[1]
    assert [line.split()[0] for line in lines[2:6]] == ["*1", "2", "3", "unlimited"]
    assert lines[4].split() == ["3", "48", "0.05", "75.00%", "0.4286", "0.4286", "0.3750"]
    assert lines[6].startswith("* smaller than the longest request (2 blocks)")


def test_the_last_line_is_the_least_capacity_for_most_of_the_hits(path, capsys):
    # hits at 2, 3 and 4 blocks: 0, 3 and 3
    last = "90 %, 95 % and 99 % of the unlimited block hits need 3, 3 and 3 blocks."
    assert shown(capsys, path).splitlines()[-1] == last
    assert json.loads(shown(capsys, path, "--json"))["least"] == {"90%": 3, "95%": 3, "99%": 3}


def test_without_hits_no_capacity_is_named(tmp_path, capsys):
    kvtrace.write(toy("0 1", "2", block_size=16), tmp_path / "trace.jsonl")
    assert shown(capsys, str(tmp_path / "trace.jsonl")).splitlines()[-1].lstrip().startswith("unlimited")


@pytest.mark.parametrize("share", [0.1, 0.9, 1])
def test_the_least_capacity_has_the_share_of_the_hits_and_one_block_less_has_not(share):
    curve = kvtrace.analysis.hit_curve(toy("0 1", "2", "0 1", "0 3", "2", "4 5", "0 3", block_size=16))
    least, wanted = curve.least_capacity(share), share * curve.at(curve.working_set).hit_blocks
    assert curve.at(least).hit_blocks >= wanted > curve.at(least - 1).hit_blocks


@pytest.mark.parametrize("share", [0, -1, 1.1, float("nan")])
def test_a_share_of_the_hits_is_above_0_and_at_most_1(path, share):
    with pytest.raises(kvtrace.UsageError, match="above 0 and at most 1"):
        kvtrace.analysis.hit_curve(kvtrace.read(path)).least_capacity(share)


@pytest.mark.parametrize("capacity", [0.5, -1, "50%", None])
def test_a_capacity_of_a_curve_is_a_whole_number_of_blocks(path, capacity):
    curve = kvtrace.analysis.hit_curve(kvtrace.read(path))
    look_ups = (curve.hits_per_request, lambda size: curve.to_dict([2, size]))
    for look_up in look_ups if capacity == "50%" else (curve.at, *look_ups):  # `at` takes a text
        with pytest.raises(kvtrace.UsageError, match="is not a valid capacity; it must be a whole number"):
            look_up(capacity)


def test_auto_goes_from_the_longest_request_to_the_working_set(path, capsys):
    found = json.loads(shown(capsys, path, "--json"))
    assert [point["capacity"] for point in found["points"]] == [2, 3, 4]
    assert all(point["exact"] for point in found["points"])
    assert found["points"][-1]["hit_blocks"] == found["unlimited"]["hit_blocks"] == 3


def test_csv_has_the_keys_of_json(path, capsys):
    rows = list(csv.DictReader(io.StringIO(shown(capsys, path, "--capacity", "1,50%", "--csv"))))
    points = json.loads(shown(capsys, path, "--capacity", "1,50%", "--json"))["points"]
    assert [list(row) for row in rows] == [list(point) for point in points]
    assert [int(row["hit_blocks"]) for row in rows] == [point["hit_blocks"] for point in points]


def test_a_sample_prints_its_error(tmp_path, capsys):
    found = tmp_path / "long.jsonl"
    once = [" ".join(str(first + i) for i in range(40)) for first in range(0, 4000, 40)]
    kvtrace.write(toy(*once * 2, block_size=16), found)
    assert "±" in shown(capsys, str(found), "--sample", "0.1", "--points", "3")
    header = shown(capsys, str(found), "--sample", "0.1", "--csv").splitlines()[0]
    assert header.endswith("block_hit_rate_error,token_hit_rate_error,request_hit_rate_error")
    point = json.loads(shown(capsys, str(found), "--sample", "0.1", "--json"))["points"][0]
    assert not point["exact"] and set(point["error"]) == {"block_hit_rate", "token_hit_rate", "request_hit_rate"}


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--capacity", "many"], 2, "is not a capacity"),
        (["--capacity", "1GiB"], 2, "--model "),
        (["--json", "--csv"], 2, "cannot be combined"),
        (["--sample", "1.5"], 2, "is not a share from 0 to 1"),
        (["--sample", "100%"], 2, "above 0 and below 1"),
        (["--sample", "0.5"], 2, "an estimate needs at least"),
        (["--block-size", "8"], 2, "not --block-size 8"),
        (["--points", "0"], 2, "points"),
    ],
)
def test_what_does_not_fit_is_one_line(path, capsys, options, status, expected):
    assert run(["curve", path, *options]) == status
    captured = capsys.readouterr()
    assert captured.out == "" and len(captured.err.splitlines()) == 1 and expected in captured.err


def test_ids_that_form_no_forest_have_a_way_out(tmp_path, capsys):
    loose = Trace.from_columns(Columns([0.0, 1.0], [3, 3], [1, 1], [0, 1, 2, 3, 1, 2], [0, 3, 6]), block_size=1)
    kvtrace.write(loose, tmp_path / "loose.jsonl")
    assert run(["curve", str(tmp_path / "loose.jsonl")]) == 3
    assert "--chain" in capsys.readouterr().err
    assert run(["curve", str(tmp_path / "loose.jsonl"), "--chain"]) == 0


def test_no_requests_and_no_ids_are_said(tmp_path, capsys):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "no_ids.jsonl").write_text('{"timestamp": 0, "input_length": 0, "output_length": 1, "hash_ids": []}\n')
    for name, expected in (("empty", "no requests"), ("no_ids", "no hash_ids")):
        assert run(["curve", str(tmp_path / f"{name}.jsonl"), "--block-size", "4"]) == 3
        assert expected in capsys.readouterr().err
