"""A folder of parts is released by tasks to what the whole trace is released to in one place."""

import json
import random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.formats import scalars
from kvtrace.formats.dataset import DatasetWriter, open_dataset
from kvtrace.privacy.profiles import profile
from kvtrace.privacy.release_tasks import release_dataset
from kvtrace.privacy.releases import release
from kvtrace.trace.building import TraceBuilder
from kvtrace.trace.columns import Columns
from kvtrace.trace.trace import Trace
from kvtrace.trace.trace_figures import figures
from tests.conftest import drawn
from tests.ingest.test_pipeline_tasks import Here
from tests.strategies import traces

pytest.importorskip("pyarrow")
NAMES = ("timestamp", "input_length", "output_length", "hash_ids", "offsets", "session", "parent")


def folder_of(trace, path, rows=3):
    with DatasetWriter(path, block_size=trace.block_size, tail=trace.tail, meta=trace.meta, rows=rows) as writer:
        writer.add(trace)
    return open_dataset(path)


def in_tasks(parts, path, chosen, *, partitions=None, users=None, share=1.0, seed=5, **limits):
    rng = np.random.default_rng(seed)
    options = {"users": users, "session_share": share, "rng": rng, "partitions": partitions} | limits
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


def _put(last, session, row):
    """The last row of a session, which this row takes the place of."""
    before = last.get(session, -1)
    if session >= 0:
        last[session] = row
    return before


@st.composite
def held(draw):
    """A trace that knows its sessions, or its users; no blocks of outputs."""
    trace = draw(traces(unknown_outputs=True))
    none = dict.fromkeys(("output_ids", "output_offsets", "session", "parent"))
    columns = kvtrace.trace.columns.replace_columns(trace, extra={}, **none)
    count = len(trace)
    if draw(st.booleans()):
        columns.session = np.array(draw(st.lists(st.integers(-1, 3), min_size=count, max_size=count)))
        columns.extra["turn"] = np.arange(count) + draw(st.sampled_from([0, 0, 9_990]))
        if draw(st.booleans()):
            columns.extra["turn"] = scalars.without(columns.extra["turn"], draw(st.sampled_from([0, count - 1])))
        last: dict = {-1: -1}
        columns.parent = np.array([_put(last, session, row) for row, session in enumerate(columns.session.tolist())])
    if draw(st.booleans()):
        words = st.sampled_from(["text", "coder", "other", "a word of nobody's"])
        columns.extra["type"] = np.array(draw(st.lists(words, min_size=count, max_size=count)), dtype=object)
    users = np.array(draw(st.lists(st.integers(-1, 2), min_size=count, max_size=count)))
    users[0] = 0
    return Trace.from_columns(columns, block_size=trace.block_size, tail=trace.tail), users


NEW = settings(deadline=None, max_examples=drawn(40), suppress_health_check=[HealthCheck.function_scoped_fixture])


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
    assert same(in_tasks(parts, path, chosen, **options), done)


WHOLE = [
    {"profile": profile("standard")},  # conversations are inferred
    {"profile": profile("exact"), "session_share": 0.6},
    {"profile": profile("standard"), "session_share": 0.6, "users": np.arange(60) % 7},
    {"profile": profile("standard", tail="dropped"), "session_share": 0.6, "users": np.arange(60) % 7},
    {"profile": profile("standard"), "isolate": True, "users": np.arange(60) % 7},
]


@pytest.mark.parametrize("options", WHOLE, ids=str)
@pytest.mark.parametrize("kind", ["plain", "outputs", "unchained", "extra"])
def test_a_release_that_needs_all_blocks_in_one_process_is_the_same(tmp_path, kind, options):
    parts = folder_of(_of_kind(kind), tmp_path / "t.dataset")
    options = dict(options)
    chosen, share = options.pop("profile"), options.get("session_share", 1.0)
    done = release(parts.trace(), chosen, rng=np.random.default_rng(5), **options)
    extra = {"share": share} | {name: options[name] for name in ("users", "isolate") if name in options}
    assert same(in_tasks(parts, tmp_path, chosen, **extra), done)


def _of_kind(kind):
    """Sixty requests of some conversations."""
    draw = random.Random(3)
    columns = TraceBuilder()
    for row in range(60):
        ids = [draw.randrange(3) for _ in range(draw.randint(1, 4))]
        chained = [sum((one + 1) * 4**place for place, one in enumerate(ids[: end + 1])) for end in range(len(ids))]
        columns.add(
            Columns(
                np.array([100.0 * row]),
                np.array([16 * len(ids)]),
                np.array([16]),
                np.array(ids if kind == "unchained" else chained),
                np.array([0, len(ids)]),
                output_ids=np.array([10_000 + row]) if kind == "outputs" else None,
                output_offsets=np.array([0, 1]) if kind == "outputs" else None,
                extra={"price": np.array([1.5 * row])} if kind == "extra" else {},
            )
        )
    return Trace.from_columns(columns.columns(), block_size=16, tail="kept")


def test_a_memory_limit_holds_for_one_process_too(tmp_path):
    parts = folder_of(_of_kind("plain"), tmp_path / "t.dataset")
    with pytest.raises(UsageError, match="--memory is 50 MB, but this needs at most"):
        in_tasks(parts, tmp_path, profile("standard"), memory=50_000_000)


def test_on_a_real_trace_parts_are_released_as_the_whole_is(shared, tmp_path):
    trace = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    parts = folder_of(trace, tmp_path / "t.dataset", rows=4096)
    chosen = profile("standard", k_counts="requests")
    assert same(in_tasks(parts, tmp_path, chosen, partitions=6), release(parts.trace(), chosen))
