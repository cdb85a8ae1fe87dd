"""Write the prompts of a trace to a file, and verify each by tokenising it again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson

from ..._base.errors import UsageError
from ..._base.output_files import write_atomically
from ..._base.output_names import Content, require_name
from ..._base.workers import Pool
from ...formats.writing import require_place
from ...trace.meta import shares_prefixes
from ...trace.trace import Trace
from ...trace.unknown import UNKNOWN_LENGTH, require_outputs
from ..tokenizers import Tokenizer
from .blocks import PromptBlocks
from .bodies import CHAT_FORMS, DAG, FORMS, OUTPUTS_MAY_BE_UNKNOWN, PromptRequest
from .builder import PromptBuilder
from .dag import dag_of
from .verifier import Verifier
from .words import WordList

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
        raise UsageError(f"--to {to!r} is unknown. Choose one of: {', '.join(FORMS)}.")
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
    with write_atomically(path) as stream, Pool(ThreadPoolExecutor(1)) as pool:
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
