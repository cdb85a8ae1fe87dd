"""Attacks on published releases, with their success: at chance wherever the card says "protected".

20 trials each, in half of which the victim sent the document that the attacker guesses: 10 of 20 is chance.
docs/privacy/privacy.md quotes these figures.
"""

import json

import numpy as np
import pytest

import kvtrace
from kvtrace._base.errors import AuditError
from kvtrace.privacy.profiles import PROFILES
from tests.privacy.senders import TRIALS, Service, account, looks_up, sections, successes

CHANCE, ALWAYS = TRIALS // 2, TRIALS


def client(user):
    return {"user": f"user {user}"}


def session(user):
    return {"session_id": f"session {user}"}


ACCOUNTS = Service(attacker=(account("a"),), victim=account("v"), others=account)

PROTECTED = {  # the card lists other senders as protected
    "two accounts": ACCOUNTS,
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
    "two accounts, strict": ACCOUNTS.under("strict"),
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
        house = kvtrace.anonymize(log, tokenizer=None, block_size=16, profile="exact")
        users = np.array([row % 12 if row < 24 else -1 for row in range(len(house))])
        done = kvtrace.release(house, PROFILES["standard"], users=users)
        kvtrace.publish(done.trace, tmp_path / "day.jsonl")
        found.append(looks_up({"trace": (tmp_path / "day.jsonl").read_text()}) == bool(trial % 2))
    assert sum(found) == CHANCE


# -- tails, figures, samples -----------------------------------------------------------------------------------------


def tails(profile):
    """A service whose victim's last five tokens are guessed: they are in a partial block, which the attacker sends."""

    class Tails(Service):
        def log(self, path, *, was_sent, seed):
            path = super().log(path, was_sent=was_sent, seed=seed)
            rows = [json.loads(line) for line in path.read_text().splitlines()]
            for row in rows[-2:]:
                row["input"] = rows[0]["input"][:64] + [7, 7, 7, 7, 7 if row is rows[-1] or was_sent else 8]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            return path

    return Tails((account("a"),), account("v"), account).under(profile)


def looks_up_tails(files):
    """The attacker's answer: whether another row has the last block of the own row."""
    rows = [json.loads(line)["hash_ids"] for line in files["trace"].splitlines()]
    return sum(rows[-1][-1] in ids for ids in rows) > 1


@pytest.mark.parametrize(("profile", "expected"), [("exact", ALWAYS), ("standard", CHANCE), ("strict", CHANCE)])
def test_the_last_tokens_are_at_chance_where_the_card_says_protected(tmp_path, profile, expected):
    service = tails(profile)
    assert successes(service, tmp_path, looks_up_tails) == expected
    protected, _ = sections(service.publish(tmp_path, was_sent=True, seed=0)["card"])
    assert ("last few tokens" in protected) == (expected == CHANCE)


def numbers_in(files):
    """All numbers that the sidecar and the card state."""
    found = []

    def walk(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list):
            for one in value:
                walk(one)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found.append(value)

    walk(json.loads(files["sidecar"]))
    return found + [float(word) for word in files["card"].replace(",", "").split() if word.replace(".", "").isdigit()]


def test_the_figures_beside_a_release_are_at_chance(tmp_path):
    #  the attacker knows all of the log but the victim's document: and the figures of both cases
    expected = [
        {was_sent: numbers_in(ACCOUNTS.publish(tmp_path, was_sent=was_sent, seed=seed)) for was_sent in (True, False)}
        for seed in range(TRIALS // 2)
    ]
    cases = iter(range(TRIALS))

    def compare(files):
        return numbers_in(files) == expected[next(cases) // 2][True]

    assert successes(ACCOUNTS, tmp_path, compare) == CHANCE


def test_the_size_of_the_whole_is_at_chance_from_a_sample(tmp_path):
    right = 0
    for trial in range(TRIALS):
        is_large = bool(trial % 2)
        log = tmp_path / "log.jsonl"
        count = 600 if is_large else 300
        rows = [
            {"timestamp": 1000 * n, "input": [1] * 32 + [n] * 16 * (n % 3), "output": n % 7 + 1, "session_id": n // 3}
            for n in range(count)
        ]
        log.write_text("".join(json.dumps(row) + "\n" for row in rows))
        whole = kvtrace.anonymize(log, tokenizer=None, block_size=16, profile="exact")
        share = 0.2 if is_large else 0.4
        rng = np.random.default_rng(trial // 2)
        done = kvtrace.release(whole, PROFILES["standard"], session_share=share, rng=rng)
        kvtrace.publish(done.trace, tmp_path / "day.jsonl")
        files = {name: (tmp_path / f"day.jsonl{suffix}").read_text()
                 for name, suffix in (("sidecar", ".meta.json"), ("card", ".card.md"))}  # fmt: skip
        #  the attacker knows both candidates: a rate that is a fraction of the one whole gives it away
        blocks = sum(2 + n % 3 for n in range(600)), sum(2 + n % 3 for n in range(300))
        rates = [one for one in numbers_in(files) if 0 < one < 1 and len(repr(one)) > 9]
        own = json.loads(files["sidecar"])["figures"]
        rates = [one for one in rates if abs(one * own["blocks"] - round(one * own["blocks"])) > 1e-6]
        stated = {whole for whole in blocks if any(abs(one * whole - round(one * whole)) < 1e-6 for one in rates)}
        right += (stated == {blocks[0]}) == is_large
    assert right == CHANCE


# -- two releases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("profile", "share"), [("standard", 0.9998), ("strict", 0.4261)])
def test_two_releases_of_the_same_requests_are_linked_and_the_audit_says_so(shared, tmp_path, profile, share):
    whole = kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    first, second = (
        kvtrace.release(whole, PROFILES[profile], users=np.arange(len(whole)) % 500).trace for _ in range(2)
    )
    known = np.stack([first.timestamp, first.input_length, first.output_length], axis=1)
    rows_of_each = np.unique(known, axis=0, return_counts=True)[1]
    assert round(np.count_nonzero(rows_of_each == 1) / len(whole), 4) == share  # unique by time and lengths, in both
    kvtrace.publish(first, tmp_path / "first.jsonl")
    with pytest.raises(AuditError, match="earlier_release"):
        kvtrace.publish(second, tmp_path / "second.jsonl", against=tmp_path / "first.jsonl")
