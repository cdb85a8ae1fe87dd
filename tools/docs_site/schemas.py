"""JSON schemas (2020-12) of the files and of the `--json` outputs, from the types that the code itself declares.

The descriptions come from the tables of the docs, so that a key is described once. `make docs` writes the files into
docs/reference/schemas.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_origin, get_type_hints

from kvtrace.analysis import block_sizes, comparison, curves, summary
from kvtrace.analysis.distribution import FIGURES, Distribution
from kvtrace.cache import simulation, tuning
from kvtrace.cache.sweeps import table
from kvtrace.cache.tiered import TieredSimulation
from kvtrace.capture import gauge
from kvtrace.formats import format_table
from kvtrace.ingest.linting import findings
from kvtrace.privacy.checks import CHECKS, finding
from kvtrace.privacy.profiles import PROFILES
from kvtrace.report import answer
from kvtrace.serving import run, validation
from kvtrace.serving.calibration import calibration, kernels
from kvtrace.serving.expectations import ExpectedError
from kvtrace.serving.lanes import ClosedRun
from kvtrace.serving.misses import baseline, causes, explanation
from kvtrace.serving.models import listing, possible_hits
from kvtrace.serving.planning import plan_result
from kvtrace.serving.quantiles import Quantiles
from kvtrace.trace.columns import TAILS
from kvtrace.trace.hits import Hits
from kvtrace.trace.meta import Meta

from .result_keys import Key, is_described, keys_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs/reference/schemas"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
KEYS = re.compile(r"^\|([^|]*`[^|]*)\|((?:[^|\\]|\\.)*)\|", re.M)
Schema = dict[str, Any]


class Version(TypedDict):
    """`kvtrace` in a sidecar."""

    version: str
    format_version: int


class Part(TypedDict):
    """One file of a data set."""

    file: str
    requests: int
    blocks: int


class SidecarFile(Meta, total=False):
    """A sidecar, or the manifest of a data set; formats/sidecar.py writes it."""

    kvtrace: Version
    block_size: int
    tail: str
    requests: int
    blocks: int
    output_blocks: int
    distinct_blocks: int
    first_id: int
    format: str
    parts: list[Part]


@dataclasses.dataclass(frozen=True)
class Window(Hits):
    """One window of `Simulation.over_time`."""

    start_ms: float


class BesideRun(TypedDict, total=False):
    """What `kvtrace simulate --json` adds to a result."""

    capacity_bytes: int
    belady_hit_blocks: int
    gap_to_belady: float
    over_time: list[Window]
    isolation: run.Isolation
    difference: dict[str, float]


class SimulationFile(TypedDict):
    """What `kvtrace simulate --json` prints."""

    schema: int
    requests: int
    block_size: int
    working_set: int
    deployment: NotRequired[dict[str, Any]]
    results: list[simulation.Simulation]


class BesideExplanation(TypedDict, total=False):
    """What options of `kvtrace explain --json` add."""

    deployment: dict[str, Any]
    prefill_s: dict[str, float]
    cures: list[baseline.Cure]
    over_time: list[explanation.WindowCausesDict]
    by_session: list[explanation.SessionCausesDict]


class BesideSummary(TypedDict, total=False):
    """What options of `kvtrace analyze --json` add."""

    reachable_hits: possible_hits.ReachableHits
    by_block_size: list[block_sizes.BlockSizeHits]
    domains: run.DomainsDict


class CurveFile(TypedDict):
    """What `kvtrace curve --json` prints; only a trace with isolation domains has the last key."""

    schema: int
    block_size: int
    longest: int
    working_set: int
    kv_bytes_per_token: int | None
    sample: float | None
    points: list[curves.CurvePoint]
    unlimited: Hits
    least: dict[str, int]
    domains: NotRequired[run.DomainsDict]


class LintCounts(TypedDict, total=False):
    """Findings or requests of a kind, and the prompt tokens that they cost."""

    findings: int
    requests: int
    tokens: int


class LintFile(TypedDict):
    """What `kvtrace lint --json` prints."""

    schema: int
    requests: int
    prompt_tokens: int
    hit_tokens: int
    lost_tokens: int
    block_size: int
    kinds: dict[str, LintCounts]
    findings: list[findings.LintFinding]
    other: LintCounts
    skipped: int
    rejected: int
    left_out: dict[str, int]
    windows: int
    settings: dict[str, Any]


class StartLine(TypedDict):
    """One of the `lines` of `kvtrace start --json`."""

    name: str
    text: str


class StartMemory(TypedDict):
    """`memory` of `kvtrace start --json`."""

    instance_blocks: int
    instance_gib: float
    share: float
    blocks: int | None
    gib: float | None


class StartFile(TypedDict):
    """What `kvtrace start --json` prints: null stands for what is unknown, with its reason in `missing`."""

    schema: int
    lines: list[StartLine]
    requests: int
    prompt_tokens: int
    unlimited: Hits | None
    saving: answer.Saving | None
    memory: StartMemory | None
    findings: list[findings.LintFinding]
    deployment: dict[str, Any]
    plan: plan_result.Plan | None
    assumed: list[str]
    missing: dict[str, str]
    notes: list[str]
    caveats: list[str]
    rejected: int
    reasons: dict[str, int]
    left_out: dict[str, int]
    files: list[str]
    next: list[str]


START = {  # key -> its meaning
    "lines": "the ten lines",
    "unlimited": "hits of a cache that never evicts",
    "saving": "GPU-hours of prefill of the log, and those that hits save",
    "memory": "of an instance, and for `share` of the possible hit tokens",
    "findings": "the worst findings of kvtrace lint",
    "plan": "as kvtrace plan --json prints it",
    "assumed": "what nothing stated",
    "missing": "part -> why it is unknown",
    "caveats": "why prompts may differ from those that the engine got",
    "rejected": "bad rows",
    "reasons": "why they are bad -> rows",
    "left_out": "rows that are no request, or have an empty prompt: their kind -> rows",
    "next": "commands to paste",
}


def schema_of(kind: Any) -> Schema:
    """The schema of values of a type: numbers, texts, lists, dicts, TypedDicts and dataclasses.

    >>> schema_of(list[int | None])
    {'type': 'array', 'items': {'type': ['integer', 'null']}}
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in NAMES:
        return {"type": NAMES[kind]}
    if kind is Any or kind is object:
        return {}
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin in (typing.NotRequired, typing.Required):
        return schema_of(arguments[0])
    if origin in (typing.Union, types.UnionType):
        kinds = [schema_of(one) for one in arguments]
        if all([*one] == ["type"] for one in kinds):
            return {"type": [one["type"] for one in kinds]}
        return {"anyOf": kinds}
    if origin is list or kind is list:
        return {"type": "array", "items": schema_of(arguments[0]) if arguments else {}}
    if origin is tuple and arguments[1:] == (...,):
        return {"type": "array", "items": schema_of(arguments[0])}
    if origin in (dict, Mapping) or kind is dict:
        return {"type": "object", "additionalProperties": schema_of(arguments[1]) if arguments else True}
    if kind is Quantiles:  # null: no request has this time
        return _object(dict.fromkeys(names := ("mean", "p50", "p90", "p99"), float | None), [*names])
    if kind is Distribution:
        return _distribution()
    if kind is simulation.Simulation:
        return _simulation()
    if kind is ExpectedError:
        return _described(_of_keys(keys_of(kind)), descriptions("serving/models.md#measured-errors"))
    if typing.is_typeddict(kind) or is_described(kind):
        return _of_keys(keys_of(kind))
    if hasattr(kind, "to_dict"):
        return schema_of(get_type_hints(kind.to_dict)["return"])
    if dataclasses.is_dataclass(kind):
        return _of_fields(kind)
    raise TypeError(f"{kind} has no schema here: add a case.")


def _of_fields(kind: Any) -> Schema:
    hints = get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return _object({name: hints[name] for name in names}, names)


def _of_keys(*keys: Mapping[str, Key], required: Mapping[str, Key] | None = None) -> Schema:
    """The schema of an object with these keys; those of `required` alone are always there, if it is given."""
    every = {name: key for part in keys for name, key in part.items()}
    always = {name for name, key in (every if required is None else required).items() if key.is_required}
    schema = _object({name: key.kind for name, key in every.items()}, [name for name in every if name in always])
    for name, key in every.items():  # a table of the docs says more, where it has the key
        schema["properties"][name] |= {"description": _plain(key.meaning)} if key.meaning else {}
    return schema


def _simulation() -> Schema:
    """Any kind of simulation: the keys that all kinds have are always there."""
    kinds = (TieredSimulation, ClosedRun)
    return _of_keys(*map(keys_of, (*kinds, BesideRun)), required=keys_of(simulation.Simulation))


def _object(hints, required) -> Schema:
    properties = {name: schema_of(kind) for name, kind in hints.items()}
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _distribution() -> Schema:
    """A distribution as `to_dict` writes it: the extra quantiles stand beside the figures."""
    schema = _object({"count": int} | dict.fromkeys(FIGURES, float | None), ["count", *FIGURES])
    return schema | {"patternProperties": {"^q[0-9.e-]+$": schema_of(float)}}


def descriptions(*pages: str) -> dict[str, str]:
    """Key -> meaning, from the tables of some pages of docs/.

    >>> descriptions("cache/simulate.md#results")["early_frees"][:12]
    'of the whole'
    """
    rows = (row for page in pages for row in KEYS.findall(_section(*page.split("#"))))
    meanings = {key: _plain(text) for keys, text in rows for key in re.findall(r"`([a-z_0-9]+)`", keys)}
    return {key: text for key, text in meanings.items() if text}


def _section(page: str, anchor: str = "") -> str:
    """A page of docs/, or its section of that name up to the next heading of its level.

    >>> _section("cache/simulate.md", "results").splitlines()[0]
    '## Results'
    """
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines(keepends=True)
    if not anchor:
        return "".join(lines)
    start = next(
        row for row, line in enumerate(lines) if re.fullmatch(f"#+ {anchor.replace('-', ' ')}", line.lower().rstrip())
    )
    higher = re.compile(rf"#{{1,{lines[start].index(' ')}}} ")
    return lines[start] + "".join(takewhile(lambda line: not higher.match(line), lines[start + 1 :]))


def _plain(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").strip()


def _described(schema: Schema, meanings: Mapping[str, str]) -> Schema:
    """The schema with the meaning of each key that has one, at every depth."""
    inner = {
        name: _described(one, meanings) | ({"description": meanings[name]} if name in meanings else {})
        for name, one in schema.get("properties", {}).items()
    }
    changed = dict(schema) | ({"properties": inner} if inner else {})
    if isinstance(schema.get("items"), dict):
        changed["items"] = _described(schema["items"], meanings)
    return changed


def _with_version(schema: Schema, version: int, page: str) -> Schema:
    """The schema with the version of its keys, and with the meanings of the uppermost keys."""
    meanings = descriptions(page)
    for name, one in schema["properties"].items():
        one |= {"description": meanings[name]} if name in meanings else {}
    schema["properties"]["schema"] = {"const": version}
    return schema


def analysis() -> Schema:
    """The statistics of a trace."""
    schema = _of_keys(keys_of(summary.Summary), keys_of(BesideSummary), required=keys_of(summary.Basics))
    reachable = schema["properties"]["reachable_hits"]
    schema["properties"]["reachable_hits"] = _described(reachable, descriptions("cache/hybrid.md#keys"))
    null_or_sessions = schema["properties"]["sessions"]["anyOf"]
    meanings = descriptions("analysis/analyze.md#keys-of-sessions")
    schema["properties"]["sessions"]["anyOf"] = [_described(one, meanings) for one in null_or_sessions]
    _describe_delivered(schema["properties"])
    return _with_version(schema, summary.SCHEMA, "analysis/analyze.md#keys")


def _describe_delivered(properties: dict[str, Schema]) -> None:
    """Describe the keys of delivered hits; words that other tables explain too, such as tokens, mean others here."""
    properties["delivered"] = _described(properties["delivered"], descriptions("analysis/analyze.md#keys-of-delivered"))


def curve() -> Schema:
    """A hit curve."""
    schema = _with_version(schema_of(CurveFile), curves.SCHEMA, "analysis/curve.md")
    return _described(schema, descriptions("analysis/curve.md"))


def comparison_of_two() -> Schema:
    """The comparison of two traces."""
    return _with_version(schema_of(comparison.Comparison), comparison.SCHEMA, "analysis/compare.md")


class WatchCounts(TypedDict):
    """The counts of a Watcher, in a line of `kvtrace watch --json`."""

    accepted: int
    dropped: int
    uncopied: int
    refused: int
    proxy: dict[str, int]
    requests: int
    tokens: int
    rejected: int
    malformed: int
    unknown_parents: int
    left_out: int
    reasons: dict[str, int]
    waiting: int
    waiting_bytes: int
    waiting_limit_bytes: int
    restarts: int
    failing: dict[str, int]
    failures: dict[str, int]


def models() -> Schema:
    """Models of the catalog."""
    schema = _with_version(schema_of(listing.ModelList), listing.SCHEMA, "serving/models.md#keys-of-models")
    return _described(schema, descriptions("serving/models.md#keys-of-models"))


def sidecar() -> Schema:
    """The sidecar of a trace file; a handwritten one may have other keys, too."""
    schema = _described(schema_of(SidecarFile), descriptions("formats/formats.md"))
    schema["properties"]["tail"]["enum"] = [*TAILS]
    schema["properties"]["format"]["enum"] = [*format_table.NAMES]
    schema["properties"]["profile"]["enum"] = [*PROFILES]
    schema["properties"]["block_size"]["minimum"] = 1
    return schema | {"additionalProperties": True}


def audit() -> Schema:
    """The result of an audit."""
    schema = schema_of(finding.Audit)
    one = schema["properties"]["findings"]["items"]["properties"]
    one["level"]["enum"] = schema["properties"]["level"]["enum"] = [*finding.LEVELS]
    one["name"]["enum"] = [*CHECKS]
    schema["properties"]["status"]["enum"] = [0, 4]
    schema["properties"]["schema"] = {"const": finding.SCHEMA}
    return schema


def simulations() -> Schema:
    """The results of `kvtrace simulate`."""
    pages = (
        "cache/hybrid.md#keys",
        "serving/serving.md#keys-of-a-closed-loop",
        "serving/serving.md#keys",
        "cache/simulate.md#keys-of-instances",
        "cache/simulate.md#keys-of-isolation",
        "cache/simulate.md#results",
    )
    meanings = descriptions(*pages)
    schema = _described(schema_of(SimulationFile), meanings)
    schema["properties"]["schema"] = {"const": simulation.SCHEMA}
    return schema


def explanations() -> Schema:
    """The causes of prompt tokens, and the cures."""
    keys = keys_of(explanation.Explanation), keys_of(BesideExplanation)
    schema = _described(_of_keys(*keys), descriptions("serving/explain.md"))
    _describe_delivered(schema["properties"])
    names = {"enum": [*causes.CAUSES]}
    for name in ("over_time", "by_session"):
        schema["properties"][name]["items"]["properties"]["causes"]["propertyNames"] = names
    for name in ("causes", "prefill_s"):
        schema["properties"][name]["propertyNames"] = names
    schema["properties"]["cures"]["items"]["properties"]["basis"]["enum"] = [*baseline.BASES]
    schema["properties"]["schema"] = {"const": explanation.SCHEMA}
    return schema


def sweep_row() -> Schema:
    """One row of a sweep; null where a column does not apply."""
    kinds = {name: str if name in table.TEXTS else float if name in table.REALS else int for name in table.COLUMNS}
    hints = {name: kind | None for name, kind in kinds.items()}
    return _described(_object(hints, [*hints]), descriptions("cache/simulate.md#results", "cache/sweep.md#the-table"))


def sweep() -> Schema:
    """The table of a sweep as JSON."""
    rows = {"type": "array", "items": sweep_row()}
    properties = {"schema": {"const": table.SCHEMA}, "results": rows}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def lint() -> Schema:
    """The findings of a log."""
    schema = schema_of(LintFile)
    _add(schema["properties"]["findings"]["items"], share=schema_of(float))
    return _with_version(schema, findings.SCHEMA, "ingest/lint.md")


def tuned() -> Schema:
    """The best settings of each policy."""
    schema = schema_of(tuning.Tuned)
    schema["properties"]["schema"] = {"const": tuning.SCHEMA}
    return _described(schema, descriptions("cache/simulate.md#results", "cache/sweep.md"))


def start() -> Schema:
    """The answer from a log; the plan is that of the plan's own schema."""
    schema = schema_of(StartFile)
    schema["properties"]["plan"] = {"anyOf": [plan(), {"type": "null"}]}
    schema["properties"]["schema"] = {"const": answer.SCHEMA}
    return _described(schema, {key: _plain(text) for key, text in START.items()})


def plan() -> Schema:
    """A plan; parts and values that are not known are left out."""
    schema = schema_of(plan_result.Plan)
    schema["properties"]["schema"] = {"const": plan_result.SCHEMA}
    return _described(schema, descriptions("serving/plan.md"))


def validations() -> Schema:
    """A simulation beside a recording."""
    schema = _described(schema_of(validation.Validation), descriptions("serving/calibrate.md#keys-of-validate"))
    schema["properties"]["schema"] = {"const": validation.SCHEMA}
    return schema


def calibrations() -> Schema:
    """Costs fitted to a recording, and their errors."""
    kinds = []
    for kind, version in ((calibration.Calibration, calibration.SCHEMA), (kernels.KernelFit, kernels.SCHEMA)):
        schema = _described(schema_of(kind), descriptions("serving/calibrate.md#keys-of-calibrate"))
        schema["properties"]["schema"] = {"const": version}
        kinds.append(schema)
    return {"anyOf": kinds}


def watch_line() -> Schema:
    """One line of `kvtrace watch --json`: the snapshot, and what `to_dict` and the command add."""
    schema = _of_fields(gauge.Snapshot)
    size = schema_of(float | None)
    for span in ("since_start", "window", "decayed"):
        traffic = schema["properties"][span]
        _add(traffic, working_set_gib=size, gib_for_90_percent=size)
        _add(traffic["properties"]["curve"]["items"], capacity_gib=size)
        _add(traffic["properties"]["delivered"]["anyOf"][0], token_hit_rate=size)
        traffic["properties"]["causes"]["propertyNames"] = {"enum": [*get_args(gauge.Cause)]}
    added = {"received_s": float, "sources": list[str], "counts": WatchCounts}
    _add(schema, schema={"const": gauge.SCHEMA}, **{name: schema_of(kind) for name, kind in added.items()})
    return _described(schema, descriptions("capture/watch.md"))


def _add(whole: Schema, /, **properties: Schema) -> None:
    """Add required properties to the schema of an object."""
    whole["properties"] |= properties
    whole["required"] += [*properties]


class SchemaFile(typing.NamedTuple):
    """A file of docs/reference/schemas: what it describes, and its maker."""

    title: str
    make: Callable[[], Schema]


SCHEMAS = {
    "start": SchemaFile("The answer from a log, as kvtrace start --json prints it", start),
    "sidecar": SchemaFile("The sidecar of a trace, and the manifest of a data set", sidecar),
    "audit": SchemaFile("The audit of a trace, from which the data card is written", audit),
    "analysis": SchemaFile("The statistics of a trace, as kvtrace analyze --json prints them", analysis),
    "curve": SchemaFile("The hit curve of a trace, as kvtrace curve --json prints it", curve),
    "comparison": SchemaFile("The comparison of two traces, as kvtrace compare --json prints it", comparison_of_two),
    "models": SchemaFile("Models of the catalog, as kvtrace models --json prints them", models),
    "simulation": SchemaFile("The results of kvtrace simulate --json", simulations),
    "explanation": SchemaFile("The causes of prompt tokens, as kvtrace explain --json prints them", explanations),
    "sweep-row": SchemaFile("One row of a sweep, as in .jsonl", sweep_row),
    "sweep": SchemaFile("The table of a sweep, as in .json and --json", sweep),
    "tune": SchemaFile("Policies at their best settings, as kvtrace tune --json prints them", tuned),
    "lint": SchemaFile("What breaks the sharing of prompts, as kvtrace lint --json prints it", lint),
    "plan": SchemaFile("A plan, as kvtrace plan --json prints it", plan),
    "calibration": SchemaFile(
        "Costs fitted to a recording or to tables, as kvtrace calibrate --json prints them", calibrations
    ),
    "watch": SchemaFile("What a cache delivers and could deliver: one line of kvtrace watch --json", watch_line),
    "validation": SchemaFile("A simulation beside a recording, as kvtrace validate --json prints it", validations),
}


WITH_REMARKS = ("analysis", "curve", "tune", "comparison", "simulation", "explanation", "plan")
REMARKS: Schema = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "sentences beside the figures: what is unknown or assumed, and whether hit rates are too low",
}


def made(name: str) -> Schema:
    """A schema with the remarks that a command may add."""
    schema = SCHEMAS[name].make()
    if name in WITH_REMARKS:
        schema["properties"]["remarks"] = REMARKS
    return schema


def text_of(name: str) -> str:
    """The text of a schema's file."""
    one = SCHEMAS[name]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": one.title}
    return json.dumps(head | made(name), indent=1) + "\n"


def write_all() -> None:
    """Write every schema into docs/reference/schemas."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in SCHEMAS:
        (FOLDER / f"{name}.schema.json").write_text(text_of(name), encoding="utf-8")
