"""Tokenised requests, as vLLM logs them with return_token_ids. They need no tokenizer and are exact.

`prompt_token_ids` in the row, the response, its first choice or the request; `token_ids` or `output_token_ids`
likewise, or in the first of its `outputs`, else a length (`output_length`, `usage.completion_tokens`). Rows are flat or
pairs (see pairs.py). Times and the other fields are read as in openai.py. Outputs, cached tokens and times are also
those of vLLM's RequestOutput (vllm/outputs.py): `outputs`, `num_cached_tokens`, and `metrics` of RequestMetrics
(vllm/sequence.py) or RequestStateStats (vllm/v1/metrics/stats.py), whose `arrival_time` is the row's time if it has
no other.
"""

from __future__ import annotations

from typing import Any

from ...text.messages import media_parts
from . import fields, pairs
from .fieldmap import unpacked
from .pairs import small_unit as small_unit
from .record import Record, put_cached, put_measured, put_spans, seconds_of, span_s


def read(row: dict[str, Any]) -> Record:
    """The Record of one tokenised request; RowError if the row does not have this format.

    >>> read({"timestamp": 0, "prompt_token_ids": [1, 2, 3], "token_ids": [4]}).token_ids
    array('I', [1, 2, 3])
    """
    requests, responses, record = pairs.opened(_with_arrival(row))
    _put_media(record, requests)
    mapped, path = fields.find(requests[:1], "input")  # a field map puts the prompt there
    if mapped is None:
        mapped, path = _prompt_ids(requests, responses)
        mapped = (unpacked(mapped) or mapped) if type(mapped) is str else mapped  # ids as JSON text, as in a table
        if type(mapped) is not list:
            raise fields.wrong(mapped, path, "a list of token ids")
    fields.put_prompt(record, mapped, path)
    usage = pairs.usage(responses)
    if record.output_length is None:
        record.output_length = fields.count(*fields.find(usage, "completion_tokens", "output_tokens"))
    put_cached(record, usage)
    _put_metrics(record, pairs.places(requests, responses))
    fields.put_output(record, *_output(requests, responses))
    return record


def matches(row: dict[str, Any]) -> bool:
    """Whether the row has this format."""
    requests, responses = pairs.split(row)
    return _prompt_ids(requests, responses)[0] is not None


def _with_arrival(row):
    """The row with the `arrival_time` of its `metrics` as its time, if it has no other."""
    metrics = row.get("metrics")
    arrival = metrics.get("arrival_time") if type(metrics) is dict else None
    if not arrival or pairs.time_of(*pairs.split(row))[0] is not None or row.get("timestamp") is not None:
        return row  # 0.0 is vLLM's default: unknown
    return row | {"timestamp": arrival}


def _put_metrics(record, places):
    """Set what vLLM's RequestOutput states: `num_cached_tokens`, and the times of its `metrics`.

    In version 0 (RequestMetrics) all times are of one clock. In version 1 (RequestStateStats) those of the engine are.
    """
    put_cached(record, places, "num_cached_tokens")
    metrics, path = fields.find(places, "metrics")
    if type(metrics) is not dict:
        return
    put_measured(record, [(f"{path}.", metrics)], ttft={"first_token_latency": 1.0}, queue={"time_in_queue": 1.0})
    put_spans(
        record, metrics, ttft_s=("arrival_time", "first_token_time"),
        queue_s=("arrival_time", "first_scheduled_time"), service_s=("arrival_time", "finished_time"),
    )  # fmt: skip
    put_spans(record, metrics, queue_s=("queued_ts", "scheduled_ts"))
    decode_s = span_s(metrics, "first_token_ts", "last_token_ts")
    if record.service_s is None and record.ttft_s is not None and seconds_of(decode_s) is not None:
        record.service_s = seconds_of(record.ttft_s + decode_s)


def _prompt_ids(requests, responses):
    return fields.find([*pairs.places(requests, responses), *pairs.first_choice(responses)], "prompt_token_ids")


def _output(requests, responses):
    outputs, path = fields.find(responses, "outputs")  # one for each sample
    is_sampled = type(outputs) is list and outputs and type(outputs[0]) is dict
    first = [(f"{path}[0].", outputs[0])] if is_sampled else []
    places = [*pairs.places(requests, responses), *pairs.first_choice(responses), *first]
    value, path = fields.find(places, "output_token_ids", "token_ids")
    return (value, path) if value is not None else fields.find(requests[:1], "output")


def _put_media(record, requests):
    """Take the identity of media from the messages: in token ids, all images are the same placeholder tokens."""
    messages, path = fields.find(requests, "messages")
    if messages is not None:
        fields.put_messages(record, messages, path)
        for i, message in enumerate(messages):
            for part in media_parts(message):
                record.media.append(fields.identity_of(part, f"{path}[{i}].content"))
        record.messages = record.cut = None
