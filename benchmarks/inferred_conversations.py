"""Rules that infer conversations: does a guess join the conversation that it extends, and what does the rule cost?

python -m benchmarks.inferred_conversations [--shared FOLDER]

k-sharing counts inferred conversations if a log has neither users nor sessions. The probe sends a guessed document and
looks in the release for other rows with its blocks. In four ways (PROBES): the guess extends the victim's prompt; the
guess comes first, and the victim's prompt extends it; the guess extends the prompt and its answer, since many servers
answer the same prompt in the same words; or two guesses count as two conversations, which the victim's makes three.
20 trials each; in half of them, the victim sent something else: 10 of 20 is chance. The cost is that of k-sharing at
k = 3, in hits of a cache that never evicts. docs/privacy/privacy.md has the figures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import kvtrace
from kvtrace.privacy.contributors import Contributors
from kvtrace.privacy.releases import share_by_k
from kvtrace.privacy.trace_draft import TraceDraft
from kvtrace.trace.trace import Trace

K, TRIALS, SEVERAL = 3, 20, 3
DELAY_MS, WINDOW = 5_000, 512  # a plausible pause between turns; tokens of a plausible new message


@dataclass
class Turn:
    """A request and the earlier one whose blocks it extends, as a rule sees them."""

    shared: int  # leading blocks that the earlier one has
    full: int  # full blocks of the earlier prompt
    prompt: int  # blocks of the earlier prompt
    outputs: int  # blocks of the earlier output
    growth: int  # tokens of this prompt beyond the earlier prompt and its output
    gap_ms: float


Rule = Callable[[Turn], bool]
RULES: dict[str, Rule] = {
    "the whole prompt (today)": lambda turn: turn.shared >= turn.prompt - 1,
    "... and a pause of 5 s": lambda turn: turn.shared >= turn.prompt - 1 and turn.gap_ms >= DELAY_MS,
    "... and longer by the output": lambda turn: turn.shared >= turn.prompt - 1 and turn.growth >= 0,
    "... by at most 512 tokens": lambda turn: turn.shared >= turn.prompt - 1 and 0 <= turn.growth <= WINDOW,
    "a block of the output": lambda turn: turn.shared >= turn.full + max(1, turn.outputs - 1) and turn.outputs > 0,
    "never": lambda turn: False,
}


def infer(draft: TraceDraft, rule: Rule) -> np.ndarray:
    """The conversation of each request, as `_native.sharing.infer` finds it, with another rule for joining."""
    rows, blocks = draft.rows, draft.blocks
    numbers, offsets, prompts = blocks.number.tolist(), blocks.offsets.tolist(), blocks.prompts.tolist()
    last: dict[int, int] = {}
    known: dict[int, set[int]] = {}
    session: list[int] = []
    fresh = 0
    for row in range(len(rows)):
        prompt = numbers[offsets[row] : offsets[row] + prompts[row]]
        shared = 0
        while shared < len(prompt) and prompt[shared] in last:
            shared += 1
        joined = fresh
        if shared:
            deepest = prompt[shared - 1]
            before = last[deepest]
            turn = Turn(
                shared,
                int(rows.input_length[before]) // draft.block_size,
                prompts[before],
                offsets[before + 1] - offsets[before] - prompts[before],
                int(rows.input_length[row] - rows.input_length[before] - rows.output_length[before]),
                float(rows.timestamp[row] - rows.timestamp[before]),
            )
            if rule(turn) and len(known[deepest]) < SEVERAL:
                joined = session[before]
        fresh += joined == fresh
        session.append(joined)
        for block in numbers[offsets[row] : offsets[row + 1]]:
            last[block] = row
            known.setdefault(block, set()).add(joined)
    return np.array(session)


def released(trace: Trace, rule: Rule) -> TraceDraft:
    """The trace with unique tails, and its blocks split below K conversations."""
    draft = TraceDraft.of(trace)
    draft.set_tail("unique")
    share_by_k(draft, K, lambda: Contributors(infer(draft, rule), "inferred"))
    return draft


def cost(trace: Trace, rule: Rule) -> float:
    """The share of hits that k-sharing costs."""
    draft = TraceDraft.of(trace)
    before = draft.hits().hit_blocks
    return 1 - released(trace, rule).hits().hit_blocks / before


# -- the probe -------------------------------------------------------------------------------------------------------

PROBES = ("extends", "comes first", "knows the answer", "two guesses")


def probe(trace: Trace, rule: Rule, kind: str, rng: np.random.Generator) -> int:
    """Trials in which the attacker tells whether the victim sent the guessed document.

    `kind` is one of PROBES. The release has 200 requests around the victim's, whose prompt is the document and a block
    with a question, and whose answer has two blocks.
    """
    uses, right = np.bincount(trace.hash_ids, minlength=trace.distinct), 0
    for trial in range(TRIALS):
        victim, was_sent = _victim(trace, uses, rng), bool(trial % 2)
        first = max(0, victim - 100)
        rows = [_row(trace, row) for row in range(first, min(len(trace), victim + 100))]
        own = rows[victim - first]
        whole, answer = own.prompt[: own.input_length // trace.block_size], [-1, -2]
        own.prompt, own.outputs, own.input_length = whole, answer, len(whole) * trace.block_size
        if not was_sent:
            own.prompt, own.outputs = [b if uses[b] > 1 else -100 - n for n, b in enumerate(whole)], [-3, -4]
        place = 0 if kind == "comes first" else rows.index(own) + 1
        time = rows[0].timestamp if kind == "comes first" else own.timestamp + DELAY_MS
        for sent in _guesses(kind, whole, answer, _padding(trace)):
            rows.insert(place, Row(time, sent, len(sent) * trace.block_size, 1, []))
        blocks = released(_trace(rows, trace.block_size), rule).blocks
        deepest = blocks.number[blocks.offsets[place] + len(whole) - 2]  # of the document
        right += (np.count_nonzero(blocks.number == deepest) > 1) == was_sent
    return right


def _guesses(kind: str, whole: list[int], answer: list[int], padding: int) -> list[list[int]]:
    """The prompts that the attacker sends."""
    pads = [[*range(-1000 * n, -1000 * n + padding)] for n in (2, 3)]
    if kind == "comes first":
        return [whole[:-1]]
    if kind == "two guesses":
        return [whole[:-1] + pad for pad in pads]
    return [whole + (answer if kind == "knows the answer" else []) + pads[0]]


def _padding(trace: Trace) -> int:
    """Blocks of a plausible answer and message."""
    return -(-(int(np.median(trace.output_length)) + WINDOW // 2) // trace.block_size)


@dataclass
class Row:
    """A request of a small trace."""

    timestamp: float
    prompt: list[int]
    input_length: int
    output_length: int
    outputs: list[int]


def _row(trace: Trace, row: int) -> Row:
    return Row(float(trace.timestamp[row]), trace.prompt(row).tolist(), int(trace.input_length[row]),
               int(trace.output_length[row]), [])  # fmt: skip


def _victim(trace: Trace, uses: np.ndarray, rng) -> int:
    """A request whose last three full blocks are its own."""
    while True:
        row = int(rng.integers(len(trace)))
        full = int(trace.input_length[row]) // trace.block_size
        if full >= 4 and (uses[trace.prompt(row)[full - 3 : full]] == 1).all():
            return row


def _trace(rows: list[Row], block_size: int) -> Trace:
    """The rows in their order, with numbers by first appearance."""
    number: dict[int, int] = {}
    parts = [
        [[number.setdefault(block, len(number)) for block in part] for part in (row.prompt, row.outputs)]
        for row in rows
    ]
    prompts, outputs = zip(*parts, strict=True)
    times = np.maximum.accumulate(np.array([row.timestamp for row in rows]))
    return Trace(
        times - times[0], [row.input_length for row in rows],
        [block_size * len(row.outputs) if row.outputs else row.output_length for row in rows],
        [block for prompt in prompts for block in prompt], np.cumsum([0, *map(len, prompts)]),
        output_ids=[block for output in outputs for block in output], output_offsets=np.cumsum([0, *map(len, outputs)]),
        block_size=block_size,
    )  # fmt: skip


def traces(shared: Path) -> Iterator[tuple[str, Trace]]:
    """Real traces: with blocks of outputs where a log has the text."""
    yield "conversation trace", kvtrace.read(shared / "data/mooncake/conversation_trace.jsonl")
    options: dict[str, Any] = {"profile": "exact", "outputs": True, "block_size": 64}
    for name in ("miniswe", "magagent"):
        yield (
            f"agents: {name}",
            kvtrace.ingest.anonymize(shared / f"data/agent_logs/{name}.jsonl", use_template=False, **options),
        )
    chats = shared / "data/chats/tau_airline_gpt4o.jsonl"
    yield "chats: tau", kvtrace.ingest.anonymize(chats, arrivals="rate=1/s,think=10s,seed=1", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, default=Path("../shared"))
    options = parser.parse_args()
    for name, trace in traces(options.shared):
        print(f"{name}: {len(trace):,} requests, blocks of {trace.block_size}")
        for rule_name, rule in RULES.items():
            line = f"  {rule_name:30}"
            if rule_name != "a block of the output" or trace.output_ids is not None:
                line += f" {100 * cost(trace, rule):6.2f} % of the hits"
            if name == "conversation trace":
                found = (probe(trace, rule, kind, np.random.default_rng(1)) for kind in PROBES)
                line += "".join(f"; {kind}: {right} of {TRIALS}" for kind, right in zip(PROBES, found, strict=True))
            print(line, flush=True)


if __name__ == "__main__":
    main()
