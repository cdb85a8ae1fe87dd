"""Write the prompts of a trace to a file, and verify each by tokenising it again; sessions as AIPerf's `dag_jsonl`.

A row is exact if its length and the tokens of each of its ids are right.

A file of sessions has a line for each agent, with its turns, their delays and the subagents they spawn. A turn starts
some time after the end of the turn before it; subagents start at the end of a turn, and a later turn may wait for them.
The format can express nothing else, and `Dag.losses` counts what differs in a trace. Every turn has its whole prompt
(`message_array_with_responses`), so that the server sees the prefixes of the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from ..._base.arrays import offsets_of
from ..._base.errors import UsageError, wrong_word
from ..._base.files import Content, require_name
from ..._base.output_files import write_atomically
from ..._base.workers import WorkerPool
from ...formats.targets.losses import Losses
from ...formats.writing import require_place
from ...trace.dependencies import COMPLETION, SPAWN, Dependencies
from ...trace.meta import shares_prefixes
from ...trace.session_trees import session_trees
from ...trace.trace import Trace
from ...trace.unknown import UNKNOWN_LENGTH, require_outputs
from ..tokenizers import Tokenizer
from .blocks import PromptBlocks, PromptBuilder
from .bodies import CHAT_FORMS, DAG, FORMS, OUTPUTS_MAY_BE_UNKNOWN, PromptRequest
from .words import WordList


class Verifier:
    """Compares the tokens of texts with the ids that they were made of, batch by batch.

    It stores a 64-bit weighted sum of each block's tokens. Different blocks have equal sums with a probability of about
    2^-60.
    """

    def __init__(self, blocks: PromptBlocks):
        self._blocks = blocks
        longest = int(blocks.size.max()) if len(blocks.size) else 0
        self._weights = np.random.default_rng(0xB10C).integers(1 << 63, size=longest, dtype=np.uint64) * 2 + 1
        self._sum_of = np.zeros(len(blocks.size), dtype=np.uint64)  # id -> sum of its tokens at first sight
        self._seen = np.zeros(len(blocks.size), dtype=bool)
        self._is_exact = np.zeros(len(blocks), dtype=bool)  # row -> its length and its blocks are right

    def add(self, row: int, tokens: np.ndarray, offsets: np.ndarray) -> None:
        """Add the tokens of consecutive rows' texts, end to end; `row` is the first row."""
        blocks = self._blocks
        rows = np.arange(row, row + len(offsets) - 1)
        has_length = np.diff(offsets) == blocks.lengths[rows]
        for i in np.flatnonzero(has_length):
            self._is_exact[rows[i]] = self._has_same_blocks(rows[i], tokens[offsets[i] : offsets[i + 1]])

    def _has_same_blocks(self, row, tokens):
        start, stop = self._blocks.offsets[row : row + 2]
        ids = self._blocks.ids[start:stop]
        if not len(ids):
            return True
        sums = self._sums(tokens)
        new = ~self._seen[ids]
        self._sum_of[ids[new]], self._seen[ids[new]] = sums[new], True
        return bool((self._sum_of[ids] == sums).all())

    def _sums(self, tokens):
        size = self._blocks.block_size
        full = len(tokens) // size
        sums = np.empty(-(-len(tokens) // size), dtype=np.uint64)
        values = tokens.astype(np.uint64) + np.uint64(1)
        sums[:full] = values[: full * size].reshape(full, size) @ self._weights[:size] if full else 0
        if full < len(sums):
            rest = values[full * size :]
            sums[full] = rest @ self._weights[: len(rest)]
        return sums

    def exact(self) -> int:
        """The number of exact rows. A block with the same tokens as a sibling makes its rows inexact."""
        blocks, has_twin = self._blocks, np.zeros(len(self._sum_of), dtype=bool)
        order = np.lexsort((self._sum_of, blocks.size, blocks.parent))
        keys = (blocks.parent[order], blocks.size[order], self._sum_of[order])
        same = np.logical_and.reduce([key[1:] == key[:-1] for key in keys]) if len(order) > 1 else np.zeros(0, bool)
        has_twin[order[1:][same]] = has_twin[order[:-1][same]] = True
        doubtful = offsets_of(has_twin[blocks.ids])[blocks.offsets]
        return int((self._is_exact & (np.diff(doubtful) == 0)).sum())


CONTEXT = "message_array_with_responses"


@dataclass
class Spawn:
    """Agents that a turn starts at its end; `join_at` is the turn that waits for them, None after the last turn."""

    children: list[str]
    join_at: int | None


@dataclass
class DagAgent:
    """An agent of a session: the rows of its turns, the delay before each in ms, and what each turn spawns."""

    name: str
    rows: list[int]
    delays: list[float]
    spawns: list[list[Spawn]] = field(default_factory=list)

    def line(self, texts: list[str], outputs: list[int], model: str | None) -> dict[str, Any]:
        """The line of the file, for the texts of its turns."""
        turns = []
        for text, output, delay, spawns in zip(texts, outputs, self.delays, self.spawns, strict=True):
            turn: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": max(1, output)}
            turn |= {} if model is None else {"model": model}
            turn |= {"delay": delay} if delay else {}
            if spawns:
                turn["spawns"] = [
                    {"children": spawn.children} | ({} if spawn.join_at is None else {"join_at": spawn.join_at})
                    for spawn in spawns
                ]
            turns.append(turn)
        return {"session_id": self.name, "context_mode": CONTEXT, "turns": turns}


@dataclass
class Dag:
    """The agents of a trace, those that spawn others first, and sentences on what the format cannot express."""

    agents: list[DagAgent]
    losses: list[str]


def dag_of(trace: Trace) -> Dag:
    """The agents of a trace with dependencies.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.trace.columns import replace_columns
    >>> ends = [(0, "completion", "sequence", 9.0), (1, "completion", "join", 9.0)]
    >>> waits = Dependencies.of([[], [(0, "completion", "spawn", 0.0)], ends])
    >>> columns = replace_columns(toy("0", "5", "0 1"), dependencies=waits)
    >>> columns.extra = {"agent": np.array([0, 1, 0])}
    >>> [(agent.rows, agent.delays, agent.spawns) for agent in dag_of(Trace.from_columns(columns, block_size=1)).agents]
    [([0, 2], [0.0, 9.0], [[Spawn(children=['session-0/agent-1'], join_at=1)], []]), ([1], [0.0], [[]])]
    """
    tree, number = session_trees(trace), trace.extra.get("agent", np.zeros(len(trace), dtype=np.int64))
    agents: dict[str, DagAgent] = {}
    name_of, turn_of = [], []
    for row in range(len(trace)):
        name = f"session-{tree[row]}/agent-{number[row]}"
        agent = agents.setdefault(name, DagAgent(name, [], []))
        name_of.append(name)
        turn_of.append(len(agent.rows))
        agent.rows.append(row)
        agent.spawns.append([])
    waits = trace.dependencies or Dependencies.none(len(trace))
    losses = _Losses()
    for agent in agents.values():
        agent.delays = [_delay(agent, turn, waits, losses) for turn in range(len(agent.rows))]
    joins = _joins(waits, name_of)
    for agent in agents.values():
        _add_spawn(agent, agents, name_of, turn_of, joins, waits, losses)
    return Dag(list(agents.values()), losses.sentences(trace))


class _Losses:
    """Counts of what the format cannot express."""

    def __init__(self) -> None:
        self.other = self.early = self.joined = self.roots = 0

    def sentences(self, trace: Trace) -> list[str]:
        losses = Losses()
        losses.add(self.roots, "time of a session's start was left out: AIPerf starts sessions by its own load.",
                   "times of sessions' starts were left out: AIPerf starts sessions by its own load.")  # fmt: skip
        losses.add(self.other, "request waits for the turn before it, not for another one.",
                   "requests wait for the turn before them, not for other ones.")  # fmt: skip
        losses.add(self.early, "subagent starts at the end of the turn that spawns it, not before.",
                   "subagents start at the ends of the turns that spawn them, not before.")  # fmt: skip
        losses.add(self.joined, "subagent that no turn waits for is waited for by its agent's last turn.",
                   "subagents that no turn waits for are waited for by their agents' last turns.")  # fmt: skip
        service = 0 if trace.service_ms is None else int((~np.isnan(trace.service_ms)).sum())
        losses.add(service, "service time was left out.", "service times were left out.")
        losses.left_out_measured(trace)
        return losses.sentences


def _delay(agent: DagAgent, turn: int, waits: Dependencies, losses: _Losses) -> float:
    """The delay of a turn: after the turn before it, or else the one that the trace has."""
    row = agent.rows[turn]
    span = range(waits.offsets[row], waits.offsets[row + 1])
    if turn:
        after = [at for at in span if waits.row[at] == agent.rows[turn - 1] and waits.trigger[at] == COMPLETION]
        losses.other += not after
        span = after or span  # type: ignore[assignment]
    return max((float(waits.delay_ms[at]) for at in span), default=0.0)


def _joins(waits: Dependencies, name_of: list[str]) -> dict[tuple[str, str], int]:
    """(agent that waits, agent that it waits for) -> the first row that does."""
    joins: dict[tuple[str, str], int] = {}
    for request, row in zip(waits.request.tolist(), waits.row.tolist(), strict=True):
        if name_of[request] != name_of[row]:
            joins.setdefault((name_of[request], name_of[row]), request)
    return joins


def _add_spawn(agent, agents, name_of, turn_of, joins, waits, losses) -> None:
    """Add an agent to those that a turn spawns, if its first request waits for a request of another agent."""
    first = agent.rows[0]
    span = range(waits.offsets[first], waits.offsets[first + 1])
    spawns = [at for at in span if waits.relation[at] == SPAWN] or list(span)
    if not spawns:
        losses.roots += 1
        return
    parent, turn = agents[name_of[waits.row[spawns[0]]]], turn_of[waits.row[spawns[0]]]
    losses.early += int(waits.trigger[spawns[0]] != COMPLETION)
    join = joins.get((parent.name, agent.name))
    join_at = None if join is None else turn_of[join]
    if join_at is None and turn + 1 < len(parent.rows):
        losses.joined += 1
        join_at = len(parent.rows) - 1
    for spawn in parent.spawns[turn]:
        if spawn.join_at == join_at:
            spawn.children.append(agent.name)
            return
    parent.spawns[turn].append(Spawn([agent.name], join_at))


BATCH = 1 << 19  # tokens that are built, verified and written at a time: about 3 MB of text


@dataclass(frozen=True)
class WriteSummary:
    """The counts of written and verified prompts."""

    requests: int
    exact: int  # prompts whose tokens have the length and the sharing of their row
    tokens: int
    words: int  # different words used
    no_output: int  # rows with 0 output tokens, written as 1
    losses: list[str] = field(default_factory=list)  # what the format cannot express of sessions


def write_prompts(
    trace: Trace,
    path: str | Path,
    tokenizer: Tokenizer,
    *,
    to: str = "prompts",
    separator: str = "none",
    words: Iterable[str] | None = None,
    seed: int = 0,
    model: str | None = None,
    progress: Callable[[int], None] = lambda rows: None,
) -> WriteSummary:
    """Write a synthetic prompt for each request, one line of JSON each, and verify it by tokenising it again.

    Memory does not grow with the length of the texts.

    Args:
        to: the output format, one of bodies.FORMS; "dag-jsonl" has one line for each agent of a session.
        separator: a control token at the start of each block: none, bos or eos.
        words: the words to use; default Lorem Ipsum.
        model: the model's name in chat bodies.

    Raises:
        UsageError: unknown format or separator, or a tokenizer without stable words.
        InputError: an id has two sizes.
        UnknownError: the format needs output lengths, and some are unknown.
    """
    if to not in FORMS:
        raise wrong_word(to, "a format of --to", FORMS)
    if model is not None and to not in CHAT_FORMS:
        raise UsageError(f"--model does not work with --to {to}: its lines name no model. Try --to openai.")
    check_output(path)
    if to not in OUTPUTS_MAY_BE_UNKNOWN:
        require_outputs(trace, f"--to {to}")
    blocks = PromptBlocks.of_trace(trace)
    prompts = PromptBuilder(blocks, WordList.of(tokenizer, words, separator=separator), seed=seed)
    verifier, body = Verifier(blocks), FORMS[to]
    losses = []
    if to == DAG:
        losses = _write_agents(trace, path, tokenizer, prompts, verifier, model, progress)
    else:
        _write_rows(trace, path, tokenizer, prompts, verifier, body, model, progress)
    if not shares_prefixes(trace.meta):
        losses.append("shared prefixes are unknown: no prompt shares a prefix with another one.")
    no_output = int((trace.output_length == 0).sum()) if to != "prompts" else 0
    return WriteSummary(
        len(trace), verifier.exact(), int(trace.input_length.sum()), len(prompts.words.texts), no_output, losses
    )


def _write_agents(trace, path, tokenizer, prompts, verifier, model, progress) -> list[str]:
    """Write a line for each agent; returns what the format cannot express."""
    dag = dag_of(trace)
    with write_atomically(path) as stream:
        for agent in dag.agents:
            texts = [prompts.text(row) for row in agent.rows]
            for row, text in zip(agent.rows, texts, strict=True):
                _check(verifier, tokenizer, row, [text])
            line = agent.line(texts, trace.output_length[agent.rows].tolist(), model)
            stream.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
            progress(len(agent.rows))
    return dag.losses


def _write_rows(trace, path, tokenizer, prompts, verifier, body, model, progress) -> None:
    """Write a line for each request."""
    with write_atomically(path) as stream, WorkerPool(ThreadPoolExecutor(1)) as pool:
        checking: Future | None = None  # the previous batch is verified while this one is built
        for start, stop in _batches(trace.input_length):
            texts = [prompts.text(row) for row in range(start, stop)]
            if checking is not None:
                pool.result(checking)
            checking = pool.submit(_check, verifier, tokenizer, start, texts)
            for row, text in zip(range(start, stop), texts, strict=True):
                stream.write(orjson.dumps(body(_request(trace, row, text, model)), option=orjson.OPT_APPEND_NEWLINE))
            progress(stop - start)
        if checking is not None:
            pool.result(checking)


def check_output(path: str | Path) -> None:
    """UsageError or KvtraceError if no file of prompts can have this name."""
    require_name(path, Content.JSON_LINES, "a file of prompts")
    require_place(path)


def _check(verifier, tokenizer, start, texts):
    verifier.add(start, *tokenizer.encode_batch(texts))


def _request(trace, row, text, model):
    session = -1 if trace.session is None else int(trace.session[row])
    tokens = int(trace.output_length[row])
    output = None if tokens == UNKNOWN_LENGTH else tokens
    return PromptRequest(text, float(trace.timestamp[row]), int(trace.input_length[row]), output, session, model)


def _batches(lengths):
    """The (start, stop) of batches of rows, each with about BATCH tokens."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        tokens_before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, tokens_before + BATCH, side="right")))
        stop = min(stop, start + 8192, len(lengths))
        yield start, stop
        start = stop
