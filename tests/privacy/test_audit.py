"""The checks, each with the faults that it is there for; what is clean passes, and no value is ever shown."""

import copy
import json
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import InputError, UsageError
from kvtrace._native.numbering import renumber
from kvtrace._native.sharing import Inference
from kvtrace.cli import run
from kvtrace.formats import bailian, dataset, jsonl_read
from kvtrace.formats.dataset import DatasetWriter, open_dataset
from kvtrace.formats.reading import read_columns
from kvtrace.formats.sidecar import ReadResult, describe, dump
from kvtrace.privacy import allowed_values
from kvtrace.privacy.checks import (
    CHECKS,
    anonymity,
    audit_memory,
    block_feed,
    block_sums,
    collecting,
    dictionary,
    earlier_release,
    evidence,
    sessions,
)
from kvtrace.privacy.checks.block_feed import ID_BYTES, IdNumbers, RequestBlocks
from kvtrace.privacy.contributors import Contributors
from kvtrace.privacy.profiles import PROFILES, profile
from kvtrace.privacy.releases import release
from kvtrace.privacy.sidecar_forms import SIDECAR, public
from kvtrace.privacy.trace_draft import RowBlocks
from kvtrace.report.release_tables import audit_table
from kvtrace.trace.building import toy
from kvtrace.trace.columns import Columns, replace_columns, rows_of
from kvtrace.trace.dependencies import Dependencies
from kvtrace.trace.trace import Trace
from tests import unaudited
from tests.conftest import drawn
from tests.reference import audit as reference
from tests.reference import sharing as sharing_reference
from tests.strategies import traces

VECTORS = Path(__file__).parents[1] / "vectors/xxh3.json"
CANARY = "CanaryQz7xKw"
CHECK_NAMES = list(CHECKS)
EACH = "each request has a user of its own"
NO_USERS = {"k_sharing": "WARN"}  # of a clean trace without its file of users
BLOCK = 16


class Case:
    """A trace of our own that every check passes, as rows and a sidecar that a fault may change."""

    def __init__(self):
        #  0 1   0 2   0 3 ...: all begin alike, and nothing else is shared; lengths recur, times are whole seconds
        self.rows = [
            {"timestamp": 1000 * row, "input_length": 2 * BLOCK, "output_length": 5 + row % 4, "hash_ids": [0, row + 1]}
            for row in range(24)
        ]  # fmt: skip
        self.meta = {
            "profile": "standard",
            "release": {"settings": PROFILES["standard"].settings(), "k_counted": "users", "sampled": True,
                        "tenants_isolated": False},
            "log": {"reader": "openai (stated)", "time": "seconds (stated)"},
            "tokenizer": {"name": "deepseek-ai/DeepSeek-R1", "sha256": "ab" * 32, "backend": "tokenizers 0.21.0"},
        }  # fmt: skip
        self.block_size, self.card, self.previous, self.has_sidecar = BLOCK, None, None, True
        self.users = EACH  # a user for each row; None = no file of users

    def prompts(self, *prompts):
        """The prompts of the first rows anew, a list of names each; all ids are then numbered by first appearance."""
        for row, prompt in zip(self.rows, prompts, strict=False):
            row["hash_ids"], row["input_length"] = list(prompt), self.block_size * len(prompt)
        number: dict = {}
        for row in self.rows:
            row["hash_ids"] = [number.setdefault(block, len(number)) for block in row["hash_ids"]]

    def settings(self, **changed):
        self.meta["release"]["settings"] |= changed

    def write(self, folder) -> Path:
        path = folder / "t.jsonl"
        rows = self.as_written()
        path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
        if self.has_sidecar:
            blocks = sum(len(row["hash_ids"]) for row in self.rows if isinstance(row, dict))
            said = {"block_size": self.block_size, "tail": "kept", "requests": len(self.rows), "blocks": blocks}
            said |= self.meta
            (folder / "t.jsonl.meta.json").write_bytes(dump({k: said[k] for k in SIDECAR.forms if k in said} | said))
        if self.card is not None:
            (folder / "t.jsonl.card.md").write_text(self.card)
        return path

    def as_written(self):
        """The rows; those of Qwen-Bailian's format with all its keys, in its order and in seconds."""
        if not any("chat_id" in row for row in self.rows):
            return self.rows
        rows = []
        for row in self.rows:
            turn = 1 if row.get("parent_chat_id", -1) == -1 else 2
            row = {"type": "text", "turn": turn} | row | {"timestamp": row["timestamp"] / 1000}
            rows.append({key: row[key] for key in bailian.KEYS if key in row} | row)
        return rows

    def audit(self, folder):
        path, options = self.write(folder), {}
        if self.previous is not None:
            (folder / "old").mkdir()
            options["against"] = self.previous.write(folder / "old")
        return kvtrace.privacy.audit(path, **options, **self.given_users(folder))

    def given_users(self, folder):
        """The option `users` of an audit."""
        if self.users is None:
            return {}
        rows = sum(isinstance(row, dict) for row in self.rows)
        users = [f"user {row}" for row in range(rows)] if self.users == EACH else self.users
        (folder / "users.txt").write_text("".join(f"{user}\n" for user in users))
        return {"users": folder / "users.txt"}


def flagged(found):
    """Check -> level, of the checks that did not pass; these traces have no card beside them."""
    return {finding.name: finding.level for finding in found.of_trace().findings if finding.level != "PASS"}


def test_a_clean_trace_passes_every_check(tmp_path):
    found = Case().audit(tmp_path)
    assert flagged(found) == {} and [finding.name for finding in found.findings] == list(CHECKS)
    assert found.declared and found.profile == PROFILES["standard"] and found.publishable and found.status == 0


# -- faults: what is done to the clean trace, and what is found ------------------------------------------------------


def unknown_text(case):
    case.rows[3]["note"] = CANARY


def unknown_type(case):
    case.rows[3]["type"] = CANARY


def known_type(case):
    case.rows[3]["type"] = "image"


def uuid_session(case):
    case.rows[3]["session_id"] = "3f0e9bd2-6c1a-4f7e-9a5d-b8c4e2d17f60"  # random ones hold no word now and then


def nested_field(case):
    case.rows[3]["about"] = {"x": CANARY}


def epoch_in_a_field(case):
    case.rows[3]["created"] = 1_700_000_000


def name_as_a_number(case):
    case.rows[3]["session_id"] = 7361904528173


def unknown_number(case):
    case.rows[3]["slo"] = 5


def broken_row(case):
    case.rows.append('{"timestamp": 1, "input_length"\n')


def raw_digests(case):
    for row in case.rows:
        row["hash_ids"] = [dictionary.xxh3_64(bytes([block])) for block in row["hash_ids"]]


def out_of_order(case):
    for row in case.rows:
        row["hash_ids"] = [24 - block for block in row["hash_ids"]]


def a_gap(case):
    for row in case.rows:
        row["hash_ids"] = [block + (block > 5) for block in row["hash_ids"]]


def two_parents(case):
    case.prompts(["s", "a"], ["s", "b"], ["z", "a"])


def shared_tails(case):
    case.prompts(["s", "a", "tail"], ["s", "a", "tail"])
    for row in case.rows[:2]:
        row["input_length"] -= 3


def kept_tails(case):
    case.settings(tail="dropped")
    case.prompts(["s", "a", "tail"])
    case.rows[0]["input_length"] -= 3


def small_blocks(case):
    case.block_size = 8
    for row in case.rows:
        row["input_length"] = 16


def found_alone(case):
    for number, row in enumerate(case.rows):
        row["output_length"] = 50 + 3 * number


def exposed_block(case):
    case.prompts(["s", "a", "b", "d"], ["s", "a", "c", "e"])


def exposed_perhaps(case):
    exposed_block(case)
    case.users = None


def exposed_to_users(case):
    exposed_perhaps(case)
    case.users = [*"ab", *(f"user {row}" for row in range(22))]


def one_user(case):
    exposed_perhaps(case)
    case.users = ["a", "a", *(f"user {row}" for row in range(22))]


def users_unknown(case):
    case.users = None


def inferred(case):
    case.meta["release"]["k_counted"], case.users = "inferred", None


def exposed_inferred(case):
    exposed_block(case)
    inferred(case)


def one_anonymous_sender(case):
    case.prompts(["s", "a"], ["s", "a"])
    case.users = ["", "", *(f"user {row}" for row in range(22))]


def exposed_sessions(case):
    case.meta["release"]["k_counted"], case.users = "sessions", None
    case.prompts(["s", "a"], ["s", "a"])
    for number, row in enumerate(case.rows):
        row["session_id"] = number


def sessions_by_parents(case):
    exposed_sessions(case)
    fair_parent(case)
    for row in case.rows:
        del row["session_id"]


def tenants_mixed(case):
    case.meta["release"]["tenants_isolated"] = True
    case.users = [f"user {row}" for row in range(24)]


def calendar_times(case):
    for row in case.rows:
        row["timestamp"] += 1_700_000_000_000


def calendar_seconds(case):
    for row in case.rows:
        row["timestamp"] = 1_700_000_000 + row["timestamp"]


def fine_times(case):
    case.rows[3]["timestamp"] += 1


def late_start(case):
    for row in case.rows:
        row["timestamp"] += 5000


def infinite_time(case):
    case.rows[3]["timestamp"], case.users = 1e400, None


def linked(case, chat, parent):
    for number, row in enumerate(case.rows):
        row |= {"chat_id": number, "parent_chat_id": -1}
    case.rows[chat]["parent_chat_id"] = parent


def fair_parent(case):
    linked(case, 4, 2)


def no_parent(case):
    linked(case, 4, 99)


def later_parent(case):
    linked(case, 4, 5)


def name_borne_twice(case):
    linked(case, 4, 2)
    case.rows[7]["chat_id"] = 6


def links_ruled_out(case):
    linked(case, 4, 2)
    case.settings(drop_sessions=True)


def turns_ruled_out(case):
    case.rows[3]["turn"] = 2
    case.settings(drop_sessions=True)


def links_unseen(case):
    case.prompts(["s", "a"], ["z", "b"])
    for row in case.rows[:2]:
        row["session_id"] = 0


def sessions_that_differ(case):
    """Three sessions of two turns, all alike, and one of other lengths."""
    for row in range(8):
        case.rows[row] |= {"session_id": row // 2, "output_length": 5}
    case.rows[6]["output_length"] = 9


def wrong_length(case):
    case.rows[3]["input_length"] += BLOCK


def negative_length(case):
    case.rows[3]["output_length"] = -2


def not_a_power(case):
    case.settings(round_output="pow2")


def not_whole_blocks(case):
    case.settings(round_input="block")
    for row in case.rows:
        row["input_length"] -= 1


def a_limit(case):
    for row in case.rows[:12]:
        row["output_length"] = 500


def released_before(case):
    found_alone(case)
    case.previous = copy.deepcopy(case)


def other_release(case):
    found_alone(case)
    case.previous = copy.deepcopy(case)
    for row in case.previous.rows:
        row["output_length"] += 1


def sidecar_with(place, value):
    def fault(case):
        inner = case.meta
        for name in place[:-1]:
            inner = inner.setdefault(name, {})
        inner[place[-1]] = value

    fault.__name__ = f"sidecar with {'.'.join(place)}"
    return fault


def card_with_address(case):
    case.card = f"# A trace\n\nWrite to {CANARY}@example.org.\n"


def text_in_lengths(case):
    for row, letter in zip(case.rows, b"the patient has a fever.", strict=True):
        row["output_length"] = letter


def other_sidecar(case):
    case.meta |= {"requests": 99}


def no_sidecar(case):
    case.has_sidecar = False


def not_sampled(case):
    case.meta["release"]["sampled"] = False


def whole_counted(case):
    case.meta["counts"] = {"rows": 480}


def weaker_than_its_name(case):
    case.settings(time_step_ms=0)


def exact(case):
    case.meta["profile"] = "exact"
    case.settings(**PROFILES["exact"].settings())


def unknown_profile(case):
    case.meta["profile"] = "superb"


def broken_profile(case):
    case.settings(k="three")


SPELLED = {"fields": "FAIL", "hidden_text": "FAIL"}
FAULTS = [  # what is done; the checks that do not pass
    (unknown_text, SPELLED), (unknown_type, SPELLED), (known_type, {}), (epoch_in_a_field, SPELLED),
    (unknown_number, SPELLED), (uuid_session, SPELLED | {"canonical": "FAIL"}),
    (nested_field, SPELLED | {"canonical": "FAIL"}), (name_as_a_number, {"canonical": "FAIL", "fields": "FAIL"}),
    (broken_row, {"canonical": "FAIL", "fields": "FAIL"}),
    (raw_digests, {"canonical": "FAIL", "numbering": "FAIL", "gaps": "FAIL"}), (out_of_order, {"numbering": "FAIL"}),
    (a_gap, {"gaps": "FAIL"}), (two_parents, {"chains": "FAIL", "k_sharing": "FAIL"}),
    (shared_tails, {"tails": "FAIL", "k_sharing": "FAIL"}), (kept_tails, {"tails": "FAIL"}),
    (small_blocks, {"block_size": "WARN"}),
    (found_alone, {"anonymity": "WARN"}), (exposed_block, {"k_sharing": "FAIL"}),
    (exposed_perhaps, {"k_sharing": "WARN"}), (exposed_to_users, {"k_sharing": "FAIL"}), (one_user, {}),
    (users_unknown, {"k_sharing": "WARN"}), (inferred, {"k_sharing": "WARN"}),
    (exposed_inferred, {"k_sharing": "FAIL"}), (one_anonymous_sender, {"k_sharing": "FAIL"}),
    (exposed_sessions, {"k_sharing": "FAIL"}),
    (sessions_by_parents, {"k_sharing": "WARN"}), (tenants_mixed, {"k_sharing": "FAIL"}),
    (calendar_times, {"times": "FAIL"}), (calendar_seconds, {"times": "FAIL"}), (fine_times, {"times": "FAIL"}),
    (late_start, {"times": "FAIL"}), (infinite_time, SPELLED | NO_USERS | {"canonical": "FAIL", "gaps": "FAIL"}),
    (fair_parent, {}), (no_parent, {"canonical": "FAIL", "fields": "FAIL", "session_links": "FAIL"}),
    (later_parent, {"session_links": "FAIL"}),
    (name_borne_twice, {"canonical": "FAIL", "gaps": "WARN", "session_links": "FAIL"}),
    (links_ruled_out, {"session_links": "FAIL"}), (turns_ruled_out, {"session_links": "FAIL"}),
    (links_unseen, {"session_links": "WARN"}), (sessions_that_differ, {"sessions": "WARN"}),
    (wrong_length, {"lengths": "FAIL"}), (negative_length, {"lengths": "FAIL"}), (not_a_power, {"lengths": "FAIL"}),
    (not_whole_blocks, {"lengths": "FAIL"}), (a_limit, {"lengths": "WARN"}),
    (released_before, {"anonymity": "WARN", "earlier_release": "FAIL"}), (other_release, {"anonymity": "WARN"}),
    (sidecar_with(("host",), "x"), {"sidecar": "FAIL"}), (sidecar_with(("log", "api_key"), "x"), {"sidecar": "FAIL"}),
    (sidecar_with(("log", "note"), f"from /home/{CANARY}/logs"), {"sidecar": "FAIL"}),
    (sidecar_with(("log", "note"), f"{CANARY}@example.org"), {"sidecar": "FAIL"}),
    (sidecar_with(("log", "note"), "https://logs.example.org/x"), {"sidecar": "FAIL"}),
    (sidecar_with(("log", "note"), "0f" * 16), {"sidecar": "FAIL"}),
    (sidecar_with(("log", "note"), "10.1.2.3"), {"sidecar": "FAIL"}),
    (sidecar_with(("tokenizer", "name"), "/srv/models/x"), {"sidecar": "FAIL"}),
    (card_with_address, {"sidecar": "FAIL"}), (not_sampled, {"volume": "WARN"}), (whole_counted, {"volume": "WARN"}),
    (text_in_lengths, {"anonymity": "WARN", "hidden_text": "WARN"}),
    (weaker_than_its_name, {"not_protected": "FAIL"}), (exact, {"not_protected": "WARN"}),
    (unknown_profile, {"sidecar": "FAIL", "not_protected": "WARN"}),
    (broken_profile, {"sidecar": "FAIL", "not_protected": "WARN"}),
    (other_sidecar, {"sidecar": "FAIL", "volume": "WARN", "not_protected": "WARN"}),
    (no_sidecar, {"sidecar": "WARN", "volume": "WARN", "not_protected": "WARN"}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_fault_is_flagged_by_name_and_level(fault, expected, tmp_path):
    case = Case()
    fault(case)
    found = case.audit(tmp_path)
    assert flagged(found) == expected
    assert found.passed == ("FAIL" not in expected.values()) and found.status == (0 if found.passed else 4)
    assert CANARY not in json.dumps(found.to_dict()) + found.verdict


# -- sessions that wait, in Parquet -----------------------------------------------------------------------------------


def waiting():
    """Eight sessions of three turns, all alike: 2 s of service, 1 s of thought; the second turn is a subagent's."""
    session, start = np.arange(24) // 3, np.tile([0.0, 3000.0, 6000.0], 8)
    waits = [
        [] if row % 3 == 0 else [(row - 1, "completion", "spawn" if row % 3 == 1 else "join", 1000.0)]
        for row in range(24)
    ]  # fmt: skip
    columns = Columns(
        start + 9000 * session, [2 * BLOCK] * 24, np.tile([5, 6, 7], 8),
        np.stack([np.zeros(24), np.arange(24) + 1], axis=1).ravel(), np.arange(25) * 2,
        session=session, dependencies=Dependencies.of(waits), service_ms=[2000.0] * 24,
        extra={"agent": np.tile([0, 1, 0], 8)},
    )  # fmt: skip
    return columns


def changed(columns, **changes):
    """The columns with some of their dependencies' values changed."""
    columns.dependencies = replace(columns.dependencies, **changes)


def fine_delays(columns):
    changed(columns, delay_ms=columns.dependencies.delay_ms + np.where(np.arange(16) == 3, 1.0, 0.0))


def fine_service(columns):
    columns.service_ms[3] += 0.001


def free_delays(columns):
    changed(columns, delay_ms=columns.dependencies.delay_ms + np.where(np.arange(16) == 3, 5000.0, 0.0))


def text_in_delays(columns):
    columns.service_ms[:] = np.nan  # so that delays are free
    changed(columns, delay_ms=1000.0 * np.frombuffer(b"the patient has.", np.uint8))


def text_in_service(columns):
    """Delays and later times agree."""
    columns.service_ms = 1000.0 * np.frombuffer(b"the patient has a fever.", np.uint8)
    columns.timestamp = np.concatenate([[0.0], np.cumsum(columns.service_ms[:-1] + 1000.0)])


def wait_across_sessions(columns):
    changed(columns, row=np.where(np.arange(16) == 4, 1, columns.dependencies.row))


def wait_twice(columns):
    """The last request waits for the same one twice."""
    waits = columns.dependencies
    parts = {name: np.append(getattr(waits, name), getattr(waits, name)[-1]) for name in ("row", "trigger", "relation")}
    offsets = waits.offsets + (np.arange(25) == 24)
    changed(columns, offsets=offsets, delay_ms=np.append(waits.delay_ms, waits.delay_ms[-1]), **parts)


def agents_with_names(columns):
    columns.extra["agent"] = np.tile([0, 7, 0], 8)


def late_agents(columns):
    columns.extra["agent"] = np.tile([0, 70_000, 0], 8)


def long_service(columns):
    columns.service_ms[3] = 4e11


def sessions_apart(columns):
    columns.output_length = columns.output_length + np.where(np.arange(24) == 1, 8, 0)


def measured_times(columns):
    columns.ttft_ms = np.full(24, 1000.0)


def no_faults(columns):
    """Nothing."""


def no_links(columns):
    """Nothing; the release declares to have dropped them."""


WAITING_FAULTS = [
    (no_faults, {}), (fine_delays, {"durations": "FAIL"}), (fine_service, {"durations": "FAIL"}),
    (free_delays, {"durations": "WARN"}), (text_in_delays, {"hidden_text": "WARN"}),
    (text_in_service, {"anonymity": "WARN", "hidden_text": "WARN", "sessions": "WARN"}),
    (wait_across_sessions, {"session_links": "FAIL", "durations": "WARN", "sessions": "WARN"}),
    (wait_twice, {"session_links": "FAIL", "sessions": "WARN"}),
    (agents_with_names, {"canonical": "FAIL"}), (late_agents, {"canonical": "FAIL", "fields": "FAIL"}),
    (long_service, {"durations": "WARN", "fields": "FAIL"}), (sessions_apart, {"sessions": "WARN"}),
    (no_links, {"session_links": "FAIL"}), (measured_times, {"measured": "FAIL"}),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "expected"), WAITING_FAULTS, ids=[fault.__name__ for fault, _ in WAITING_FAULTS])
@pytest.mark.parametrize("name", ["t.parquet", "t.dataset"])
def test_a_fault_of_waiting_sessions_is_flagged(fault, expected, name, tmp_path):
    pytest.importorskip("pyarrow")
    case, columns = Case(), waiting()
    fault(columns)
    if fault is no_links:
        case.settings(drop_sessions=True)
    write = in_parts if name.endswith("dataset") else unaudited.write
    write(columns, tmp_path / name, meta=public(case.meta), block_size=BLOCK, tail="kept")
    found = kvtrace.privacy.audit(tmp_path / name, contributors=Contributors(np.arange(24), "users"))
    assert flagged(found) == expected


def test_the_check_of_sessions_counts_what_an_observer_can_single_out():
    columns = waiting()
    columns.output_length = columns.output_length + np.array([9, 0, 0] + [1, 0, 0] * 2 + [0] * 15)
    columns.timestamp[-1] += 1000  # the last session has a pause of its own
    columns.dependencies = columns.dependencies.take(np.arange(24))
    changed(columns, relation=np.where(np.arange(16) < 2, 0, columns.dependencies.relation))
    opened = SimpleNamespace(result=ReadResult(columns, "t", "parquet"))
    found = sessions.check_sessions(evidence.Evidence(opened, IdNumbers()))
    assert {name: value for name, value in found.figure.items() if name not in ("sessions", "k")} == {
        "alone_by_lengths": 1, "alone_by_pauses": 1, "alone_by_shape": 1,
        "below_k_by_lengths": 3, "below_k_by_pauses": 1, "below_k_by_shape": 1,
    }  # fmt: skip
    assert (found.figure["sessions"], found.figure["k"], found.level) == (8, 3, "WARN")
    assert "12.5% of the 8 sessions (and narrow 37.5% to fewer than 3)" in found.sentence


def test_each_check_has_faults():
    assert {name for _, expected in FAULTS + WAITING_FAULTS for name in expected} == set(CHECKS)


def test_only_these_checks_never_fail():
    failed = {name for _, expected in FAULTS + WAITING_FAULTS for name, level in expected.items() if level == "FAIL"}
    assert set(CHECKS) - failed == {"block_size", "anonymity", "sessions", "volume"}


# -- levels, verdicts, grades ----------------------------------------------------------------------------------------


def test_an_exact_trace_is_never_called_publishable(tmp_path):
    case = Case()
    exact(case)
    found = case.audit(tmp_path)
    assert found.passed and not found.publishable and "Use it internally" in found.verdict
    found = kvtrace.privacy.audit(tmp_path / "t.jsonl", profile="standard")
    assert found.passed and not found.publishable and "Use it internally" in found.verdict


def test_a_trace_that_declares_nothing_is_graded_as_standard_and_told_so(tmp_path):
    case = Case()
    no_sidecar(case)
    found = case.audit(tmp_path)
    assert not found.declared and found.profile == PROFILES["standard"] and not found.publishable
    assert "declares no profile" in found.verdict


def test_a_trace_can_be_graded_against_another_profile(tmp_path):
    path = Case().write(tmp_path)
    assert flagged(kvtrace.privacy.audit(path, profile="strict")) == {"times": "FAIL", "lengths": "FAIL"} | NO_USERS
    found = kvtrace.privacy.audit(path, profile="exact")
    assert flagged(found) == {} and not found.publishable and "exact coarsens nothing" in found.verdict
    with pytest.raises(UsageError, match="Try exact, standard"):
        kvtrace.privacy.audit(path, profile="superb")


def test_a_check_that_cannot_be_made_has_not_passed(tmp_path):
    case = Case()
    for row in case.rows:
        row["input_length"] += BLOCK + row["timestamp"]
    found = case.audit(tmp_path)
    assert {"chains": "FAIL", "tails": "FAIL", "k_sharing": "FAIL", "lengths": "FAIL"}.items() <= flagged(found).items()


def test_the_rest_of_a_trace_is_audited_where_a_row_is_broken(tmp_path):
    case = Case()
    exposed_block(case)
    wrong_length(case)
    assert flagged(case.audit(tmp_path)) == {"k_sharing": "FAIL", "lengths": "FAIL"}


@pytest.mark.parametrize("name", ["t.jsonl", "t.parquet", "t.jsonl.gz", "t.jsonl.zst"])
@pytest.mark.parametrize("format", ["mooncake", "bailian"])
def test_all_formats_are_audited_alike(tmp_path, name, format):
    case = Case()
    exposed_inferred(case)
    trace = kvtrace.read(case.write(tmp_path))
    path = tmp_path / "again" / name
    path.parent.mkdir()
    written = "parquet" if name.endswith("parquet") else format
    unaudited.write(trace, path, format=written, first_id=3)
    assert flagged(kvtrace.privacy.audit(path)) == {"k_sharing": "FAIL"}
    path = path.rename(tmp_path / "temporary")  # as a file that has no name yet, and its sidecar in memory
    said = describe(trace, block_size=trace.block_size, tail=trace.tail, first_id=3, meta=trace.meta, format=written)
    assert flagged(kvtrace.privacy.audit(path, sidecar=said)) == {"k_sharing": "FAIL"}


def test_parquet_columns_that_a_trace_does_not_read_are_looked_at(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    trace = kvtrace.read(Case().write(tmp_path))
    unaudited.write(trace, tmp_path / "t.parquet")
    whole = pq.read_table(tmp_path / "t.parquet")
    for column in (pa.array([CANARY] * 24), pa.array(range(24)), pa.array([[1]] * 24)):
        pq.write_table(whole.append_column("more", column), tmp_path / "t.parquet")
        assert (
            flagged(kvtrace.privacy.audit(tmp_path / "t.parquet")) == {"canonical": "FAIL", "fields": "FAIL"} | NO_USERS
        )
    pq.write_table(whole.replace_schema_metadata({"note": f"/home/{CANARY}"}), tmp_path / "t.parquet")
    (tmp_path / "t.parquet.meta.json").write_bytes((tmp_path / "t.jsonl.meta.json").read_bytes())
    assert "sidecar" in flagged(kvtrace.privacy.audit(tmp_path / "t.parquet"))


def test_a_file_of_users_fits_the_rows(tmp_path):
    case = Case()
    case.users = ["a", "b"]
    with pytest.raises(InputError, match="2 lines"):
        case.audit(tmp_path)


def test_holders_that_the_caller_knows_are_counted(tmp_path):
    case = Case()
    exposed_perhaps(case)
    path = case.write(tmp_path)
    assert flagged(kvtrace.privacy.audit(path, contributors=Contributors(np.arange(24), "users"))) == {
        "k_sharing": "FAIL"
    }
    assert (
        flagged(kvtrace.privacy.audit(path, contributors=Contributors(np.array([0, 0, *range(1, 23)]), "users"))) == {}
    )
    with pytest.raises(UsageError, match="contributors"):
        kvtrace.privacy.audit(path, contributors=Contributors(np.arange(3), "users"))


# -- a trace larger than memory, in a folder of parts -----------------------------------------------------------------


def stream(patch):
    """Nothing is kept, pieces are small, and what can be done in several passes is."""
    patch.setattr("kvtrace.formats.open_pieces.CACHED", 0)
    patch.setattr(collecting, "KeptNumbers", lambda *_: block_feed.KeptNumbers(0))
    patch.setattr("kvtrace.formats.open_pieces.REFERENCES", 8)
    patch.setattr("kvtrace.formats.open_pieces.ROWS", 3)
    patch.setattr(evidence, "REFERENCES", 5)
    patch.setattr("kvtrace.privacy.checks.block_sums.TABLE", 64)
    patch.setattr(jsonl_read, "PIECE", 400)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    """A part of a data set has five requests."""
    monkeypatch.setattr(dataset, "ROWS", 5)


def in_parts(columns, folder, meta, **said):
    """A folder of parts of whatever columns: its manifest says no more distinct blocks than there can be."""
    with DatasetWriter(folder, meta=meta, rows=5, **said) as writer:
        writer.add(columns)
    manifest = json.loads((folder / "manifest.json").read_text())
    ids = [columns.hash_ids, *([] if columns.output_ids is None else [columns.output_ids])]
    manifest["distinct_blocks"] = len(np.unique(np.concatenate(ids)))
    (folder / "manifest.json").write_bytes(dump(manifest))
    return folder


def findings(found):
    """All that an audit found, but the sidecar's second copy in a Parquet file's metadata."""
    said = found.to_dict()
    sidecar = said["findings"][CHECK_NAMES.index("sidecar")]["figure"]
    sidecar["marks"] = [one for one in sidecar["marks"] if one["in"] != "metadata kvtrace"]
    sidecar["checked"] = []
    said["findings"][CHECK_NAMES.index("sidecar")]["sentence"] = ""
    return said


NOT_IN_PARTS = (broken_row, nested_field, infinite_time, other_sidecar, no_sidecar)  # no reader or writer lets them in


@pytest.mark.parametrize(
    "fault", [fault for fault, _ in FAULTS if fault not in NOT_IN_PARTS], ids=lambda fault: fault.__name__
)
def test_a_fault_is_found_in_parts_as_in_one_file(fault, tmp_path, monkeypatch):
    stream(monkeypatch)
    case = Case()
    fault(case)
    columns = read_columns(case.write(tmp_path)).columns
    options = {"block_size": case.block_size, "tail": "kept"}
    unaudited.write(columns, tmp_path / "t.parquet", meta=case.meta, **options)
    in_parts(columns, tmp_path / "t.dataset", case.meta, **options)
    if case.card is not None:
        (tmp_path / "t.parquet.card.md").write_text(case.card)
        (tmp_path / "t.dataset/card.md").write_text(case.card)
    given = {}
    if case.previous is not None:
        (tmp_path / "old").mkdir()
        given["against"] = case.previous.write(tmp_path / "old")
    given |= case.given_users(tmp_path)
    found = kvtrace.privacy.audit(tmp_path / "t.dataset", **given)
    assert findings(found) == findings(kvtrace.privacy.audit(tmp_path / "t.parquet", **given))
    assert CANARY not in json.dumps(found.to_dict())


@pytest.mark.parametrize(("fault", "expected"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_file_that_is_not_kept_is_audited_as_one_that_is(fault, expected, tmp_path, monkeypatch):
    case = Case()
    fault(case)
    (tmp_path / "kept").mkdir()
    (tmp_path / "read again").mkdir()
    kept = case.audit(tmp_path / "kept")
    stream(monkeypatch)
    assert case.audit(tmp_path / "read again") == kept and flagged(kept) == expected


def test_columns_of_parts_that_a_trace_does_not_read_are_looked_at(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    trace = kvtrace.read(Case().write(tmp_path))
    folder = in_parts(trace, tmp_path / "t.dataset", trace.meta, block_size=BLOCK, tail="kept")
    part = folder / "part-00002.parquet"  # rows 11 to 15
    whole = pq.read_table(part)
    pq.write_table(whole.append_column("more", pa.array([None, CANARY, None, CANARY, None])), part)
    found = kvtrace.privacy.audit(folder)
    assert flagged(found) == {"canonical": "FAIL", "fields": "FAIL"} | NO_USERS
    assert found.findings[CHECK_NAMES.index("fields")].figure["marks"] == [
        {"field": "more", "kind": "unknown field", "count": 5, "first_line": None}
    ]
    pq.write_table(whole.append_column("more", pa.array([[1]] * 5)), part)
    assert flagged(kvtrace.privacy.audit(folder)) == {"canonical": "FAIL", "fields": "FAIL"} | NO_USERS
    pq.write_table(whole.replace_schema_metadata({"note": f"/home/{CANARY}"}), part)
    assert flagged(kvtrace.privacy.audit(folder)) == {"canonical": "FAIL", "sidecar": "FAIL"} | NO_USERS
    part.write_bytes(part.read_bytes()[:-9])
    with pytest.raises(InputError, match="part-00002"):
        kvtrace.privacy.audit(folder)
    assert CANARY not in json.dumps(found.to_dict())


def test_what_is_in_the_folder_and_is_not_of_the_trace_is_told(tmp_path):
    trace = kvtrace.read(Case().write(tmp_path))
    folder = in_parts(trace, tmp_path / "t.dataset", trace.meta, block_size=BLOCK, tail="kept")
    assert flagged(kvtrace.privacy.audit(folder)) == NO_USERS
    (folder / f"{CANARY}.log").write_text(CANARY)
    assert flagged(kvtrace.privacy.audit(folder)) == {"sidecar": "FAIL"} | NO_USERS
    (folder / f"{CANARY}.log").unlink()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["parts"][0]["host"] = CANARY
    (folder / "manifest.json").write_bytes(dump(manifest))
    found = kvtrace.privacy.audit(folder)
    assert flagged(found) == {"sidecar": "FAIL"} | NO_USERS and CANARY not in json.dumps(found.to_dict())


def test_the_memory_of_a_folder_is_bounded_and_said(tmp_path, capsys):
    trace = kvtrace.read(Case().write(tmp_path))
    folder = in_parts(trace, tmp_path / "t.dataset", trace.meta, block_size=BLOCK, tail="kept")
    assert run(["audit", str(folder), "--memory", "1GB"]) == 0
    said = capsys.readouterr()
    assert "needs at most" in said.err and "PASS" in said.out
    assert run(["audit", str(folder), "--memory", "1GB", "-q"]) == 0 and capsys.readouterr().err == ""
    assert run(["audit", str(folder), "--memory", "150MB"]) == 2
    assert run(["audit", str(tmp_path / "t.jsonl"), "--memory", "1GB"]) == 2
    assert "--memory needs a data set" in capsys.readouterr().err
    with pytest.raises(UsageError, match="data set"):
        kvtrace.privacy.audit(tmp_path / "t.jsonl", memory=10**9)
    with pytest.raises(UsageError, match="not known"):
        kvtrace.privacy.audit(folder, memory=10**9, against=tmp_path / "t.jsonl")
    assert (
        kvtrace.privacy.audit(folder, memory=10**10, against=folder)
        .findings[CHECK_NAMES.index("earlier_release")]
        .figure["compared"]
    )


def test_a_table_of_ids_that_do_not_follow_each_other_has_to_fit(tmp_path):
    case = Case()
    raw_digests(case)
    columns = read_columns(case.write(tmp_path)).columns
    folder = in_parts(columns, tmp_path / "t.dataset", {}, block_size=BLOCK, tail="kept")
    most = audit_memory(open_dataset(folder)).total
    with pytest.raises(UsageError, match="not contiguous"):
        kvtrace.privacy.audit(folder, memory=most)
    assert flagged(kvtrace.privacy.audit(folder, memory=most + 25 * ID_BYTES))["numbering"] == "FAIL"


def test_an_audit_stays_below_its_bound(tmp_path, monkeypatch):
    import tracemalloc

    monkeypatch.setattr("kvtrace.formats.open_pieces.CACHED", 0)
    monkeypatch.setattr("kvtrace.formats.open_pieces.REFERENCES", 1 << 14)
    rows, blocks = 80_000, 10  # each prompt comes twice
    columns = Columns(
        np.arange(rows) * 1000.0, np.full(rows, blocks * BLOCK), np.arange(rows) % 500,
        np.tile(np.arange(rows // 2 * blocks), 2), np.arange(rows + 1) * blocks, session=np.arange(rows) // 2,
    )  # fmt: skip
    with DatasetWriter(tmp_path / "t.dataset", block_size=BLOCK, tail="kept") as writer:
        writer.add(columns)
    for counts_sessions in (True, False):
        meta = {"profile": "standard", "release": {"k_counted": "sessions" if counts_sessions else "inferred"}}
        manifest = tmp_path / "t.dataset/manifest.json"
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | meta))
        dataset = open_dataset(tmp_path / "t.dataset")
        arrays = sum(size for what, size in audit_memory(dataset).terms.items() if "program" not in what)
        kvtrace.privacy.audit(dataset.path)  # what is imported and cached is no part of it
        tracemalloc.start()
        kvtrace.privacy.audit(dataset.path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert 0.4 * arrays < peak < arrays + 4_000_000  # a piece of so few references takes less than that


@settings(max_examples=drawn(60), deadline=None)
@given(traces(unknown_outputs=True), st.sampled_from(["as it is", "standard", "strict"]), st.data())
def test_a_trace_is_audited_in_parts_as_in_one_file(tmp_path_factory, trace, name, data):
    folder, given = tmp_path_factory.mktemp("f"), {}
    columns, meta, tail = trace, {}, trace.tail
    if name != "as it is":
        done = release(trace, PROFILES[name])
        columns, meta, tail = done.trace, done.meta, done.trace.tail
    if data.draw(st.booleans()):  # rows that are out of order, out of shape or no numbers of their own
        columns = replace_columns(columns, timestamp=data.draw(st.permutations(columns.timestamp.tolist())))
        columns.input_length = columns.input_length + (np.arange(len(columns)) == data.draw(st.integers(0, 12)))
        columns.hash_ids = columns.hash_ids * data.draw(st.sampled_from([1, 2, -1, 2**40]))
    if data.draw(st.booleans()):
        given["contributors"] = Contributors(np.arange(len(columns)) % data.draw(st.integers(1, 4)), "users")
    unaudited.write(columns, folder / "t.parquet", meta=meta, block_size=trace.block_size, tail=tail)
    expected = findings(kvtrace.privacy.audit(folder / "t.parquet", **given))
    in_parts(columns, folder / "t.dataset", meta, block_size=trace.block_size, tail=tail)
    with pytest.MonkeyPatch.context() as patch:
        stream(patch)
        assert findings(kvtrace.privacy.audit(folder / "t.dataset", **given)) == expected
        assert findings(kvtrace.privacy.audit(folder / "t.parquet", **given)) == expected


# -- what we release passes ------------------------------------------------------------------------------------------


@settings(max_examples=drawn(60), deadline=None)
@given(
    traces(min_block_size=2), st.sampled_from(["standard", "strict"]), st.sampled_from(["t.jsonl", "t.parquet"]),
    st.sampled_from(["mooncake", "bailian"]), st.booleans(), st.booleans(), st.integers(0, 9), st.data(),
)  # fmt: skip
def test_what_is_released_has_no_failure(tmp_path_factory, trace, name, file, format, sessions, known, first_id, data):
    if not (trace.prompt_blocks > 0).any():
        return
    users = None
    if data.draw(st.booleans()):
        users = np.array(data.draw(st.lists(st.integers(-1, 4), min_size=len(trace), max_size=len(trace))))
    done = release(trace, profile(name, tail=data.draw(st.sampled_from([None, "dropped"]))), users=users)
    path = tmp_path_factory.mktemp("f") / file
    options = {"format": None if file.endswith("parquet") else format, "extra": sessions, "first_id": first_id}
    unaudited.write(done.trace, path, meta=trace.meta | done.meta, **options)
    found = kvtrace.privacy.audit(path, contributors=done.contributors if known else None)
    assert found.declared and {n for n, level in flagged(found).items() if level == "FAIL"} == set()


@settings(max_examples=20, deadline=None)
@given(traces(unknown_outputs=True), st.sampled_from(["standard", "strict"]))
def test_what_users_share_is_not_exposed_to_whoever_has_the_file_of_users(tmp_path_factory, trace, name):
    folder = tmp_path_factory.mktemp("f")
    users = np.arange(len(trace)) % 4
    done = release(trace, PROFILES[name], users=users)
    unaudited.write(done.trace, folder / "t.jsonl", meta=done.meta)
    (folder / "u").write_text("".join(f"{user}\n" for user in users))
    assert (
        next(
            f for f in kvtrace.privacy.audit(folder / "t.jsonl", users=folder / "u").findings if f.name == "k_sharing"
        ).level
        == "PASS"
    )


LOG = [
    {"timestamp": 1_700_000_000_000 + 700 * n, "session": f"s{n // 3}", "user": f"{CANARY}{n // 4}",
     "input": "You are kind. " * 30 + f"{CANARY} {n} " * 20, "output": "yes " * (n + 1)}
    for n in range(30)
]  # fmt: skip


@pytest.mark.parametrize("name", ["standard", "strict"])
def test_what_is_anonymised_passes_and_names_nobody(tmp_path, name):
    log, tiny = tmp_path / "log.jsonl", str(Path(__file__).parents[1] / "data/tokenizers/tiny")
    log.write_text("".join(json.dumps(row) + "\n" for row in LOG))
    trace = kvtrace.ingest.anonymize(log, tokenizer=tiny, use_template=False, block_size=16, profile=name)
    assert kvtrace.privacy.publish(trace, tmp_path / "t.jsonl").audit.publishable
    found = kvtrace.privacy.audit(tmp_path / "t.jsonl")
    assert found.publishable, [(f.name, f.sentence) for f in found.findings if f.level == "FAIL"]
    assert CANARY not in json.dumps(found.to_dict())


# -- the pieces, and their twins -------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=20), st.integers(0, 20))
def test_who_is_alone_is_as_the_twin_says(rows, near):
    group, time = zip(*rows, strict=True)
    assert anonymity.alone_near(np.array(group), np.array(time, dtype=float), near) == reference.alone_near(
        group, time, near
    )


@given(traces(outputs=False, unknown_outputs=True))
def test_structures_part_requests_as_the_twin_does(trace):
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    uses = np.bincount(trace.hash_ids, minlength=trace.distinct)
    mine = anonymity.shapes(uses[trace.hash_ids], trace.offsets).tolist()
    assert reference.partition(mine) == reference.partition(reference.structures(prompts))


@given(traces(outputs=False, unknown_outputs=True), traces(outputs=False))
def test_rows_are_found_again_as_the_twin_finds_them(old, new):
    def rows(trace):
        keys = zip(trace.input_length.tolist(), trace.output_length.tolist(), strict=True)
        return list(zip(trace.timestamp.tolist(), keys, strict=True))

    rules = [(PROFILES["exact"], 1)]
    assert earlier_release.matching_rows(old, new, rules)[0] == reference.found_again(rows(old), rows(new), 1000)


def cut(trace, ends):
    """The blocks of a trace in pieces that end at the given rows."""
    ends = [0, *sorted(end % (len(trace) + 1) for end in ends), len(trace)]
    for start, stop in pairwise(ends):
        part = rows_of(trace, start, stop)
        yield RequestBlocks(np.arange(start, stop), part.hash_ids, part.offsets, part.output_ids, part.output_offsets)


cuts = st.lists(st.integers(0, 12), max_size=3)


@given(st.lists(st.lists(st.integers(0, 3), max_size=4), min_size=1, max_size=6), cuts)
def test_parents_are_counted_as_the_twin_counts_them(prompts, ends):
    if not any(prompts):
        return
    trace = toy(*(" ".join(map(str, prompt)) for prompt in prompts))
    found = block_sums.BlockParents(trace.distinct, trace.full_blocks)
    for blocks in cut(trace, ends):
        found.take(blocks)
    assert found.several == reference.several_parents([trace.prompt(row).tolist() for row in range(len(trace))])
    assert found.are_one == trace.is_chained


@given(traces(outputs=True, unknown_outputs=True), st.integers(0, 40), st.integers(0, 3), cuts)
def test_ids_are_chained_where_a_trace_says_so(trace, place, block, ends):
    ids, output_ids = trace.hash_ids.copy(), trace.output_ids.copy()
    for array in (ids, output_ids):  # one id is another: a block of a prompt or an output that follows two
        if len(array):
            array[place % len(array)] = block
    columns = replace_columns(trace, hash_ids=ids, output_ids=output_ids)
    trace = Trace.from_columns(columns, block_size=trace.block_size)
    found = block_sums.BlockParents(trace.distinct, trace.full_blocks)
    for blocks in cut(trace, ends):
        found.take(blocks)
    assert found.are_one == trace.is_chained


@given(
    traces(), st.lists(st.integers(0, 3), min_size=12, max_size=12), st.integers(1, 4), cuts, st.sampled_from([4, 64])
)
def test_holders_are_counted_up_to_a_number_as_they_are_counted_at_all(trace, contributor, most, ends, room):
    contributor, parts = np.array(contributor[: len(trace)]), list(cut(trace, ends))
    uses = block_sums.UseCounts(trace.distinct)
    for blocks in parts:
        uses.take(blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kvtrace.privacy.checks.block_sums.TABLE", room)
        found = block_sums.count_up_to(
            most, lambda take: [take(blocks) for blocks in parts], contributor, uses.anywhere
        )
    assert found.tolist() == np.minimum(RowBlocks.of(trace).contributors(contributor), most).tolist()


@given(traces(outputs=False, unknown_outputs=True), cuts)
def test_conversations_are_inferred_in_pieces_as_at_once(trace, ends):
    found = Inference(len(trace), True, trace.distinct)
    for blocks in cut(trace, ends):
        found.go_on(blocks.numbers, blocks.offsets, int(blocks.requests[0]) if len(blocks.requests) else 0)
    prompts = [trace.prompt(row).tolist() for row in range(len(trace))]
    assert found.session.tolist() == sharing_reference.infer(prompts, True)


some_ids = st.one_of(st.integers(0, 9), st.sampled_from([-1, -(2**63), 2**63 - 1, 2**41, 2**62]))


@given(st.lists(st.lists(some_ids, max_size=6), max_size=4), st.integers(-(2**63), 2**63 - 1), st.booleans())
def test_ids_are_numbered_in_pieces_as_at_once(pieces, first, follow):
    if follow:  # ids that follow each other as they appear, from any first one on
        pieces = [[(first + abs(one) % 10 + 2**63) % 2**64 - 2**63 for one in piece] for piece in pieces]
    ids, found = np.array([one for piece in pieces for one in piece], dtype=np.int64), IdNumbers()
    numbers = [found.see(np.array(piece, dtype=np.int64)).tolist() for piece in pieces]
    expected, distinct = renumber(ids)
    assert [one for piece in numbers for one in piece] == expected.tolist() == found.of(ids).tolist()
    firsts = list(dict.fromkeys(ids.tolist()))
    assert found.distinct == distinct == len(firsts) and found.in_order == (firsts == sorted(firsts))
    assert sorted(found.raw.tolist()) == sorted(one for one in firsts if not 0 <= one <= 2**40)
    assert not firsts or (found.smallest, found.largest) == (min(firsts), max(firsts))


def test_two_halves_of_a_day_are_no_overlap_and_hours_of_both_are(tmp_path, shared):
    whole = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    hours = {"one": slice(0, 6000), "two": slice(6000, None), "both": slice(3000, 9000)}
    for profile_name in ("standard", "strict"):
        for name, part in hours.items():
            done = release(whole[part], PROFILES[profile_name])
            unaudited.write(done.trace, tmp_path / f"{profile_name} {name}.jsonl", meta=done.meta)

    def level(name, against):
        return (
            kvtrace.privacy.audit(tmp_path / f"{name}.jsonl", against=tmp_path / f"{against}.jsonl")
            .findings[CHECK_NAMES.index("earlier_release")]
            .level
        )

    assert [level(f"standard {name}", "standard one") for name in hours] == ["FAIL", "PASS", "FAIL"]
    assert [level(f"strict {name}", "standard one") for name in hours] == ["FAIL", "PASS", "PASS"]
    # strict hides half an overlap in what chance gives: whoever looks for it does not find it, either


def test_the_public_conversation_trace_has_the_figures_that_its_facts_say(shared):
    found = kvtrace.privacy.audit(shared / "data/mooncake/conversation_trace.jsonl")
    figure = found.findings[CHECK_NAMES.index("anonymity")].figure
    assert round(figure["alone_by_lengths"], 3) == 0.989 and round(figure["located"], 3) == 0.998
    assert flagged(found) == {
        "tails": "FAIL",
        "anonymity": "WARN",
        "k_sharing": "FAIL",
        "times": "FAIL",
        "lengths": "WARN",
        "sidecar": "WARN",
        "volume": "WARN",
        "not_protected": "WARN",
    }


# -- the dictionary --------------------------------------------------------------------------------------------------


def test_xxh3_gives_what_the_library_gives():
    vectors = json.loads(VECTORS.read_text())
    for one in vectors["digests"]:
        data = bytes((i * 131 + 7) % 256 for i in range(one["bytes"]))
        assert f"{dictionary.xxh3_64(data, one['seed']):016x}" == one["digest"], one


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=5), st.integers(0, 2**64 - 1))
def test_xxh3_of_words_is_xxh3_of_their_bytes(words, seed):
    expected = [dictionary.xxh3_64(word.to_bytes(4, "little"), seed) for word in words]
    assert dictionary.xxh3_64_of_words(np.array(words, dtype=np.uint32), seed).tolist() == expected


def test_each_engines_digests_of_public_openings_are_inverted(tmp_path):
    openings = [dictionary.OPENINGS[2][:16], dictionary.OPENINGS[2][16:]]
    for name, functions in dictionary.ENGINES.items():
        digests = np.array([digest for function in functions for digest in function(openings)], dtype=np.uint64)
        assert name in dictionary.inverted(digests.view(np.int64)), name
    assert dictionary.inverted(np.array([1 << 50, -5])) == {}


def test_raw_digests_of_one_token_blocks_are_told_as_inverted(tmp_path):
    case = Case()
    for row in case.rows:
        row["hash_ids"] = [dictionary.dynamo_local([[block]])[0] for block in row["hash_ids"]]
    figure = case.audit(tmp_path).findings[CHECK_NAMES.index("numbering")].figure
    assert figure["raw_digests"] == figure["inverted"] == 25 and figure["by"] == {"dynamo": 25}


# -- marks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("123e4567-e89b-42d3-a456-426614174000", "UUID"), ("someone@mail.example.org", "e-mail address"),
        ("s3://bucket/key", "URL"), ("192.168.0.1", "IP address"), ("fe80:0:0:0:1:2:3:4", "IP address"),
        ("/home/someone/x.json", "path"), ("~/x", "path"), ("C:\\Users\\x", "path"), ("../x/y", "path"),
        ("deadbeefdeadbeef", "long hexadecimal"), ("1700000000", "epoch time"), ("2026-01-02T10:00:00", "epoch time"),
        ("db1.prod.internal", "host name"), ("Ab3" * 12, "long random text"),
    ],
)  # fmt: skip
def test_marks_are_seen(text, kind):
    assert kind in allowed_values.kinds(text) and kind in allowed_values.kinds(f"before {text} after")


@pytest.mark.parametrize(
    "text",
    ["text", "SipHash-2-4-128, keyed, chained", "openai (detected)", "milliseconds since 1970", "deepseek-r1",
     "10.000.000",
     "hit blocks / blocks", "tokenizers 0.20.1", "<|im_start|>assistant\n", "unknown: no block is shared"],
)  # fmt: skip
def test_plain_words_bear_no_mark(text):
    assert allowed_values.kinds(text) == []


def test_a_name_that_is_content_is_not_shown(tmp_path):
    case = Case()
    case.rows[3]["Dear Ms Smith, thank you"] = 1
    case.rows[3]["smith@example.org"] = 1
    case.meta["smith@example.org"] = 1
    told = json.dumps(case.audit(tmp_path).to_dict())
    assert "mith" not in told and "name that looks like: e-mail address" in told


def test_no_value_of_rows_or_sidecar_is_shown(tmp_path, capsys):
    case = Case()
    for number, (name, value) in enumerate(
        [("note", CANARY), ("type", CANARY), ("session_id", CANARY), ("turn", CANARY), ("chat_id", CANARY),
         ("parent_chat_id", CANARY), ("model", [CANARY]), ("input_length", CANARY), ("hash_ids", [CANARY])]
    ):  # fmt: skip
        case.rows[number][name] = value
    case.meta |= {"log": {"host": CANARY, "note": f"/home/{CANARY}"}, "prefixes": f"{CANARY}@example.org"}
    case.card = f"{CANARY}@example.org"
    case.users = [f"{CANARY}{row}" for row in range(24)]
    path = case.write(tmp_path)
    for arguments in ([], ["--json"], ["-q"], ["--profile", CANARY], ["--users", str(path)]):
        assert run(["audit", str(path), *arguments]) in (2, 3, 4)
        shown = "".join(capsys.readouterr())
        if arguments != ["--profile", CANARY]:  # what was typed may be said
            assert CANARY not in shown


values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.integers(-2, 3), st.floats(), st.text(max_size=3),
    st.just(CANARY), st.lists(st.integers(-3, 2**64), max_size=3),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)  # fmt: skip
places = st.sampled_from(
    ["timestamp", "input_length", "output_length", "hash_ids", "output_hash_ids", "session_id", "chat_id",
     "parent_chat_id", "type", "turn", "new"]
)  # fmt: skip
metas = st.recursive(values, lambda inner: st.dictionaries(st.sampled_from(["a", "key", "name"]), inner, max_size=2))


@settings(max_examples=drawn(150), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 23), places, values), max_size=4), st.data())
def test_whatever_stands_in_rows_and_sidecar_is_audited_or_refused(tmp_path_factory, changes, data):
    case = Case()
    for row, place, value in changes:
        case.rows[row][place] = value
    keys = ["profile", "release", "block_size", "tail", "requests", "first_id", "counts", "new"]
    case.meta |= {data.draw(st.sampled_from(keys)): data.draw(metas)}
    if data.draw(st.booleans()):
        case.meta["release"] = {"settings": data.draw(metas), "k_counted": data.draw(metas), "costs": data.draw(metas)}
    folder = tmp_path_factory.mktemp("f")
    path = folder / "t.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in case.rows))
    (folder / "t.jsonl.meta.json").write_text(json.dumps(case.meta))
    found = kvtrace.privacy.audit(path, block_size=BLOCK)
    assert len(found.findings) == len(CHECKS) and CANARY not in json.dumps(found.to_dict())


@pytest.mark.parametrize("turn", [10**9, 2**31 - 1, 2**62])
def test_one_huge_turn_takes_no_memory(turn, tmp_path):
    case = Case()
    case.rows[3]["turn"] = turn
    tracemalloc.start()
    try:
        kvtrace.privacy.audit(case.write(tmp_path), block_size=BLOCK)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


# -- the command -----------------------------------------------------------------------------------------------------


def test_exit_statuses(tmp_path, capsys):
    path = str(Case().write(tmp_path))
    assert run(["audit", path]) == 0
    assert run(["audit", path, "--profile", "strict"]) == 4
    assert run(["audit", path, "--profile", "superb"]) == 2
    assert run(["audit", path, "--format", "superb"]) == 2
    assert run(["audit", str(tmp_path / "none.jsonl")]) == 3
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "text.jsonl").write_text(f"{CANARY}\n")
    assert run(["audit", str(tmp_path / "empty.jsonl")]) == run(["audit", str(tmp_path / "text.jsonl")]) == 3
    assert CANARY not in "".join(capsys.readouterr())


def test_json_says_what_the_library_says(tmp_path, capsys):
    path = Case().write(tmp_path)
    assert run(["audit", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == json.loads(json.dumps(kvtrace.privacy.audit(path).to_dict()))
    assert said["level"] == "WARN" and said["publishable"] and len(said["findings"]) == len(CHECKS)


def test_the_verdict_comes_last_and_alone_if_asked(tmp_path, capsys):
    path = Case().write(tmp_path)
    verdict = kvtrace.privacy.audit(path).verdict
    run(["audit", str(path)])
    assert capsys.readouterr().out.splitlines()[-1] == verdict
    run(["audit", str(path), "-q"])
    assert capsys.readouterr().out == f"{verdict}\n"
    assert audit_table(kvtrace.privacy.audit(path), "t.jsonl").row_count == len(CHECKS)


def test_a_trace_from_stdin_is_audited(tmp_path, monkeypatch):
    path = Case().write(tmp_path)

    class Stdin:
        buffer = open(path, "rb")  # noqa: SIM115

    with Stdin.buffer:
        monkeypatch.setattr("sys.stdin", Stdin)
        assert flagged(kvtrace.privacy.audit("-")) == NO_USERS | {
            "sidecar": "WARN",
            "volume": "WARN",
            "not_protected": "WARN",
        }


def test_the_fields_that_writers_write_are_allowed(tmp_path):
    extra = {"type": np.array(["text", "image"], dtype=object), "turn": np.array([1, 2])}
    trace = Trace([0, 1000], [16, 32], [1, 1], [0, 0, 1], [0, 1, 3], session=[0, 0], parent=[-1, 0], extra=extra,
                  block_size=16, output_ids=[], output_offsets=[0, 0, 0])  # fmt: skip
    for file, format in (("a.jsonl", "mooncake"), ("b.jsonl", "bailian"), ("c.parquet", None)):
        kvtrace.write(trace, tmp_path / file, format=format, extra=True)
        assert "fields" not in flagged(kvtrace.privacy.audit(tmp_path / file))
