"""Fields that all readers share: find them, check them, and put them into a Record. Errors never quote a value.

A reader searches `places`, pairs of (JSON path, object). The first place is the row itself, where a field map writes.
"""

from __future__ import annotations

from array import array
from typing import Any

from ..._base.errors import EmptyPrompt, RowError
from ...privacy.allowed_values import TYPES
from ...trace.invariants import MAX_LENGTH
from .contents import (
    EXPECTED,
    HINT,
    answer_text,
    arguments,
    is_cut_json,
    message_text,
    opened_answer,
    opened_prompt,
    require_prompt,
    shaping_of,
)
from .fieldmap import MISSING, json_bytes, wrong
from .fieldmap import as_text as as_text
from .logged_streams import unstreamed
from .record import MAX_SERVICE_S as MAX_SERVICE_S
from .record import SERVICE, Places, Record, put_cached, put_row, tokens_of, whole_number
from .record import service_in as service_in
from .spellings import MISSING_TIME as MISSING_TIME

SESSION = ("session", "session_id", "conversation_id")
USER = ("user", "user_id", "safety_identifier")
# of the row alone: what a request carries, its client can choose
ACCOUNT = ("account", "account_id", "api_key_id", "api_key_hash", "api_key")
TENANT = (
    "tenant", "tenant_id", "organization_id", "organization", "org_id", "workspace_id", "project_id", "project",
    "team_id",
)  # fmt: skip
TOOLS = ("tools", "functions")
ID = ("id", "request_id", "custom_id")
ADAPTER = ("adapter", "lora_name", "lora_path")
END = ("end_time", "endTime", "ended_at", "endedAt", "finished_at", "finishedAt")  # of the row alone
SALTS = ("cache_salt", "extra_key")  # of vLLM and SGLang: requests with different values share no blocks

_APART = frozenset((*ACCOUNT, *TENANT, *ADAPTER, *SALTS, "domain"))
_TIMES = frozenset((*END, *SERVICE))
_DESCRIBING = (
    frozenset((*TOOLS, *SESSION, *USER, *ID, "type", "model", "output_length", "prompt_tokens")) | _APART | _TIMES
)

TEXT_PARTS = frozenset(("text", "input_text", "output_text", "refusal", "thinking", "reasoning"))
MEDIA_PARTS = {
    "image_url": "image", "input_image": "image", "image": "image",
    "file": "file", "input_file": "file", "document": "file",
    "input_audio": "audio", "audio_url": "audio", "audio": "audio",
    "video_url": "video", "input_video": "video", "video": "video",
}  # fmt: skip


UNTIMED = "\0untimed"  # marks a row of a log whose times an arrival model makes up
CUT_MARK = "(litellm_truncated"  # LiteLLM puts it in place of removed text
CUT_LENGTHS = (2048, 2048 + len("..."))  # characters that LiteLLM and SGLang keep by default


def find(places: Places, *names: str) -> tuple[Any, str]:
    """The value of the first of `names` in the first place that has one of them, and its JSON path.

    Without a match, the value is None and the path is that of the last place and the first name.

    >>> find([("", {"a": None}), ("request.", {"a": 1, "b": 2})], "b", "a")
    (2, 'request.b')
    """
    for prefix, place in places:
        for name in names:
            value = place.get(name)
            if value is not None:
                return (None if value is MISSING else value), prefix + name
    return None, (places[-1][0] if places else "") + names[0]


def common(places: Places, time: Any, time_path: str = "timestamp") -> Record:
    """A Record with time, lengths, session, user, tools and model, but no prompt or output. RowError without a time.

    A row may have a `delay` in place of its time, and in a log without times (UNTIMED) neither.
    """
    row = places[0][1]
    if time is None and "delay" not in row and UNTIMED not in row:
        raise RowError(MISSING_TIME, field=time_path, hint="Try --map timestamp=FIELD.")
    record = described(places, time)
    if time is None:
        record.delay_ms = delay_ms(row, places[0][0])
    return record


def delay_ms(row: dict[str, Any], prefix: str = "") -> float | None:
    """The milliseconds of a row's `delay`, from the end of its session's request before it; None without; RowError.

    >>> delay_ms({"delay": 250}), delay_ms({})
    (250, None)
    """
    value = row.get("delay")
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= MAX_SERVICE_S * 1e3:
        raise RowError("is not a number of milliseconds, from 0 to 30 days.", field=f"{prefix}delay")
    return value


def described(places: Places, time: Any = None) -> Record:
    """Like `common`, with an optional time."""
    row = places[:1]  # lengths and types of nested objects mean something else
    present = {name for _, place in places for name in place if name in _DESCRIBING}  # a row has few of them
    record = Record(time=time)
    if not present.isdisjoint(TOOLS):
        record.tools = _tools(places)
    record.shaping = shaping_of(places)
    if "output_length" in present:
        record.output_length = count(*find(row, "output_length"))
    if not present.isdisjoint(SESSION):
        record.session = key_of(*find(places, *SESSION))
    if not present.isdisjoint(USER):
        record.user = key_of(*find(places, *USER))
    if "type" in present:
        record.type = _type(*find(row, "type"))
    if "model" in present:
        record.model = key_of(*find(places, "model"))
    if not present.isdisjoint(_APART):
        record.account = plain_key(places[0][1], *ACCOUNT)
        record.tenant = plain_key(places[0][1], *TENANT)
        record.adapter = key_of(*find(places, "adapter")) or next(
            filter(None, (plain_key(place, *ADAPTER) for _, place in places)), None
        )
        record.salts = [salt for prefix, place in places for salt in salts_of(place, prefix)]
        record.domain = key_of(*find(row, "domain")) if row[0][1].get("domain") is not None else None
    if "prompt_tokens" in present:
        record.prompt_tokens = count(*find(row, "prompt_tokens"))
    if not present.isdisjoint(ID):
        record.id = key_of(*find(places, *ID))
    if not present.isdisjoint(_TIMES):
        record.end_time = find(row, *END)[0]
        record.service_s = service_in(row)
    put_row(record, row[0][1])
    return record


def time_in(places: Places, *names: str) -> tuple[Any, str]:
    """The time and its JSON path: `timestamp`, where a field map writes, else the first of these names."""
    if places[0][1].get("timestamp") is not None:
        return find(places, "timestamp")
    return find(places, *names)


def fill(record: Record, row: dict[str, Any], places: Places, **names: tuple[str, ...]) -> None:
    """Set unset keys of the record from alternative field names: `fill(record, row, places, user=("end_user",))`.

    The first alternative that is set in some place counts. A mapped field that the row lacks stays empty.
    """
    for field, alternatives in names.items():
        if getattr(record, field) is None and row.get(field) is not MISSING:
            keys = (key_of(*find(places, name)) for name in alternatives)
            setattr(record, field, next((key for key in keys if key is not None), None))


def put_usage(
    record: Record,
    places: Places,
    *,
    prompt: tuple[str, ...] = ("prompt_tokens", "input_tokens"),
    output: tuple[str, ...] = ("completion_tokens", "output_tokens"),
    cached: tuple[str, ...] = (),
) -> None:
    """Set the server's token counts that the record does not have yet; RowError for a bad length.

    Args:
        record: The request.
        places: The usage of its response, which may be empty.
        prompt, output: Names of the lengths.
        cached: Paths of the cached tokens, instead of those that `record.py` lists.
    """
    if record.prompt_tokens is None:
        record.prompt_tokens = count(*find(places, *prompt))
    if record.output_length is None:
        record.output_length = count(*find(places, *output))
    put_cached(record, places, *cached)


def put_media(record: Record, kind: str | None, item: Any, path: str) -> None:
    """Add the identity of a medium outside the prompt, and set the request's type if it has none; RowError."""
    if type(item) is str:
        _note_if_cut(record, item, path)
    record.media.append(json_bytes(item, path))
    record.type = record.type or kind


def salts_of(place: dict[str, Any], prefix: str = "") -> list[bytes]:
    """The identities of the salts of a request; RowError.

    >>> salts_of({"cache_salt": "a"})
    [b'{"cache_salt":"a"}']
    """
    return [json_bytes({name: place[name]}, prefix + name) for name in SALTS if place.get(name) is not None]


def put_prompt(record: Record, value: Any, path: str) -> None:
    """Set the record's prompt: messages, templated text or token ids (prompts.py lists the shapes); RowError."""
    if value is None:
        raise RowError("is missing. It must hold the prompt.", field=path, hint="Try --map input=FIELD.")
    value, path, body = opened_prompt(value, path)
    if body:
        record.tools = record.tools or _tools([(f"{path}.", body)])
        record.shaping = record.shaping or shaping_of([(f"{path}.", body)])
    if type(value) is str and value:
        record.text = value
        _note_if_cut(record, value, path)
        if is_cut_json(value):
            _note_cut(record, path)
    elif value in ("", []):
        raise EmptyPrompt("the prompt is empty.", field=path)
    elif type(value) is list and type(value[0]) is dict:
        system = body.get("system")  # of Anthropic's requests
        put_messages(record, [{"role": "system", "content": system}, *value] if system else value, path)
    elif type(value) is list and type(value[0]) is int:
        record.token_ids = token_ids(value, path)
    else:
        require_prompt(value, path)
    record.type = record.type or "text"


def put_messages(record: Record, messages: Any, path: str) -> None:
    """Set the record's messages, each checked by `put_message`; RowError."""
    if type(messages) is not list:
        raise wrong(messages, path, "a list of messages")
    if not messages:
        raise EmptyPrompt("the prompt is empty.", field=path)
    for i, message in enumerate(messages):
        if (  # nearly all messages need no more
            type(message) is dict
            and type(message.get("role")) is str
            and type(content := message.get("content")) is str
            and "tool_calls" not in message
            and CUT_MARK not in content
            and len(content) not in CUT_LENGTHS
        ):
            continue
        put_message(record, message, f"{path}[{i}]")
    record.messages = messages


def put_message(record: Record, message: Any, path: str) -> None:
    """Check one message of the prompt, note its cut texts, and set the request's type if it has media; RowError."""
    if type(message) is not dict:
        raise wrong(message, path, "a message")
    if type(message.get("role")) is not str:
        raise wrong(message.get("role"), f"{path}.role", "a string")
    content = message.get("content")
    if type(content) is str:
        if is_cut(content):
            _note_cut(record, f"{path}.content")
    elif content is not None:
        _put_parts(record, content, f"{path}.content")
    if message.get("tool_calls") is not None:
        for text in arguments(message["tool_calls"], f"{path}.tool_calls"):
            _note_if_cut(record, text, f"{path}.tool_calls")


def put_output(record: Record, value: Any, path: str) -> None:
    """Set the record's output: text, token ids, a length, or an answer of any shape (contents.py); RowError.

    A logged length takes precedence over counting tokens. With a logged length, cut text is left out, not refused.
    Without a value, the output stays unknown; `pairs.py` says when that is an error.
    """
    if type(value) in (str, list):
        value = unstreamed(value, path)
    if type(value) is str:
        value = opened_answer(value)
    if type(value) is dict or (type(value) is list and value and type(value[0]) is dict):
        usage = value.get("usage") if type(value) is dict else None
        put_usage(record, [(f"{path}.usage.", usage)] if type(usage) is dict else [])
        value = _ids_without_text(value) or _answer_text(record, value, path)
    if type(value) is str:
        if not is_cut(value):
            record.output_text = value
        elif record.output_length is None:
            record.output_text = value
            _note_cut(record, path)
    elif type(value) is list:
        record.output_ids = token_ids(value, path)
        if record.output_length is None:
            record.output_length = len(value)
    elif value is not None:
        if type(value) not in (int, float):
            raise wrong(value, path, "text, token ids or a length")
        length = count(value, path)
        record.output_length = length if record.output_length is None else record.output_length


def put_assistant_messages(record: Record, messages: list[dict[str, Any]], path: str) -> None:
    """Set the record's output to the texts of the assistant's messages, end to end."""
    texts = [message_text(message, path) for message in messages if message["role"] == "assistant"]
    if not texts and record.output_length is None:
        raise RowError(f"{EXPECTED}.", field=path, hint=HINT)
    put_output(record, "".join(texts) if texts else None, path)


def token_ids(value: Any, path: str) -> array[int]:
    """The ids as an array of uint32; RowError if one is not a whole number from 0 to 2^32 - 1."""
    if type(value) is not list:
        raise wrong(value, path, "a list of token ids")
    if list(map(type, value)).count(int) == len(value):  # an array would accept True as 1
        try:
            return array("I", value)
        except OverflowError:
            pass
    raise RowError("is not a list of token ids: each must be a whole number from 0 to 2^32 - 1.", field=path)


def count(value: Any, path: str) -> int | None:
    """A number of tokens, or None; RowError if it is negative, fractional or not a number."""
    value = whole_number(value)
    if value is None or tokens_of(value) is not None:
        return value
    if type(value) is int:
        raise RowError("is negative." if value < 0 else f"is more than {MAX_LENGTH:,} tokens.", field=path)
    raise wrong(value, path, "a whole number of tokens")


def is_cut(text: str) -> bool:
    """Whether a logger cut the text short.

    >>> is_cut("x" * 2048 + "..."), is_cut("x" * 2048), is_cut("... (litellm_truncated 52 chars)")
    (True, False, True)
    """
    if len(text) not in CUT_LENGTHS:
        return CUT_MARK in text
    return text.endswith("...") or text[1024:-1024] == "..." or CUT_MARK in text  # SGLang keeps both ends


def _type(value, path):
    """A request type of TYPES, or `other`: an arbitrary string must not get into the trace."""
    if value is None or type(value) is str:
        return value if value in (None, *TYPES) else "other"
    raise wrong(value, path, "a string")


def key_of(value, path):
    """The key of a session, user, model or request: a string or a whole number; an empty string is None."""
    if value is None or type(value) is str:
        return value or None
    if type(value) is int:
        return str(value)
    raise wrong(value, path, "a string or a whole number")


def plain_key(place: dict[str, Any], *names: str) -> str | None:
    """The first of these fields that is a string or a whole number, as a key; None if a map replaces one in vain.

    >>> plain_key({"project": {"title": "x"}, "team_id": 7}, "project", "team_id")
    '7'
    """
    for name in names:
        value = place.get(name)
        if value is MISSING:
            return None
        if type(value) in (str, int) and value != "":
            return str(value)
    return None


def _tools(places):
    tools, path = find(places, *TOOLS)
    if tools is None:
        return None
    if type(tools) is not list or not all(type(tool) is dict for tool in tools):
        raise wrong(tools, path, "a list of tool definitions")
    if path.endswith("functions"):  # OpenAI's older name and shape
        tools = [{"type": "function", "function": function} for function in tools]
    return tools or None


def _put_parts(record, parts, path):
    """Check each part, and set the request's type if it has none and a part is not text."""
    if type(parts) is not list:
        raise wrong(parts, path, "text, a list of parts or null")
    for i, part in enumerate(parts):
        if type(part) is str:
            _note_if_cut(record, part, f"{path}[{i}]")
            continue
        if type(part) is not dict:
            raise wrong(part, f"{path}[{i}]", "a content part")
        kind = part.get("type", "text")
        if type(kind) is not str:
            raise wrong(kind, f"{path}[{i}].type", "a string")
        if kind in TEXT_PARTS:
            if type(text := part.get(kind, part.get("text"))) is str:
                _note_if_cut(record, text, f"{path}[{i}]")
            continue
        record.type = record.type or MEDIA_PARTS.get(kind)


def identity_of(part: dict[str, Any], path: str) -> bytes:
    """The identity of a medium: its part's JSON without the cache marker, which moves from turn to turn; RowError.

    >>> identity_of({"type": "image", "cache_control": {}}, "")
    b'{"type":"image"}'
    """
    return json_bytes({key: part[key] for key in part if key != "cache_control"}, path)


def _ids_without_text(answer: Any) -> list[Any] | None:
    """The token ids of an answer that was not turned into text, as vLLM's `detokenize=False` leaves it; else None.

    >>> _ids_without_text([{"index": 0, "text": "", "token_ids": [7, 9]}])
    [7, 9]
    """
    first = answer[0] if type(answer) is list else answer
    ids = first.get("token_ids") or first.get("output_token_ids")
    has_text = any(first.get(name) for name in ("text", "content", "message"))
    return ids if type(ids) is list and not has_text else None


def _answer_text(record, value, path) -> str | None:
    """The text of an answer; None if it has none but its length is logged."""
    try:
        return answer_text(value, path)
    except RowError:
        if record.output_length is None:
            raise
        return None


def _note_if_cut(record, text, path):
    if is_cut(text):
        _note_cut(record, path)


def _note_cut(record, path):
    record.cut = record.cut or path
