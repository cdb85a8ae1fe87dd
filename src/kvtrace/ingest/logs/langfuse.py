"""Langfuse's exports: observations one a row, or traces with their observations, as JSON, JSON Lines or CSV.

langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields (snake case), and the public API and the
export from the interface (camel case). A GENERATION is a request: `input`, `output`, `startTime`, `usageDetails`,
`model` or `providedModelName`, `sessionId` and `userId` of the observation or of its trace. Other observations (spans,
tools, agents) are left out. In `usageDetails`, `input` leaves out what other names that begin with `input` count, such
as cached tokens. `completionStartTime` is the time of the first token, `timeToFirstToken` its seconds.
"""

from __future__ import annotations

from typing import Any

from ..._base.errors import FailedCall, NotARequest
from . import bodies, fields
from .bodies import number
from .fieldmap import unpacked
from .record import USAGE_CACHED, Record, put_cached, put_measured, tokens_of

SPELLINGS = False  # the reader knows all names, and `projectId` is the project of the log's owner
CONVERSATION = False  # the observations of a trace are steps, not turns
KINDS = frozenset(
    ("GENERATION", "SPAN", "EVENT", "AGENT", "TOOL", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL")
)
TIME = ("startTime", "start_time", "Start Time")
MODEL = ("model", "providedModelName", "provided_model_name", "internalModelId")
OWNERS = ("projectId", "project_id", "session_id", "user_id", "type", "id", "model")  # read below, or not meant for us


def read_all(row: dict[str, Any]) -> list[Record]:
    """The Records of an observation, or of the generations of a trace; NotARequest if there is none, RowError.

    >>> row = {"traceId": "t1", "type": "GENERATION", "startTime": "2031-03-04T05:06:07Z", "sessionId": "s1"}
    >>> read_all(row | {"input": [{"role": "user", "content": "Hello"}], "output": "Hi"})[0].session
    's1'
    """
    observations = unpacked(row.get("observations"))
    if type(observations) is not list:
        return [_record(row, row, "")]
    places = [
        (i, observation)
        for i, observation in enumerate(observations)
        if type(observation) is dict and _kind(observation) == "GENERATION"
    ]
    if not places:
        raise NotARequest("the trace has no generation.", field="observations")
    return [_record(observation, row, f"observations[{i}].") for i, observation in places]


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    if type(observations := unpacked(row.get("observations"))) is list and observations:
        return any(type(observation) is dict and _is_observation(observation) for observation in observations)
    return _is_observation(row)


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are ISO 8601."""
    return None


def _is_observation(row):
    has_trace = row.get("traceId") is not None or row.get("trace_id") is not None
    return _kind(row) in KINDS and has_trace and any(row.get(name) is not None for name in TIME)


def _kind(row):
    kind = row.get("type")
    return kind.upper() if type(kind) is str else None


def _record(row, trace, prefix) -> Record:
    """The Record of one generation; names of session and user may be those of its trace."""
    if _kind(row) not in ("GENERATION", None) and "type" in row:
        raise NotARequest("is not a generation.", field=f"{prefix}type")
    if row.get("level") == "ERROR" and row.get("output") in (None, ""):
        raise FailedCall(field=f"{prefix}level")
    place = {name: value for name, value in row.items() if name not in OWNERS}
    time, path = fields.time_in([(prefix, row)], *TIME)
    record = fields.common([(prefix, place)], time, path)
    record.end_time = record.end_time or fields.find([(prefix, row)], "End Time")[0]
    record.service_s = fields.service_in([(prefix, row)], latency=1.0) if record.end_time is None else None
    _put_counts(record, row, prefix)
    fields.fill(
        record, row, [(prefix, row), ("", trace)],
        session=("sessionId", "session_id"), user=("userId", "user_id"), model=MODEL, id=("id",),
    )  # fmt: skip
    value, path = fields.find([(prefix, row)], "input")
    _put_tools(record, unpacked(value), row)
    bodies.put_prompt(record, value, path)
    put_measured(record, [(prefix, row)], ttft={"timeToFirstToken": 1.0, "time_to_first_token": 1.0})
    answer, path = fields.find([(prefix, row)], "output")
    fields.put_output(record, bodies.chat_message(unpacked(answer)) if _is_lc(answer) else answer, path)
    return record


def _is_lc(answer):
    parsed = unpacked(answer)
    return type(parsed) is dict and "role" not in parsed and ("kwargs" in parsed or parsed.get("type") in bodies.ROLES)


def _put_counts(record, row, prefix):
    """Set the token counts from `usageDetails`, `usage`, or the columns of a table."""
    for names in (("usageDetails", "usage_details"), ("usage",)):
        counts, path = fields.find([(prefix, row)], *names)
        counts = unpacked(counts)
        if type(counts) is dict and counts.get("unit") in (None, "TOKENS"):
            put_cached(record, [(f"{path}.", counts)])
            record.prompt_tokens = record.prompt_tokens or _sum(counts, "input", path)
            record.output_length = record.output_length or _sum(counts, "output", path)
    columns = [(prefix, row)]
    prompt = fields.find(columns, "promptTokens", "inputUsage", "inputTokens", "input_usage")
    answer = fields.find(columns, "completionTokens", "outputUsage", "outputTokens", "output_usage")
    record.prompt_tokens = record.prompt_tokens or fields.count(number(prompt[0]), prompt[1]) or None
    record.output_length = record.output_length or fields.count(number(answer[0]), answer[1]) or None


def _sum(counts: dict[str, Any], kind: str, path: str) -> int | None:
    """The tokens of a kind: all names that begin with it; just that name if the sums do not make up the total."""
    numbers = {name: number(value) for name, value in counts.items()}
    bad = {name for name in USAGE_CACHED if tokens_of(numbers.get(name)) is None}  # unknown, and no length is refused
    sums = {kind: [value for name, value in numbers.items()
                   if name.startswith(kind) and type(value) is int and name not in bad]
            for kind in ("input", "output")}  # fmt: skip
    if type(numbers.get("total")) is int and sum(map(sum, sums.values())) != numbers["total"]:
        return fields.count(numbers.get(kind), f"{path}.{kind}") or None
    return fields.count(sum(sums[kind]), f"{path}.{kind}") or None


def _put_tools(record, body, row):
    parameters = unpacked(row.get("modelParameters", row.get("model_parameters")))
    for place in (body, parameters):
        tools = unpacked(place.get("tools")) if type(place) is dict else None
        if record.tools is None and type(tools) is list and tools and all(type(tool) is dict for tool in tools):
            record.tools = tools
