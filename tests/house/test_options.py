"""An option is written once: a public function spells the fields of the records that it builds, with their defaults."""

import inspect
from dataclasses import fields

import pytest

import kvtrace
from kvtrace.cache.setup import CacheSetup, Grid
from kvtrace.cli import commands
from kvtrace.cli.simulation_options import LoopOptions
from kvtrace.from_log import StartOptions
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.privacy.numbering.run import TaskOptions
from kvtrace.privacy.release_options import AuditOptions, ReleaseOptions
from kvtrace.privacy.releases import ReleaseScope
from kvtrace.serving.disaggregation import Disaggregation
from kvtrace.serving.planning.plan_target import PlanTarget
from kvtrace.serving.run_options import InstanceSetup, TimeSetup
from kvtrace.synthesis.knobs import Knobs, SampleOptions, TenantOptions
from kvtrace.trace.conversion_options import ConvertOptions

ENGINE_OPTIONS = {
    "capacity_counts",
    "pool",
    "free_order",
    "tree",
    "watermark",
    "hicache_write_policy",
}  # keywords, by `EngineOptions`
ROOMS = (kvtrace.ingest, kvtrace.privacy, kvtrace.trace, kvtrace.synthesis, kvtrace.serving)
RUN = (CacheSetup, InstanceSetup)
FUNCTIONS = {  # function -> its records, and the fields that it does not have
    "anonymize": ((EncodingOptions, ReleaseOptions), set()),
    "lint": (
        (EncodingOptions,),
        {"outputs", "tenant_field", "isolate_tenants", "arrivals", "request_sample", "on_mismatch"},
    ),
    "audit": ((AuditOptions,), set()),
    "convert": ((ConvertOptions,), set()),
    "mix": ((TenantOptions,), set()),
    "sample": ((SampleOptions,), set()),
    "write_sample": ((SampleOptions,), set()),
    "release": ((ReleaseScope,), set()),
    "release_dataset": ((ReleaseScope, TaskOptions), {"key_file"}),
    "simulate_all": (RUN, ENGINE_OPTIONS),
    "explain": (RUN, {"capacities", "policies", "engines", "layouts", "routers", "gap", *ENGINE_OPTIONS}),
}
IN_TIME = (*RUN, TimeSetup, LoopOptions)
COMMANDS = {
    "anonymize": (EncodingOptions, ReleaseOptions), "release": (ReleaseOptions,), "record": (ReleaseOptions,),
    "start": (StartOptions,), "audit": (AuditOptions,), "convert": (ConvertOptions,),
    "synthesize": (Knobs, SampleOptions, TenantOptions),
    "simulate": (*IN_TIME, Disaggregation), "explain": IN_TIME, "plan": (PlanTarget, LoopOptions), "sweep": (Grid,),
}  # fmt: skip
DIFFERENT = {
    ("lint", "block_size"), ("explain", "drafting"), ("sample", "knobs"), ("write_sample", "knobs"),
    ("write_sample", "n"),
    *(("release_dataset", name) for name in ("users", "runner", "work")),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_has_the_options_of_its_records(name):
    records, absent = FUNCTIONS[name]
    room = next(room for room in ROOMS if name in room.__all__)
    signature = inspect.signature(getattr(room, name)).parameters
    for part in (part for record in records for part in fields(record) if part.name not in absent):
        assert part.name in signature, f"add {part.name} to the signature of {name}"
        if (name, part.name) not in DIFFERENT:
            assert signature[part.name].default == part.default, part.name
            assert signature[part.name].annotation == part.type, part.name
    assert not absent & signature.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_the_options_of_its_records(name):
    options = {option for param in commands.commands[name].params for option in param.opts}
    for part in (part for record in COMMANDS[name] for part in fields(record) if part.metadata):
        assert f"--{part.metadata['name'] or part.name.replace('_', '-')}" in options
