"""The text of --tiers, and tiers that instances share."""

import pytest

from kvtrace import UsageError
from kvtrace.cache import Tier
from kvtrace.cache.tiers import parse_tiers, require_fields


def test_words_behind_at_come_in_any_order():
    text = "hbm=5,000,dram=50000@25GB/s@host,pool=1000000@30us@write-through@lru@cluster@peers@256tokens@10GB/s"
    first, dram, pool = parse_tiers(text, lambda amount: int(amount.replace(",", "")), 1e6)
    assert first == Tier("hbm", 5000)
    assert dram == Tier("dram", 50000, 1e6 / 25e9, scope="host")
    assert pool == Tier("pool", 1000000, 1e-4, None, "lru", "cluster", "write-through", 3e-5, True, 256)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hbm=5,dram=9@attic", "'attic' is not valid for tier dram"),
        ("hbm=5,dram=9@host@rank", "two words of one kind: 'rank'"),
        ("hbm=5,hbm=9", "repeats a name"),
        ("hbm=5,dram=9@25GB", "has no rate"),
        ("hbm=5,dram=9@0GB", "'0GB' is not valid"),
        ("hbm=5,@host", "is not a tier"),
    ],
)
def test_a_text_that_is_not_tiers_is_refused(text, message):
    with pytest.raises(UsageError, match=message):
        parse_tiers(text, int)


@pytest.mark.parametrize("word", ["host", "write-back", "lru", "30us", "peers", "256tokens"])
def test_a_field_that_is_not_modelled_is_named(word):
    tiers = parse_tiers(f"hbm=5,dram=9@{word}", int)
    with pytest.raises(UsageError, match=f"does not model dram=...@{word} in --tiers"):
        require_fields(tiers, (), "The scheduler sglang")
