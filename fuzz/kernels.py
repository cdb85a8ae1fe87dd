"""Random inputs for the compiled kernels, each answer compared with its twin's: for builds that check every access.

    python -m fuzz.kernels --seconds 20 --seed 7 --last last-case

A kernel that reads past an array ends the process where the build is one with AddressSanitizer, and raises where it has
bounds checks. Every case has a number: `--case 123` runs that one again, and the file named by --last holds the number
of the one under way, for when the process dies.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import time
from itertools import pairwise

import numpy as np

from fuzz.mutate import mutate
from fuzz.seeds import session_files, trace_files
from kvtrace._native import forest, numbering, sharing
from kvtrace._native import rows as scanner
from kvtrace._native import texts as printer
from kvtrace._native.numbering import merge_ids
from kvtrace._native.rows import PAD
from kvtrace.formats import jsonl_read
from tests.formats.test_rows import as_rows, comparable
from tests.reference import chat_texts as slow_chat_texts
from tests.reference import forest as slow_forest
from tests.reference import ids as slow_ids
from tests.reference import ragged as slow_ragged
from tests.reference import recorded as slow_recorded
from tests.reference import rows as slow_rows
from tests.reference import rows_out as slow_rows_out
from tests.reference import session_ids as slow_session_ids
from tests.reference import siphash as slow_siphash


def main(arguments: list[str] | None = None) -> int:
    """Run cases until the time or their number is over; 1 where one was wrong, and its number is told."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.kernels", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--cases", type=int, help="how many, in place of a time")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--case", type=int, help="run this one only")
    parser.add_argument("--last", default=os.devnull, help="file that holds the number of the case under way")
    chosen = parser.parse_args(arguments)
    faults: list[str] = []
    # a bounds check that fails without an interpreter at hand can't raise: it is told here
    sys.unraisablehook = lambda told: faults.append(f"{type(told.exc_value).__name__}: {told.exc_value}")
    last = os.open(chosen.last, os.O_WRONLY | os.O_CREAT, 0o600)
    print(f"fuzzing {len(KERNELS)} kernels with --seed {chosen.seed}", flush=True)
    counts, number = dict.fromkeys(KERNELS, 0), chosen.case or 0
    end = float("inf") if chosen.cases else time.monotonic() + chosen.seconds
    while time.monotonic() < end and number != chosen.cases:
        os.pwrite(last, b"--seed %d --case %-12d" % (chosen.seed, number), 0)
        name = run(chosen.seed, number)
        counts[name] += 1
        if faults:
            print(f"{name}: {faults[0]}; again with --seed {chosen.seed} --case {number}")
            return 1
        if chosen.case is not None:
            break
        number += 1
    print(", ".join(f"{name} {count:,}" for name, count in counts.items()))
    return 0


def run(seed: int, number: int) -> str:
    """One case: the kernel's name; AssertionError where it and its twin differ."""
    draw = random.Random(f"{seed} {number}")
    name = draw.choice(list(KERNELS))
    try:
        KERNELS[name](draw)
    except Exception as error:
        error.add_note(f"{name}; again with --seed {seed} --case {number}")
        raise
    return name


# -- rows ------------------------------------------------------------------------------------------------------------


def scanning(draw):
    data = mutate(draw, draw.choice(trace_files()), draw.choice([1, 3, 30]))
    piece, threads = draw.choice([(1 << 21, 1), (1 << 21, 1), (draw.randint(1, 300), draw.choice([1, 2]))])
    bad = []
    whole, jsonl_read.PIECE = jsonl_read.PIECE, piece
    try:
        stream = io.BufferedReader(io.BytesIO(data))
        found = jsonl_read.read_rows(stream, "f", on_error=lambda error: bad.append(error.line), threads=threads)
    finally:
        jsonl_read.PIECE = whole
    slow, slow_bad = slow_rows.read(data)
    assert bad == slow_bad
    assert comparable(as_rows(found)) == comparable(slow)


def printing(draw):
    rows, first_id = draw.randrange(9), draw.choice([0, 1, -5, 2**40])
    numbers = [_number(draw) for _ in range(rows)]
    times = [draw.choice([0, -1, 1, 999, 1000, 10**15, -(10**15), draw.randrange(10**9)]) for _ in range(rows)]
    texts = [draw.choice([b"", b"null", b'"a"', b"1.5", b'"' + b"x" * draw.randrange(99) + b'"']) for _ in range(rows)]
    lists = [[draw.choice([0, 1, -1, 2**62, -(2**62)]) for _ in range(draw.randrange(5))] for _ in range(rows)]
    more = [[draw.randrange(9999) for _ in range(draw.randrange(3))] for _ in range(rows)]
    fields = [
        (b'{"n": ', printer.WHOLE, np.array(numbers, dtype=np.int64)),
        (b', "s": ', printer.SECONDS, np.array(times, dtype=np.int64)),
        (b', "ms": ', printer.MICROSECONDS, np.array(times, dtype=np.int64)),
        (b', "text": ', printer.TEXT, _join([list(text) for text in texts], np.uint8)),
        (b', "ids": ', printer.IDS, _join(lists)),
        (b', "more": ', printer.IDS, _join(more)),
    ]
    slow = [
        {
            "n": numbers[row],
            "s": times[row] / 1000,
            "ms": times[row] / 1000 if times[row] % 1000 else times[row] // 1000,
            "text": texts[row],
            "ids": lists[row],
            "more": more[row],
        }
        for row in range(rows)
    ]
    assert bytes(printer.dump(fields, rows, first_id)) == slow_rows_out.dump(slow, first_id)


def copying_texts(draw):
    texts = ["".join(draw.choices("ab\0ßÿ烤🍞\U0010ffff"[: draw.choice([3, 5, 6, 8])], k=draw.choice([0, 1, 7, 300])))
             for _ in range(draw.randrange(9))]  # fmt: skip
    assert printer.joined_texts(texts) == slow_chat_texts.joined_texts(texts)
    kinds = [lambda text: {"role": "user", "content": text}, lambda text: text, lambda text: {"content": text},
             lambda text: {"role": 1, "content": [text]},
             lambda text: {"role": text, "content": text, "id": 1}]  # fmt: skip
    messages = [draw.choice(kinds)(text) for text in texts]
    assert printer.chat_texts(messages) == slow_chat_texts.chat_texts(messages)


# -- digests and ids -------------------------------------------------------------------------------------------------


def hashing(draw):
    key, message = draw.randbytes(16), draw.randbytes(draw.choice([0, 1, 7, 8, 9, 15, 16, 63, 255, 256, 257]))
    assert numbering.siphash128(key, message) == slow_siphash.siphash128(key, message)


def chaining_digests(draw):
    prompts = [[draw.getrandbits(32) for _ in range(draw.randrange(40))] for _ in range(draw.randrange(1, 5))]
    key, block_size, tail = draw.randbytes(16), draw.choice([1, 2, 3, 16, 100]), draw.random() < 0.5
    roots = [draw.randbytes(16) for _ in prompts]
    tokens, offsets = _join(prompts, np.uint32)
    words = np.frombuffer(b"".join(roots), dtype=np.uint64)
    digests, block_offsets = numbering.chain(key, tokens, offsets, words, block_size, tail)
    found = [[digest.tobytes() for digest in row] for row in _cut(digests, block_offsets)]
    assert found == slow_siphash.chain(key, prompts, roots, block_size, tail)


def renumbering(draw):
    values = [_number(draw) for _ in range(draw.choice([0, 1, 5, 300, 3000]))]
    numbered, distinct = numbering.renumber(np.array(values, dtype=np.int64))
    assert (numbered.tolist(), distinct) == slow_ids.renumber(values)


def indexing_digests(draw):
    index, found, seen = numbering.DigestIndex(), [], []
    for _ in range(draw.randrange(4)):
        # digests that share half of their bits meet in the table; one of zeros alone stands for none
        batch = [(draw.choice([1, 2, draw.getrandbits(64) | 1]), draw.getrandbits(draw.choice([1, 64])))
                 for _ in range(draw.choice([0, 1, 50, 2000]))]  # fmt: skip
        seen += batch
        found += index.add(np.array(batch, dtype=np.uint64).reshape(-1, 2)).tolist()
    assert (found, index.distinct) == slow_ids.renumber(seen)


# -- forests and ragged rows -----------------------------------------------------------------------------------------


def taking(draw):
    prompts, _, _ = _forest(draw)
    chosen = [draw.randrange(len(prompts)) for _ in range(draw.randrange(9))]
    values, offsets = numbering.take(*_join(prompts), np.array(chosen, dtype=np.int64))
    assert _cut(values.tolist(), offsets) == slow_ragged.take(prompts, chosen)


def merging(draw):
    streams = [_forest(draw)[0] for _ in range(draw.randrange(1, 4))]
    rows = [ids for prompts in streams for ids in prompts]
    order = draw.sample(range(len(rows)), draw.randrange(len(rows) + 1))
    parts = [_join(prompts, np.int32) for prompts in streams]
    counts = [int(ids.max(initial=-1)) + 1 for ids, _ in parts]
    merged, offsets = merge_ids(
        [ids for ids, _ in parts], counts, [offsets for _, offsets in parts], np.array(order, dtype=np.int64)
    )
    assert _cut(merged.tolist(), offsets) == slow_ids.merge(streams, order)


def verifying(draw):
    prompts, full, outputs = _forest(draw, least=-1)
    assert forest.verify(*_arrays(prompts, full, outputs)) == slow_forest.verify(prompts, full, outputs)


def walking(draw):
    prompts, full, outputs = _forest(draw)
    chained, chained_outputs = forest.chain(*_arrays(prompts, full, outputs), 7)
    slow, slow_outputs = slow_forest.chain(prompts, full, outputs)
    assert chained.tolist() == [block for blocks in slow for block in blocks]
    assert outputs is None or chained_outputs.tolist() == [block for blocks in slow_outputs for block in blocks]
    distinct = max([-1, *(block for lists in (slow, slow_outputs or []) for blocks in lists for block in blocks)]) + 1
    (joined, offsets), (more, more_offsets) = _join(slow), (None, None) if outputs is None else _join(slow_outputs)
    parent = forest.parents(joined, offsets, np.array(full, dtype=np.int64), more, more_offsets, distinct)
    assert parent.tolist() == slow_forest.parents(slow, full, slow_outputs)
    assert forest.depths(parent).tolist() == slow_forest.depths(parent.tolist())


def finding_lists(draw):
    text = mutate(draw, draw.choice(session_files()), draw.choice([1, 3, 30]))
    spans, offsets, found = scanner.find_lists(text + bytes(PAD), len(text))
    lists = _cut(found.tolist(), offsets)
    assert [(*span, values) for span, values in zip(spans.tolist(), lists, strict=True)] == slow_session_ids.find_lists(
        text
    )


def numbering_rows(draw):
    keys = [[draw.randrange(4) for _ in range(draw.randrange(1, 5))] for _ in range(draw.randrange(1, 4))]  # tables
    session = [draw.randrange(len(keys)) for _ in range(draw.randrange(6))]
    rows = [[draw.randrange(len(keys[number])) for _ in range(draw.randrange(5))] for number in session]
    numbers, offsets = _join(rows, np.int32)
    table, first = _join(keys)
    found = scanner.number_rows(numbers, offsets[:-1], np.diff(offsets), first[session], table, 4)
    slow = slow_session_ids.number_rows(
        [[(None, keys[number][place]) for place in row] for number, row in zip(session, rows, strict=True)]
    )
    assert found.tolist() == [block for row in slow for block in row]


def waiting(draw):
    """Requests of one session and one agent, in the order of their starts, with prompts of a tree."""
    count = draw.randrange(1, 9)
    start = sorted(float(draw.randrange(9)) for _ in range(count))
    service = [float(draw.choice([0, 1, 4])) for _ in range(count)]
    number: dict = {}
    paths = [[draw.randrange(2) for _ in range(draw.randrange(5))] for _ in range(count)]
    prompts = [[number.setdefault(tuple(path[: i + 1]), len(number)) for i in range(len(path))] for path in paths]
    row, completed = forest.longest_prefixes(
        np.arange(count), np.array([0, count]), np.array(start), np.array(start) + np.array(service), *_join(prompts)
    )
    slow = slow_recorded.recorded_dependencies(start, service, prompts, [0] * count, [0] * count)
    assert [[] if r < 0 else [(r, int(done))] for r, done in zip(row.tolist(), completed.tolist(), strict=True)] == [
        [one[:2] for one in waits] for waits in slow
    ]


# -- sharing: laws in place of a twin --------------------------------------------------------------------------------


def counting_holders(draw):
    prompts, _, outputs = _forest(draw)
    contributor, (blocks, offsets), distinct = _held(draw, prompts, outputs)
    contributors = [set() for _ in range(distinct)]
    for _, owner, block in _uses(prompts, outputs, contributor):
        contributors[block].add(owner)
    assert sharing.count_contributors(blocks, offsets, np.array(contributor), distinct).tolist() == [
        len(found) for found in contributors
    ]


def splitting(draw):
    """Two uses have the same new id where they had the same before, and the same contributor if the block is split."""
    prompts, _, outputs = _forest(draw)
    contributor, (blocks, offsets), distinct = _held(draw, prompts, outputs)
    is_split = np.array([draw.random() < 0.5 for _ in range(distinct)], dtype=bool)
    count = sharing.count_contributors(blocks, offsets, np.array(contributor), distinct)
    former = sharing.split(blocks, offsets, np.array(contributor), count, is_split)
    flat = blocks.tolist()
    kept = [block if block < distinct else int(former[block - distinct]) for block in flat]
    assert kept == [block for _, _, block in _uses(prompts, outputs, contributor)]
    wanted = [(block, owner if is_split[block] else -1) for _, owner, block in _uses(prompts, outputs, contributor)]
    assert len(flat) == len(wanted)
    assert len(set(zip(flat, wanted, strict=True))) == len(set(flat)) == len(set(wanted))


def inferring(draw):
    prompts, _, _ = _forest(draw)
    distinct, tails = 7, draw.random() < 0.5
    assert sharing.infer(
        *_join(prompts), np.array([len(prompt) for prompt in prompts]), tails, distinct
    ).tolist() == _inferred(prompts, tails)


def _inferred(prompts, tails):
    """Conversations as sharing.infer's first lines say."""
    last, users, session = {}, {}, []
    for row, prompt in enumerate(prompts):
        seen = 0
        while seen < len(prompt) and prompt[seen] in last:
            seen += 1
        chosen = len(set(session))
        if seen:
            block = prompt[seen - 1]
            if seen >= len(prompts[last[block]]) - tails and len(users[block]) < sharing.SEVERAL:
                chosen = session[last[block]]
        session.append(chosen)
        for block in prompt:
            last[block] = row
            users.setdefault(block, set()).add(chosen)
    return session


# -- what the kernels are given --------------------------------------------------------------------------------------


def _number(draw):
    return draw.choice([0, 1, -1, 2**63 - 1, -(2**63), draw.randrange(9), draw.getrandbits(62), -draw.getrandbits(31)])


def _forest(draw, least=0):
    """Prompts of ids below 7, their full blocks, and outputs or None."""
    rows = draw.randrange(1, 7)
    prompts = [[draw.randint(least, 6) for _ in range(draw.randrange(6))] for _ in range(rows)]
    full = [draw.randint(0, len(prompt)) for prompt in prompts]
    outputs = [[draw.randrange(7) for _ in range(draw.randrange(4))] for _ in range(rows)]
    return prompts, full, outputs if draw.random() < 0.5 else None


def _held(draw, prompts, outputs):
    """Contributors of the rows, their blocks with offsets, and a number above all blocks."""
    contributor = [draw.randrange(4) for _ in prompts]
    rows = [prompt + output for prompt, output in zip(prompts, outputs or [[] for _ in prompts], strict=True)]
    return contributor, _join(rows, np.int32), 7


def _uses(prompts, outputs, contributor):
    for row, owner in enumerate(contributor):
        for block in [*prompts[row], *(outputs[row] if outputs is not None else [])]:
            yield row, owner, block


def _arrays(prompts, full, outputs):
    more = (None, None) if outputs is None else _join(outputs)
    return *_join(prompts), np.array(full, dtype=np.int64), *more


def _join(lists, dtype=np.int64):
    offsets = np.concatenate([[0], np.cumsum([len(values) for values in lists])]).astype(np.int64)
    return np.array([value for values in lists for value in values], dtype=dtype), offsets


def _cut(values, offsets):
    return [list(values[start:stop]) for start, stop in pairwise(offsets)]


KERNELS = {
    function.__name__.replace("_", " "): function
    for function in (
        scanning, printing, copying_texts, hashing, chaining_digests, renumbering, indexing_digests, taking, merging,
        verifying, walking, finding_lists, numbering_rows, waiting, counting_holders, splitting, inferring,
    )
}  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
