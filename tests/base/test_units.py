"""Amounts as people write them have one meaning; anything else is one line with examples."""

import pytest

from kvtrace._base import units
from kvtrace._base.errors import UsageError

MINUTE = 60_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("90s", 90_000), ("90 s", 90_000), ("90 sec", 90_000), ("90 seconds", 90_000), ("2 min", 2 * MINUTE),
        ("2m", 2 * MINUTE), ("2 minutes", 2 * MINUTE), ("1.5h", 90 * MINUTE), ("1.5 hours", 90 * MINUTE),
        ("1h 30m", 90 * MINUTE), ("1h30min", 90 * MINUTE),
        ("1 day", 1440 * MINUTE), ("250ms", 250), ("1,500 ms", 1500), ("2 MIN", 2 * MINUTE),
    ],
)  # fmt: skip
def test_a_duration(text, ms):
    assert units.milliseconds(text) == ms


@pytest.mark.parametrize("text", ["", "10", "s", "-1s", "1 fortnight", "1h 30", "1..5h", "1,5h", "nan s"])
def test_no_duration(text):
    with pytest.raises(UsageError, match=r"is not a duration\. Examples: 30s, 10m, 1\.5h, 250ms\."):
        units.milliseconds(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("40GB", 40e9), ("40 GB", 40e9), ("40gb", 40e9), ("40GiB", 40 * 2**30), ("40 GiB", 40 * 2**30),
        ("1.5TB", 1.5e12), ("1,000 MB", 1e9), ("64KiB", 65536),
    ],
)  # fmt: skip
def test_a_size(text, size):
    assert units.size_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("40G", "could be 40GB or 40GiB"),
        ("40Gi", "could be 40GB or 40GiB"),
        ("40", "is not a size"),
        ("GB", "is not a size"),
    ],
)
def test_no_size(text, message):
    with pytest.raises(UsageError, match=message):
        units.size_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("25%", 0.25), ("25 %", 0.25), ("0.25", 0.25), (".25", 0.25), ("100%", 1), ("1", 1), ("0", 0), ("12.5%", 0.125)],
)
def test_a_share(text, value):
    assert units.share(text) == value


@pytest.mark.parametrize("text", ["25", "101%", "-1%", "%", "half", "nan"])
def test_no_share(text):
    with pytest.raises(UsageError, match=r"is not a share from 0 to 1\. Examples: 25%, 0\.25\."):
        units.share(text)


@pytest.mark.parametrize("text", ["20208", "20,208", "20_208", " 20,208 "])
def test_a_whole_number_may_have_separators(text):
    assert units.count(text) == 20_208


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        ("1000", 1000), ("1,000", 1000), ("10k", 10_000), ("10 K", 10_000), ("1M", 1_000_000), ("1.5m", 1_500_000),
        ("0.07k", 70), ("0", 0), ("3x", units.Multiple(3)), ("0.5x", units.Multiple(0.5)), ("2 X", units.Multiple(2)),
    ],
)  # fmt: skip
def test_a_number_of_requests(text, requests):
    assert units.requests(text) == requests


@pytest.mark.parametrize(
    "text", ["", "x", "k", "1.5", "0.0005k", "-1", "-2x", "1e3", "3xx", "10kk", "1kx", "nanx", "2G"]
)
def test_no_number_of_requests(text):
    with pytest.raises(UsageError, match=r"is not a number of requests\. Examples: 1000, 10k, 1\.5M, 3x"):
        units.requests(text)


def test_a_multiple_is_rounded():
    assert [units.Multiple(factor).of(97) for factor in (3, 0.5, 0.001)] == [291, 48, 0]


@pytest.mark.parametrize("text", ["20,20", "2,0208", "1.0", "1e3", "", ",", "ten", "1,,000"])
def test_no_whole_number(text):
    with pytest.raises(UsageError, match="is not a whole number"):
        units.count(text)
