"""Synthesis of session trees: laws of every sample, fidelity on made-up forests, files and the command."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.cli import run
from kvtrace.formats.format_table import NAMES
from kvtrace.synthesis.knobs import Knobs
from kvtrace.synthesis.model_files import default_method, is_model, load_model
from kvtrace.synthesis.sampling import sample, write_sample
from kvtrace.synthesis.session_fitting import fit_sessions
from kvtrace.synthesis.session_model import FORKED, MAIN, ROOT, SPAWNED, TABLES, TURNS, SessionModel, chains_of
from kvtrace.synthesis.session_plans import exchange_long_forks
from kvtrace.trace.building import toy
from kvtrace.trace.columns import fields_of, replace_columns
from kvtrace.trace.dependencies import COMPLETION, JOIN, SEQUENCE, SPAWN, Dependencies
from kvtrace.trace.trace import Trace
from tests.conftest import drawn
from tests.synthesis.session_forests import forest


def traced(columns, block_size=1, tail="kept"):
    return Trace(**fields_of(columns), block_size=block_size, tail=tail)


@pytest.fixture(scope="module")
def source():
    return forest(60, seed=2)


@pytest.fixture(scope="module")
def model(source):
    return fit_sessions(source)


def computed_arrivals(trace):
    """The latest of what each request waits for, plus the delay; NaN for those that wait for nothing."""
    waits = trace.dependencies
    service = np.nan_to_num(trace.service_ms)
    ready = trace.timestamp[waits.row] + np.where(waits.trigger == COMPLETION, service[waits.row], 0) + waits.delay_ms
    times = np.full(len(trace), np.nan)
    for row, time in zip(waits.request.tolist(), ready.tolist(), strict=True):
        times[row] = np.fmax(times[row], time)
    return times


def ks(a, b):
    """The largest difference of two distribution functions."""
    at = np.concatenate([a, b])
    shares = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (a, b)]
    return float(np.abs(shares[0] - shares[1]).max())


def figures(trace):
    """The distributions that a sample keeps."""
    waits = trace.dependencies
    sequence = waits.relation == SEQUENCE
    growth = trace.input_length[waits.request[sequence]] - trace.input_length[waits.row[sequence]]
    return {
        "turns": np.bincount(trace.session), "growth": growth, "input_length": trace.input_length,
        "output_length": trace.output_length, "delay_ms": waits.delay_ms[sequence],
        "service_ms": trace.service_ms[~np.isnan(trace.service_ms)],
    }  # fmt: skip


def block_hit_rate(trace):
    return kvtrace.trace.count_hits(trace, kvtrace.trace.unlimited_hits(trace)).block_hit_rate


# -- chains ----------------------------------------------------------------------------------------------------------


def test_a_tree_is_cut_into_chains():
    # 0 - 1 - 6 is the main agent; 2 - 5 a second line, which ends earlier; 3 - 4 a subagent that 5 waits for
    wait = "completion", "sequence", 1.0
    waits = [
        [], [(0, *wait)], [(1, *wait)], [(1, "completion", "spawn", 1.0)], [(3, *wait)],
        [(2, *wait), (4, "completion", "join", 1.0)], [(1, *wait)],
    ]  # fmt: skip
    columns = replace_columns(toy(*("0",) * 7), session=[0] * 7, dependencies=Dependencies.of(waits))
    chains = chains_of(traced(columns))
    assert chains.chain.tolist() == [0, 0, 1, 2, 2, 1, 0]
    assert chains.kind.tolist() == [MAIN, FORKED, SPAWNED]
    assert chains.join.tolist() == [-1, -1, 5] and chains.alone.tolist() == [0, 0, 0]
    assert chains.place.tolist() == [0, 1, 0, 0, 1, 1, 2]


def test_a_request_that_waits_for_joins_alone_continues_its_agent():
    waits = [[], [(0, "completion", "spawn", 1.0)], [(1, "completion", "join", 2.0)], []]
    columns = replace_columns(
        toy("0", "1", "0", "5"), session=[0] * 4, extra={"agent": np.array([0, 1, 0, 2])},
        dependencies=Dependencies.of(waits),
    )  # fmt: skip
    chains = chains_of(traced(columns))
    assert chains.chain.tolist() == [0, 1, 0, 2] and chains.kind.tolist() == [MAIN, SPAWNED, ROOT]
    assert chains.join.tolist() == [-1, 2, -1] and chains.alone.tolist() == [0, 1, 0]


def test_requests_without_a_session_are_sessions_of_their_own():
    columns = replace_columns(toy("0", "1", "0"), session=[-1, 0, -1], dependencies=Dependencies.none(3))
    assert chains_of(traced(columns)).session.tolist() == [0, 1, 2]


# -- laws of every sample --------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 12), st.integers(0, 99), st.integers(0, 2), st.sampled_from([0.0, 2.0]), st.booleans(),
    st.integers(1, 30), st.sampled_from(["duration", "rate"]),
)  # fmt: skip
def test_a_sample_is_a_forest_of_sessions(sessions, seed, shared, subagents, agents, wanted, scale):
    source = forest(sessions, seed, shared=shared, subagents=subagents, agents=agents, start_gap_ms=5000.0)
    made = sample(fit_sessions(source), sessions=wanted, seed=seed, scale=scale)
    waits = made.dependencies
    assert made.is_chained and made.block_size == source.block_size and made.tail == source.tail
    assert (waits.row < waits.request).all() and (made.session[waits.row] == made.session[waits.request]).all()
    roots = np.diff(waits.offsets) == 0
    assert len(np.unique(made.session)) == roots.sum() == wanted  # each session is one tree
    assert np.array_equal(computed_arrivals(made)[~roots], made.timestamp[~roots])
    assert (np.diff(np.unique(made.session, return_index=True)[1]) > 0).all()
    assert ("agent" in made.extra) == agents


def test_a_context_grows_by_at_least_the_output_before_as_often_as_in_the_source(source, model):
    def share(trace):
        waits = trace.dependencies
        sequence = waits.relation == SEQUENCE
        request, before = waits.request[sequence], waits.row[sequence]
        return (trace.input_length[request] - trace.input_length[before] >= trace.output_length[before]).mean()

    assert share(sample(model, seed=1)) == pytest.approx(share(source), abs=0.002)


def test_subagents_begin_and_join_as_in_the_source(source, model):
    made = sample(model, seed=3)
    for trace in (source, made):
        waits = trace.dependencies
        first = waits.relation == SPAWN
        assert (trace.extra["agent"][waits.request[first]] > 0).all()
        assert (trace.extra["agent"][waits.row[waits.relation == JOIN]] > 0).all()
        assert (trace.extra["agent"][waits.request[waits.relation == JOIN]] == 0).all()

    def counts(trace):
        return np.bincount(trace.dependencies.relation, minlength=3)

    assert counts(made)[SPAWN] == counts(source)[SPAWN]
    assert counts(made)[JOIN] == pytest.approx(counts(source)[JOIN], rel=0.15)
    widths = [np.bincount(np.bincount(t.dependencies.row[t.dependencies.relation == SPAWN])) for t in (source, made)]
    assert abs(widths[0][1:4] - widths[1][1:4]).sum() <= 4


def test_each_subagent_of_a_join_has_ended_when_the_main_agent_goes_on(model):
    made = sample(model, seed=4)
    waits, service = made.dependencies, np.nan_to_num(made.service_ms)
    joins = waits.relation == JOIN
    assert joins.any()
    assert (made.timestamp[waits.row[joins]] + service[waits.row[joins]] <= made.timestamp[waits.request[joins]]).all()


def test_all_dependencies_of_a_request_have_one_delay(model):
    waits = sample(model, seed=4).dependencies
    for row in np.flatnonzero(np.diff(waits.offsets) > 1).tolist():
        assert len(set(waits.delay_ms[waits.offsets[row] : waits.offsets[row + 1]].tolist())) == 1


# -- fidelity --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 4])
@pytest.mark.parametrize("scale", ["duration", "rate"])
def test_a_sample_keeps_lengths_times_and_hits(source, model, times, scale):
    made = sample(model, sessions=60 * times, seed=5, scale=scale)
    of_source, of_made = figures(source), figures(made)
    for name, values in of_source.items():
        assert of_made[name].mean() == pytest.approx(values.mean(), rel=0.02), name
        assert ks(values, of_made[name]) <= 0.05, name
    assert block_hit_rate(made) == pytest.approx(block_hit_rate(source), abs=0.005)


def test_a_longer_sample_has_the_hits_of_a_cache_of_the_same_size_and_a_denser_one_of_a_larger(source, model):
    capacities = np.array([500, 2000, 5000])
    expected = [hits.block_hit_rate for hits in kvtrace.analysis.hit_curve(source).hits(capacities)]
    for scale, factor in (("duration", 1), ("rate", 3)):
        curve = kvtrace.analysis.hit_curve(sample(model, sessions=180, seed=1, scale=scale))
        found = [hits.block_hit_rate for hits in curve.hits(capacities * factor)]
        assert found == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("seed", range(drawn(5)))
def test_chains_keep_the_bins_of_their_requests(source, model, seed):
    """So the distribution functions of requests of a chain meet at the edges of all bins."""
    of_source, of_made = (chains_of(trace) for trace in (source, sample(model, seed=seed)))
    edges = model.bins["turns"].high
    for kind in (MAIN, SPAWNED):
        counts = [
            np.searchsorted(np.sort(chains.turns[chains.kind == kind]), edges, side="right")
            for chains in (of_source, of_made)
        ]
        assert counts[0].tolist() == counts[1].tolist()
    assert of_source.turns.sum() == of_made.turns.sum()


def test_a_session_has_about_the_subagents_requests_of_a_source_session():
    source = forest(60, seed=3, subagents=2.0)
    below = []
    for trace in (source, sample(fit_sessions(source), seed=1)):
        chains = chains_of(trace)
        session, turns = chains.session[chains.first], np.where(chains.kind == SPAWNED, chains.turns, 0)
        main = np.zeros(60, dtype=np.int64)
        main[session[chains.kind == MAIN]] = chains.turns[chains.kind == MAIN]
        below.append(np.stack([main, np.bincount(session, turns, minlength=60)]))
    assert ks(below[0][1], below[1][1]) <= 0.06
    assert np.corrcoef(below[1])[0, 1] == pytest.approx(np.corrcoef(below[0])[0, 1], abs=0.1)


def test_a_second_line_goes_to_a_session_that_has_time_for_it():
    """The first of four lines has no time in its session. The last is most like it among those that have."""
    chain = {"turns": np.array([9, 9, 9, 9, 30, 5, 31, 30]), "above": np.array([0, 0, 0, 0, 80, 80, 80, 80]),
             "delay": np.array([0, 0, 0, 0, 10, 10, 10, 0])}  # fmt: skip
    lasts = np.array([50, 500, 600, 700, 90, 20, 60, 40])  # chain -> its time
    session, above = np.array([0, 1, 2, 3, 0, 1, 2, 3]), np.array([-1, -1, -1, -1, 0, 1, 2, 3])
    exchange_long_forks(chain, session, above, np.arange(4, 8), lasts)
    assert above[4:].tolist() == session[4:].tolist() == [3, 1, 2, 0]


@pytest.mark.parametrize("shared", [1, 4])
def test_hits_across_sessions_are_kept(shared):
    source = forest(80, seed=6, shared=shared, start_gap_ms=60_000.0)
    made = sample(fit_sessions(source), seed=1)
    assert block_hit_rate(made) == pytest.approx(block_hit_rate(source), abs=0.005)
    firsts = [trace[np.unique(trace.session, return_index=True)[1]] for trace in (source, made)]
    rates = [block_hit_rate(first) for first in firsts]  # of first requests alone: hits across sessions
    assert rates[0] > 0.3 and rates[1] == pytest.approx(rates[0], abs=0.03)


def test_sessions_that_share_nothing_stay_apart(model):
    made = sample(model, seed=1)
    block, session = made.hash_ids, np.repeat(made.session, made.prompt_blocks)
    order = np.lexsort((session, block))
    crossing = (block[order][1:] == block[order][:-1]) & (session[order][1:] != session[order][:-1])
    assert not crossing.any()


def test_starts_of_sessions_keep_their_law():
    together = sample(fit_sessions(forest(10, seed=1)), sessions=10, seed=1)
    apart = sample(fit_sessions(forest(50, seed=1, start_gap_ms=60_000.0)), sessions=50, seed=1)
    starts = [trace.timestamp[np.unique(trace.session, return_index=True)[1]] for trace in (together, apart)]
    assert not starts[0].any()
    assert np.diff(starts[1]).mean() == pytest.approx(60_000, rel=0.05)


def test_coarsened_times_keep_their_step(source):
    coarse = replace_columns(
        source, timestamp=np.floor(source.timestamp / 1000) * 1000, service_ms=np.rint(source.service_ms / 1000) * 1000
    )
    made = sample(fit_sessions(traced(coarse, source.block_size, source.tail)), seed=1)
    assert not (made.timestamp % 1000).any() and not (made.dependencies.delay_ms % 1000).any()


def test_tails_follow_the_source():
    waits = Dependencies.of([[], [(0, "completion", "sequence", 5.0)]])
    columns = kvtrace.trace.Columns(
        [0.0, 9.0], [5, 11], [3, 3], [0, 1, 0, 2, 3], [0, 2, 5], session=[0, 0], dependencies=waits
    )
    made = sample(fit_sessions(traced(columns, 4)), sessions=5, seed=1)
    assert made.tail == "kept" and made.service_ms is None and len(made) == 10
    assert (made.prompt_blocks == -(-made.input_length // 4)).all()


@pytest.mark.skipif("weka" not in NAMES, reason="reads Weka sessions")
@pytest.mark.parametrize("times", [1, 10])
def test_held_out_sessions_of_claude_code_keep_lengths_times_and_hits(shared, times):
    """Every third session, on which nothing was tuned; docs/synthesis/synthesize.md has all figures."""
    whole = kvtrace.read(shared / "data/agents/claude-code")
    source = whole[whole.session % 3 == 2]
    made = sample(fit_sessions(source), sessions=52 * times, seed=1)
    of_source, of_made = figures(source), figures(made)
    for name, values in of_source.items():
        assert of_made[name].mean() == pytest.approx(values.mean(), rel=0.02), name
        assert ks(values, of_made[name]) <= 0.05, name
    assert block_hit_rate(made) == pytest.approx(block_hit_rate(source), abs=0.005)
    capacities = np.array([50_000, 100_000, 200_000])
    of_source, of_made = (
        kvtrace.analysis.hit_curve(source).hits(capacities),
        kvtrace.analysis.hit_curve(made).hits(capacities),
    )
    gaps = [abs(a.block_hit_rate - b.block_hit_rate) for a, b in zip(of_source, of_made, strict=True)]
    assert gaps[0] <= 0.02 and max(gaps[1:]) <= 0.01


# -- sizes, seeds and knobs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sessions", [1, 7, 60, 61, 150])
def test_a_sample_has_the_sessions_asked_for(model, sessions):
    assert len(np.unique(sample(model, sessions=sessions, seed=2).session)) == sessions


@pytest.mark.parametrize("n", [1, 10, 500, 4000])
def test_a_number_of_requests_cuts_the_last_ones(model, n):
    made = sample(model, n, seed=2)
    assert len(made) == n
    roots = np.diff(made.dependencies.offsets) == 0
    assert roots.sum() == len(np.unique(made.session))  # nobody has lost what it waits for


def test_a_seed_gives_the_same_bytes_whatever_the_workers(model, tmp_path):
    written = []
    for workers in (1, 3):
        write_sample(model, None, tmp_path / f"{workers}.jsonl", sessions=150, seed=5, workers=workers)
        written.append((tmp_path / f"{workers}.jsonl").read_bytes())
    assert written[0] == written[1]
    assert sample(model, seed=1) == sample(model, seed=1) != sample(model, seed=2)
    beside = json.loads((tmp_path / "1.jsonl.meta.json").read_text())
    assert beside["synthetic"] == {"method": "sessions", "sessions": 150, "seed": 5, "scale": "duration"}


def test_knobs_change_times_and_outputs(model):
    plain, fast = sample(model, seed=1), sample(model, seed=1, knobs=Knobs(speedup_ratio=4, max_osl=100))
    assert fast.timestamp[-1] == pytest.approx(plain.timestamp[-1] / 4)
    assert fast.output_length.max() <= 100 and np.array_equal(fast.input_length, plain.input_length)
    roots = np.diff(fast.dependencies.offsets) == 0
    assert np.allclose(computed_arrivals(fast)[~roots], fast.timestamp[~roots])


@pytest.mark.parametrize(
    "options, said",
    [
        ({"n": 0}, "the number of requests is 0"),
        ({"sessions": 0}, "the number of sessions is 0"),
        ({"n": 3, "sessions": 3}, "not both"),
        ({"seed": -1}, "the seed is -1"),
        ({"scale": "size"}, "'size' is not a scale"),
        ({"knobs": Knobs(max_isl=10)}, "--max-isl is not supported for sessions"),
        ({"knobs": Knobs(step_rates="1")}, "--step-rates is not supported for sessions"),
    ],
)
def test_bad_values_are_said_in_a_line(model, options, said):
    with pytest.raises(UsageError, match=said):
        sample(model, **options)


def test_sessions_need_a_session_model(source):
    with pytest.raises(UsageError, match="only a model of fit_sessions"):
        sample(kvtrace.synthesis.fit(source), sessions=3)


def test_a_trace_without_dependencies_or_prompts_is_refused():
    with pytest.raises(InputError, match="no dependencies"):
        fit_sessions(toy("0 1"))
    empty = kvtrace.Trace([0.0], [0], [1], [], [0, 0], block_size=4, dependencies=Dependencies.none(1))
    with pytest.raises(InputError, match="no prompts"):
        fit_sessions(empty)


# -- models ----------------------------------------------------------------------------------------------------------


def test_a_saved_model_samples_as_the_fitted_one(model, tmp_path):
    model.save(tmp_path / "model.json.gz")
    assert is_model(tmp_path / "model.json.gz")
    loaded = load_model(tmp_path / "model.json.gz")
    assert isinstance(loaded, SessionModel) and loaded.to_dict() == model.to_dict()
    assert sample(loaded, seed=9) == sample(model, seed=9)


def test_a_model_does_not_show_the_order_of_turns(source, model):
    turns = np.array([model.tables["turns"][name] for name in TURNS])
    assert np.array_equal(np.lexsort(turns[::-1]), np.arange(turns.shape[1]))  # sorted by value
    exchanged = source[np.arange(len(source))]
    other = replace_columns(exchanged, session=source.session.max() - source.session)
    assert fit_sessions(traced(other, source.block_size, source.tail)).to_dict() == model.to_dict()


def test_a_model_has_few_exact_values(model):
    """Above 100, a value has its own bin only if at least one record in 200 has it."""
    for name, bins in model.bins.items():
        uses = np.zeros(len(bins), dtype=np.int64)
        for table, columns in TABLES.items():
            for column in [key for key, of in columns.items() if of == name]:
                uses += np.bincount(model.tables[table][column], minlength=len(bins))
        common = uses >= max(8, uses.sum() / 200)
        beside = np.append(common[1:], False) | np.append(False, common[:-1])  # what a common value leaves of a bin
        exact = (bins.low >= 100) & (bins.low == bins.high)
        assert (common | beside)[exact].all(), name


SMALL = fit_sessions(forest(6, seed=4, subagents=2.0)).to_dict()


def broken(change):
    values = json.loads(json.dumps(SMALL))
    change(values)
    return values


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(schema=1),
        lambda values: values.pop("pace"),
        lambda values: values.update(sessions=0),
        lambda values: values.update(sessions=10**9, rows=10**9),
        lambda values: values.update(tail="torn"),
        lambda values: values["tables"]["turns"]["delay"].__setitem__(0, 10**6),
        lambda values: values["tables"]["turns"]["delay"].pop(),
        lambda values: values["tables"]["chains"]["kind"].__setitem__(0, 4),
        lambda values: values["tables"]["chains"].update(kind=[1] * len(values["tables"]["chains"]["kind"])),
        lambda values: values["tables"]["parts"]["breaks"].__setitem__(0, -1),
        lambda values: values["tables"].update(groups={name: [] for name in values["tables"]["groups"]}),
        lambda values: values["tables"].update(turns={name: [] for name in values["tables"]["turns"]}),
        lambda values: values["starts"].__setitem__(1, 0),
        lambda values: values["starts"].append(10**9),
        lambda values: values["bins"]["turns"]["high"].__setitem__(-1, 1 << 60),
        lambda values: values["columns"].pop("agent"),
    ],
)
def test_a_damaged_model_is_refused(change, tmp_path, capsys):
    path = tmp_path / "model.json"
    path.write_text(json.dumps(broken(change)))
    assert run(["synthesize", str(path), "-o", str(tmp_path / "out.jsonl")]) == 3
    shown = capsys.readouterr()
    assert "not a model of kvtrace" in shown.err and len(shown.err.splitlines()) == 1
    assert not (tmp_path / "out.jsonl").exists()


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "sessions"), [([], 60), (["--sessions", "30"], 30), (["--sessions", "2x"], 120), (["-n", "0.5x"], 30)]
)
def test_the_command_draws_sessions_from_a_model(model, tmp_path, size, sessions):
    model.save(tmp_path / "model.json")
    assert run(["synthesize", str(tmp_path / "model.json"), "-o", str(tmp_path / "more.jsonl"), *size, "-q"]) == 0
    assert len(np.unique(kvtrace.read(tmp_path / "more.jsonl").session)) == sessions


def test_the_method_follows_the_trace(source):
    assert default_method(source) == "sessions" and default_method(toy("0 1")) == "attach"


@pytest.mark.parametrize(
    ("options", "status", "expected"),
    [
        (["-n", "5", "--sessions", "5"], 2, "Use -n or --sessions, not both"),
        (["--sessions", "0"], 2, "the number of sessions is 0"),
        (["--method", "attach"], 2, "is a saved model"),
        (["--min-isl", "7"], 2, "--min-isl is not supported for sessions"),
    ],
)
def test_what_does_not_fit_a_model_is_one_line(model, tmp_path, capsys, options, status, expected):
    model.save(tmp_path / "model.json")
    assert run(["synthesize", str(tmp_path / "model.json"), "-o", str(tmp_path / "x.jsonl"), *options]) == status
    shown = capsys.readouterr()
    assert expected in shown.err and len(shown.err.splitlines()) == 1 and not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("size", ["3", "2x"])
def test_sessions_of_a_trace_without_dependencies_are_refused_in_a_line(tmp_path, capsys, size):
    kvtrace.write(toy("0 1", "0 2", block_size=4), tmp_path / "plain.jsonl")
    words = [str(tmp_path / "plain.jsonl"), "-o", str(tmp_path / "x.jsonl"), "--save-model", str(tmp_path / "x.json")]
    assert run(["synthesize", *words, "--sessions", size, "-q"]) == 2
    assert "--sessions needs a trace with sessions and dependencies" in capsys.readouterr().err
    assert not (tmp_path / "x.jsonl").exists() and not (tmp_path / "x.json").exists()
