"""The names that a sidecar may state are those of the tables in the rooms above."""

from kvtrace.privacy.sidecar_forms import GPUS, MODELS, public
from kvtrace.serving.hardware import gpus
from kvtrace.serving.models import config


def test_models_and_gpus_of_service_times_are_those_of_the_catalog():
    assert set(MODELS) == set(config.MODELS) and set(GPUS) == set(gpus.GPUS)


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
