"""A trace's prompts into a file, each tokenised again and compared on its way."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from ..._base.errors import UsageError
from ..._base.output_files import write_atomically
from ...trace.trace import Trace
from ..tokenizers import Tokenizer
from .blocks import Blocks
from .bodies import FORMS, Request
from .builder import Prompts
from .verifier import Verifier
from .words import Words

BATCH = 1 << 19  # tokens that are made, checked and written at a time: some 3 MB of text


@dataclass(frozen=True)
class Written:
    """What was written, and how much of it came back."""

    requests: int
    exact: int  # texts that re-tokenise to the length and the sharing of their row
    tokens: int  # of all texts
    words: int  # words that the texts are made of
    no_output: int  # rows of 0 output tokens, for which bodies ask 1


def write(
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
) -> Written:
    """Write one line of JSON a request, with a made-up prompt; every prompt is re-tokenised and compared.

    `to` is one of FORMS; `separator` none, bos or eos; `model` goes into chat bodies. Memory does not grow with the
    texts. UsageError on a form, separator or tokenizer that will not do; InputError where an id has two sizes.
    """
    if to not in FORMS:
        raise UsageError(f"there is no form {to!r}; it is one of {', '.join(FORMS)}.")
    if model is not None and to not in ("openai", "sglang"):
        raise UsageError(f"form {to} has no place for a model. Try --to openai.")
    blocks = Blocks.of_trace(trace)
    prompts = Prompts(blocks, Words.of(tokenizer, words, separator=separator), seed=seed)
    verifier, body = Verifier(blocks), FORMS[to]
    with write_atomically(path) as stream, ThreadPoolExecutor(1) as beside:
        checking: Future | None = None  # the batch before is tokenised while this one is made
        for start, stop in _batches(trace.input_length):
            texts = [prompts.text(row) for row in range(start, stop)]
            if checking is not None:
                checking.result()
            checking = beside.submit(_check, verifier, tokenizer, start, texts)
            for row, text in zip(range(start, stop), texts, strict=True):
                stream.write(orjson.dumps(body(_request(trace, row, text, model)), option=orjson.OPT_APPEND_NEWLINE))
            progress(stop - start)
        if checking is not None:
            checking.result()
    none = int((trace.output_length == 0).sum()) if to != "prompts" else 0
    return Written(len(trace), verifier.exact(), int(trace.input_length.sum()), len(prompts.words.texts), none)


def _check(verifier, tokenizer, start, texts):
    verifier.add(start, *tokenizer.encode_batch(texts))


def _request(trace, row, text, model):
    session = -1 if trace.session is None else int(trace.session[row])
    return Request(
        text, float(trace.timestamp[row]), int(trace.input_length[row]), int(trace.output_length[row]), session, model
    )


def _batches(lengths):
    """Runs of rows with not much more than BATCH tokens each."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        reached = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, reached + BATCH, side="right")))
        stop = min(stop, start + 8192, len(lengths))
        yield start, stop
        start = stop
