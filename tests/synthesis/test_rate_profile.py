"""Rates over a day: files, and arrivals that follow them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace.synthesis import Knobs, RateProfile, mix, read_rates
from kvtrace.synthesis.arrival_processes import Flow
from kvtrace.synthesis.attach_fitting import fit
from kvtrace.synthesis.sampling import sample
from kvtrace.synthesis.tree import fit_tree
from tests.synthesis.test_mixtures import synthesize
from tests.synthesis.test_synthesize import talks

DAY = RateProfile([0, 3600, 7200], [0.2, 1.0, 0.0], period_s=10_800)  # an hour of each; the last one is a pause


@pytest.fixture(scope="module")
def model():
    return fit(talks())


FIRST_S = 20  # the first arrival, about, is time 0 of a sample


def counts_by_step(trace, profile):
    times = (trace.timestamp / 1000 + FIRST_S) % profile.period_s
    return np.bincount(np.searchsorted(profile.times_s, times, side="right") - 1, minlength=len(profile.rates))


@pytest.mark.parametrize("scale", ["duration", "rate"])
@pytest.mark.parametrize("kind", ["attach", "tree", "mixture"])
def test_arrivals_follow_the_profile(model, kind, scale):
    of = {"attach": model, "tree": fit_tree(talks()), "mixture": mix([model, fit(talks(200, seed=8))], tenants=9)}[kind]
    trace = sample(of, 8500, seed=3, scale=scale, knobs=Knobs(rates=DAY))  # two periods
    quiet, busy, pause = counts_by_step(trace, DAY)
    for count, expected in ((quiet, 1440), (busy, 8500 - 1440)):  # the dispersion of these bursts is below 3
        assert abs(count - expected) < 5 * np.sqrt(3 * expected)
    assert pause <= 2 * FIRST_S  # the shift of both periods, at 1 request per second
    assert trace.timestamp[-1] / 1000 == pytest.approx(10_800 + 7200, rel=0.05)


def test_relative_rates_have_the_mean_of_the_model(model):
    relative = RateProfile([0, 600], [1, 3], period_s=1200, relative=True)
    trace = sample(model, 6000, seed=3, knobs=Knobs(rates=relative))
    assert 6000 / trace.timestamp[-1] == pytest.approx(mix([model]).rate, rel=0.05)
    low, high = counts_by_step(trace, relative)
    assert high / low == pytest.approx(3, rel=0.15)


def test_constant_relative_rates_keep_the_bursts(model):
    """Requests that arrive together still do; a Poisson process has none."""
    batches = fit(kvtrace.Trace.from_columns(in_pairs(talks()), block_size=16))
    trace = sample(batches, 1000, knobs=Knobs(rates=RateProfile([0], [1], relative=True)))
    assert len(np.unique(trace.timestamp)) < 600


def in_pairs(trace):
    trace.timestamp = np.repeat(trace.timestamp[::2], 2)
    return trace


@given(
    steps=st.lists(st.tuples(st.floats(0.1, 1e4), st.floats(0, 1e3)), min_size=1, max_size=8).filter(
        lambda steps: any(rate > 0.01 for _, rate in steps)
    ),
    shares=st.lists(st.floats(0, 3), min_size=1, max_size=8),
)
def test_the_time_of_a_count_is_when_the_flow_reaches_it(steps, shares):
    ends, rates = np.cumsum([step for step, _ in steps]), [rate for _, rate in steps]
    flow = RateProfile([0.0, *ends[:-1]], rates, period_s=float(ends[-1])).flow(1.0)
    counts = np.sort(shares) * flow.count[-1]
    times = flow.time_at(counts)
    assert (np.diff(times) >= 0).all()
    assert np.allclose(flow.count_at(times), counts, rtol=1e-6, atol=1e-6 * float(flow.count[-1]))


def test_a_flow_may_jump():
    flow = Flow(np.array([0.0, 10.0, 10.0, 20.0]), np.array([0.0, 5.0, 50.0, 60.0]))  # 45 requests at 10 ms
    assert flow.time_at(np.array([5.0, 30.0, 55.0])).tolist() == [10.0, 10.0, 15.0]
    assert flow.count_at(np.array([9.0, 10.0])).tolist() == [4.5, 50.0]


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "times", "rates", "period"),
    [
        ("time,rate\n0,1\n60,2\n", (0, 60), (1, 2), 86_400),
        ("time,rate\n08:00,5\n20:30:15,1\n", (0, 28_800, 73_815), (1, 5, 1), 86_400),  # midnight has the last rate
        ("Rate,Time\n5,8h\n", (0, 28_800), (5, 5), 86_400),
        ('{"time": 0, "rate": 1}\n{"time": "90m", "rate": 2.5}\n', (0, 5400), (1, 2.5), 86_400),
        ("\ufefftime,rate,note\n0,1,night\n\n172800,2,day\n", (0, 172_800), (1, 2), 345_600),
    ],
)
def test_files_that_are_read(tmp_path, text, times, rates, period):
    (tmp_path / "day").write_text(text, encoding="utf-8")
    found = read_rates(tmp_path / "day")
    assert (found.times_s, found.rates, found.period_s, found.relative) == (times, rates, period, False)


def test_a_period_is_a_number_of_seconds_or_a_duration(tmp_path):
    (tmp_path / "day").write_text("time,relative\n0,1\n60,2\n")
    assert (
        read_rates(tmp_path / "day", period=120).period_s == read_rates(tmp_path / "day", period="2m").period_s == 120
    )
    for period in (0, -5, "soon", "nan", "0s"):
        with pytest.raises(UsageError):
            read_rates(tmp_path / "day", period=period)
    with pytest.raises(InputError, match="is not before the end of the period"):
        read_rates(tmp_path / "day", period=60)


BAD = {
    b"": "the file has no rates",
    b"\n\n": "the file has no rates",
    b"time,rate\n": "the file has no rates",
    b"0,1\n60,2\n": "the first line must name the columns",
    b"time,time,rate\n0,0,1\n": "the first line must name the columns",
    b"time,speed\n0,1\n": ":2: a rate profile needs the columns",
    b"time,rate,relative\n0,1,2\n": ":2: a rate profile needs the columns",
    b"time,rate\n0\n": ":2: 1 values for 2 columns",
    b"time,rate\n0,fast\n": ":2: the rate is not valid",
    b"time,rate\n0,-1\n": ":2: the rate is not valid",
    b"time,rate\n0,nan\n": ":2: the rate is not valid",
    b"time,rate\n0,1e300\n": ":2: the rate is not valid",
    b"time,rate\nnoon,1\n": ":2: the time is not valid",
    b"time,rate\n12:75,1\n": ":2: the time is not valid",
    b"time,rate\n-1,1\n": ":2: the time is not valid",
    b"time,rate\n60,1\n0,2\n": ":3: the time is not after the one before it",
    b"time,rate\n0,1\n0,2\n": ":3: the time is not after the one before it",
    b"time,rate\n0,0\n60,0\n": "all rates of the profile are 0",
    b'{"time": 0, "rate": 1}\n[]\n': ":2: the line is not a JSON object",
    b'{"time": 0, "rate": 1}\n{"time": 5, "relative": 1}\n': ":2: some rows have a rate and others a relative rate",
    b'{"time": 0, "rate": true}\n': ":1: the rate is not valid",
    b'{"time": [0], "rate": 1}\n': ":1: the time is not valid",
    b'{"time": 0, "rate": {}}\n': ":1: the rate is not valid",
    b"\xff\xfe\x00": "it is not UTF-8 text",
    b"[" * 100_000: "the first line must name the columns",
    b'{"a":' * 100_000: ":1: the line is not a JSON object",
}


@pytest.mark.parametrize("content", BAD, ids=range(len(BAD)))
def test_bad_files_are_refused_with_one_line(tmp_path, content, monkeypatch, capsys, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.csv").write_bytes(content)
    model.save("m.json")
    assert synthesize("m.json --rates day.csv -o t.jsonl") == 3
    error = capsys.readouterr().err
    assert BAD[content] in error and error.count("\n") == 1 and "day.csv" in error
    assert not (tmp_path / "t.jsonl").exists()


def test_rates_do_not_go_with_other_rates_or_sessions(tmp_path, monkeypatch, capsys, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "day.csv").write_text("time,rate\n0,1\n")
    model.save("m.json")
    assert synthesize("m.json --rates day.csv --step-rates 5@1m,2 -o t.jsonl") == 2
    assert "--rates and --step-rates both state the rates" in capsys.readouterr().err
    assert synthesize("m.json --rates missing.csv -o t.jsonl") == 3


@pytest.mark.parametrize(
    "wrong", [((), ()), ((0,), ()), ((1,), (1,)), ((0, 0), (1, 1)), ((0, 99_999), (1, 1)), ((0,), (0,))]
)
def test_wrong_profiles_are_refused(wrong):
    with pytest.raises(InputError):
        RateProfile(*wrong)
