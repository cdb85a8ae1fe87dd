"""Coarser lengths: prompts of 1, 2, 4, ... blocks, and only lengths that enough contributors have."""

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import AuditError, UsageError
from kvtrace.privacy.profiles import profile, weaker_settings
from kvtrace.privacy.releases import release
from kvtrace.trace.building import toy
from kvtrace.trace.trace import Trace
from tests.attacks import members
from tests.privacy.test_resampling import in_sessions

POWERS = profile("strict", round_input="pow2", alike=5)


def test_prompts_grow_to_powers_of_two_by_blocks_that_nobody_shares():
    done = release(toy("0 1 2", "0 1 2 3 4", "0"), profile("exact", round_input="pow2")).trace
    assert done.prompt_blocks.tolist() == [4, 8, 1]
    assert [done.hash_ids[at:to].tolist() for at, to in zip(done.offsets[:-1], done.offsets[1:], strict=True)] == [
        [0, 1, 2, 3], [0, 1, 2, 4, 5, 6, 7, 8], [0],
    ]  # fmt: skip
    assert kvtrace.trace.unlimited_hits(done).tolist() == [0, 3, 1]


def test_lengths_of_too_few_contributors_are_left_out():
    trace = in_sessions(toy("0", "0 1", "0 2", "0 3 4"), np.array([0, 0, 1, 1]))
    done = release(trace, profile("exact", alike=2))
    assert done.trace.prompt_blocks.tolist() == [2, 2]
    assert [step.step.value for step in done.steps] == ["original", "alike"]
    assert done.meta["release"]["sampled"] is True and done.meta["release"]["settings"]["alike"] == 2


def test_one_contributor_does_not_count_twice_and_unknown_ones_do_not_count():
    trace = toy("0", "1", "2", "3")
    with pytest.raises(UsageError, match="no lengths are common to 3 users"):
        release(trace, profile("exact", alike=3), users=np.array([0, 0, 1, -1]))


def test_these_releases_pass_their_audit_and_others_do_not(tmp_path):
    log = members.sessions(5)
    done = release(log, POWERS)
    assert kvtrace.privacy.publish(done.trace, tmp_path / "day.jsonl").audit.passed
    assert kvtrace.privacy.audit(tmp_path / "day.jsonl").passed
    assert not weaker_settings(POWERS, block_size=16)
    plain = release(log, profile("strict")).trace
    settings = {"block_size": 16, "tail": "unique", "meta": done.meta}
    with pytest.raises(AuditError, match="lengths"):
        kvtrace.privacy.publish(Trace.from_columns(plain, **settings), tmp_path / "plain.jsonl")
    lengths = np.stack([done.trace.input_length, done.trace.output_length])
    pair, rows = np.unique(lengths, axis=1, return_inverse=True, return_counts=True)[1:]
    rare = Trace.from_columns(done.trace[rows[pair.reshape(-1)] > 5], **settings)
    kvtrace.privacy.publish(rare, tmp_path / "rare.jsonl")
    some = rare[np.arange(len(rare)) != len(rare)]
    alone = some.input_length != some.input_length.max()
    alone[np.flatnonzero(~alone)[0]] = True
    with pytest.raises(AuditError, match="lengths fewer rows have"):
        kvtrace.privacy.publish(Trace.from_columns(some[alone], **settings), tmp_path / "alone.jsonl")


def test_a_data_set_is_released_as_its_file_is(tmp_path):
    log = members.sessions(5)
    kvtrace.write(log, tmp_path / "log.dataset")
    dataset = kvtrace.formats.open_dataset(tmp_path / "log.dataset")
    with kvtrace.privacy.release_dataset(
        dataset, POWERS, runner=kvtrace.privacy.LocalRunner(1), work=tmp_path / "work"
    ) as released:
        kvtrace.privacy.publish(released, tmp_path / "day.jsonl")
    assert kvtrace.read(tmp_path / "day.jsonl") == release(log, POWERS).trace
