"""`kvtrace tune`: its table, JSON and CSV, the table that it saves, and its errors."""

import csv
import io
import json

import pytest
from click.testing import CliRunner

import kvtrace
from kvtrace.cli import commands


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    kvtrace.write(kvtrace.toy(*["0 1", "2", "3", "0 1", "4", "0 1"] * 4, gap_ms=1000, block_size=16), path)
    return str(path)


def tune(*arguments):
    return CliRunner().invoke(commands, ["tune", *map(str, arguments)])


def test_json_and_csv_have_the_rows_of_the_library(trace):
    tuned = kvtrace.cache.tune(kvtrace.read(trace), [3, 4], ["slru"])
    arguments = (trace, "--capacity", "3,4", "--policy", "slru")
    assert json.loads(tune(*arguments, "--json").stdout) == tuned.to_dict()
    rows = list(csv.DictReader(io.StringIO(tune(*arguments, "--csv").stdout)))
    assert [row["setting"] for row in rows] == [row.setting for row in tuned.rows]


def test_the_table_has_the_best_first_and_the_bounds_last(trace):
    lines = tune(trace, "--capacity", "3").stdout.splitlines()
    assert lines[0].startswith("Capacity 3 blocks: settings chosen on the first 12 requests, hits of the last 12")
    settings = [line.split()[0].partition(":")[0] for line in lines[2:]]
    assert settings.index("belady") > settings.index("lru") > settings.index("slru")
    assert any(line.startswith("Not tried: priority, which needs a trace") for line in lines)


def test_a_saved_table_can_be_simulated_and_tuned_with(trace, tmp_path):
    table = tmp_path / "table.json"
    done = tune(trace, "--capacity", 3, "--policy", "reuse-density", "--save-table", table, "--json")
    assert done.exit_code == 0
    again = tune(trace, "--capacity", 3, "--policy", "reuse-density", "--table", table, "--json")
    assert json.loads(again.stdout) == json.loads(done.stdout)
    assert kvtrace.cache.simulate(kvtrace.read(trace), 3, f"reuse-density:{table}").hits.hit_blocks > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--capacity", "3", "--pool", "deep"), "'deep' is not a pool. Try flat or leaf-first."),
        (("--capacity", "3", "--policy", "slru", "--save-table", "t.json"), "needs the policy reuse-density"),
        (("--capacity", "3", "--policy", "nope"), "'nope' is not a policy without its parameter"),
        (("--capacity", "3", "--json", "--csv"), "Use one of them"),
        (("--capacity", "3", "--table", "none.json"), "none.json"),
    ],
)
def test_wrong_arguments_are_named(trace, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = tune(trace, *arguments)
    assert done.exit_code != 0 and message in str(done.exception) + done.output
