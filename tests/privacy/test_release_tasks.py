"""A folder of parts is released by tasks to what the whole trace is released to in one place."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.formats.dataset import DatasetWriter, open_dataset
from kvtrace.privacy.profiles import profile
from kvtrace.privacy.release_tasks import release_dataset
from kvtrace.privacy.releases import release
from kvtrace.trace.building import TraceBuilder
from kvtrace.trace.trace import Trace
from kvtrace.trace.trace_figures import figures
from tests.ingest.test_pipeline_tasks import Here
from tests.strategies import traces

pytest.importorskip("pyarrow")
NAMES = ("timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent")


def folder_of(trace, path, rows=3):
    with DatasetWriter(path, block_size=trace.block_size, tail=trace.tail, meta=trace.meta, rows=rows) as writer:
        writer.add(trace)
    return open_dataset(path)


def in_tasks(parts, path, chosen, *, partitions=None, users=None, share=1.0, seed=5):
    rng = np.random.default_rng(seed)
    options = {"users": users, "session_share": share, "rng": rng, "partitions": partitions}
    with release_dataset(parts, chosen, runner=Here(), work=path / "work", **options) as made:
        whole = TraceBuilder()
        for columns in made.columns():
            whole.add(columns)
        columns = whole.columns()
        extra = {name: values.tolist() for name, values in columns.extra.items()}
        found = {name: getattr(columns, name) for name in NAMES}, extra, made.meta, made.figures, made.account.notes
    assert not (path / "work").exists()
    return found


def same(found, done):
    columns, extra, meta, figured, notes = found
    for name, values in columns.items():
        expected = getattr(done.trace, name)
        assert (values is None) == (expected is None) and (values is None or values.tolist() == expected.tolist()), name
    assert extra == {name: values.tolist() for name, values in done.trace.extra.items()}
    assert json.dumps(done.trace.meta | done.meta) == json.dumps(meta) and figured == figures(done.trace)
    assert notes == done.notes
    return True


@st.composite
def held(draw):
    """A trace that knows its sessions, or its users; no blocks of outputs."""
    trace = draw(traces())
    none = dict.fromkeys(("output_ids", "output_offsets", "session", "parent"))
    columns = kvtrace.trace.columns.replace_columns(trace, extra={}, **none)
    count = len(trace)
    if draw(st.booleans()):
        columns.session = np.array(draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)))
        columns.extra["turn"] = np.arange(count)
    if draw(st.booleans()):
        words = st.sampled_from(["text", "coder", "other", "a word of nobody's"])
        columns.extra["type"] = np.array(draw(st.lists(words, min_size=count, max_size=count)), dtype=object)
    users = np.array(draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
    users[0] = 0
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail), users


NEW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


CHANGES = [{}, {"tail": "dropped"}, {"k": 2}, {"tail": "kept"}]


@NEW
@given(held(), st.sampled_from(["standard", "strict"]), st.sampled_from(CHANGES), st.integers(1, 5))
def test_parts_are_released_as_the_whole_is(tmp_path_factory, both, name, changed, partitions):
    trace, users = both
    path, chosen = tmp_path_factory.mktemp("parts"), profile(name, **changed)
    parts = folder_of(trace, path / "t.dataset")
    whole = parts.trace()
    assert same(in_tasks(parts, path, chosen, partitions=partitions, users=users), release(whole, chosen, users=users))


@NEW
@given(held(), st.integers(1, 5), st.integers(0, 99))
def test_a_sample_holds_the_same_sessions(tmp_path_factory, both, partitions, seed):
    trace, users = both
    path, chosen = tmp_path_factory.mktemp("parts"), profile("standard")
    parts = folder_of(trace, path / "t.dataset")
    options = {"users": users, "seed": seed, "share": 0.5, "partitions": partitions}
    try:
        done = release(parts.trace(), chosen, users=users, session_share=0.5, rng=np.random.default_rng(seed))
    except UsageError as error:
        with pytest.raises(UsageError, match=str(error)[:30]):
            in_tasks(parts, path, chosen, **options)
        return
    if done.contributors.kind == "inferred":  # none of the users was drawn
        with pytest.raises(UsageError, match="needs users or sessions"):
            in_tasks(parts, path, chosen, **options)
        return
    assert same(in_tasks(parts, path, chosen, **options), done)


def test_what_takes_all_blocks_in_one_place_is_refused(tmp_path):
    parts = folder_of(kvtrace.toy("0 1", "0 2", "3"), tmp_path / "t.dataset")
    with pytest.raises(UsageError, match="needs users or sessions"):
        in_tasks(parts, tmp_path, profile("standard"))
    with pytest.raises(UsageError, match="cannot be inferred"):
        in_tasks(parts, tmp_path, profile("standard", k=1), share=0.5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.dataset"]


def test_on_a_real_trace_parts_are_released_as_the_whole_is(shared, tmp_path):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    parts = folder_of(trace, tmp_path / "t.dataset", rows=4096)
    chosen = profile("standard", k_counts="requests")
    assert same(in_tasks(parts, tmp_path, chosen, partitions=6), release(parts.trace(), chosen))
