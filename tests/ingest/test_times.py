"""Times of raw logs: which unit they are in, and each of them in nanoseconds."""

import random
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace._base.errors import RowError, UsageError
from kvtrace.ingest.logs import times
from kvtrace.ingest.logs.times import POWERS, Unit, detect, stated

NOW_S = 1_760_995_776  # 20 October 2025, 21:29:36 UTC


# -- which unit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([NOW_S, NOW_S + 5], "epoch seconds"),
        ([NOW_S + 0.25, NOW_S], "epoch seconds"),
        ([NOW_S * 10**3], "epoch milliseconds"),
        ([NOW_S * 10**6 + 640783], "epoch microseconds"),
        ([NOW_S * 10**9], "epoch nanoseconds"),
        ([str(NOW_S * 10**6), NOW_S * 10**6], "epoch microseconds"),
        ([0, 27, 30], "milliseconds from the start"),
        ([0.0, 27.0], "milliseconds from the start"),
        ([0, 0.5, 1], "seconds from the start"),
        (["0", "61.114"], "seconds from the start"),
        (["2025-10-20T21:29:36Z"], "ISO 8601, UTC where no zone is given"),
        (["2025-10-20 21:29:36.640", "2025-10-20"], "ISO 8601, UTC where no zone is given"),
    ],
)
def test_the_size_of_a_time_tells_its_unit(values, words):
    assert str(detect(values)) == words


def test_small_whole_numbers_are_seconds_in_a_field_of_seconds():
    assert str(detect([0, 3, 7], default="s")) == "seconds from the start"
    assert str(detect([NOW_S * 1000], default="s")) == "epoch milliseconds"


def test_invalid_times_do_not_affect_detection():
    assert detect([]) is None
    assert detect([None, True, [], {}, "soon", -1, float("nan"), float("inf"), "-5", 10**30]) is None
    assert str(detect([None, "soon", -1, NOW_S])) == "epoch seconds"


def test_one_odd_time_among_many_does_not_hide_their_unit():
    unit = detect([0, *range(NOW_S, NOW_S + 9)])
    assert str(unit) == "epoch seconds"
    with pytest.raises(RowError, match="does not fit the log"):
        unit.parse(0)


@pytest.mark.parametrize("values", [[0, NOW_S], [NOW_S, NOW_S * 1000], [NOW_S, "2025-10-20"], [5 * 10**10], ["1e14"]])
def test_times_of_no_or_of_several_units_are_refused_with_the_choices(values):
    with pytest.raises(RowError, match=r"Set --time-unit s\|ms\|us\|ns\|iso"):
        detect(values)


def test_a_unit_can_be_stated_and_nothing_else_can():
    assert [str(stated(name)) for name in ("s", "ms", "us", "ns")] == list(times.WORDS.values())
    assert stated("us").parse(5) == 5_000
    for name in ("minutes", ""):
        with pytest.raises(UsageError, match="Try auto, s, ms, us, ns, iso"):
            stated(name)


# -- each time in nanoseconds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "ns"),
    [
        ("s", NOW_S, NOW_S * 10**9),
        ("s", 0.1 + 0.2, 300_000_000),  # 0.30000000000000004
        ("s", 1760995776.640783, 1760995776640783000),
        ("s", "1760995776.640783123", 1760995776640783123),
        ("s", "0.0000000005", 1),  # half a nanosecond is rounded up
        ("s", "1.5e3", 1_500_000_000_000),
        ("ms", 27, 27_000_000),
        ("ms", 27.5, 27_500_000),
        ("ms", " 27.482 ", 27_482_000),
        ("us", 1760995776640783, 1760995776640783000),
        ("us", 1760995776640783.0, 1760995776640783000),
        ("ns", 1760995776640783123, 1760995776640783123),
        ("ns", "+5", 5),
        ("iso", "1970-01-01T00:00:00Z", 0),
        ("iso", "1970-01-02", 86_400_000_000_000),
        ("iso", "1970-01-01 00:00:01.5", 1_500_000_000),
        ("iso", "1970-01-01T02:00:01,25+02:00", 1_250_000_000),
        ("iso", "19700101T000001Z", 1_000_000_000),
        ("iso", "1970-01-01 00:01 UTC", 60_000_000_000),
        ("iso", "1969-12-31T23:00:00.123456789-0100", 123_456_789),
        ("iso", "1970-01-01t00:00:00.1234567891z", 123_456_789),  # digits below a nanosecond are dropped
    ],
)
def test_times_become_nanoseconds(name, value, ns):
    assert stated(name).parse(value) == ns


@pytest.mark.parametrize(
    "value",
    [None, True, [], {}, "", "soon", "1_000", "0x10", "١٢", "1e400", "1" * 50, float("nan"), float("inf"), 1e300],
)
@pytest.mark.parametrize("name", ["s", "ns", "iso"])
def test_invalid_times_are_refused(name, value):
    with pytest.raises(RowError):
        stated(name).parse(value)


@pytest.mark.parametrize(
    "value", ["2025-13-01", "2025-02-30T00:00:00", "2025-01-01T25:00", "2025-01-01T00:00:00+99:99", "2025", "12:30"]
)
def test_dates_that_no_calendar_has_are_refused(value):
    with pytest.raises(RowError, match="ISO 8601"):
        stated("iso").parse(value)


@pytest.mark.parametrize(
    ("leap", "same"),
    [
        ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
        ("2016-12-31T18:59:60.25-05:00", "2017-01-01T00:00:00.25Z"),
        ("20150630T235960", "2015-07-01"),
    ],
)
def test_a_leap_second_is_the_second_after_it(leap, same):
    assert Unit("iso").parse(leap) == Unit("iso").parse(same)


@pytest.mark.parametrize(
    "day",
    ["2016-12-30T23:59:60Z", "2016-12-31T12:34:60Z", "2016-12-31T23:59:60+01:00", "2016-12-31T23:59:61Z",
     "9999-12-31T23:59:60Z", "0001-01-01T00:00:60+00:01"],
)  # fmt: skip
def test_a_second_60_elsewhere_is_refused(day):
    with pytest.raises(RowError, match="not ISO 8601"):
        Unit("iso").parse(day)


@pytest.mark.parametrize(("name", "value"), [("s", -1), ("s", -0.5), ("ms", "-1"), ("iso", "1969-12-31T23:59:59Z")])
def test_a_negative_time_is_refused(name, value):
    with pytest.raises(RowError, match="negative or before 1970"):
        stated(name).parse(value)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (NOW_S * 10**6, NOW_S * 10**3),  # ms after us
        (NOW_S * 10**6, NOW_S * 10**9),  # ns after us
        (NOW_S * 10**3, 5),
        (NOW_S, NOW_S * 1000),
        (5, NOW_S * 1000),
        (0.5, NOW_S),
    ],
)
def test_a_time_of_another_magnitude_than_the_first_is_refused(first, later):
    unit = detect([first])
    assert unit.parse(first) >= 0
    with pytest.raises(RowError, match=f"does not fit the log's unit, {unit}"):
        unit.parse(later)


def test_a_number_among_dates_and_a_date_among_numbers_are_refused():
    with pytest.raises(RowError, match="not ISO 8601"):
        detect(["2025-10-20"]).parse(NOW_S)
    with pytest.raises(RowError, match="not a number"):
        detect([NOW_S]).parse("2025-10-20")


# -- laws ------------------------------------------------------------------------------------------------------------

units = st.sampled_from(sorted(POWERS))


@given(units, st.integers(0, 9 * 10**9))
def test_whole_numbers_are_exact_as_numbers_and_as_strings(name, value):
    ns = value * 10 ** POWERS[name]
    assert stated(name).parse(value) == stated(name).parse(str(value)) == stated(name).parse(float(value)) == ns


@given(units, st.integers(0, 10**19), st.integers(0, 9))
def test_decimal_strings_are_exact_to_half_a_nanosecond(name, digits, places):
    text = f"{digits // 10**places}.{digits % 10**places:0{places}d}" if places else str(digits)
    exact = Fraction(digits, 10**places) * 10 ** POWERS[name]
    if exact < 2**63 - 1:
        assert abs(stated(name).parse(text) - exact) <= Fraction(1, 2)


@given(st.integers(0, 2 * 10**15))
def test_a_microsecond_survives_as_a_float_of_seconds(us):
    assert stated("s").parse(us / 10**6) == us * 1000


@given(st.integers(0, 2**62), st.integers(-14 * 60, 14 * 60))
def test_iso_times_come_back_in_any_zone(ns, minutes):
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)
    assert stated("iso").parse(moment.isoformat()) == ns // 1000 * 1000
    assert stated("iso").parse(moment.replace(tzinfo=None).isoformat(" ")) == ns // 1000 * 1000
    there = moment.astimezone(timezone(timedelta(minutes=minutes)))
    assert stated("iso").parse(there.isoformat()) == ns // 1000 * 1000


@given(units, st.lists(st.integers(10**18, 2 * 10**18), min_size=1))
def test_epoch_times_of_one_log_parse_whatever_unit_they_are_written_in(name, moments):
    values = [ns // 10 ** POWERS[name] for ns in moments]
    unit = detect(values)
    assert unit == Unit(name, "epoch")
    assert [unit.parse(value) for value in values] == [value * 10 ** POWERS[name] for value in values]


anything = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=30), st.just([]))


@given(st.lists(anything), anything)
def test_whatever_a_log_holds_gives_a_time_or_a_row_error_without_it(values, value):
    secret = f"canary{random.random()}"
    for unit in (detect_or_none([*values, value]), stated("s"), stated("iso")):
        for one in (value, secret, [secret]):
            try:
                assert unit is None or 0 <= unit.parse(one) < 2**63
            except RowError as error:
                assert secret not in str(error) and error.__context__ is None and error.__cause__ is None


def detect_or_none(values):
    try:
        return detect(values)
    except RowError:
        return None
