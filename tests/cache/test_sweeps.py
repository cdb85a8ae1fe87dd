"""Sweeps: equal to loops around `simulate`, and the same table however they were run, ordered, stopped and resumed."""

import dataclasses
import json
import os
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, StoppedError, UsageError
from kvtrace.cache.sweeps import Grid, SweepTable, plan, sweep
from kvtrace.cache.sweeps.grid import digest, forget, trace_of
from kvtrace.cache.sweeps.running import SweepCheckpoint, Task, local, rows_of
from kvtrace.cache.sweeps.table import COLUMNS, GAP, row_of
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.sampling import sample
from kvtrace.trace.building import toy
from tests.reference import sweep as slow
from tests.strategies import traces


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Two traces and a model, in the folder where the sweep runs."""
    monkeypatch.chdir(tmp_path)
    one = toy("0 1", "2", "0 1", "0 3", "4 5 6", "0 1 7", block_size=16, gap_ms=1000)
    kvtrace.write(one, "one.jsonl")
    kvtrace.write(toy("0", "1", "0", "2", "1 3", block_size=32), "two.jsonl")
    fit(one).save("model.json")
    return tmp_path


MINE = """
class Mine:
    def __init__(self, context): self.order = []
    def insert(self, block): pass
    use = insert
    def release(self, block): self.order.append(block)
    def victim(self): return self.order[0]
    def remove(self, block): self.order.remove(block)
"""
GRID = Grid(
    ("one.jsonl", "two.jsonl"), policies=("lru", "lfu", "belady"), capacity="3,2,100%", engines=("vllm", "reference"),
    modes=("block", "grow"), schedules=("serial", "concurrency:2"), block_sizes=("2x", "1x"),
)  # fmt: skip


def without_blanks(row):
    return {name: value for name, value in row.items() if value is not None}


@settings(max_examples=25)
@given(
    made=st.lists(traces(), min_size=1, max_size=2), factors=st.sampled_from([[1], [2, 1], [1, 3]]),
    engines=st.sampled_from([["reference"], ["sglang", "reference"], ["reference", "vllm", "lmcache"]]),
    modes=st.sampled_from([["block"], ["token", "grow"]]),
    schedules=st.sampled_from([["serial"], ["concurrency:2", "serial"]]),
    policies=st.sampled_from([["lru"], ["arc", "belady", "lru"], ["lfu", "unlimited"]]),
    capacities=st.lists(st.integers(1, 12), min_size=1, max_size=3, unique=True),
    threads=st.integers(1, 4), pool=st.sampled_from(["flat", "leaf-first"]),
)  # fmt: skip
def test_a_sweep_is_its_simulations(made, factors, engines, modes, schedules, policies, capacities, threads, pool):
    with tempfile.TemporaryDirectory() as folder:
        names = [f"{folder}/{number}.jsonl" for number in range(len(made))]
        for name, trace in zip(names, made, strict=True):
            kvtrace.write(trace, name)
        read = [(os.path.basename(name), kvtrace.read(name)) for name in names]
        wanted = slow.rows(
            read, factors=factors, engines=engines, modes=modes, schedules=schedules, policies=policies,
            capacities=capacities, engine_options={"pool": pool},
        )  # fmt: skip
        grid = Grid(
            tuple(names), tuple(policies), ",".join(map(str, capacities)), tuple(engines), tuple(modes),
            tuple(schedules), tuple(f"{factor}x" for factor in factors),
            engine_options=(("pool", pool),) if pool != "flat" else (),
        )  # fmt: skip
        if all("error" in row for row in wanted):
            with pytest.raises(UsageError, match="All cells|does not|has no"):
                sweep(grid, threads=threads)
            return
        found = sweep(grid, threads=threads).rows
    for row in found:
        assert tuple(row) == COLUMNS
        for name in ("warning", *GAP):  # tests/cli/test_sweep_cli.py has them
            row[name] = None
        assert row["capacity_tokens"] == row["capacity"] * row["block_size"]
    if pool == "flat":  # a switch that not all take is a refusal of simulate's
        assert [without_blanks(row) for row in found] == [
            without_blanks(row) | {"capacity_tokens": row["capacity"] * row["block_size"]} for row in wanted
        ]
    else:
        assert [row["hit_blocks"] for row in found] == [row.get("hit_blocks") for row in wanted]


def test_the_order_of_rows_is_that_of_the_axes_as_given(folder):
    rows = sweep(GRID).rows
    axes = ("trace", "block_size", "engine", "mode", "schedule", "policy")
    seen = {name: list(dict.fromkeys(row[name] for row in rows if row["trace"] == "one.jsonl")) for name in axes}
    assert seen["block_size"] == [32, 16] and seen["mode"] == ["block", "grow"]
    assert set(seen["engine"]) == {"vllm", "reference"} and seen["schedule"] == ["serial", "concurrency:2"]
    assert [row["trace"] for row in rows] == sorted(row["trace"] for row in rows)
    wanted = ("one.jsonl", 16, "reference", "block", "serial", "lru")
    ours = [row for row in rows if tuple(row[name] for name in axes) == wanted]
    assert [row["capacity"] for row in ours] == [3, 2, 8]


@pytest.mark.parametrize("name", ["table.csv", "table.json", "table.jsonl.gz", "table.parquet", "table.csv.zst"])
def test_the_bytes_are_those_of_any_number_of_threads(folder, name):
    written = []
    for threads in (1, 2, 7):
        sweep(GRID, name, threads=threads)
        written.append(Path(name).read_bytes())
    assert len(set(written)) == 1
    assert not list(folder.glob("*.cells.jsonl"))


def test_forms_hold_the_same_rows(folder):
    rows = sweep(GRID, "table.json").rows
    assert json.loads(Path("table.json").read_text()) == {"schema": 2, "results": rows}
    SweepTable(rows).write("table.jsonl")
    assert [json.loads(line) for line in Path("table.jsonl").read_text().splitlines()] == rows
    pytest.importorskip("pyarrow")
    import pyarrow.parquet

    SweepTable(rows).write("table.parquet")
    assert pyarrow.parquet.read_table("table.parquet").to_pylist() == rows


def test_seeds_are_samples_of_the_model(folder):
    rows = sweep(Grid(("model.json", "one.jsonl"), capacity="9", seeds=(3, 1), requests=40)).rows
    assert [(row["trace"], row["seed"], row["requests"]) for row in rows] == [
        ("model.json", 3, 40), ("model.json", 1, 40), ("one.jsonl", None, 6)]  # fmt: skip
    model = fit(kvtrace.read("one.jsonl"))
    wanted = [kvtrace.cache.simulate(sample(model, 40, seed=seed), 9).hits.hit_blocks for seed in (3, 1)]
    assert [row["hit_blocks"] for row in rows[:2]] == wanted


def test_a_seed_comes_after_the_capacity_though_capacities_are_the_sample_s_own(folder):
    rows = sweep(Grid(("model.json",), capacity="60%,100%", seeds=(0, 1, 2), requests=50)).rows
    assert [row["seed"] for row in rows] == [0, 1, 2] * 2
    sizes = {seed: sample(fit(kvtrace.read("one.jsonl")), 50, seed=seed).working_set for seed in (0, 1, 2)}
    assert [row["capacity"] for row in rows[3:]] == list(sizes.values())


def test_auto_is_that_of_each_trace_and_mode(folder, capsys):
    from kvtrace.cli import run

    rows = sweep(Grid(("one.jsonl", "two.jsonl"), modes=("block", "grow"))).rows
    for name in ("one.jsonl", "two.jsonl"):
        for mode in ("block", "grow"):
            assert run(["simulate", name, "--mode", mode, "--json"]) == 0
            wanted = [row["capacity"] for row in json.loads(capsys.readouterr().out)["results"]]
            assert [row["capacity"] for row in rows if (row["trace"], row["mode"]) == (name, mode)] == wanted


def test_block_sizes_are_multiples_or_tokens_and_each_comes_once(folder):
    rows = sweep(Grid(("one.jsonl", "two.jsonl"), capacity="9", block_sizes=("64", "2x", "4x"))).rows
    assert [(row["trace"], row["block_size"]) for row in rows] == [
        ("one.jsonl", 64), ("one.jsonl", 32), ("two.jsonl", 64), ("two.jsonl", 128)]  # fmt: skip


@pytest.mark.parametrize(
    ("kept", "torn"),
    [(0, ""), (1, '{"cell": 3, "ro'), (5, ""), (5, "\0\0\0\0"), (30, '{"cell": 0}\n{"cell": 1, "row": {}}\n')],
)
def test_what_a_journal_holds_is_not_run_again_and_its_torn_end_is(folder, monkeypatch, kept, torn):
    wanted = sweep(GRID, "whole.csv").rows
    ran = stop_after(monkeypatch, kept)
    with pytest.raises(StoppedError) as stop:
        sweep(GRID, "table.csv", threads=1)
    assert not Path("table.csv").exists()
    checkpoint = Path("table.csv.cells.jsonl")
    assert checkpoint.exists() == (kept > 0) == bool(getattr(stop.value, "__notes__", []))
    if kept:
        with checkpoint.open("a") as file:
            file.write(torn)
    stop_after(monkeypatch, None, ran)
    assert sweep(GRID, "table.csv", resume=True).rows == wanted
    assert len(ran) == len(wanted) and len(set(ran)) == len(wanted)
    assert Path("table.csv").read_bytes() == Path("whole.csv").read_bytes() and not checkpoint.exists()


def stop_after(monkeypatch, kept, ran=None):
    """Let so many cells run, in an order of chance; returns the cells that ran, as they come."""
    ran, draw = [] if ran is None else ran, random.Random(kept or 0)

    def runner(work, *_):
        work = draw.sample(work, len(work))
        for number, cell in work:
            if kept is not None and len(ran) >= kept:
                raise StoppedError("no room")
            ran.append(cell)
            yield number, row_of(cell, trace_of(cell.workload))

    monkeypatch.setattr("kvtrace.cache.sweeps.running.local", runner)
    return ran


def stopped(monkeypatch, grid, name="table.csv"):
    """Leave the checkpoint of a sweep that was stopped after its third cell."""
    stop_after(monkeypatch, 3)
    with pytest.raises(StoppedError):
        sweep(grid, name)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (
            Grid(GRID.traces, policies=("lru",), capacity="3,2"),
            "another --block-sizes, --capacity, --engine, --mode, --policy, --sched",
        ),
        (Grid(("one.jsonl",), **{n: v for n, v in vars(GRID).items() if n != "traces"}), "with other traces"),
    ],
)
def test_another_grid_s_journal_is_refused(folder, monkeypatch, other, told):
    stopped(monkeypatch, GRID)
    before = Path("table.csv.cells.jsonl").read_bytes()
    with pytest.raises(UsageError, match=told):
        sweep(other, "table.csv", resume=True)
    with pytest.raises(UsageError, match="Continue with --resume"):
        sweep(GRID, "table.csv")
    assert Path("table.csv.cells.jsonl").read_bytes() == before


def test_a_trace_that_changed_is_refused(folder, monkeypatch):
    stopped(monkeypatch, GRID)
    kvtrace.write(toy("0", "1", "0", "2", "1 4", "5", block_size=32), "two.jsonl")
    with pytest.raises(InputError, match=r"two.jsonl has changed"):
        sweep(GRID, "table.csv", resume=True)


def test_a_sidecar_is_part_of_a_trace(folder):
    before = digest("one.jsonl")
    Path("one.jsonl.meta.json").write_text(Path("one.jsonl.meta.json").read_text() + " ")
    assert digest("one.jsonl") != before


def test_a_folder_of_parts_is_a_trace_as_its_file_is(folder, monkeypatch):
    kvtrace.write(kvtrace.read("one.jsonl"), "one.dataset")
    grid = Grid(("one.dataset",), ("lru", "arc"), "3,5", block_sizes=("1x", "2x"))
    rows = sweep(grid).rows
    assert [row | {"trace": "one.jsonl"} for row in rows] == sweep(
        dataclasses.replace(grid, traces=("one.jsonl",))
    ).rows
    stopped(monkeypatch, grid)
    some = next(path for path in Path("one.dataset").rglob("*") if path.is_file())
    some.rename(some.with_name("other"))
    with pytest.raises(InputError):
        sweep(grid, "table.csv", resume=True)


def test_another_version_s_journal_is_refused(folder, monkeypatch):
    stopped(monkeypatch, GRID)
    checkpoint = Path("table.csv.cells.jsonl")
    checkpoint.write_text(checkpoint.read_text().replace(kvtrace.__version__, "0.0.1", 1))
    with pytest.raises(UsageError, match="another version of kvtrace"):
        sweep(GRID, "table.csv", resume=True)


def test_a_row_of_the_journal_that_was_changed_is_run_again(folder, monkeypatch):
    wanted = sweep(GRID).rows
    stopped(monkeypatch, GRID)
    checkpoint = Path("table.csv.cells.jsonl")
    header, first, *others = checkpoint.read_text().splitlines(keepends=True)
    assert '"hit_blocks": ' in first
    checkpoint.write_text("".join([header, first.replace('"hit_blocks": ', '"hit_blocks": 9'), *others]))
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    assert sweep(GRID, "table.csv", resume=True).rows == wanted


@pytest.mark.parametrize("values", [{"traces": 5}, {"settings": 5}, {"traces": [[1]]}, {"digest": None}])
def test_a_header_of_the_journal_that_was_changed_is_one_sentence(folder, monkeypatch, values):
    stopped(monkeypatch, GRID)
    checkpoint = Path("table.csv.cells.jsonl")
    header, *others = checkpoint.read_text().splitlines(keepends=True)
    checkpoint.write_text("".join([json.dumps(json.loads(header) | values) + "\n", *others]))
    with pytest.raises(UsageError, match=r"is damaged\. Delete "):
        sweep(GRID, "table.csv", resume=True)


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_file_that_is_no_journal_is_left_alone(folder, mode):
    Path("table.csv.cells.jsonl").write_text("mine\n")
    Path("table.csv.cells.jsonl").chmod(mode)
    for resume in (False, True):
        with pytest.raises(UsageError, match="not a checkpoint of kvtrace|other users can read"):
            sweep(GRID, "table.csv", resume=resume)
    assert Path("table.csv.cells.jsonl").read_text() == "mine\n"


def test_a_header_that_was_cut_off_begins_anew(folder):
    Path("table.csv.cells.jsonl").write_text('{"kvtrace_sweep": 1, "vers')
    Path("table.csv.cells.jsonl").chmod(0o600)
    assert sweep(GRID, "table.csv").rows and Path("table.csv").exists()


def test_what_a_killed_run_left_under_a_temporary_name_goes(folder, monkeypatch):
    stopped(monkeypatch, GRID)
    Path(".table.csv.0123456789ab.part").write_text("half of a table")
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    sweep(GRID, "table.csv", resume=True)
    assert not list(folder.glob(".table*"))


def test_two_runs_do_not_write_one_table(folder, monkeypatch):
    monkeypatch.setattr("kvtrace._base.file_locks.LOCK_TIMEOUT_S", 0.05)
    with SweepCheckpoint("table.csv", {}, {}), pytest.raises(UsageError, match="another run writes"):
        sweep(GRID, "table.csv", resume=True)


def test_a_full_disk_keeps_what_is_whole(folder, monkeypatch):
    import errno
    import os

    write, left = os.pwrite, iter([None] * 5)

    def full(handle, data, place):
        try:
            next(left)
        except StopIteration:
            write(handle, data[: len(data) // 2], place)
            raise OSError(errno.ENOSPC, "No space left on device") from None
        return write(handle, data, place)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StoppedError, match="No space left"):
        sweep(GRID, "table.csv", threads=2)
    monkeypatch.setattr(os, "pwrite", write)
    assert len(Path("table.csv.cells.jsonl").read_text().splitlines()) == 5  # the header, and four cells
    assert sweep(GRID, "table.csv", resume=True).rows == sweep(GRID).rows


def test_a_misfit_beside_cells_that_run_is_a_row(folder):
    rows = sweep(Grid(("one.jsonl",), ("lru", "lfu"), "2,9", ("reference", "vllm"))).rows
    assert [bool(row["error"]) for row in rows] == [True, False, True, False, True, False, True, True]
    assert "does not hold the longest request" in rows[0]["error"] and rows[0]["hit_blocks"] is None
    assert "Engine vllm does not support policy 'lfu'" in rows[7]["error"] and rows[7]["capacity_tokens"] == 144


def test_a_column_that_a_policy_misses_is_for_the_real_trace_to_tell(folder):
    rows = sweep(Grid(("one.jsonl",), ("lru", "priority"), "9")).rows
    assert "needs a trace with the column priority" in rows[1]["error"] and not rows[0]["error"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"policies": ("lru", "best")}, "'best' is not a policy"),
        ({"policies": ("lru", "ttl:soon")}, "'soon' is not a valid parameter"),
        ({"policies": ("lru", "nowhere:Lru")}, "neither a policy nor a Python module"),
        ({"engines": ("reference", "best")}, "'best' is not an engine"),
        ({"engines": ("reference", "vllm"), "policies": ("lfu",)}, "does not support policy 'lfu'. Try lru"),
        ({"modes": ("block", "word")}, "'word' is not a mode"),
        ({"schedules": ("serial", "soon")}, "'soon' is not a schedule"),
        ({"engine_options": (("watermark", "on"),)}, "No engine of the sweep has the option --watermark"),
        ({"engine_options": (("pool", "deep"),)}, "deep"),
        ({"capacity": "0"}, "less than one block"),
        ({"capacity": "1GiB"}, "is in bytes"),
        ({"block_sizes": ("24",)}, "--block-sizes 24 is not a multiple"),
        ({"block_sizes": ("0x",)}, "'0x' is not a block size"),
        ({"seeds": (1, 2)}, "--seed needs a fitted model"),
        ({"requests": 10}, "--requests needs a fitted model"),
        ({"warm_up": "some"}, "not a part of a trace"),
        ({"policies": ()}, "one or more policies"),
        ({"traces": ("-",)}, "not a file or folder"),
    ],
)
def test_what_could_never_run_is_refused_before_anything_runs(folder, monkeypatch, change, told):
    monkeypatch.setattr("kvtrace.cache.sweeps.running.local", lambda *_: pytest.fail("it ran"))
    with pytest.raises(UsageError, match=told):
        sweep(Grid(**({"traces": ("one.jsonl",), "capacity": "9"} | change)), "table.csv")
    assert not list(folder.glob("table*"))


def test_where_no_cell_can_be_run_there_is_no_table(folder):
    with pytest.raises(UsageError, match=r"All cells of the sweep failed\. The first error: --capacity 2 does"):
        sweep(Grid(("one.jsonl",), capacity="2"), "table.csv")
    assert not list(folder.glob("table*"))


def test_a_user_s_policy_that_fails_is_an_error_that_tells_its_place_only(folder, monkeypatch):
    (folder / "orders_that_fail.py").write_text(
        "class Fails:\n    def __init__(self, context): pass\n    def insert(self, block): raise ValueError('words')\n"
        "    use = release = remove = insert\n    def victim(self): return 0\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    rows = sweep(Grid(("one.jsonl",), ("lru", "orders_that_fail:Fails"), "9")).rows
    assert rows[1]["error"] == "Policy orders_that_fail:Fails failed, ValueError at orders_that_fail.py:3."


def test_a_policy_whose_file_changed_is_another_sweep(folder, monkeypatch):
    code = MINE
    (folder / "orders_that_change.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    grid = Grid(("one.jsonl",), ("lru", "orders_that_change:Mine"), "9,10,11")
    stopped(monkeypatch, grid)
    (folder / "orders_that_change.py").write_text(code + "# better\n")
    with pytest.raises(UsageError, match="another --policy"):
        sweep(grid, "table.csv", resume=True)


def test_a_fault_of_ours_is_no_row(folder, monkeypatch):
    def fault(*_):
        raise RuntimeError("ours")

    monkeypatch.setattr("kvtrace.cache.sweeps.table.run", fault)
    with pytest.raises(RuntimeError):
        sweep(GRID, threads=2)


def test_a_trace_that_changes_under_way_ends_the_sweep(folder):
    cells = plan(GRID)
    forget()
    kvtrace.write(toy("0", block_size=16), "one.jsonl")
    with pytest.raises(InputError, match="has changed since the sweep was planned"):
        list(local(list(enumerate(cells)), 1))


def test_progress_comes_to_the_end_whatever_was_kept_and_whatever_failed(folder, monkeypatch):
    def served(**options):
        totals, parts = [], []
        sweep(GRID, "table.csv", on_total=totals.append, on_progress=parts.append, **options)
        return sum(totals), sum(parts)

    total, done = served(threads=2)
    assert total == done > 0
    with monkeypatch.context() as patch:
        stopped(patch, GRID)
    assert served(resume=True) == (total, total)


def test_a_worker_of_another_version_does_not_run(folder):
    cells = tuple(enumerate(plan(GRID)))[:2]
    assert [number for number, _ in rows_of(Task(cells, str(folder)))] == [0, 1]
    with pytest.raises(UsageError, match=r"A Ray worker has kvtrace .*, the sweep has 0\.0\.1"):
        rows_of(Task(cells, str(folder), "0.0.1"))


def test_the_counts_of_a_public_trace(shared):
    """Those of docs/cache/simulate.md."""
    trace = str(shared / "data/mooncake/conversation_trace.jsonl")
    grid = Grid((trace,), ("lru", "belady"), "1000,10000", ("reference", "vllm", "sglang"), block_size=512)
    found = {(row["engine"], row["policy"], row["capacity"]): row["hit_blocks"] for row in sweep(grid, threads=2).rows}
    assert found == {
        ("reference", "lru", 1000): 12_847, ("reference", "lru", 10_000): 61_046,
        ("vllm", "lru", 1000): 12_837, ("vllm", "lru", 10_000): 60_971,
        ("sglang", "lru", 1000): 12_821, ("sglang", "lru", 10_000): 59_583,
        ("reference", "belady", 1000): 55_019, ("reference", "belady", 10_000): 105_710,
    }  # fmt: skip
