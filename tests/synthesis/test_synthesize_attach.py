"""The attach method: what is kept of a trace, and streams that are made of it."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace._native import growth as kernel
from kvtrace.analysis.arrivals import dispersion
from kvtrace.synthesis.arrival_times import ArrivalClock, Pace, step_arrivals
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.attach_model import Model
from kvtrace.synthesis.bins import FEW, Bins
from kvtrace.synthesis.drawing import AttachStream
from kvtrace.trace.building import concat, toy
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from tests.conftest import drawn
from tests.reference import attach as slow
from tests.strategies import traces


def has_prompts(trace):
    return bool(trace.input_length.any())


def seeds(number=1):
    return np.random.SeedSequence(number)


def rng(number=1):
    return np.random.default_rng(number)


def stream(model, rows, seed=1, **named):
    return list(AttachStream(model, seeds(seed), **named).chunks(rows))


def trace_of(model, drafts):
    """The drafts as a trace, as they are."""
    joined = {
        name: np.concatenate([getattr(draft, name) for draft in drafts])
        for name in ("arrival", "blocks", "tail", "output_length", "session", "parent")
    }
    blocks = np.concatenate([draft.path_blocks for draft in drafts])
    columns = Columns(
        joined["arrival"], (blocks - 1) * model.block_size + joined["tail"], joined["output_length"],
        joined["blocks"].astype(np.int64), np.concatenate([[0], np.cumsum(blocks)]), joined["session"],
        joined["parent"],
    )  # fmt: skip
    return Trace.from_columns(columns, block_size=model.block_size)


def draw(trace, rows=None, seed=1):
    model = fit(trace)
    return trace_of(model, stream(model, rows or len(trace), seed))


# -- the walk ----------------------------------------------------------------------------------------------------


def prompts_of(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


@given(traces())
def test_the_walk_equals_its_twin(trace):
    unseen = (trace.input_length % 3 == 0).astype(np.int64)
    for parent in (None, trace.parent):
        found = kernel.walk(trace.hash_ids, trace.offsets, unseen, parent, trace.distinct)
        assert list(zip(*(part.tolist() for part in found), strict=True)) == slow.walk(
            prompts_of(trace), unseen.tolist(), parent
        )


def test_the_walk_notes_where_a_request_leaves_the_forest():
    trace = toy("0 1 2", "3 4", "0 1 5", "0 1 5 6")
    hits, kind, _ = kernel.walk(trace.hash_ids, trace.offsets, np.zeros(4), None, trace.distinct)
    assert hits.tolist() == [0, 0, 2, 3]
    #  1: one block from the end of the last path, used once;  5: at its end, used once
    assert kind.tolist() == [0, 0, 3, 0]


def test_a_prefix_that_many_share_is_no_conversation():
    trace = toy("0 1", "0 2", "0 3", "0 4", "0 1 5")  # four ways lead on from 0, one from 1
    *_, continues = kernel.walk(trace.hash_ids, trace.offsets, np.zeros(5), None, trace.distinct)
    assert continues.tolist() == [0, 0, 0, 0, 1]


# -- bins --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200))
def test_a_draw_lies_in_the_bin_of_its_value(values):
    bins = Bins.of(np.array(values))
    codes = bins.codes(np.array(values))
    drawn = bins.draw(codes, rng())
    assert ((bins.low[codes] <= drawn) & (drawn <= bins.high[codes])).all()
    assert ((bins.low[codes] <= values) & (values <= bins.high[codes])).all()
    assert (bins.high - bins.low <= 0.07 * bins.low).all()


def test_draws_have_the_mean_of_the_rows():
    values = np.concatenate([np.arange(1000, 1010), np.arange(1000, 1060)]).repeat(100)
    bins = Bins.of(values, width=100)
    assert bins.draw(bins.codes(values), rng()).mean() == pytest.approx(values.mean(), abs=1)


def test_a_value_that_few_rows_have_moves_no_draw():
    assert Bins.of(np.full(FEW - 1, 1000)).power.tolist() == [1]  # even
    assert Bins.of(np.full(FEW, 1000)).low.tolist() == [1000]  # and one that many have is kept


# -- arrivals ----------------------------------------------------------------------------------------------------


@given(traces(), st.integers(1, 300))
def test_a_clock_never_goes_back_and_keeps_the_duration(trace, rows):
    pace = Pace.of(trace.timestamp)
    assert (np.diff(ArrivalClock(pace, rng()).take(rows)) >= 0).all()
    times = ArrivalClock(pace, rng()).take(len(trace))
    assert times[-1] == pytest.approx(pace.duration.sum() / 1000)


def test_all_at_once_stays_all_at_once():
    assert not ArrivalClock(Pace.of(np.zeros(250)), rng()).take(600).any()


def test_gaps_under_a_millisecond_stay():
    times = ArrivalClock(Pace.of(np.arange(500) * 0.25), rng()).take(500)
    assert len(np.unique(times)) == 500
    assert times[-1] - times[0] == pytest.approx(124.75, rel=0.01)


def test_the_rate_drifts_as_it_did():
    slow_then_fast = np.concatenate([np.arange(1000) * 100.0, 1e5 + np.arange(1000) * 10.0])
    times = ArrivalClock(Pace.of(slow_then_fast), rng()).take(2000)
    assert times[999] == pytest.approx(1e5, rel=0.02)
    assert times[1999] == pytest.approx(1.1e5, rel=0.02)


def test_a_large_trace_keeps_its_rate():
    timestamp = np.cumsum(rng().exponential(10, size=250_000))
    timestamp -= timestamp[0]
    pace = Pace.of(timestamp)
    assert len(pace.gap) < 150_000
    times = ArrivalClock(pace, rng(2)).take(250_000)
    assert times[-1] == pytest.approx(timestamp[-1], rel=0.01)
    assert dispersion(times, 10_000) == pytest.approx(dispersion(timestamp, 10_000), rel=0.15)


def test_step_rates_are_rates():
    times = step_arrivals("10@100s, 0@1m, 50@20000ms, 1", rng(), 2100)
    counts = np.histogram(times, [0, 100e3, 160e3, 180e3, np.inf])[0]
    assert counts[1] == 0 and abs(counts[0] - 1000) < 130 and abs(counts[2] - 1000) < 130
    assert counts.sum() == 2100 and (np.diff(times) >= 0).all()


NO_RATES = ["", "fast", "10@", "10@60s,", "-1@5s,2", "1@-5s,2", "10@x,2", "5,6", "5@10s,0", "inf", "nan"]


@pytest.mark.parametrize("text", NO_RATES)
def test_step_rates_that_say_nothing_are_refused(text):
    with pytest.raises(UsageError, match="--step-rates"):
        step_arrivals(text, rng(), 10)


# -- the model ---------------------------------------------------------------------------------------------------


@given(traces().filter(has_prompts))
def test_a_model_read_back_draws_the_same(trace):
    model = fit(trace)
    again = Model.from_dict(json.loads(json.dumps(model.to_dict())))
    assert again.to_dict() == model.to_dict()
    assert trace_of(model, stream(model, 20)) == trace_of(again, stream(again, 20))


@pytest.mark.parametrize("name", ["model.json", "model.json.gz", "model.json.zst"])
def test_a_model_is_one_file(tmp_path, name):
    model = fit(toy("0 1", "0 2", "0 2 3"))
    model.save(tmp_path / name)
    assert Model.load(tmp_path / name).to_dict() == model.to_dict()


def broken(change):
    model = fit(toy("0 1", "0 2", "0 2 3")).to_dict()
    change(model)
    return model


BROKEN = {
    "no JSON": "{",
    "a list": [],
    "foreign": {"what": "a trace"},
    "newer": broken(lambda m: m.update(schema=99)),
    "no rows": broken(lambda m: m.pop("rows")),
    "negative rows": broken(lambda m: m.update(rows=-1)),
    "odd tail": broken(lambda m: m.update(tail="curly")),
    "a code beyond its bins": broken(lambda m: m["records"]["hits"].__setitem__(0, 99)),
    "columns of two lengths": broken(lambda m: m["records"]["distance"].pop()),
    "odd corrections": broken(lambda m: m["correction"].pop()),
    "bins that fall": broken(lambda m: m["bins"]["new"]["low"].reverse()),
    "no path": broken(lambda m: m["bins"]["new"].update(low=[0], high=[0], power=[1.0])),
    "no window": broken(lambda m: m.update(starts=[0], window_rows=[])),
    "no events": broken(lambda m: m["pace"].update(starts=[0, 0], gap=[], batch=[])),
    "a deck of nothing": broken(lambda m: m.update(outputs=[[[0], [0]]])),
    "text for numbers": broken(lambda m: m["records"].update(kind=["a", "b", "c"])),
}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_model_is_refused(tmp_path, content):
    path = tmp_path / "model.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(InputError, match=r"model\.json: not a model"):
        Model.load(path)


def test_nothing_to_fit_is_refused():
    with pytest.raises(InputError, match="no prompts"):
        fit(toy())
    with pytest.raises(InputError, match="do not form a forest"):
        fit(toy("0 1 2", "3 1 2"))


def test_a_model_holds_no_ids_and_no_order_of_requests():
    trace = toy(*("0 1 2", "3 4 5 6", "0 1 7") * 5)
    shuffled = fit(trace).to_dict()["records"]
    assert "hash_ids" not in json.dumps(fit(trace).to_dict())
    rows = list(zip(*shuffled.values(), strict=True))
    assert rows == sorted(rows)


# -- streams -----------------------------------------------------------------------------------------------------


@settings(max_examples=drawn(60))
@given(traces().filter(has_prompts), st.integers(1, 60), st.integers(0, 3))
def test_a_stream_is_sound(trace, rows, seed):
    model = fit(trace)
    drafts = stream(model, rows, seed)
    assert sum(len(draft) for draft in drafts) == rows
    new, tokens = 0, {}
    for draft in drafts:
        assert ((draft.tail >= 1) & (draft.tail <= model.block_size)).all()
        assert (draft.input_length(model.block_size) >= model.smallest).all()
        for row in range(len(draft)):
            path = draft.blocks[draft.offsets[row] : draft.offsets[row + 1]].tolist()
            fresh = [block for block in path if block >= new]
            assert path[len(path) - len(fresh) :] == fresh == list(range(new, new + len(fresh)))
            new += len(fresh)
            sizes = [model.block_size] * (len(path) - 1) + [int(draft.tail[row])]
            assert all(tokens.setdefault(block, size) == size for block, size in zip(path, sizes, strict=True))
    made = trace_of(model, drafts)  # whose invariants hold
    assert made.is_chained and (made.session >= 0).all()
    turns = made.parent >= 0
    assert (made.session[made.parent[turns]] == made.session[turns]).all()
    assert trace_of(model, stream(model, rows, seed)) == made


def test_a_seed_is_a_stream():
    model = fit(toy(*(" ".join(map(str, [0, *range(20 * i, 20 * i + i % 7)])) for i in range(1, 40))))
    assert trace_of(model, stream(model, 50, 1)) != trace_of(model, stream(model, 50, 2))


def test_a_trace_without_reuse_stays_without():
    assert kvtrace.trace.unlimited_hits(draw(toy(*map(str, range(30))), 100)).sum() == 0


def test_every_record_is_used_once_a_round():
    trace = toy(*("0 1 2", "0 1 2 3 4", "5 6") * 40)
    found = draw(trace)
    assert sorted(found.prompt_blocks) == sorted(trace.prompt_blocks)
    assert sorted(found.output_length) == sorted(trace.output_length)
    twice = draw(trace, 2 * len(trace))
    assert sorted(twice.prompt_blocks) == sorted(np.tile(trace.prompt_blocks, 2))


def test_types_are_carried():
    trace = toy(*("0 1", "2 3 4") * 30)
    named = Trace.from_columns(
        Columns(trace.timestamp, trace.input_length, trace.output_length, trace.hash_ids, trace.offsets,
                extra={"type": np.array(["text", "file"] * 30, dtype=object)}), block_size=1)  # fmt: skip
    [draft] = stream(fit(named), 60)
    assert {kind: set(draft.path_blocks[draft.extra["type"] == kind]) for kind in ("text", "file")} == {
        "text": {2}, "file": {3}}  # fmt: skip


def test_sessions_have_as_many_turns_as_given():
    trace = concat([toy("0 1", "0 1 2", "0 1 2 3")] * 50, gap_ms=1)
    columns = Columns(trace.timestamp, trace.input_length, trace.output_length, trace.hash_ids, trace.offsets,
                      session=np.repeat(np.arange(50), 3))  # fmt: skip
    found = draw(Trace.from_columns(columns, block_size=1), 1500)
    assert len(np.unique(found.session)) == pytest.approx(500, rel=0.02)


def test_dropped_tails_are_new_blocks():
    columns = Columns(np.arange(3.0), [5, 6, 9], [1, 1, 1], [0, 0, 0, 1], [0, 1, 2, 4])
    model = fit(Trace.from_columns(columns, block_size=4, tail="dropped"))
    assert model.bins["new"].low[model.records["new"]].tolist() == [2, 1, 2]  # in the order hits 0, 1, 1
    [draft] = stream(model, 3)
    assert (draft.tail < 4).all()


def test_lengths_that_are_not_accepted_are_drawn_again():
    model = fit(toy(*(" ".join(str(10 * i + k) for k in range(i % 9 + 1)) for i in range(200))))
    free, bound = stream(model, 400), stream(model, 400, accept=lambda length: (length >= 3) & (length <= 5))
    lengths = np.concatenate([draft.input_length(1) for draft in bound])
    assert lengths.min() == 3 and lengths.max() == 5
    assert np.array_equal(bound[0].arrival, free[0].arrival)  # neither the rate nor the end is lost


def test_a_window_without_an_accepted_length_borrows_from_the_nearest():
    short_then_long = toy(*map(str, range(150)), *(f"{200 + 2 * i} {201 + 2 * i}" for i in range(150)))
    drafts = stream(fit(short_then_long), 300, accept=lambda length: length == 2)
    assert all((draft.path_blocks == 2).all() for draft in drafts)


def test_limits_that_nothing_meets_are_refused():
    with pytest.raises(InputError, match="no prompt of the model"):
        stream(fit(toy("0 1", "0 2")), 10, accept=lambda length: length > 99)


def test_a_large_trace_has_a_small_model():
    rows = 150_000
    numbers = np.arange(rows)
    columns = Columns(numbers * 10.0, rng().integers(1, 5, rows), rng(2).integers(1, 999, rows), numbers,
                      np.arange(rows + 1))  # fmt: skip
    model = fit(Trace.from_columns(columns, block_size=8))
    assert len(model.records["hits"]) <= 100_000
    assert model.window_rows.sum() == rows
    drafts = stream(model, rows)
    assert np.concatenate([d.input_length(8) for d in drafts]).mean() == pytest.approx(2.5, rel=0.01)


# -- the conversation trace --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def conversation(shared):
    return kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")


@pytest.fixture(scope="module")
def model(conversation):
    return fit(conversation)


def rates(hits):
    return [hits.request_hit_rate, hits.block_hit_rate, hits.token_hit_rate]


def assert_same_lengths(found, wanted, mean, spread):
    for name in ("input_length", "output_length"):
        assert getattr(found, name).mean() == pytest.approx(getattr(wanted, name).mean(), rel=mean)
    for statistic in (np.median, np.std):
        assert statistic(found.input_length) == pytest.approx(statistic(wanted.input_length), rel=spread)


def spearman(trace):
    def rank(values):
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[which]

    return np.corrcoef(rank(trace.input_length), rank(trace.output_length))[0, 1]


def test_the_conversation_trace_is_drawn_faithfully(conversation, model):
    capacities, spread = [2000, 10_000, 50_000], []
    wanted = kvtrace.analysis.hit_curve(conversation)
    for seed in range(5):
        found = trace_of(model, stream(model, len(conversation), seed))
        assert_same_lengths(found, conversation, mean=0.01, spread=0.02)
        assert spearman(found) == pytest.approx(spearman(conversation), abs=0.02)
        curve = kvtrace.analysis.hit_curve(found)
        assert rates(curve.at(10**9)) == pytest.approx(rates(wanted.at(10**9)), abs=0.005)
        lru = [[hits.block_hit_rate for hits in one.hits(capacities)] for one in (curve, wanted)]
        assert lru[0] == pytest.approx(lru[1], abs=0.01)
        spread.append(dispersion(found.timestamp, 60_000))
    bursts = dispersion(conversation.timestamp, 60_000)
    assert np.mean(spread) == pytest.approx(bursts, rel=0.15)
    assert spread == pytest.approx([bursts] * 5, rel=0.3)


def test_hit_rates_do_not_drift_with_the_number_of_requests(conversation, model):
    found = trace_of(model, stream(model, 10 * len(conversation)))
    assert_same_lengths(found, conversation, mean=0.007, spread=0.02)
    assert spearman(found) == pytest.approx(spearman(conversation), abs=0.02)
    curves = [kvtrace.analysis.hit_curve(trace) for trace in (found, conversation)]
    assert rates(curves[0].at(10**9)) == pytest.approx(rates(curves[1].at(10**9)), abs=0.005)
    lru = [[hits.block_hit_rate for hits in curve.hits([2000, 10_000, 50_000])] for curve in curves]
    assert lru[0] == pytest.approx(lru[1], abs=0.01)


def turns(trace):
    """The input lengths of each session of two turns or more, in order."""
    order = np.argsort(trace.session, kind="stable")
    parts = np.split(trace.input_length[order], np.flatnonzero(np.diff(trace.session[order])) + 1)
    return [tuple(part.tolist()) for part in parts if len(part) > 1]


def with_sessions(trace):
    """The trace with the sessions that the method infers."""
    hits, _, continues = kernel.walk(trace.hash_ids, trace.offsets, np.zeros(len(trace)), None, trace.distinct)
    session, last = np.arange(len(trace)), {}
    for row in range(len(trace)):
        path = trace.prompt(row)
        if continues[row]:
            session[row] = session[last[path[hits[row] - 1]]]
        last.update(dict.fromkeys(path.tolist(), row))
    return Columns(trace.timestamp, trace.input_length, trace.output_length, trace.hash_ids, trace.offsets, session)


def test_no_row_and_no_session_is_copied(conversation, model):
    def pairs(input_length, output_length):
        return list(zip(input_length.tolist(), output_length.tolist(), strict=True))

    found, source = trace_of(model, stream(model, len(conversation))), conversation
    known = set(pairs(source.input_length, source.output_length))
    shares = [
        np.mean([pair in known for pair in pairs(lengths, outputs)])
        for lengths, outputs in (
            (found.input_length, found.output_length),
            (rng().permutation(source.input_length), rng(2).permutation(source.output_length)),
        )
    ]
    assert shares[0] <= shares[1] + 0.02
    theirs, ours = turns(with_sessions(source)), turns(found)
    assert not set(theirs) & set(ours)
    assert len(ours) == pytest.approx(len(theirs), rel=0.15)


def test_the_model_of_the_conversation_trace_is_small(model, tmp_path):
    model.save(tmp_path / "model.json")
    assert (tmp_path / "model.json").stat().st_size < 300_000
