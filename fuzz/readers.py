"""Log readers fed what a fuzzer that follows coverage finds: nothing but a row's error comes out, and no canary in it.

    python -m fuzz.readers --seconds 30 [corpus folder]

Two bytes choose the reader and its settings, the rest are lines. The seeds are the example logs, with a canary planted
in their texts, so that what is found on the way carries it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["kvtrace.ingest.logs", "kvtrace.text.messages"], enable_loader_override=False):
    from kvtrace._base.errors import RowError
    from kvtrace.ingest import logs

import orjson

from fuzz.engine import fuzz
from fuzz.seeds import log_lines
from tests.attacks.canary import CANARY, all_of, require_none

NAMES = ["auto", *logs.READERS]
UNITS = ["auto", "s", "ms", "us", "ns", "iso"]
MAPS: list[dict[str, str] | None] = [None, None, {"input": "payload.0.messages"}, {"session": "a.b", "timestamp": "at"}]


def one(data: bytes) -> None:
    """Read the lines; AssertionError or another exception where a reader does what it must not."""
    if len(data) < 3:
        return
    name, settings, lines = NAMES[data[0] % len(NAMES)], data[1], data[2:].split(b"\n")
    try:
        reader = logs.open_reader(
            name, [line for line in lines if line.strip()], time_unit=UNITS[settings % 6],
            field_map=MAPS[settings >> 3 & 3], allow_truncated=bool(settings & 32), untimed=bool(settings & 64),
        )  # fmt: skip
    except RowError as error:
        return require_none(all_of(error), where="an error of a reader's start")
    for line in lines:
        try:
            for record in reader.records(line.strip()):
                reader.measured(record, reader.time_ns(record))
        except RowError as error:
            require_none(all_of(error), where="an error of a row")
        except RecursionError:
            pass  # its caller takes it for what it is: a row that is nested too deeply


def seeds():
    """Each example line for each reader that may read it, as it is and with the canary in its texts."""
    for line in log_lines():
        for number in range(len(NAMES)):
            yield bytes([number, 96]) + line
        yield bytes([0, 96]) + _planted(line)
        yield bytes([len(NAMES) - 1, 0]) + _planted(line) + b"\n" + line


def _planted(line):
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return line + CANARY.encode()
    return orjson.dumps(_with_canary(row))


def _with_canary(value):
    if isinstance(value, dict):
        return {key: _with_canary(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_canary(inner) for inner in value]
    return CANARY if isinstance(value, str) and len(value) > 12 else value


if __name__ == "__main__":
    sys.exit(
        fuzz(one, seeds(), words=[CANARY.encode(), b'"messages"', b'"content"', b'"role"', b'"input"', b'"usage"'])
    )
