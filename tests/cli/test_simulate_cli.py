"""`kvtrace simulate` as its user meets it."""

import csv
import io
import json

import pytest

import kvtrace
from kvtrace.cli import run
from kvtrace.trace.building import toy
from tests.docs import ROOT

POLICY = """
class Lru:
    def __init__(self, context):
        self.order = []
    def insert(self, block): pass
    def use(self, block): self.order = [other for other in self.order if other != block]
    def release(self, block): self.order.append(block)
    def victim(self): return self.order[0]
    def remove(self, block): self.order.remove(block)

class Broken(Lru):
    def release(self, block): raise RuntimeError("out of order")
"""


@pytest.fixture
def path(tmp_path, monkeypatch):
    found = tmp_path / "trace.jsonl"
    kvtrace.write(toy("0 1", "2", "0 1", "0 3", block_size=16, gap_ms=60_000), found)
    (tmp_path / "orders_of_mine.py").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return str(found)


def shown(capsys, *arguments):
    assert run(["simulate", *arguments]) == 0
    return capsys.readouterr().out


def results(capsys, *arguments):
    return json.loads(shown(capsys, *arguments, "--json"))["results"]


def test_a_table_with_a_row_for_each_cache(path, capsys):
    lines = shown(capsys, path, "--capacity", "2,3", "--policy", "lru,unlimited").splitlines()
    assert lines[0] == "Hits of a prefix cache, engine reference, one request at a time, blocks of 16 tokens"
    assert lines[6].startswith("gap to belady: ")
    assert [line.split()[:3] for line in lines[2:6]] == [
        ["lru", "2", "2"], ["lru", "3", "3"], ["unlimited", "2", "3"], ["unlimited", "3", "3"]]  # fmt: skip


def test_a_policy_that_evicts_roots_first_in_the_flat_pool_is_named_below_the_table(path, capsys):
    options = (path, "--capacity", "3", "--policy", "lru,fifo,2q:0.3")
    line = "fifo, 2q:0.3: The flat pool can evict a block before its children, which then cannot hit."
    assert line in shown(capsys, *options)
    assert "children" not in shown(capsys, *options, "--pool", "leaf-first")
    assert "children" not in shown(capsys, path, "--capacity", "3", "--policy", "lru,lfu,arc")
    assert "children" not in shown(capsys, path, "--capacity", "3", "--policy", "fifo", "--engine", "sglang")


def test_hits_of_each_request_on_stdout_take_the_place_of_the_tables(path, capsys, tmp_path):
    options = ("simulate", path, "--capacity", "3", "--over-time", "1s", "-v")
    assert run([*options, "--per-request", str(tmp_path / "hits.csv")]) == 0
    assert "Hits of a prefix cache" in capsys.readouterr().out
    assert run([*options, "--per-request", "-"]) == 0
    shown = capsys.readouterr()
    assert shown.out == (tmp_path / "hits.csv").read_text() and shown.err == ""
    for other in ("--json", "--csv"):
        assert run([*options, "--per-request", "-", other]) == 2
        assert capsys.readouterr() == (
            "",
            f"kvtrace: --per-request - and {other} both write to stdout. Use one of them.\n",
        )


def test_json_has_the_keys_that_the_docs_list(path, capsys):
    (found,) = results(capsys, path, "--capacity", "3", "--kv-bytes-per-token", "1024")
    wanted = {
        "engine": "reference", "policy": "lru", "mode": "block", "schedule": "serial", "capacity": 3,
        "capacity_tokens": 48,
        "capacity_bytes": 49152, "capacity_counts": "total", "pool": "flat", "requests": 4, "blocks": 7,
        "hit_blocks": 3, "tokens": 112, "hit_tokens": 48, "evictions": 1, "early_frees": 0, "belady_hit_blocks": 3,
        "gap_to_belady": 0.0,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted
    page = (ROOT / "docs/cache/simulate.md").read_text()
    assert all(f"`{name}`" in page for name in found)


def test_auto_goes_from_the_longest_request_to_the_working_set(path, capsys):
    assert [found["capacity"] for found in results(capsys, path)] == [2, 3, 4]
    assert [found["capacity"] for found in results(capsys, path, "--mode", "grow")] == [2, 3, 4]


def test_the_load_of_each_instance_is_printed_on_request(path, capsys):
    options = [path, "--capacity", "3", "--instances", "2", "--policy", "lru,fifo"]
    short = shown(capsys, *options)
    assert "evictions" not in short and "Add -v" in short and len(short.splitlines()) == 7
    text = shown(capsys, *options, "-v")
    assert "evictions" in text and "2 instances of 3 blocks, policy fifo, router round-robin" in text


def test_csv_has_the_keys_of_json(path, capsys):
    rows = list(csv.DictReader(io.StringIO(shown(capsys, path, "--capacity", "2,50%", "--csv"))))
    found = results(capsys, path, "--capacity", "2,50%")
    assert [list(row) for row in rows] == [list(row) for row in found]
    assert [int(row["hit_blocks"]) for row in rows] == [row["hit_blocks"] for row in found]


def test_each_request_s_hits_go_to_a_file(path, capsys, tmp_path):
    assert run(["simulate", path, "--capacity", "3", "--per-request", "hits.csv", "--csv"]) == 0
    printed = capsys.readouterr()
    assert "wrote       hits.csv\n" in printed.err and "wrote" not in printed.out
    assert run(["simulate", path, "--capacity", "3", "--per-request", "hits.csv", "--quiet"]) == 0
    assert "wrote" not in "".join(capsys.readouterr())
    rows = list(csv.DictReader(io.StringIO((tmp_path / "hits.csv").read_text())))
    assert [int(row["hit_blocks"]) for row in rows] == [0, 0, 2, 1]
    assert rows[2]["timestamp"] == "120000.0" and rows[2]["blocks"] == "2"
    shown(capsys, path, "--capacity", "2,3", "--per-request", "hits.csv")
    assert "reference/lru/3" in (tmp_path / "hits.csv").read_text().splitlines()[0]


def test_windows_and_warm_up(path, capsys):
    (found,) = results(capsys, path, "--capacity", "3", "--over-time", "2m", "--warm-up", "50%")
    assert [window["hit_blocks"] for window in found["over_time"]] == [0, 3]
    assert found["requests"] == 2 and found["hit_blocks"] == 3 and found["warm_up_requests"] == 2
    assert "from (s)" in shown(capsys, path, "--capacity", "3", "--over-time", "2m")


def test_tiers_say_where_each_hit_came_from(path, capsys):
    (found,) = results(capsys, path, "--tiers", "hbm=2,dram=1")
    assert found["tiers"] == [
        {"name": "hbm", "capacity": 2, "hit_blocks": 2}, {"name": "dram", "capacity": 1, "hit_blocks": 1}]  # fmt: skip
    assert "in dram" in shown(capsys, path, "--tiers", "hbm=2,dram=3", "--inclusive")


APART = ["--gpu", "h100", "--model", "llama-3.1-8b", "--prefill-workers", "2", "--decode-workers", "1"]


def test_times_that_no_request_has_are_not_known(path, capsys):
    kvtrace.write(toy("0 1", "2 3", block_size=16), path)
    for options in (["--gpu", "h100", "--model", "llama-3.1-8b"], APART):
        (found,) = results(capsys, path, *options, "--capacity", "1")
        assert found["rejected"] == 2 and set(found["ttft_s"].values()) == {None} == set(found["tpot_s"].values())
        lines = shown(capsys, path, *options, "--capacity", "1").splitlines()
        assert "-" in lines[2].split() and "0.000 s" not in lines[2]


def test_workers_of_two_kinds_are_in_the_title_and_send_what_is_missing(path, capsys):
    lines = shown(capsys, path, *APART, "-v").splitlines()
    assert "2 prefill and 1 decode worker, blocks of 16 tokens" in lines[0]
    assert any(line.startswith("2 prefill workers of ") for line in lines)
    (found,) = results(capsys, path, *APART)
    assert found["transfer_tokens"] == found["tokens"] - 16 * found["decode_hit_blocks"]


def test_a_shared_tier_of_no_blocks_is_none(path, capsys):
    options = [path, "--instances", "2", "--router", "sticky", "--schedule", "serial"]
    (without,) = results(capsys, *options, "--capacity", "2")
    (found,) = results(capsys, *options, "--tiers", "hbm=2,pool=0@cluster")
    assert found["hit_blocks"] == without["hit_blocks"] and found["tiers"][1]["hit_blocks"] == 0
    (pool,) = results(capsys, *options, "--tiers", "hbm=0,pool=2@cluster")
    (one,) = results(capsys, path, "--capacity", "2")
    assert pool["hit_blocks"] == pool["tiers"][1]["hit_blocks"] == one["hit_blocks"]


def test_tiers_in_time_have_a_rate_and_say_where_each_hit_came_from(path, capsys):
    in_time = ["--gpu", "h100", "--model", "llama-3.1-8b", "--tiers", "hbm=3,dram=9@25GB/s"]
    (found,) = results(capsys, path, *in_time)
    assert found["scheduler"].startswith("vllm") and [tier["name"] for tier in found["tiers"]] == ["hbm", "dram"]
    assert sum(tier["hit_blocks"] for tier in found["tiers"]) == found["hit_blocks"]
    (other,) = results(capsys, path, *in_time[:-1], "hbm=3,dram=2@25GB,ssd=9@3GB", "--engine", "reference")
    assert [tier["capacity"] for tier in other["tiers"]] == [3, 2, 9] and other["scheduler"] == "reserve"


def test_a_class_of_the_user_s_is_found_where_the_command_runs(path, capsys):
    (found,) = results(capsys, path, "--capacity", "3", "--policy", "orders_of_mine:Lru")
    assert found["hit_blocks"] == 3


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["--capacity", "1"], 2, "does not hold the longest request: request 0 needs 2 blocks"),
        (["--capacity", "0"], 2, "less than one block"),
        (["--capacity", "1GiB"], 2, "Add --model or"),
        (["--policy", "best"], 2, "'best' is not a policy"),
        (["--policy", ","], 2, "is not a list of names"),
        (["--engine", "best"], 2, "'best' is not an engine"),
        (["--engine", "vllm", "--policy", "lfu"], 2, "does not support policy 'lfu'. Try lru"),
        (["--engine", "vllm", "--pool", "leaf-first"], 2, "does not have the option --pool"),
        (["--schedule", "soon"], 2, "is not a schedule"),
        (["--mode", "word"], 2, "is not a mode"),
        (["--tiers", "hbm=2"], 2, "--tiers needs two tiers or more"),
        (["--tiers", "hbm=2,hbm=3"], 2, "repeats a name"),
        (["--tiers", "hbm=1,dram=3"], 2, "--tiers hbm=1 does not hold the longest request: request 0 needs 2 blocks"),
        (["--tiers", "hbm=1,dram=3", "--instances", "2"], 2, "Try --tiers hbm=2 or more"),
        (["--tiers", "hbm=1,dram=3", "--engine", "sglang"], 2, "--tiers hbm=1 does not hold the longest request"),
        (["--tiers", "hbm=2,dram=3@Hosts"], 2, "'Hosts' is not valid for tier dram. Did you mean host?"),
        (["--tiers", "hbm=2,dram=3@writethrough"], 2, "Did you mean write-through?"),
        (["--tiers", "hbm=2,dram=3@25"], 2, "'25' is not valid for tier dram. A tier can have a rate (25GB/s)"),
        (["--tiers", "hbm=2,dram=3@0GB/s"], 2, "'0GB/s' is not valid for tier dram"),
        (["--tiers", "hbm=2,dram=3", "--capacity", "3"], 2, "--tiers has the capacities. Leave out --capacity."),
        (["--tiers", ""], 2, "--tiers is empty. Give a value, or leave it out."),
        (["--router", "", "--instances", "2"], 2, "--router is empty"),
        (["--tiers", "hbm=2,dram=2", "--inclusive"], 2, "each tier must be larger"),
        (["--tiers", "hbm=2,dram=2", "--instances-per-host", "2"], 2, "--instances-per-host needs a tier of a host"),
        (["--tiers", "hbm=2,pool=9@cluster@9us", "--instances", "2"], 2, "does not model pool=...@9us"),
        (["--tiers", "hbm=2,dram=2@host", "--gpu", "h100", "--model", "llama-3.1-8b"], 2, "tier dram needs a rate"),
        (
            ["--tiers", "hbm=2,dram=2@host@1GB", "--gpu", "h100", "--model", "llama-3.1-8b"],
            2,
            "vLLM's tier dram belongs to one instance",
        ),
        (["--tiers", "hbm=2,dram=2", "--gpu", "h100", "--model", "llama-3.1-8b"], 2, "tier dram needs a rate"),
        (["--tiers", "hbm=2@1GB,dram=2@1GB", "--gpu", "h100", "--model", "llama-3.1-8b"], 2, "a tier without a rate"),
        ([*APART[:5], "9999", *APART[6:]], 2, "--prefill-workers must be from 1 to 2,048."),
        ([*APART, "--kv-transfer-bandwidth", "0GB/s"], 2, "'0GB/s' is not a bandwidth. Examples: 50GB/s, 800MB/s."),
        ([*APART, "--kv-transfer-bandwidth", "50"], 2, "'50' is not a bandwidth"),
        ([*APART, "--kv-transfer-timing-mode", "full_prompt"], 2, "Engine vllm sends what the decode worker"),
        ([*APART, "--decode-options", "--enable-lora"], 2, "--decode-options: --enable-lora is not modelled."),
        ([*APART, "--engine", "lmcache"], 2, "engine lmcache. Use --engine dynamo, vllm or sglang."),
        ([*APART, "--engine", "dynamo"], 2, "Use --capacity in place of --gpu or --costs, or another --engine."),
        (["--warm-up", "some"], 2, "not a part of a trace"),
        (["--json", "--csv"], 2, "cannot be combined"),
        (["--capacity", "3", "--policy", "orders_of_mine:Broken"], 2, "RuntimeError at orders_of_mine.py:12: out of"),
        (["--capacity", "3", "--model-config", "orders_of_mine.py"], 3, "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_one_line(path, capsys, options, status, expected):
    assert run(["simulate", path, *options]) == status
    shown = capsys.readouterr()
    assert shown.out == "" and expected in shown.err and len(shown.err.splitlines()) == 1


def test_a_failed_run_leaves_no_file(path, capsys, tmp_path):
    assert run(["simulate", path, "--capacity", "1", "--per-request", "hits.csv"]) == 2
    assert not (tmp_path / "hits.csv").exists()


def test_unchained_ids_are_refused_and_chained_on_request(tmp_path, capsys):
    path = tmp_path / "unchained.jsonl"
    rows = [{"timestamp": 0, "input_length": 2, "output_length": 1, "hash_ids": ids} for ids in ([0, 1], [2, 1])]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = [str(path), "--capacity", "4", "--block-size", "1", "--no-gap"]
    assert run(["simulate", *options]) == 3 and "--chain" in capsys.readouterr().err
    assert results(capsys, *options, "--chain")[0]["hit_blocks"] == 0


IN_TIME = ("--gpu", "h100", "--model", "llama-3.1-8b", "--json", "--capacity", "9")


def test_in_time_the_engine_is_vllm_unless_another_policy_is_named(path, capsys):
    (result,) = json.loads(shown(capsys, path, *IN_TIME))["results"]
    assert (result["engine"], result["mode"], result["scheduler"]) == ("vllm", "grow", "vllm 0.33.0")
    (result,) = json.loads(shown(capsys, path, *IN_TIME, "--policy", "mru"))["results"]
    assert (result["engine"], result["scheduler"]) == ("reference", "reserve")


def test_options_of_the_scheduler_change_the_times(path, capsys):
    (alone,) = json.loads(shown(capsys, path, *IN_TIME))["results"]
    (chunked,) = json.loads(shown(capsys, path, *IN_TIME, "--step-tokens", "8", "--max-requests", "1"))["results"]
    assert chunked["steps"] > alone["steps"] and chunked["ttft_s"]["mean"] > alone["ttft_s"]["mean"]
    options = ("--scheduler", "max_num_batched_tokens=8,async_scheduling=off")
    (own,) = json.loads(shown(capsys, path, *IN_TIME, *options))["results"]
    assert own["steps"] == chunked["steps"]


DYNAMO = ("--engine", "dynamo", "--capacity", "9")


def test_dynamo_brings_its_own_step_times(path, capsys):
    """Without a GPU the requests take the times of Dynamo's offline replay."""
    (done,) = json.loads(shown(capsys, path, *DYNAMO, "--instances", "2", "--json"))["results"]
    setting = kvtrace.cache.Setting(9, engine="dynamo")
    wanted = kvtrace.serving.open_loop(kvtrace.read(path), kvtrace.serving.DynamoCost(), setting=setting, instances=2)
    assert done["scheduler"] == "dynamo 1.6.1" and done["ttft_s"]["mean"] == wanted.to_dict()["ttft_s"]["mean"] > 0
    few = (*DYNAMO, "--step-tokens", "4", "--max-requests", "1", "--json")
    (chunked,) = json.loads(shown(capsys, path, *few))["results"]
    assert chunked["steps"] > done["steps"]


def test_a_seed_repeats_the_draws_of_dynamos_router(path, capsys):
    routed = (*DYNAMO, "--instances", "4", "--router", "dynamo", "--json")
    draws = [shown(capsys, path, *routed, "--seed", str(seed)) for seed in (0, 1, 2, 3, 4, 5, 0)]
    assert draws[0] == draws[-1] == shown(capsys, path, *routed) and len(set(draws)) > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--step-tokens", "8"),
            "--step-tokens, --max-requests and --scheduler need --gpu, --costs or --engine dynamo.",
        ),
        ((*DYNAMO, "--schedule", "open-loop:5"), "A simulation in time has its own schedule."),
        ((*DYNAMO, "--scheduler", "async_scheduling=off"), "is not an option of dynamo's scheduler."),
        ((*IN_TIME, "--instances", "2", "--seed", "1"), "--seed needs --router dynamo or vllm-dp, or --start-inside."),
        (("--instances", "2", "--router", "dynamo"), "Add --engine dynamo"),
        ((*IN_TIME, "--scheduler", "seats=3"), "'seats=3' is not an option of vllm's scheduler."),
        ((*IN_TIME, "--engine", "reference", "--scheduler", "watermark=1%"), "The scheduler reserve has no options."),
    ],
)
def test_options_that_no_scheduler_takes_are_refused(path, capsys, options, message):
    assert run(["simulate", path, *options]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
