"""The names that a sidecar may state are those of the tables in the rooms above."""

from kvtrace.privacy.sidecar_forms import public
from tools import published_names


def test_the_published_names_are_those_of_the_tables_that_own_them():
    assert published_names.FILE.read_bytes() == published_names.published_names(), "Run make docs."


def test_other_names_and_words_are_left_out():
    section = {
        "measured": True,
        "estimated": True,
        "costs": "roofline",
        "model": "acme/secret",
        "gpu": "h100",
        "gpus": 8,
    }
    assert public({"service_times": section | {"agent": "planner"}}) == {
        "service_times": {"measured": True, "estimated": True, "costs": "roofline", "gpu": "h100", "gpus": 8}
    }
