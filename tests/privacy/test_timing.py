"""Coarse times of sessions: delays and service times reveal no instant more finely than timestamps do."""

import json
import random

import numpy as np
import pytest

from kvtrace._base.errors import UsageError
from kvtrace.privacy.checks.fields import ALLOWED
from kvtrace.privacy.profiles import PROFILES, profile
from kvtrace.privacy.publishing import publish
from kvtrace.privacy.releases import release
from kvtrace.privacy.steps import agents_in_order, keep_allowed, late_starts, numbered_agents, step_times
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.session_trees import recorded_dependencies
from kvtrace.trace.trace import Trace
from tests.conftest import drawn


def recorded(rng, *, sessions=4, turns=12, agents=3, step=1.0):
    """Sessions of agents with random starts and service times, and the dependencies that these give."""
    rows = []
    for session in range(sessions):
        now = rng.uniform(0, 20_000)
        for _ in range(turns):
            rows.append((now, session, rng.choice([0] * 4 + list(range(agents))), rng.expovariate(1 / 5_000)))
            now += rng.expovariate(1 / 4_000)
    rows.sort()
    first = rows[0][0]
    time = [round((row[0] - first) / step) * step for row in rows]
    columns = Columns(
        time, [1] * len(rows), [1] * len(rows), range(len(rows)), range(len(rows) + 1),
        session=[row[1] for row in rows], service_ms=[round(row[3] / step) * step for row in rows],
        extra={"agent": np.array([row[2] for row in rows])},
    )  # fmt: skip
    columns.dependencies = recorded_dependencies(columns, columns.extra["agent"])
    return columns


@pytest.mark.parametrize("step", [1.0, 0.125, 1e-3])
@pytest.mark.parametrize("seed", range(drawn(5)))
def test_released_times_agree_and_come_in_steps(seed, step):
    columns = recorded(random.Random(seed), step=step)
    assert not len(late_starts(columns))
    for step_ms in (7, 1000, 60_000):
        done = step_times(columns, step_ms)
        assert not len(late_starts(done))
        waits = done.dependencies
        for values in (done.timestamp, done.service_ms, waits.delay_ms):
            assert (values % step_ms == 0).all() and (values >= 0).all()
        assert waits.row is columns.dependencies.row or (waits.row == columns.dependencies.row).all()


@pytest.mark.parametrize("seed", range(drawn(10)))
def test_recordings_whose_clocks_show_the_same_release_the_same(seed):
    """The attack that this excludes: to find a time within its step from sums of service times and delays."""
    rng, step = random.Random(seed), 1000
    columns = recorded(rng)
    starts, ends = columns.timestamp, columns.timestamp + columns.service_ms
    other = replace_columns(columns, timestamp=starts.copy())
    other.timestamp = np.array([start // step * step + rng.uniform(0, step - 1) for start in starts.tolist()])
    other_ends = np.array([end // step * step + rng.uniform(0, step - 1) for end in ends.tolist()])
    other.service_ms = other_ends - other.timestamp
    waits = columns.dependencies
    request = waits.request
    happens = np.where(waits.trigger == 1, other_ends[waits.row], other.timestamp[waits.row])
    latest = np.full(len(starts), -np.inf)
    np.maximum.at(latest, request, happens)
    other.dependencies = Dependencies(
        waits.offsets, waits.row, waits.trigger, waits.relation, other.timestamp[request] - latest[request]
    )
    one, two = step_times(columns, step), step_times(other, step)
    assert np.array_equal(one.timestamp, two.timestamp) and np.array_equal(one.service_ms, two.service_ms)
    assert one.dependencies == two.dependencies


def test_means_of_durations_stay():
    columns = recorded(random.Random(1), sessions=400, step=1e-3)
    done = step_times(columns, 1000)
    for before, after in (
        (columns.service_ms, done.service_ms), (columns.dependencies.delay_ms, done.dependencies.delay_ms)
    ):  # fmt: skip
        assert abs(after.mean() - before.mean()) < 4 * 1000 / np.sqrt(12 * len(before)) * 2
        assert (np.abs(after - before) < 1000).all()


def test_an_unknown_service_time_stays_unknown():
    trace = replace_columns(toy("0", "1", gap_ms=1500.0), service_ms=[np.nan, 700.0])
    done = step_times(trace, 1000)
    assert np.isnan(done.service_ms[0]) and done.service_ms[1] == 1000.0  # 1,500 to 2,200 ms


def test_profiles_keep_or_drop_what_requests_wait_for():
    columns = recorded(random.Random(2))
    columns.extra |= {"model": np.array(["acme/secret"] * len(columns)), "stop": np.array(["tool_use"] * len(columns))}
    trace = Trace.from_columns(columns, block_size=1, meta={"service_times": {"measured": True, "estimated": False}})
    exact = release(trace, PROFILES["exact"]).trace
    assert exact.dependencies == trace.dependencies and np.array_equal(exact.service_ms, trace.service_ms)
    assert exact.extra.keys() == {"agent"} and "service_times" in exact.meta
    standard = release(trace, PROFILES["standard"]).trace
    assert np.array_equal(standard.dependencies.row, trace.dependencies.row)
    assert (standard.service_ms % 1000 == 0).all() and "service_times" in standard.meta
    for chosen in (PROFILES["strict"], profile("standard", drop_sessions=True)):
        strict = release(trace, chosen).trace
        linked = (strict.session, strict.parent, strict.dependencies, strict.service_ms)
        assert linked == (None,) * 4 and strict.extra == {} and "service_times" not in strict.meta


def test_agents_are_numbered_by_their_first_requests():
    session = np.array([1, 0, 1, 0, 0, -1, 1])
    agent = np.array([0, 900, 41, 7, 900, 3, 40])
    assert numbered_agents(session, agent).tolist() == [0, 1, 1, 2, 1, 0, 2]
    columns = Columns([0] * 7, [1] * 7, [1] * 7, range(7), range(8), session=session, extra={"agent": agent})
    assert not agents_in_order(columns)
    assert agents_in_order(keep_allowed(columns)[0])


def test_agents_without_sessions_or_of_words_are_left_out():
    columns = replace_columns(toy("0", "1"), extra={"agent": np.array([0, 1])})
    assert keep_allowed(columns)[0].extra == {}
    named = replace_columns(columns, session=[0, 0], extra={"agent": np.array(["planner", "coder"], dtype=object)})
    done, left = keep_allowed(named)
    assert left == ["agent"] and done.extra == {}


def test_a_sidecar_states_the_source_of_service_times_that_its_file_has(tmp_path):
    pytest.importorskip("pyarrow")
    meta = {"service_times": {"measured": True, "estimated": False}}
    trace = Trace.from_columns(recorded(random.Random(3)), block_size=1, meta=meta)
    done = release(trace, PROFILES["exact"]).trace
    for name, has_one in (("t.parquet", True), ("t.dataset", True), ("t.jsonl", False)):
        written = publish(done, tmp_path / name)
        sidecar = tmp_path / name / "manifest.json" if name.endswith("dataset") else tmp_path / f"{name}.meta.json"
        assert ("service_times" in json.loads(sidecar.read_text())) is has_one and written.audit.passed


def test_no_release_is_published_in_a_format_that_the_audit_does_not_read(tmp_path, monkeypatch):
    monkeypatch.delitem(ALLOWED, "bailian")
    with pytest.raises(UsageError, match="the audit does not read the format bailian"):
        publish(release(toy("0 1"), PROFILES["exact"]).trace, tmp_path / "t.jsonl", format="bailian")
    assert not list(tmp_path.iterdir())
