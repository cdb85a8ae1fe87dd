"""`kvtrace sweep` as its user meets it: beside `simulate`, killed and resumed, and on Ray."""

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import kvtrace
from kvtrace.cache.sweeps.table import GAP
from kvtrace.cli import run
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.trace.building import toy
from tests.base.test_ray_cluster import without_rays_lines
from tests.docs import ROOT

# an order that is slow, and ends its process at one capacity, as the system would: once, or as often as it is tried
POLICY = """
import os, signal, time

class Lru:
    def __init__(self, context):
        self.order = {}
        time.sleep(0.02)
        if context.capacity == int(os.environ.get("DIE_AT", 0)) and not os.path.exists(os.environ["DIED"]):
            open(os.environ["DIED"], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        if context.capacity == int(os.environ.get("SLEEP_AT", 0)):
            time.sleep(60)
    def insert(self, block): pass
    def use(self, block): self.order.pop(block, None)
    def release(self, block): self.order[block] = None
    def victim(self): return next(iter(self.order))
    def remove(self, block): del self.order[block]
"""
CAPACITIES = ",".join(map(str, range(3, 25)))
SLOW = ["one.jsonl", "--policy", "orders_that_die:Lru,lru", "--capacity", CAPACITIES, "-q"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    one = toy("0 1", "2", "0 1", "0 3", "4 5 6", "0 1 7", block_size=16, gap_ms=1000)
    kvtrace.write(one, tmp_path / "one.jsonl")
    kvtrace.write(toy("0", "1", "0", "2", "1 3", block_size=32), tmp_path / "two.jsonl")
    fit(one).save(tmp_path / "model.json")
    (tmp_path / "orders_that_die.py").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def child(*arguments, **environment):
    """kvtrace in a process of its own, which may open sockets and may be killed."""
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", "-m", "kvtrace", "sweep", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": paths, "DIED": os.devnull} | environment, text=True,
    )  # fmt: skip


def ended(process):
    try:
        said = process.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # faulthandler prints where each thread is
        raise AssertionError(process.communicate()[1]) from None
    return process.returncode, said[1]


def shown(capsys, *arguments):
    assert run(["sweep", *arguments]) == 0
    return capsys.readouterr()


def test_cells_are_those_of_simulate(folder, capsys):
    axes = ["--policy", "lru,arc,belady", "--engine", "reference,sglang", "--capacity", "3,5,100%", "--mode", "token"]
    common = ["--pool", "flat", "--warm-up", "2", "--kv-bytes-per-token", "1024", "--schedule", "concurrency:2"]
    shown(capsys, "one.jsonl", *axes, *common, "-o", "table.csv")
    rows = list(csv.DictReader(io.StringIO(Path("table.csv").read_text())))
    for row in rows:
        if row["engine"] == "sglang" and row["policy"] == "arc":
            assert "does not support policy 'arc'" in row["error"]
            continue
        one = ["--policy", row["policy"], "--engine", row["engine"], "--capacity", row["capacity"], "--mode", "token"]
        assert run(["simulate", "one.jsonl", *one, *common, "--csv", "--no-gap"]) == 0
        (wanted,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
        assert {name: row[name] for name in wanted} == wanted


def test_every_column_stands_in_the_docs(folder, capsys):
    found = json.loads(shown(capsys, "one.jsonl", "--capacity", "3,2", "--json").out)
    page = (ROOT / "docs/cache/sweep.md").read_text()
    assert found["schema"] == 2 and all(f"`{name}`" in page for name in found["results"][0])


def test_a_small_table_is_printed_and_a_large_one_is_not(folder, capsys):
    said = shown(capsys, "one.jsonl", "two.jsonl", "-o", "table.csv", "--capacity", "3,4")
    lines = said.out.splitlines()
    assert lines[0] == "Hits of prefix caches, engine reference, one request at a time"
    assert [line.split()[:4] for line in lines[2:]] == [
        ["one.jsonl", "16", "lru", "3"], ["one.jsonl", "16", "lru", "4"],
        ["two.jsonl", "32", "lru", "3"], ["two.jsonl", "32", "lru", "4"]]  # fmt: skip
    assert said.err.splitlines() == ["wrote       table.csv", "cells       4"]
    many = ",".join(map(str, range(3, 50)))
    assert shown(capsys, "one.jsonl", "-o", "table.csv", "--capacity", many, "-q") == ("", "")
    assert len(shown(capsys, "one.jsonl", "--capacity", many).out.splitlines()) == 49


def test_block_sizes_with_unequal_memory_are_named_below_the_table(folder, capsys):
    unequal = shown(capsys, "one.jsonl", "--capacity", "100%", "--block-sizes", "1x,2x").out
    header = re.split(r"\s{2,}", unequal.splitlines()[1].strip())
    assert header[:4] == ["block size", "policy", "capacity", "capacity tokens"]
    assert [line.split()[:4] for line in unequal.splitlines()[2:4]] == [
        ["16", "lru", "8", "128"],
        ["32", "lru", "6", "192"],
    ]
    assert "do not compare equal memory" in unequal and "--capacity in tokens or bytes" in unequal
    equal = shown(capsys, "one.jsonl", "--capacity", "130tokens,100tokens", "--block-sizes", "1x,2x").out
    assert "equal memory" not in equal
    assert "equal memory" not in shown(capsys, "one.jsonl", "two.jsonl", "--capacity", "100%").out


def test_a_run_that_prints_no_table_names_warnings_and_unequal_memory_on_stderr(folder, capsys):
    options = ("one.jsonl", "--capacity", "100%", "--block-sizes", "1x,2x", "--policy", "lru,sieve,fifo", "-o", "-")
    kinds = [line.split() for line in shown(capsys, *options).err.splitlines()]
    assert [words[:3] for words in kinds] == [["warning", "sieve,", "fifo:"], ["note", "The", "capacities"]]
    assert shown(capsys, *options, "-q").err == ""


def test_the_warning_of_a_policy_is_in_its_rows_and_once_below_the_table(folder, capsys):
    options = ("one.jsonl", "--capacity", "4,5", "--policy", "lru,sieve", "--engine", "reference")
    rows = json.loads(shown(capsys, *options, "--json", "-q").out)["results"]
    assert [bool(row["warning"]) for row in rows] == [False, False, True, True]
    assert rows[2]["warning"].endswith("Compare --pool leaf-first.")
    table = shown(capsys, *options).out
    assert table.count("Compare --pool leaf-first") == 1 and f"sieve: {rows[2]['warning']}" in table
    assert "Compare" not in shown(capsys, *options, "--pool", "leaf-first").out


def test_the_gap_to_belady_is_that_of_simulate_and_needs_no_run_more(folder, capsys):
    axes = ("--capacity", "3,4,5", "--mode", "token", "--schedule", "concurrency:2", "-q")
    options = ("one.jsonl", *axes, "--policy", "lru,belady", "--engine", "reference,vllm")
    rows = json.loads(shown(capsys, *options, "--json").out)["results"]
    assert len(rows) == 9
    for row in rows:
        one = ["--policy", row["policy"], "--engine", row["engine"], "--capacity", str(row["capacity"]), *axes[2:]]
        assert run(["simulate", "one.jsonl", *one, "--json"]) == 0
        (wanted,) = json.loads(capsys.readouterr().out)["results"]
        assert [row[name] for name in GAP] == [wanted[name] for name in GAP]
    assert any(row["gap_to_belady"] > 0 for row in rows)
    assert "gap to belady" in shown(capsys, *options).out
    without = shown(capsys, "one.jsonl", *axes, "--policy", "lru")
    assert "gap to belady" not in without.out


def test_a_cell_has_no_gap_to_a_belady_with_more_memory_or_of_another_block_size(folder, capsys):
    # belady's idle blocks come on top of the active ones; vllm counts all blocks
    options = ("one.jsonl", "--capacity", "4", "--policy", "lru,belady", "--engine", "reference,vllm", "--json", "-q")
    rows = json.loads(shown(capsys, *options, "--capacity-counts", "idle").out)["results"]
    assert {row["engine"]: row["gap_to_belady"] is None for row in rows} == {"reference": False, "vllm": True}
    rows = json.loads(shown(capsys, *options, "--block-sizes", "2x,1x").out)["results"]
    bounds = {row["block_size"]: row["hit_blocks"] for row in rows if row["policy"] == "belady"}
    assert len(set(bounds.values())) == 2
    assert all(row["belady_hit_blocks"] == bounds[row["block_size"]] for row in rows)


def test_csv_goes_to_stdout(folder, capsys):
    shown(capsys, "one.jsonl", "-o", "table.csv", "--capacity", "3,4")
    assert shown(capsys, "one.jsonl", "-o", "-", "--capacity", "3,4").out == Path("table.csv").read_text()


def test_cells_that_failed_are_counted_by_their_reason(folder, capsys):
    said = shown(capsys, "one.jsonl", "--capacity", "3,2", "--policy", "lru,fifo").err.splitlines()
    assert said[0] == "2 of 4 cells failed; the column `error` has the reasons."
    assert said[1].startswith("       2 x --capacity 2 does not hold the longest request")


def test_spans_of_seeds(folder, capsys):
    found = json.loads(shown(capsys, "model.json", "--seed", "9,0:3", "--capacity", "9", "--json").out)["results"]
    assert [row["seed"] for row in found] == [9, 0, 1, 2]


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["one.jsonl", "-o", "table.txt"], 2, "Try .csv, .json, .jsonl or .parquet"),
        (["one.jsonl", "-o", "nowhere/table.csv"], 2, "does not exist"),
        (["one.jsonl", "--json", "-o", "-"], 2, "both write to stdout"),
        (["one.jsonl", "--resume"], 2, "--resume needs -o FILE"),
        (["one.jsonl", "--resume", "-o", "-"], 2, "--resume needs -o FILE"),
        (["one.jsonl", "--ray-address", "auto"], 2, "needs --runner ray"),
        (["model.json", "--seed", "1:x"], 2, "is not a seed"),
        (["model.json", "--seed", "3:3"], 2, "has no seeds"),
        (["one.jsonl", "--policy", ","], 2, "is not a list of names"),
        (["missing.jsonl"], 3, "no such file"),
        (["orders_that_die.py"], 3, "kvtrace: orders_that_die.py:2: the row is not JSON"),
        (["unknown.jsonl"], 3, "Try --block-size"),
        (["one.jsonl", "--block-size", "8"], 2, "not --block-size 8"),
        (["unchained.jsonl", "--block-size", "1"], 3, "--chain"),
    ],
)
def test_what_does_not_fit_is_one_line(folder, capsys, options, status, told):
    row = {"timestamp": 0, "output_length": 1}
    Path("unknown.jsonl").write_text(json.dumps(row | {"input_length": 100, "hash_ids": [0]}) + "\n")
    Path("unchained.jsonl").write_text(
        "".join(json.dumps(row | {"input_length": 2, "hash_ids": ids}) + "\n" for ids in ([0, 1], [2, 1]))
    )
    assert run(["sweep", *options, *([] if "--capacity" in options else ["--capacity", "9"])]) == status
    said = capsys.readouterr()
    assert said.out == "" and told in said.err and len(said.err.splitlines()) == 1


@pytest.fixture
def whole(folder, capsys):
    """The right bytes of the slow sweep."""
    shown(capsys, *SLOW, "-o", "whole.csv")
    return Path("whole.csv").read_bytes()


@pytest.mark.parametrize("threads", ["1", "3"])
def test_a_killed_sweep_goes_on(folder, whole, capsys, threads):
    said = ended(child(*SLOW, "-o", "table.csv", "--workers", threads, DIE_AT="12", DIED=str(folder / "died")))
    assert said == (-signal.SIGKILL, "")
    checkpoint = Path("table.csv.cells.jsonl")
    kept = checkpoint.read_text().splitlines()[1:]
    assert 26 < len(kept) < 32 and not Path("table.csv").exists()  # 22 of lru, which run first, and 9 before the kill
    shown(capsys, *SLOW, "-o", "table.csv", "--resume")
    assert Path("table.csv").read_bytes() == whole and not checkpoint.exists()


def test_a_sweep_killed_at_any_moment_goes_on(folder, whole, capsys):
    checkpoint = Path("table.csv.cells.jsonl")
    for lines in (2, 9, 17):
        options = ["--resume"] if checkpoint.exists() else []
        process = child(*SLOW, "-o", "table.csv", "--workers", "2", *options)
        while process.poll() is None and not (checkpoint.exists() and checkpoint.read_bytes().count(b"\n") > lines):
            time.sleep(0.001)
        process.kill()
        assert ended(process)[0] in (-signal.SIGKILL, 0)
    shown(capsys, *SLOW, "-o", "table.csv", "--resume")
    assert Path("table.csv").read_bytes() == whole and not checkpoint.exists()


def test_a_signal_keeps_what_was_done_and_ends_with_status_5(folder, whole, capsys):
    process = child(*SLOW, "-o", "table.csv", "--workers", "1")
    while not (Path("table.csv.cells.jsonl").exists() and Path("table.csv.cells.jsonl").read_bytes().count(b"\n") > 3):
        time.sleep(0.001)
    process.terminate()
    assert ended(process) == (
        5,
        "kvtrace: stopped by SIGTERM; finished work is saved: continue with --resume.\n",
    )
    shown(capsys, *SLOW, "-o", "table.csv", "--resume")
    assert Path("table.csv").read_bytes() == whole


def test_without_ray_there_is_one_line(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run(["sweep", "one.jsonl", "--capacity", "9", "--runner", "ray", "-o", "table.csv"]) == 2
    assert capsys.readouterr().err == "kvtrace: Ray is not installed. Try `pip install 'kvtrace[ray]'`.\n"
    assert not list(folder.glob("table*"))


@pytest.mark.xdist_group("ray")
def test_ray_gives_the_same_bytes_and_tries_a_lost_task_again(folder, capsys):
    pytest.importorskip("ray")
    died = str(folder / "died")
    grid = ["model.json", "one.jsonl", "--seed", "0,1", "--block-sizes", "1x,2x", "--capacity", "50%,12"]
    grid += ["--policy", "orders_that_die:Lru,lru,arc,belady", "-q"]
    shown(capsys, *grid, "-o", "here.csv")
    status, said = ended(child(*grid, "-o", "there.csv", "--runner", "ray", DIE_AT="12", DIED=died))
    assert (status, without_rays_lines(said)) == (0, "") and Path(died).exists()
    assert Path("there.csv").read_bytes() == Path("here.csv").read_bytes()


@pytest.mark.xdist_group("ray")
def test_a_sweep_on_ray_that_was_stopped_goes_on_here(folder, whole, capsys):
    pytest.importorskip("ray")
    process = child(*SLOW, "-o", "table.csv", "--runner", "ray", SLEEP_AT="12")
    checkpoint = Path("table.csv.cells.jsonl")
    while not (checkpoint.exists() and checkpoint.read_bytes().count(b"\n") > 3):
        time.sleep(0.01)
        assert process.poll() is None
    process.terminate()
    status, said = ended(process)
    ours = without_rays_lines(said)
    assert (status, ours) == (5, "kvtrace: stopped by SIGTERM; finished work is saved: continue with --resume.\n")
    shown(capsys, *SLOW, "-o", "table.csv", "--resume")
    assert Path("table.csv").read_bytes() == whole
