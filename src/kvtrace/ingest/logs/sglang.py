"""SGLang's request log, as of early 2026: `--log-requests --log-requests-format json --log-requests-level 3`.

python/sglang/srt/utils/request_logger.py: a line is an event. `request.finished` holds the request in `obj` and its
result in `out`. `request.received` holds a part of the same data and is left out. A line is written when its request
ends. The request arrived `out.meta_info.e2e_latency` seconds before `timestamp`, which is local time without a zone.
`obj.input_ids`, which chat requests always have, are used unchanged; `obj.text` is tokenised. At level 2, texts and ids
longer than 2,048 lose all but 1,024 at each end. `out.meta_info` has `cached_tokens`; with --enable-metrics also
`queue_time`, and `request_received_ts` and `prefill_finished_ts` of one clock (managers/tokenizer_manager.py).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ..._base.errors import NotARequest, OtherCall, RowError
from . import fields, times
from .record import Record, put_measured, put_spans

CONVERSATION = False  # the prompts of a batch are independent
LEVEL_HINT = "Log with --log-requests-level 3."
CUT = "..."  # level 2 puts it in place of the middle of a list
MEDIA = {"image_data": "image", "video_data": "video", "audio_data": "audio"}
# a batch has lists of these
BATCHED = ("text", "input_ids", "rid", "lora_path", "session_params", *MEDIA, *fields.SALTS)


def read_all(row: dict[str, Any]) -> list[Record]:
    """The Records of one line: one, or one a prompt of a batch; NotARequest for other events, RowError.

    >>> row = {"timestamp": "2031-01-01T00:00:09", "event": "request.finished", "rid": "a", "obj": {"text": "Hello"}}
    >>> read_all(row | {"out": {"meta_info": {"completion_tokens": 7, "e2e_latency": 1.5}}})[0].time
    '2031-01-01T00:00:07.500000000Z'
    """
    request = _object(row, "obj") if "obj" in row else {}
    _require_generation(row, request)
    size = _batch_size(request)
    if size is None:
        return [_record(row, request, _object(row, "out"), "")]
    results = row.get("out")
    if type(results) is not list or len(results) != size:
        raise RowError("does not have one result for each prompt of the batch.", field="out")
    return [
        _record(row, _nth(request, i, size), _object({f"out[{i}]": result}, f"out[{i}]"), f"[{i}]")
        for i, result in enumerate(results)
    ]


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    event = row.get("event")
    return type(event) is str and event.startswith("request.") and "rid" in row


def small_unit(row: dict[str, Any]) -> str | None:
    """None: times are ISO 8601."""
    return None


def _require_generation(row, request):
    if row.get("event") == "request.received":
        raise NotARequest("is the arrival of a request; its request.finished line is read instead.", field="event")
    if row.get("event") != "request.finished":
        raise NotARequest("is not request.finished.", field="event")
    out = row.get("out")
    if "is_cross_encoder_request" in request or (type(out) is dict and "embedding" in out):
        raise OtherCall("is an embedding request.", field="obj")


def _batch_size(request) -> int | None:
    """The number of prompts of a batch; None if the request is not a batch."""
    text, ids = request.get("text"), request.get("input_ids")
    if type(ids) is list and ids and type(ids[0]) is list:
        return len(ids)
    return len(text) if type(text) is list else None


def _nth(request, i, size):
    """The i-th request of a batch."""
    batched = {name for name in BATCHED if type(request.get(name)) is list and len(request[name]) == size}
    return {name: value[i] if name in batched else value for name, value in request.items()}


def _record(row, request, result, nth) -> Record:
    meta = _object(result, "meta_info", f"out{nth}.") if "meta_info" in result else {}
    record = fields.common([("", row)], *_arrival(row, meta, f"out{nth}.meta_info."))
    record.service_s = fields.service_in([(f"out{nth}.meta_info.", meta)], e2e_latency=1.0)
    put_measured(record, [(f"out{nth}.meta_info.", meta)], cached=("cached_tokens",), queue={"queue_time": 1.0})
    put_spans(record, meta, ttft_s=("request_received_ts", "prefill_finished_ts"))
    places = [("obj.", request)]
    fields.fill(
        record, row, places,
        session=("session_id", "conversation_id"), adapter=("lora_path",), id=("rid",),
    )  # fmt: skip
    _put_session(record, request)
    _put_media(record, request)
    _put_prompt(record, row, request, nth)
    _put_result(record, row, result, meta, f"out{nth}.")
    return record


def _arrival(row, meta, prefix) -> tuple[Any, str]:
    """The arrival time, in the log's notation, and its JSON path."""
    time, path = fields.find([("", row)], "timestamp")
    latency, latency_path = fields.find([(prefix, meta)], "e2e_latency")
    if latency is None or type(time) is not str:
        return time, path
    if type(latency) not in (int, float) or not 0 <= latency < 10**8:
        raise RowError("is not a valid number of seconds.", field=latency_path)
    unit = times.detect([time])
    if unit is None or unit.name != "iso":
        return time, path
    arrival_ns = unit.parse(time) - round(latency * 10**9)
    if arrival_ns < 0:
        raise RowError("is longer than the time since 1970.", field=latency_path)
    seconds, fraction_ns = divmod(arrival_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{fraction_ns:09}Z", path


def _put_session(record, request):
    """Set the engine's session. The engine holds its earlier turns; the log has only what this request adds."""
    session = request.get("session_params")
    if type(session) is dict and session.get("id") is not None:
        fields.fill(record, {}, [("obj.session_params.", session)], session=("id",))
        record.lacks = "the turns before it (session_params)"


def _put_media(record, request):
    for name, kind in MEDIA.items():
        items = request.get(name)
        for i, item in enumerate(items if type(items) is list else [] if items is None else [items]):
            fields.put_media(record, kind, item, f"obj.{name}[{i}]")
    record.salts += fields.salts_of(request, "obj.")


def _put_prompt(record, row, request, nth):
    value, path = fields.find([("", row)], "input")  # a field map puts the prompt there
    if value is None:
        value, path = fields.find([("obj.", request)], "input_ids", "text")
    if value is None:
        raise RowError("is missing: the prompt was not logged.", field=f"obj.text{nth}", hint=LEVEL_HINT)
    if type(value) is list and CUT in value:
        record.cut = path + nth
        value = [token for token in value if token != CUT]
    fields.put_prompt(record, value, path + nth)


def _put_result(record, row, result, meta, prefix):
    """Set the output and the server's token counts, which take precedence."""
    counts = [(f"{prefix}meta_info.", meta)]
    if record.prompt_tokens is None:
        record.prompt_tokens = fields.count(*fields.find(counts, "prompt_tokens"))
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(counts, "completion_tokens"))
    value, path = fields.find([("", row)], "output")
    if value is None:
        value, path = fields.find([(prefix, result)], "output_ids", "text")
    if type(value) is list and CUT in value:
        value = None
    fields.put_output(record, value, path)


def _object(place, name, prefix=""):
    value = place.get(name)
    if type(value) is not dict:
        reason = "is missing" if value is None else "is not an object"
        raise RowError(f"{reason}; a finished request must have this object.", field=prefix + name)
    return value
