"""An option is written once: a public function spells the fields of the records that it builds, with their defaults."""

import inspect
from dataclasses import fields

import pytest

import kvtrace
from kvtrace.cache.setup import CacheSetup, Grid
from kvtrace.cli import commands
from kvtrace.cli.simulation_options import LoopOptions
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.privacy.release_options import ReleaseOptions
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.run_options import Deployment, InstanceSetup

ENGINE_OPTIONS = {"capacity_counts", "pool", "free_order", "tree", "watermark"}  # keywords, by `EngineOptions`
RUN = (CacheSetup, InstanceSetup)
FUNCTIONS = {  # function -> its records, and the fields that it does not have
    "anonymize": ((EncodingOptions, ReleaseOptions), set()),
    "lint": (
        (EncodingOptions,),
        {"outputs", "tenant_field", "isolate_tenants", "arrivals", "request_sample", "on_mismatch"},
    ),
    "simulate_all": (RUN, ENGINE_OPTIONS),
    "explain": (RUN, {"capacities", "policies", "engines", "layouts", "routers", "gap", *ENGINE_OPTIONS}),
}
IN_TIME = (*RUN, Deployment, LoopOptions)
COMMANDS = {
    "anonymize": (EncodingOptions, ReleaseOptions), "release": (ReleaseOptions,), "record": (ReleaseOptions,),
    "simulate": IN_TIME, "explain": IN_TIME, "plan": (PlanTarget, LoopOptions), "sweep": (Grid,),
}  # fmt: skip
OTHER_DEFAULTS = {("lint", "block_size")}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_the_options_of_its_records(name):
    records, absent = FUNCTIONS[name]
    signature = inspect.signature(getattr(kvtrace, name)).parameters
    for part in (part for record in records for part in fields(record) if part.name not in absent):
        assert part.name in signature, f"add {part.name} to the signature of {name}"
        if (name, part.name) not in OTHER_DEFAULTS:
            assert signature[part.name].default == part.default, part.name
            assert signature[part.name].annotation == part.type, part.name
    assert not absent & signature.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_of_its_records(name):
    options = {option for param in commands.commands[name].params for option in param.opts}
    for part in (part for record in COMMANDS[name] for part in fields(record) if part.metadata):
        assert f"--{part.metadata['name'] or part.name.replace('_', '-')}" in options
