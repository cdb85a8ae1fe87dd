"""Attacks on published releases, with their success: at chance wherever the card says "protected".

20 trials each, in half of which the victim sent the document that the attacker guesses: 10 of 20 is chance.
`tests/attacks/table.py` has the attacks of the table in docs/privacy/privacy.md.
"""

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import AuditError
from kvtrace.privacy.profiles import PROFILES
from tests.attacks.trials import ONE_ACCOUNT, TAILS, looks_up_tails
from tests.privacy.senders import TRIALS, Service, account, looks_up, sections, successes

CHANCE, ALWAYS = TRIALS // 2, TRIALS


def client(user):
    return {"user": f"user {user}"}


def session(user):
    return {"session_id": f"session {user}"}


PROTECTED = {  # the card lists other senders as protected
    "two accounts": ONE_ACCOUNT,
    "an account and an anonymous request": Service((account("a"), {}), account("v"), account),
    "an account and nine anonymous requests": Service((account("a"), *[{}] * 9), account("v"), account),
    "an account, an anonymous request and an anonymous victim": Service((account("a"), {}), {}, account),
    "two accounts and an anonymous victim": Service((account("a"), account("b"), {}), {}, account),
    "eight accounts and an anonymous request, strict": Service(
        (*map(account, range(100, 108)), {}), account("v"), account
    ).under("strict"),
    "a user of an account and a request of it without a user": Service(
        (account("x") | client("a"), account("x")), account("x") | client("v"), lambda n: account("x") | client(n)
    ),
    "two accounts, strict": ONE_ACCOUNT.under("strict"),
    "one account that extends the victim's prompt": Service((account("a"),), account("v"), account, extends=True),
    "names that one account chooses": Service(
        tuple(account("a") | client(n) for n in range(5)), account("v") | client(0), lambda n: account(n) | client(n)
    ),
    "the name of the victim's user under another account": Service(
        (account("a") | client("v"),), account("v") | client("v"), lambda n: account(n) | client(n)
    ),
    "two users of one account that names them": Service(
        (account("x") | client("a"),), account("x") | client("v"), lambda n: account("x") | client(n)
    ),
    "one anonymous sender": Service(({},) * 5, account("v"), account),
    "an anonymous sender and an anonymous victim": Service(({},) * 5, {}, account),
    "anonymous, in sessions": Service(tuple(session(n) for n in range(5)), session("v"), account),
    "two colluding accounts, strict": Service((account("a"), account("b")), account("v"), account).under("strict"),
    "eight colluding accounts, strict": Service(tuple(map(account, range(100, 108))), account("v"), account).under(
        "strict"
    ),
}
OPEN = {  # the card does not: what it says instead
    "names that clients choose": (
        Service((client("a"), client("b")), client("v"), client),
        "users that the client names",
    ),
    "the name of the victim's user": (Service((client("v"),), client("v"), client), "users that the client names"),
    "sessions": (Service((session("a"), session("b")), session("v"), session), "k counts sessions"),
    "no users, one guess": (Service(({},), extends=True), "k counts inferred conversations"),
    "no users, two guesses": (Service(({}, {})), "k counts inferred conversations"),
}
SEVERAL = {  # protected up to as many accounts as the card names
    "two colluding accounts": (Service((account("a"), account("b")), account("v"), account), "2 or more accounts"),
    "nine colluding accounts, strict": (
        Service(tuple(map(account, range(100, 109))), account("v"), account).under("strict"), "9 or more accounts",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROTECTED)
def test_a_guess_is_at_chance_where_the_card_says_protected(tmp_path, name):
    service = PROTECTED[name]
    assert successes(service, tmp_path) == CHANCE
    for seed in range(4):  # no other attack on these files can do better: they are the same
        sent, not_sent = (service.publish(tmp_path, was_sent=was_sent, seed=seed) for was_sent in (True, False))
        assert sent == not_sent
    assert "other senders of a text" in sections(sent["card"])[0]


@pytest.mark.parametrize("name", OPEN)
def test_a_guess_succeeds_where_the_card_says_not_protected(tmp_path, name):
    service, reason = OPEN[name]
    assert successes(service, tmp_path) == ALWAYS
    protected, rest = sections(service.publish(tmp_path, was_sent=True, seed=0)["card"])
    assert "other senders of a text" not in protected
    assert "whether another sender sent a guessed prompt" in rest and reason in rest


@pytest.mark.parametrize("name", SEVERAL)
def test_as_many_accounts_as_the_card_names_succeed(tmp_path, name):
    service, accounts = SEVERAL[name]
    assert successes(service, tmp_path) == ALWAYS
    rest = sections(service.publish(tmp_path, was_sent=True, seed=0)["card"])[1]
    assert f"if one attacker sends it from {accounts}" in rest


def test_counting_requests_is_not_published_under_the_name(tmp_path):
    service = Service((account("a"), account("a")), account("v"), account, {"k_counts": "requests"})
    with pytest.raises(AuditError, match="not_protected"):
        service.publish(tmp_path, was_sent=True, seed=0)


def test_a_file_of_users_with_unknown_ones_protects_them_too(tmp_path):
    found = []
    for trial in range(TRIALS):
        log = Service(({},) * 5).log(tmp_path / "log.jsonl", was_sent=bool(trial % 2), seed=trial // 2)
        house = kvtrace.ingest.anonymize(log, tokenizer=None, block_size=16, profile="exact")
        users = np.array([row % 12 if row < 24 else -1 for row in range(len(house))])
        done = kvtrace.privacy.release(house, PROFILES["standard"], users=users)
        kvtrace.privacy.publish(done.trace, tmp_path / "day.jsonl")
        found.append(looks_up({"trace": (tmp_path / "day.jsonl").read_text()}) == bool(trial % 2))
    assert sum(found) == CHANCE


# -- tails ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "expected"), [("exact", ALWAYS), ("standard", CHANCE), ("strict", CHANCE)])
def test_the_last_tokens_are_at_chance_where_the_card_says_protected(tmp_path, profile, expected):
    service = TAILS.under(profile)
    assert successes(service, tmp_path, looks_up_tails) == expected
    protected, _ = sections(service.publish(tmp_path, was_sent=True, seed=0)["card"])
    assert ("last few tokens" in protected) == (expected == CHANCE)


# -- two releases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_two_releases_of_the_same_requests_are_linked_and_the_audit_says_so(shared, tmp_path, profile):
    whole = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    first, second = (
        kvtrace.privacy.release(whole, PROFILES[profile], users=np.arange(len(whole)) % 500).trace for _ in range(2)
    )
    kvtrace.privacy.publish(first, tmp_path / "first.jsonl")
    with pytest.raises(AuditError, match="earlier_release"):
        kvtrace.privacy.publish(second, tmp_path / "second.jsonl", against=tmp_path / "first.jsonl")
