"""Times for logs without any: conversations begin as a Poisson process, turns follow after exponential waits."""

import importlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import RowError, UsageError
from kvtrace.ingest.logs import sources
from kvtrace.ingest.logs.times import NO_TIME, ArrivalModel
from tests.reference import arrival_model as reference

TINY = str(Path(__file__).parents[1] / "data/tokenizers/tiny")
conversations = st.lists(st.integers(-1, 5), min_size=1, max_size=40)


def times_ns(conversation, **options):
    model = ArrivalModel(**({"rate": 2.0, "think_ms": 1000.0} | options))
    return model.times_ns(np.full(len(conversation), NO_TIME), np.array(conversation, dtype=np.int64))


@given(conversations, st.floats(1e-3, 1e3), st.floats(0, 1e6), st.integers(0, 2**32))
def test_times_are_those_of_the_twin(conversation, rate, think_ms, seed):
    expected = reference.times_s(conversation, rate, think_ms / 1000, seed)
    found = times_ns(conversation, rate=rate, think_ms=think_ms, seed=seed) / 1e9
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-6)


@given(conversations, st.integers(0, 1000))
def test_turns_of_a_conversation_rise_and_conversations_begin_in_the_log_s_order(conversation, seed):
    times = times_ns(conversation, seed=seed)
    names = [f"alone {row}" if name < 0 else name for row, name in enumerate(conversation)]
    by_name = {name: [time for time, other in zip(times, names, strict=True) if other == name] for name in names}
    assert all(turns == sorted(turns) for turns in by_name.values())
    begun = [turns[0] for turns in by_name.values()]  # a dict keeps the order of first appearance
    assert begun == sorted(begun) and times.dtype == np.int64 and (times >= 0).all()


@given(conversations, st.integers(0, 1000))
def test_times_depend_on_the_seed_but_not_on_conversation_numbers(conversation, seed):
    times = times_ns(conversation, seed=seed)
    assert times.tolist() == times_ns(conversation, seed=seed).tolist()
    renamed = [name if name < 0 else 90 - name for name in conversation]
    np.testing.assert_allclose(times_ns(renamed, seed=seed), times, atol=1000)  # ns: sums in another order
    assert times.tolist() != times_ns(conversation, seed=seed + 1).tolist()


def test_the_rate_and_the_mean_think_time_are_those_of_the_model():
    n, turns = 20_000, 4
    times = times_ns(np.repeat(np.arange(n), turns), rate=5.0, think_ms=30_000.0).reshape(n, turns) / 1e9
    gaps = np.diff(times[:, 0])
    waits = np.diff(times, axis=1).ravel()
    for values, mean in ((gaps, 1 / 5), (waits, 30.0)):  # an exponential's deviation is its mean
        assert values.mean() == pytest.approx(mean, rel=5 / math.sqrt(len(values)))
        assert values.std() == pytest.approx(mean, rel=10 / math.sqrt(len(values)))


def test_times_of_the_log_s_own_stay_and_a_mixture_is_refused():
    model, alone = ArrivalModel(1.0), np.array([-1, -1])
    assert model.times_ns(np.array([5, 3]), alone).tolist() == [5, 3]
    assert model.times_ns(np.array([], dtype=np.int64), np.array([], dtype=np.int64)).tolist() == []
    with pytest.raises(RowError, match=r"some requests have times and others have none. Leave out --arrivals"):
        model.times_ns(np.array([5, NO_TIME]), alone)


def test_a_model_is_written_as_pairs():
    assert ArrivalModel.parse("rate=2/s, think=30s, seed=7") == ArrivalModel(2.0, 30_000.0, 7)
    assert ArrivalModel.parse("rate=0.5") == ArrivalModel(0.5)
    said = ArrivalModel.parse("rate=2/s,think=1m").describe()
    assert said == {"model": "poisson", "conversations_per_s": 2.0, "mean_think_ms": 60_000.0, "seed": 0}


@pytest.mark.parametrize(
    "text",
    ["", "2/s", "think=3s", "rate=", "rate=0", "rate=-1/s", "rate=nan", "rate=inf", "rate=2/m", "rate=2/s,seed=x",
     "rate=2/s,seed=-1", "rate=2/s,pace=3", "rate=2/s,think=fast", "rate=2/s,think="],
)  # fmt: skip
def test_an_invalid_arrival_model_is_refused(text):
    with pytest.raises(UsageError):
        ArrivalModel.parse(text)


def test_any_number_of_workers_gives_the_same_times(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.import_module("kvtrace.ingest.pipeline"), "SMALL", 0)
    monkeypatch.setattr(sources, "PIECE_BYTES", 2000)
    path = tmp_path / "chats.jsonl"
    with path.open("w") as file:
        for i in range(200):
            turns = [{"from": "gpt" if j % 2 else "human", "value": f"{i} {j}"} for j in range(2 + 2 * (i % 4))]
            file.write(json.dumps({"conversations": turns}) + "\n")
    options = {"tokenizer": TINY, "block_size": 4, "profile": "exact"}
    found = [kvtrace.ingest.anonymize(path, arrivals="rate=2/s", workers=n, **options) for n in (1, 3)]
    assert len(found[0]) == 500
    for name in ("timestamp", "session", "input_length", "hash_ids"):
        assert getattr(found[0], name).tolist() == getattr(found[1], name).tolist()
