"""Whole commands on a long trace beside a bare loop of orjson.loads over it, and the memory that they need."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator

import orjson

from .inputs import one_request, repeated
from .measuring import Line, apart, kvtrace, peak, processor, python_start, wall

COPIES = 133  # of the conversation trace: 447 MB, 38 million block references
MILLION = 83  # copies that have a million requests, 24 million block references, 296 MB
OPTIONS = ("--block-size", "512")
PARTS = 104  # copies in the data set: 30 million block references
ON_PARTS = {
    "analyze": (), "simulate": ("--capacity", "1000000", "--no-gap"), "curve": ("--sample", "0.01"),
}  # fmt: skip


def lines(folder: str, share: float) -> Iterator[Line]:
    """Seconds beside the loop, and peaks beside the sizes of the traces."""
    one, once = one_request(folder), os.path.join(folder, "once.jsonl")
    long, million, parts = (os.path.join(folder, name) for name in ("long.jsonl", "million.jsonl", "parts.dataset"))
    apart(repeated, once, 1)
    start = ("analyze", once, *OPTIONS)
    yield Line("analyze 3 MB, processor time / Python start", "s", (processor, *start), (python_start,), 7)
    small = os.path.join(folder, "six.jsonl")
    write_chat(small)
    call = ("anonymize", small, "-o", f"{small}.trace", "-q")
    yield Line("anonymize six rows, processor time / --version", "s", (processor, *call), (processor, "--version"), 5)

    held = apart(repeated, long, round(COPIES * share))
    name = f"analyze {os.path.getsize(long) / 1e6:.0f} MB"
    for title, most, options in ((f"{name} --basic", 1, ("--basic",)), (name, 2, ())):
        yield Line(f"{title} / orjson.loads", "s", (wall, "analyze", long, *OPTIONS, *options), (bare, long), most)
    ours, rival = (peak, "analyze", long, *OPTIONS), (allowed, held * 36, "analyze", one, *OPTIONS)
    yield Line(f"{name}, peak memory / 36 bytes a reference", "MB", ours, rival, 1)

    held = apart(repeated, million, round(MILLION * share), True)
    for command, most in (("release", 6), ("report", 8)):
        name, output = f"{command} {os.path.getsize(million) / 1e6:.0f} MB", f"{million}.{command}"
        output += ".html" if command == "report" else ".jsonl"
        options = ("-o", output, "-q", *OPTIONS)
        call = (command, million, *options)
        yield Line(f"{name}, processor time / orjson.loads", "s", (processor, *call), (bare, million), most)
        if command == "release":
            ours, rival = (peak, *call), (allowed, held * 24, command, one, *options)
            yield Line(f"{name}, peak memory / 24 bytes a reference", "MB", ours, rival, 1)

    held = apart(repeated, parts, round(PARTS * share), True)
    for command, options in ON_PARTS.items():
        name = f"{command} {held / 1e6:.0f} M references as a data set, peak / bound"
        used = apart(kvtrace, command, parts, *options)
        yield Line(name, "MB", used.peak, bound(used.notes), 1)


def write_chat(path: str) -> None:
    """A log of six requests of one chat."""
    turns: list[dict[str, str]] = []
    with open(path, "w", encoding="utf-8") as file:
        for number in range(6):
            question = {"role": "user", "content": f"How many boats are there on day {number}? " * 9}
            row = {"timestamp": 1_700_000_000 + number, "messages": [*turns, question], "response": "Seven boats."}
            turns += [question, {"role": "assistant", "content": "Seven boats."}]
            file.write(f"{json.dumps(row)}\n")


def bare(path: str) -> float:
    """Seconds to decode each line and keep nothing."""
    start = time.perf_counter()
    with open(path, "rb") as file:
        for line in file:
            orjson.loads(line)
    return time.perf_counter() - start


def allowed(size: float, *command: str) -> float:
    """What the command takes for one request, 25 MB for pieces of a file in work, and bytes for the size of a trace."""
    return peak(*command) + 25e6 + size


def bound(notes: str) -> float:
    """The memory that a command on a data set states beforehand."""
    stated = re.search(r"needs at most ([\d,]+) MB", notes)
    if not stated:
        raise ValueError(f"no bound in {notes!r}")
    return 1e6 * int(stated[1].replace(",", ""))
