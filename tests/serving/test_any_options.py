"""Any options of instances, tiers, fleets and workers of two kinds: each draw is refused with one line, or keeps laws.

Draws are ours (a seed each), so that a run that dies or never ends names its seed: the tests run the draws in order.
"""

import random
from itertools import chain, pairwise

import numpy as np
import pytest

from kvtrace import UsageError
from kvtrace.cache import Tier, simulate
from kvtrace.cache.simulation import Setting
from kvtrace.serving import simulate_instances
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.fleet_schedule import FleetChange, FleetSchedule
from kvtrace.serving.routers import OWN, ROUTERS, TIMED
from kvtrace.serving.schedulers.dynamo import DynamoScheduler
from kvtrace.serving.schedulers.sglang import SglangScheduler
from kvtrace.serving.schedulers.vllm import VllmScheduler
from kvtrace.serving.simulation import DynamoCost, StepCost, open_loop
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.trace import Trace

ENGINES = ("reference", "vllm", "sglang", "dynamo")
LARGE = 10**6


def drawn_trace(rng):
    """A trace of up to 14 requests: empty prompts and outputs, tails, equal and negative times, priorities."""
    size, number, rows = rng.choice([1, 2, 4, 16]), {}, []
    with_outputs = rng.random() < 0.4

    def ids(path, tail, first=0):
        keys = [tuple(path[: place + 1]) for place in range(len(path))] + [(tuple(path), tail)] * bool(tail)
        return [number.setdefault(key, len(number)) for key in keys][first:]

    for _ in range(rng.randint(1, 14)):
        path, tail = [rng.randint(0, 2) for _ in range(rng.choice([0, 1, 2, 3, 4, 6]))], rng.randrange(size)
        tokens, output = len(path) * size + tail, rng.choice([0, 1, 2, size, 3 * size, rng.randint(0, 5 * size)])
        longer, rest = divmod(tokens + output, size)
        grown = ids([*path, *[9] * (longer - len(path))], rest, len(path)) if with_outputs and output else []
        rows.append((ids(path, tail), tokens, output, grown, rng.choice([0, 0, 1, 50, 5000])))
    prompts, tokens, outputs, grown, gaps = zip(*rows, strict=True)
    columns = Columns(
        rng.choice([0.0, -500.0]) + np.cumsum(gaps).astype(float), np.array(tokens), np.array(outputs),
        np.array([*chain(*prompts)], dtype=np.int64), np.concatenate([[0], np.cumsum([len(some) for some in prompts])]),
    )  # fmt: skip
    if with_outputs:
        columns.output_ids = np.array([*chain(*grown)], dtype=np.int64)
        columns.output_offsets = np.concatenate([[0], np.cumsum([len(some) for some in grown])])
    if rng.random() < 0.4:
        columns.session = np.array([rng.randint(-1, 3) for _ in rows])
    if rng.random() < 0.4:
        columns.extra = {"priority": np.array([rng.randint(0, 3) for _ in rows])}
    return Trace.from_columns(columns, block_size=size)


def drawn_capacity(rng, trace):
    most = int((-(-(trace.input_length + np.maximum(trace.output_length, 1)) // trace.block_size)).max()) + 1
    return rng.choice([max(1, most - 2), most, most + 3, 10_000])


def drawn_tiers(rng, engine, timed):
    tiers, scopes = [], sorted(rng.randint(0, 2) for _ in range(rng.randint(1, 3)))
    for number, scope in enumerate(scopes):
        word = ("rank", "host", "cluster")[scope]
        given = {"latency_s": rng.choice([0.0, 0.01]), "fetch_seconds": rng.choice([0.0, 1e-3])} if timed else {}
        if engine == "reference":
            given |= {
                "scope": word, "peers": rng.random() < 0.3, "policy": rng.choice([None, "lru", "fifo", "arc"]),
                "copies": rng.choice([None, "on-eviction", "write-through", "write-back"]),
            }  # fmt: skip
        elif number or engine == "dynamo":
            given["scope"] = word
        if engine == "sglang" or (engine == "vllm" and not number):
            given.pop("latency_s", None)
        tiers.append(Tier(f"tier{number}", rng.choice([1, 2, 5, 30, 1000]), **given))
    return tiers[:1] if engine == "dynamo" else tiers[:2] if engine == "vllm" and timed else tiers


def drawn_scheduler(rng, engine):
    if engine == "vllm":
        return VllmScheduler(
            rng.choice([16, 8192]), rng.choice([1, 2, 1024]), async_scheduling=rng.random() < 0.5,
            policy=rng.choice(["fcfs", "priority"]),
        )  # fmt: skip
    if engine == "sglang":
        return SglangScheduler(
            chunked_prefill_size=rng.choice([16, 8192, -1]), max_running_requests=rng.choice([1, 2, 64]),
            enable_priority_scheduling=rng.random() < 0.3, num_reserved_decode_tokens=rng.choice([1, 4, 512]),
            disaggregation_decode_enable_radix_cache=rng.random() < 0.4, disable_overlap_schedule=rng.random() < 0.4,
        )  # fmt: skip
    if engine == "dynamo":
        return DynamoScheduler(rng.choice([16, 8192]), rng.choice([1, 2, 256]), aic_nextn=rng.choice([0, 0, 2]))
    return None


def drawn_fleet(rng, instances):
    changes, at, count, alive = [], 0.0, instances, set(range(instances))
    for _ in range(rng.randint(1, 3)):
        at, start = at + rng.choice([0, 0.05, 1]), rng.randint(0, 2)
        drain = tuple(number for number in sorted(alive)[not start :] if rng.random() < 0.3)
        changes.append(FleetChange(at, start, drain, (), 0.0))
        alive = (alive - set(drain)) | set(range(count, count + start))
        count += start
    return FleetSchedule(tuple(changes))


def drawn_workers(rng, trace):
    link = rng.choice([{}, {"kv_transfer_latency_s": 0.01}, {"kv_transfer_bandwidth": 1e3}])
    if "kv_transfer_bandwidth" in link:
        link["kv_transfer_bytes_per_token"] = rng.choice([1, 1000])
    if rng.random() < 0.3:
        link["max_local_prefill_length"] = rng.choice([0, 3, 20])
    if rng.random() < 0.3:
        link["decode_capacity"] = drawn_capacity(rng, trace)
    return Disaggregation(rng.randint(1, 3), rng.randint(1, 3), rng.choice([None, "least-loaded", "overlap"]), **link)


def drawn_run(seed):
    """A trace, its mode, and a function that runs it with drawn options."""
    rng = random.Random(seed)
    trace, engine = drawn_trace(rng), rng.choice(ENGINES)
    timed, instances = engine == "dynamo" or rng.random() < 0.6, rng.randint(1, 4)
    kind = rng.choice(["plain", "tiers", "tiers", "fleet", *(["apart", "lockstep"] if timed else [])])
    mode, capacity = rng.choice(["block", "token", "grow"]), drawn_capacity(rng, trace)
    setting = Setting(capacity, engine=engine, mode=mode)
    known = [name for name in ROUTERS if (timed or name not in TIMED) and OWN.get(name, engine) == engine]
    router, options = rng.choice(known), {}
    if kind == "fleet":
        options["fleet"] = drawn_fleet(rng, instances)
    if kind == "tiers":
        options["tiers"] = [*([] if timed else [Tier("hbm", capacity)]), *drawn_tiers(rng, engine, timed)]
        options["instances_per_host"] = rng.choice([None, 1, 2])
    if not timed:
        options |= {"schedule": rng.choice(["serial", "open-loop:3"]), "setting": setting}
        return trace, mode, lambda: simulate_instances(trace, instances, router, **options)
    step = StepCost(token_s=rng.choice([0.0, 1e-3]), step_s=rng.choice([0.0, 5e-3]))
    cost = DynamoCost() if engine == "dynamo" else step
    options |= {"scheduler": drawn_scheduler(rng, engine), "timelines": rng.random() < 0.5}
    options |= {"disaggregation": drawn_workers(rng, trace)} if kind == "apart" else {"instances": instances}
    options["lockstep"] = kind == "lockstep"
    mode = mode if engine == "reference" else "grow"
    return trace, mode, lambda: open_loop(trace, cost, setting=setting, router=router, **options)


def require_laws(trace, mode, run):
    """What holds of any run."""
    assert ((run.hit_blocks >= 0) & (run.hit_blocks <= trace.prompt_blocks)).all()
    assert run.hit_blocks.sum() <= simulate(trace, LARGE, mode=mode).hit_blocks.sum()
    tiers = run.to_dict().get("tiers")
    if tiers:
        assert sum(tier["hit_blocks"] for tier in tiers) == run.hit_blocks.sum()
    if not hasattr(run, "ended_s"):
        return
    served = ~np.isnan(run.ended_s)
    moments = [trace.timestamp / 1000, run.started_s, run.first_s, run.ended_s]
    for before, after in pairwise(moments):
        assert (after[served] >= before[served] - 1e-9).all()
    assert run.served + run.rejected == len(trace)
    assert (run.cached_tokens <= np.maximum(trace.input_length, 1)).all()
    for line in run.timelines:
        assert min(line.running.min(initial=0), line.waiting.min(initial=0), line.blocks.min(initial=0)) >= 0
        assert not len(line.seconds) or line.running[-1] == line.waiting[-1] == 0
    sent, received = getattr(run, "link_bytes", ((), ()))
    assert sum(sent) == pytest.approx(sum(received))


@pytest.mark.parametrize("first", range(0, 600, 60))
def test_any_options_keep_the_laws_or_are_refused(first):
    for seed in range(first, first + 60):
        trace, mode, run = drawn_run(seed)
        try:
            done = run()
        except UsageError as error:
            assert "\n" not in str(error) and "internal error" not in str(error)
            continue
        require_laws(trace, mode, done)
        again = run()
        assert np.array_equal(done.hit_blocks, again.hit_blocks) and np.array_equal(done.instance, again.instance)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"scope": "planet"}, "'planet' is not a scope"), ({"copies": "never"}, "'never' is not a way of copies"),
        ({"latency_s": NAN}, "latency_s of tier pool"), ({"fetch_seconds": -1.0}, "fetch_seconds of tier pool"),
        ({"store_seconds": INF}, "store_seconds of tier pool"), ({"block_tokens": 0}, "block_tokens of tier pool"),
    ],
)  # fmt: skip
def test_a_tier_has_valid_values(fields, message):
    with pytest.raises(UsageError, match=message):
        Tier("pool", 9, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kv_transfer_bandwidth": NAN}, "bandwidth must be above 0"), ({"kv_transfer_latency_s": INF}, "and finite"),
        ({"kv_transfer_bandwidth": 0.0}, "bandwidth must be above 0"), ({"decode_capacity": 0}, "at least 1"),
        ({"kv_transfer_bytes_per_token": -5}, "at least 1"), ({"max_local_prefill_length": -3}, "at least 0"),
    ],
)  # fmt: skip
def test_workers_of_two_kinds_have_valid_values(fields, message):
    with pytest.raises(UsageError, match=message):
        Disaggregation(1, 1, **fields)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"instances_per_host": -2}, "--instances-per-host must be at least 1"),
        ({"setting": Setting(9, engine="vllm", engine_options=(("tree", "radix"),))}, "not have the option --tree"),
        ({"fleet": FleetSchedule((FleetChange(0.1, start=1),)), "disaggregation": Disaggregation(1, 1)}, "--fleet"),
        ({"tiers": [Tier("dram", 9, policy="belady")], "setting": Setting(9)}, "an upper bound"),
    ],
)  # fmt: skip
def test_options_that_a_run_would_ignore_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        open_loop(toy("0 1"), StepCost(1.0), **{"setting": Setting(9, engine="vllm"), **options})


def test_a_capacity_larger_than_any_cache_is_refused():
    with pytest.raises(UsageError, match="a capacity is at most"):
        Setting(1 << 62)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_workers_of_two_kinds_serve_by_priority_and_all_that_wait(engine):
    """One request at a time: the highest priority first, as without workers of two kinds."""
    trace = toy("0", "1", "2", "3", block_size=16, gap_ms=0.0)
    trace = Trace.from_columns(replace_columns(trace, extra={"priority": np.array([9, 3, 2, 1])}), block_size=16)
    scheduler = {
        "vllm": VllmScheduler(max_num_seqs=1, policy="priority"),
        "sglang": SglangScheduler(
            max_running_requests=1, enable_priority_scheduling=True, schedule_low_priority_values_first=True
        ),
    }[engine]
    options = {"setting": Setting(50, engine=engine), "scheduler": scheduler}
    whole = open_loop(trace, StepCost(0.001), **options)
    apart = open_loop(trace, StepCost(0.001), disaggregation=Disaggregation(1, 1), **options)
    assert np.argsort(whole.ended_s).tolist() == np.argsort(apart.ended_s).tolist() == [3, 2, 1, 0]


def test_a_fleet_that_grows_shares_its_tier():
    """One instance at first: without the loop over both, the transfers of the second one never ended."""
    trace = toy("0 1", "0 1", "2 3", "0 1 4", block_size=16, gap_ms=100.0)
    run = open_loop(
        trace, DynamoCost(), setting=Setting(50, engine="dynamo"), tiers=[Tier("pool", 9, scope="cluster")],
        fleet=FleetSchedule((FleetChange(0.1, start=1),)),
    )  # fmt: skip
    assert run.served == 4 and set(run.instance.tolist()) == {0, 1}


@pytest.mark.parametrize("tokens", [(0, 1), (0, 13), (1, 2), (5, 13)])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_draft_has_room_for_its_last_block(size, tokens):
    """The only request of a trace: its drafted token may take a block more than it keeps."""
    blocks = -(-tokens[0] // size)
    columns = Columns(np.zeros(1), *(np.array([count]) for count in tokens), np.arange(blocks), np.array([0, blocks]))
    run = open_loop(
        Trace.from_columns(columns, block_size=size), DynamoCost(), setting=Setting(50, engine="dynamo"),
        scheduler=DynamoScheduler(aic_nextn=2),
    )  # fmt: skip
    assert run.served == 1
