"""Who k counts: accounts before names that clients choose, and no unknown sender, worked out by hand."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvtrace
from kvtrace._base.errors import AuditError, UsageError
from kvtrace.cli import run
from kvtrace.ingest.logs.fields import plain_key
from kvtrace.privacy.contributors import WARNINGS, Users, contributors, meaning_of_k
from kvtrace.privacy.data_card import card
from kvtrace.privacy.profiles import PROFILES, profile, satisfied_name, unprotected, weaker_settings
from kvtrace.privacy.releases import release
from kvtrace.trace.building import toy
from kvtrace.trace.trace import Trace
from tests import unaudited
from tests.ingest.flat import anonymize_rows
from tests.reference import release as slow_release
from tests.strategies import traces


def ids(trace, k=3, **options):
    """The ids of a release, and the kind of contributors that it counted."""
    done = release(trace, profile("standard", k=k), **options)
    return done.trace.hash_ids.tolist(), done.contributors


def test_unknown_senders_count_for_nobody_and_share_no_split_block():
    #            ann   bob    cy     ?      ?      ?
    trace = toy("0 1", "0 2", "0", "0 2", "0 3", "0 3")
    found, who = ids(trace, users=np.array([0, 1, 2, -1, -1, -1]))
    assert who.contributor.tolist() == [0, 1, 2, 3, 3, 3] and who.member.tolist() == [0, 1, 2, 3, 4, 5]
    #  three accounts have 0; one has 2, with somebody unknown; nobody known has 3, and two people may have sent it
    assert found == [0, 1, 0, 2, 0, 0, 3, 0, 4, 0, 5]


@pytest.mark.parametrize("anonymous", [1, 3, 20])
def test_any_number_of_anonymous_requests_counts_for_nobody(anonymous):
    trace = toy(*["0"] * (3 + anonymous))
    for known in ([0, 0, 0], [0, 1, 0]):
        shared = ids(trace, users=np.array([*known, *[-1] * anonymous]))[0]
        assert shared == [*known, *range(max(known) + 1, max(known) + 1 + anonymous)]
    assert set(ids(trace, users=np.array([0, 1, 2, *[-1] * anonymous]))[0]) == {0}  # three accounts share with anybody


def test_requests_without_a_session_count_for_nobody_too():
    trace = Trace([0] * 5, [1] * 5, [1] * 5, [0] * 5, range(6), session=[0, -1, -1, 0, 1], block_size=1)
    found, who = ids(trace)
    assert who.kind == "sessions" and who.contributor.tolist() == [0, 2, 2, 0, 1] and found == [0, 1, 2, 0, 3]
    assert ids(trace, k=2)[0] == [0] * 5


def test_requests_of_an_account_that_name_no_user_count_as_none_of_its_users():
    account = np.zeros(5, dtype=int)
    users = [Users(account, "accounts", np.array(names)) for names in ([0, 1, -1, -1, 0], [0, 1, 2, -1, -1], [-1] * 5)]
    trace = toy("0", "0", "0", "0", "0")
    #  two users and requests without one: each user has a copy, and so have the others together
    assert ids(trace, users=users[0])[0] == [0, 1, 2, 2, 0]
    assert ids(trace, users=users[1])[0] == [0] * 5  # three users share with all of their account
    assert ids(trace, users=users[2])[0] == [0] * 5  # an account that names no user keeps its reuse


def test_the_session_of_an_unknown_sender_keeps_its_own_blocks():
    trace = Trace([0] * 4, [1] * 4, [1] * 4, [0, 0, 0, 0], range(5), session=[0, 0, 1, -1], block_size=1)
    assert ids(trace, users=np.array([-1, -1, -1, 7]))[0] == [0, 0, 1, 2]


def test_accounts_are_counted_and_their_users_within_them():
    #               account 0 names its users a, b, c; account 1 names two of them
    account, user = np.array([0, 0, 0, 1, 1]), np.array([0, 1, 2, 3, 4])
    found, who = ids(toy("0", "0", "0", "0", "0"), users=Users(account, "accounts", user))
    assert who.kind == "accounts" and found == [0, 0, 0, 1, 2]  # k users of account 0 share, and two of account 1


def test_users_that_nobody_knows_cannot_be_counted():
    for users in (None, np.array([-1, -1])):
        with pytest.raises(UsageError, match="--k-counts users needs the users"):
            release(toy("0", "0"), profile("standard", k_counts="users"), users=users)
    assert contributors(toy("0"), np.array([3]), "users", infer=lambda: np.arange(1)).kind == "users"


@given(traces(unknown_outputs=True), st.integers(1, 6), st.data())
def test_accounts_and_members_are_split_as_the_twin_splits_them(trace, k, data):
    draw = st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=len(trace), max_size=len(trace))
    pairs = data.draw(draw)
    if max(account for account, _ in pairs) < 0:
        return
    account, user = (np.array(values) for values in zip(*pairs, strict=True))
    known = Users(account, "accounts", np.where(user < 0, -1, user + 4 * account))
    trace = trace.chained()
    done = release(trace, profile("exact", k=k), users=known)
    rows, steps = slow_release.release(trace, k=k, users=[pair if pair[0] >= 0 else (-1, -1) for pair in pairs])
    assert [done.trace.prompt(row).tolist() for row in range(len(trace))] == [prompt for prompt, _ in rows]
    assert [(step.step.value, step.hits.hit_blocks) for step in done.steps] == steps


# -- which field of a log ---------------------------------------------------------------------------------------------


def kind_of(tmp_path, rows, **options):
    """The kind of contributors of a log of equal prompts."""
    made = [{"timestamp": time, "input": [1, 2], "output": 1} | row for time, row in enumerate(rows)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in made))
    done = anonymize_rows(log, tokenizer=None, block_size=2, **options)
    return done.released.contributors.kind, done.trace().hash_ids.tolist()


FIELDS = ["account_id", "account", "api_key_id", "api_key", "organization_id", "project_id", "tenant", "workspace_id"]


@pytest.mark.parametrize("field", FIELDS)
def test_an_account_takes_precedence_over_a_name_that_the_client_sets(tmp_path, field):
    rows = [{field: "x", "user": name} for name in "abc"] + [{field: "y", "safety_identifier": "a"}]
    assert kind_of(tmp_path, rows) == ("accounts", [0, 0, 0, 1])  # account x names three users
    rows = [{field: "x", "user": "a"}, {field: "y", "user": "a"}]
    assert kind_of(tmp_path, rows) == ("accounts", [0, 1])  # the name of another account's user does not help


def test_only_names_that_clients_set_are_counted_with_a_warning(tmp_path):
    rows = [{"user": name} for name in "abc"]
    assert kind_of(tmp_path, rows) == ("client_users", [0, 0, 0]) and "client sets" in WARNINGS["client_users"]
    assert kind_of(tmp_path, rows, field_map={"account": "user"}) == ("accounts", [0, 0, 0])


def test_a_request_cannot_carry_its_own_account(tmp_path):
    request = {"model": "m", "prompt": [1, 2], "account_id": "x", "tenant": "t", "user": "u"}
    row = {
        "timestamp": 0,
        "request": request,
        "response": {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}},
    }
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(row) + "\n" + json.dumps(row) + "\n")
    made = anonymize_rows(log, tokenizer=None, block_size=2)
    assert made.released.contributors.kind == "client_users"


def test_a_field_that_is_no_key_is_passed_over():
    assert (
        plain_key({"account": {"id": 1}, "account_id": "", "api_key_id": 5}, "account", "account_id", "api_key_id")
        == "5"
    )


# -- what the release says --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", WARNINGS)
def test_a_card_promises_protection_from_guesses_for_strong_contributors_alone(tmp_path, kind):
    done = release(toy("0 1", "0 2", "0 3", "0 4", block_size=16), PROFILES["standard"], users=np.arange(4))
    meta = done.meta | {"release": done.meta["release"] | {"k_counted": kind}}
    unaudited.write(done.trace, tmp_path / "day.jsonl", meta=meta)
    audited = kvtrace.privacy.audit(tmp_path / "day.jsonl")
    text, finding = card(audited, meta=meta), {one.name: one for one in audited.findings}["k_sharing"]
    first = text.partition("## What is protected, and what is not\n\n")[2].splitlines()[0]
    assert first == meaning_of_k(3, kind)
    protected, _, rest = text.partition("Not protected:")
    if WARNINGS[kind] is None:
        assert "other senders of a text" in protected and "sent a guessed prompt" not in rest
    else:
        assert "other senders of a text" not in protected and "whether another sender sent a guessed prompt" in rest
        assert finding.level == "WARN" and WARNINGS[kind] in finding.sentence
    assert unprotected(PROFILES["standard"], kind)[1] in rest


def test_a_release_says_whom_k_counted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [{"timestamp": 1000 * time, "input": [1, 2, 3, 4], "output": 1} for time in range(4)]
    for name, extra in (("account", {"api_key_id": "k"}), ("client", {"user": "k"})):
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps(row | extra) + "\n" for row in [*rows[:-1]]) + json.dumps(rows[-1])
        )
        assert run(["anonymize", f"{name}.jsonl", "-o", f"{name}.trace.jsonl", "--block-size", "2"]) == 0
    shown = capsys.readouterr().err
    assert "profile standard, k = 3 accounts" in shown and "k counts users that the client sets" in shown
    assert "k = 3 counts accounts; a request that names no account counts for nobody.\n" in shown
    assert "k = 3 counts users named by clients, not accounts: one account can count as 3.\n" in shown
    assert "requests that name no account: 1 of 4. k counts them for nobody" in shown
    assert kvtrace.read("account.trace.jsonl").meta["release"]["k_counted"] == "accounts"


# -- a profile that is weaker than its name ---------------------------------------------------------------------------

WEAKER = [
    ("strict", {"round_input": 1}, "standard"), ("strict", {"round_output": 4}, "standard"),
    ("strict", {"k": 3}, "standard"), ("strict", {"time_step_ms": 1000}, "standard"),
    ("strict", {"k_counts": "sessions"}, "exact"),
    ("standard", {"k": 1}, "exact"), ("standard", {"k_counts": "requests"}, "exact"),
    ("standard", {"tail": "kept"}, "exact"), ("standard", {"time_step_ms": 0}, "exact"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changed", "satisfied"), WEAKER, ids=str)
def test_a_weaker_profile_is_not_published_under_its_name(tmp_path, name, changed, satisfied):
    trace = toy("0 1", "0 2", "0 3", block_size=16)
    chosen = profile(name, **changed)
    assert weaker_settings(chosen, block_size=16) == list(changed) and satisfied_name(chosen, 16) == satisfied
    done = release(trace, chosen, users=np.arange(3))
    with pytest.raises(AuditError, match=f"not_protected: the trace declares {name} but has weaker settings"):
        kvtrace.privacy.publish(done.trace, tmp_path / "t.jsonl")
    again = release(trace, profile(satisfied, **chosen.settings()), users=np.arange(3))
    kvtrace.privacy.publish(again.trace, tmp_path / "t.jsonl")


def test_blocks_of_one_token_are_not_published_under_a_name(tmp_path):
    done = release(toy("0 1", "0 2"), PROFILES["standard"], users=np.arange(2))
    with pytest.raises(AuditError, match="block_size is 1"):
        kvtrace.privacy.publish(done.trace, tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    "changed", [{"k": 20}, {"tail": "dropped"}, {"time_step_ms": 90_000}, {"round_input": 16}, {"k_counts": "users"}]
)
def test_a_stronger_profile_keeps_its_name(tmp_path, changed):
    done = release(toy("0 1", "0 2", "0 3", block_size=16), profile("strict", **changed), users=np.arange(3))
    assert kvtrace.privacy.publish(done.trace, tmp_path / "t.jsonl").audit.publishable


def test_a_weaker_profile_is_refused_before_any_work(tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text("not read\n")
    assert run(["anonymize", str(tmp_path / "log.jsonl"), "-o", str(tmp_path / "t.jsonl"), "--k", "1"]) == 4
    line = capsys.readouterr().err
    assert "standard but has weaker settings: k is 1 (standard: 3)" in line and "--profile exact" in line
