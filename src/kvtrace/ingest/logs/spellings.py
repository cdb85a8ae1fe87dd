"""Other spellings of the fields that all readers share: `sessionId` for `session`, `createdAt` for `timestamp`.

A spelling is used if its meaning is certain: its name is in CERTAIN, the reader finds no such field itself, and the
sample rows agree. Rows agree if the times are dates, and if names of sessions, users, accounts and tenants repeat: a
name that is new in each row may number the requests, and k-sharing would count each request as a contributor. A user,
an account or a tenant must also be the same throughout each session, so that k never counts more contributors than
there are sessions. Names in LIKELY, and names inside an object such as `metadata`, are never used. One note names them,
and the `--map` that uses them.

The error for a log that matches no reader suggests a `--map`, too. It names fields of the rows, since the user must
choose among them, but only names that cannot be content: short words without digits that at least half of the rows
have, of at least two rows. It never names values.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from ..._base.errors import RowError
from . import times
from .record import Record, tokens_of, whole_number

# field -> spellings, lower case without separators; the first that the rows have is used
CERTAIN = {
    "timestamp": ("timestamp", "createdat", "created", "starttime", "startedat", "requesttime", "receivedat",
                  "arrivaltime", "requestedat", "requesttimestamp", "requestts", "eventtime", "eventtimestamp",
                  "eventts", "datetime", "time", "ts"),
    "session": ("session", "sessionid", "conversationid", "conversation", "threadid"),
    "user": ("userid", "enduserid", "enduser"),
    "account": ("accountid", "apikeyid", "apikeyhash", "apikey"),
    "tenant": ("tenantid", "organizationid", "orgid", "workspaceid", "projectid", "teamid"),
    "model": ("model", "modelname", "modelid"),
    "output_length": ("completiontokens", "outputtokens", "completiontokencount", "outputtokencount"),
}  # fmt: skip
LIKELY = {
    "session": ("conv", "convid", "chat", "chatid", "thread", "sid", "sess", "dialog", "dialogid", "dialogue",
                "dialogueid", "sessionkey", "sessionuuid", "conversationkey", "conversationuuid", "traceid"),
    "user": ("uid", "username", "customer", "customerid", "clientid", "email", "ip", "clientip", "hashedip"),
    "account": ("account", "accountname", "keyid", "virtualkey"),
    "tenant": ("tenant", "team", "teamname", "org", "orgname", "organization", "company", "companyid", "group",
               "groupid", "namespace"),
}  # fmt: skip
OBJECTS = ("metadata", "meta", "extra", "context", "properties", "headers", "info", "tags")
CONTRIBUTORS = ("user", "account", "tenant")
NAME = re.compile(r"[A-Za-z_@][A-Za-z0-9_ .-]{0,31}", re.ASCII)  # a name that may be printed
MISSING_TIME = "is missing. A trace needs the time of each request."


def spelling_of_time(rows: list[dict[str, Any]]) -> str | None:
    """The field that holds the time under another name: dates, in at least half of the rows; None if there is none.

    >>> spelling_of_time([{"createdAt": "2031-03-04T05:06:07Z"}]), spelling_of_time([{"time": 0.3}])
    ('createdAt', None)
    """
    for name in _spellings(rows, CERTAIN["timestamp"]):
        if _are_dates([row[name] for row in rows if row.get(name) is not None]):
            return name
    return None


def has_time(row: dict[str, Any]) -> bool:
    """Whether the row has a field that is named as a time.

    >>> has_time({"EventTime": 5}), has_time({"id": 5})
    (True, False)
    """
    return any(_plain(name) in CERTAIN["timestamp"] for name, value in row.items() if value is not None)


def spellings_of(
    rows: list[dict[str, Any]], records: list[Record], mapped: Iterable[str]
) -> tuple[dict[str, str], str | None]:
    """Field -> its name in the rows, for fields that the reader did not find, and a note on names that are not used.

    >>> rows = [{"sessionId": "a", "team": "x"}, {"sessionId": "a", "team": "x"}]
    >>> spellings_of(rows, [Record(), Record()], ())[0]
    {'session': 'sessionId'}
    >>> spellings_of(rows, [Record(), Record()], ("session",))[1]
    'the rows have `team`, which looks like a tenant. It is not used. To use it: --map tenant=team'
    """
    open_fields = [
        field for field in CERTAIN if field != "timestamp" and field not in mapped and not _known(records, field)
    ]
    chosen: dict[str, str] = {}
    unused: dict[str, str] = {}
    sessions: list[Any] = [record.session for record in records] if len(records) == len(rows) else []
    for field in open_fields:
        for name in _spellings(rows, CERTAIN[field]):
            values = [row.get(name) for row in rows]
            if field == "output_length":
                chosen |= {field: name} if _are_counts(values) else {}
            elif field == "model" or _agree(values, sessions if field in CONTRIBUTORS else []):
                chosen[field] = name
                if field == "session":
                    sessions = values
            else:
                unused[field] = name
            break
    for field in open_fields:
        if field not in chosen and field not in unused:
            candidate = _likely(rows, field)
            unused |= {} if candidate is None else {field: candidate}
    if chosen.keys() & {"account", "tenant"} or any(_known(records, field) for field in ("account", "tenant")):
        unused = {field: name for field, name in unused.items() if field == "session"}  # k has its contributors
    return chosen, _note(unused)


def _spellings(rows, spellings):
    """The names in the rows with one of these spellings, in their order: those that most rows have."""
    name_of = {}
    for row in rows[:100]:
        for name in row:
            name_of.setdefault(_plain(name), name)
    names = [name_of[spelling] for spelling in spellings if spelling in name_of]
    return [name for name in names if NAME.fullmatch(name) and _is_key([row.get(name) for row in rows])]


def _is_key(values):
    """Whether at least half of the values are texts or numbers, and the others are missing."""
    given = [value for value in values if value is not None and value != ""]
    return 0 < len(values) <= 2 * len(given) and all(type(value) in (str, int, float) for value in given)


def _are_dates(values):
    try:
        unit = times.detect(values)
    except RowError:
        return False
    return unit is not None and (unit.name == "iso" or unit.span == "epoch")


def _agree(values, sessions):
    """Whether names repeat, and each session has one of them."""
    named = [value for value in values if type(value) in (str, int) and value != ""]
    if len(set(named)) == len(named) or any(type(value) is float for value in values):
        return False
    names = defaultdict(set)
    for session, value in zip(sessions, values, strict=False):
        if session is not None:
            names[session].add(value)
    return all(len(same) == 1 for same in names.values())


def _are_counts(values):
    return all(value is None or tokens_of(whole_number(value)) is not None for value in values)


def _known(records, field):
    return any(getattr(record, field) is not None for record in records)


def _likely(rows, field) -> str | None:
    """The path of a value that looks like this field."""
    for name in _spellings(rows, LIKELY.get(field, ())):
        if field != "session" or _agree([row.get(name) for row in rows], []):
            return name
    for name in OBJECTS:
        objects = [row[name] for row in rows if type(row.get(name)) is dict]
        inner = _spellings(objects, (*CERTAIN[field], *LIKELY.get(field, ()))) if objects else []
        if inner and "." not in inner[0]:
            return f"{name}.{inner[0]}"
    return None


def _note(unused: dict[str, str]) -> str | None:
    if not unused:
        return None
    article = {"account": "an account"}
    looks = [f"`{name}`, which looks like {article.get(field, f'a {field}')}" for field, name in unused.items()]
    maps = " ".join(
        f"--map {field}={name}" if " " not in name else f'--map "{field}={name}"' for field, name in unused.items()
    )
    is_single = len(unused) == 1
    return (
        f"the rows have {', and '.join(looks)}. {'It is' if is_single else 'They are'} not used. "
        f"To use {'it' if is_single else 'them'}: {maps}"
    )


def _plain(name):
    return re.sub("[^a-z0-9]", "", name.lower())


MAX_NAMES = 12
# snake_case, kebab-case, camelCase, or the UPPER_CASE of a data warehouse
_NAME = re.compile(r"[a-z]{1,12}([_-][a-z]{1,12}|[A-Z][a-z]{1,11}){0,3}|[A-Z]{1,12}(_[A-Z]{1,12}){0,3}")
GUESSES = {  # field -> words that its name may have, the likeliest first
    "timestamp": CERTAIN["timestamp"] + ("date", "at", "when"),
    "input": (
        "messages",
        "prompt",
        "input",
        "inputs",
        "question",
        "query",
        "instruction",
        "request",
        "text",
        "content",
    ),
    "output": ("output", "outputs", "answer", "response", "completion", "reply", "generation", "result"),
}


def unknown_form(rows: list[dict[str, Any]], formats: Iterable[str] = ()) -> RowError:
    """The error for rows that match no reader; their names are in the order of the first row.

    >>> print(unknown_form([{"question": "x", "answer": "y", "when": 1}] * 2))
    the first rows match no known log format. Their fields: question, answer, when. \
Try --map timestamp=when --map input=question --map output=answer, or --log-format NAME.
    """
    reason = "the first rows match no known log format."
    names = common_names(rows)
    if not names:
        return RowError(reason, hint=f"Try --map input=FIELD, or --log-format NAME (one of {', '.join(formats)}).")
    if {"custom_id", "response"} <= {*names}:
        return RowError(reason, hint="A Batch has its requests and responses in two files: give both.")
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    fields = f"Their fields: {', '.join(names[:MAX_NAMES])}{more}."
    maps = " ".join(f"--map {field}={name}" for field, name in _guessed(names).items())
    return RowError(f"{reason} {fields}", hint=f"Try {maps or '--map input=FIELD'}, or --log-format NAME.")


def common_names(rows: list[dict[str, Any]]) -> list[str]:
    """The fields that at least half of the rows have, of at least two rows, if their names cannot be content.

    >>> common_names([{"question": 1, "Ann Lee": 2, "id7": 3}] * 2), common_names([{"question": 1}])
    (['question'], [])
    """
    if len(rows) < 2:
        return []
    uses = Counter(name for row in rows for name in row)
    return [
        name
        for name, times in uses.items()
        if 2 * times >= len(rows) and times > 1 and _NAME.fullmatch(name) and not _is_lowered(name, uses)
    ]


def with_lower_names(row: dict[str, Any]) -> dict[str, Any]:
    """The row; if its names are all in upper case, as data warehouses export them, then also with lower-case names.

    >>> with_lower_names({"PROMPT": "Hello", "EVENT_TS": 5})
    {'PROMPT': 'Hello', 'EVENT_TS': 5, 'prompt': 'Hello', 'event_ts': 5}
    >>> with_lower_names({"Prompt": "Hello"})
    {'Prompt': 'Hello'}
    """
    if next(iter(row), "").isupper() and all(map(str.isupper, row)):
        return row | {name.lower(): value for name, value in row.items()}
    return row


def _is_lowered(name, names):
    """Whether `with_lower_names` added this name."""
    return name.islower() and name.upper() in names


def _guessed(names):
    """Field -> the name that fits it best; none if no name fits the prompt."""
    guessed = {}
    for field, words in GUESSES.items():
        fits = [(words.index(word), i) for i, name in enumerate(names) if (word := _word(name, words)) is not None]
        if fits:
            guessed[field] = names[min(fits)[1]]
    return guessed if "input" in guessed else {}


def _word(name, words):
    """The likeliest of the words that the name is, or that it has as a part."""
    plain = re.sub("[^a-z]", "", name.lower())
    name = name.lower() if name.isupper() else name
    parts = {part.lower() for part in re.split(r"[_-]|(?<=[a-z])(?=[A-Z])", name)} | {plain}
    return next((word for word in words if word in parts), None)
