"""Lint a log: read its prompts, match each with an earlier one, judge the differences, and gather the findings.

It counts the hit blocks of prompts as `anonymize` does, in a cache that never evicts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np

from ..._base.arrays import offsets_of
from ..._base.errors import InputError, RowError, UsageError
from ..._base.options import record_of
from ..._base.row_counts import RowCounts
from ..._native.numbering import DigestIndex
from ...privacy.profiles import PROFILES
from ...privacy.trace_draft import RowBlocks
from ...trace.hits import sum_hits
from ...trace.meta import RenderingSection
from ..encoding import Batch
from ..encoding_options import EncodingOptions, RenderAs
from ..keys import Key
from ..logs.times import NO_TIME
from ..preparation import DEFAULT_BLOCK_SIZE, Inputs, open_log, recipe_of
from ..row_counts import Progress, RowCounter, with_prompts
from ..tokenizer_choice import AUTO
from .findings import FindingPlace, LintFinding, LintReport, decided
from .judging import LOST_HISTORY, Judge, Occurrence
from .prompts import Matcher, Prompt, PromptReader, prompt_of
from .segments import ChunkTable

WINDOW_CHUNKS = 20_000_000  # of all prompts that are compared with each other
WINDOW_CHARACTERS = 200_000_000  # of their distinct text
MIN_LOST = 64  # tokens of a finding
BATCH = 50_000  # chunks that are tokenised at a time


def lint(
    inputs: Inputs,
    *,
    log_format: str = "auto",
    field_map: dict[str, str] | None = None,
    time_unit: str = "auto",
    allow_truncated: bool = False,
    tokenizer: str | None = AUTO,
    chat_template: str | Path | None = None,
    use_template: bool = True,
    generation_prompt: str | None = None,
    render_as: RenderAs = "vllm",
    request_templates: bool = False,
    block_size: int = DEFAULT_BLOCK_SIZE,
    max_errors: int = 0,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> LintReport:
    """Find where the prompts of raw logs diverge though they nearly agree.

    Args:
        inputs: A path, a directory or a glob, or several of these.
        log_format, field_map, time_unit, allow_truncated: How the log is read, as in `anonymize`.
        tokenizer, chat_template, use_template, generation_prompt, render_as, request_templates: How prompts are
            rendered, as in `anonymize`.
        block_size: Tokens per block, for the positions.
        max_errors: Bad rows to skip; the next one ends the run. -1 means no limit.
        on_reject: Receives the error of each bad row.
        on_progress: Receives the progress after each piece of the log.

    Returns:
        Positions, kinds and counts; never text.

    Raises:
        UsageError: Options do not fit together.
        InputError: A log cannot be read, holds no text, or has more than `max_errors` bad rows.

    >>> import json, tempfile
    >>> rule = "Answer in one sentence, and name the source of each figure that you give. " * 5
    >>> rows = [
    ...     {"timestamp": day, "input": f"Today is 2031-05-0{day}.\\n{rule}\\nWhat is new?", "output": 1}
    ...     for day in range(1, 7)
    ... ]
    >>> with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as log:
    ...     _ = log.write("".join(json.dumps(row) + "\\n" for row in rows)), log.flush()
    ...     [(finding.kind, finding.requests) for finding in lint(log.name).findings]
    [('date', 5)]
    """
    options = record_of(EncodingOptions, locals())
    return lint_log(inputs, options, on_reject=on_reject, on_progress=on_progress)


def lint_log(
    inputs: Inputs,
    options: EncodingOptions,
    *,
    on_reject: Callable[[RowError], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> LintReport:
    """As `lint`."""
    from ..logs import sources

    block_size = options.block_size
    if isinstance(block_size, bool) or not isinstance(block_size, int) or block_size < 1:
        raise UsageError("--block-size must be at least 1.")
    log_sources, reader = open_log(inputs, options, untimed=True)
    if not reader.holds_prompts:
        raise InputError("the log holds hashes or lengths, but no prompts. lint compares the text of prompts.")
    recipe = recipe_of(reader, options, PROFILES["exact"], Key.random(), keep_domains=False)
    total, counter = sources.total(log_sources), RowCounter(options.max_errors, on_reject)
    run = _Run(PromptReader(recipe, log_bytes=total), block_size)
    try:
        for piece in sources.pieces(log_sources):
            run.read(piece, counter)
            if on_progress:
                on_progress(Progress(piece.done, total, run.requests, run.prompt_tokens))
        run.compare()
        if not run.requests:
            left_out = ", ".join(f"{count:,} {words}" for words, count in counter.counts.left_out.items())
            others = f" Its rows: {left_out}." if left_out else ""
            raise InputError(f"the log has no prompt with text.{others} lint compares the text of prompts.")
        return run.report(counter.counts)
    finally:
        run.forget()  # an error's traceback holds this frame


class _Run:
    """The prompts of the present window, and the occurrences of all windows."""

    def __init__(self, reader: PromptReader, block_size: int):
        self._reader, self._block_size = reader, block_size
        self._table = ChunkTable()
        self._prompts: list[Prompt] = []
        self._references = 0
        self._occurrences: dict[FindingPlace, list[Occurrence]] = defaultdict(list)
        self._hits = BlockHits(block_size)
        self.requests = self.prompt_tokens = self.skipped = self.windows = 0
        self.other_requests = self.other_tokens = 0

    def __repr__(self) -> str:
        return f"_Run({self.requests} requests)"

    def read(self, piece: Any, counter: RowCounter) -> None:
        """Read a piece of the log; compare the prompts so far if they fill a window."""
        batch = self._add(piece)
        counter.add(batch, piece)
        if self._references > WINDOW_CHUNKS or self._table.characters > WINDOW_CHARACTERS:
            self.compare()

    def _add(self, piece: Any) -> Batch:
        """Add the prompts of a piece. Its records stay in this frame, which no error of a row shows."""
        batch, records = self._reader.encoded(piece)
        self._hits.add(batch)
        self.prompt_tokens += int(batch.input_length.sum())
        for record, time_ns in zip(records, batch.time_ns.tolist(), strict=True):
            prompt = prompt_of(record, time_ns, self._table)
            if prompt is None:
                self.skipped += 1
                continue
            self._prompts.append(prompt)
            self._references += len(prompt.chunks)
            self.requests += 1
        return batch

    def compare(self) -> None:
        """Compare the prompts of the window, and forget them."""
        if not self._prompts:
            return
        if all(prompt.time_ns != NO_TIME for prompt in self._prompts):
            self._prompts.sort(key=lambda prompt: prompt.time_ns)
        keys, tokens = self._table.keys(), self._tokens()
        matcher = Matcher(self._prompts, keys, tokens)
        judge = Judge(self._prompts, self._table.texts, keys, tokens)
        occurrences = [occurrence for match in matcher.matches() for occurrence in judge.occurrences(match)]
        groups, stopped = decided(occurrences, self._prompts)
        for place, group in groups.items():
            self._occurrences[place] += group
        self.other_requests += len({occurrence.request for occurrence in stopped})
        self.other_tokens += sum(occurrence.tokens for occurrence in stopped)
        self.other_requests += judge.other_requests
        self.other_tokens += judge.other_tokens
        self.windows += 1
        self.forget()

    def forget(self) -> None:
        """Forget all text."""
        self._table.clear()
        self._table, self._prompts, self._references = ChunkTable(), [], 0

    def report(self, counts: RowCounts) -> LintReport:
        """The findings so far."""
        recipe = self._reader.recipe
        section: RenderingSection = {"engine": recipe.options.render_as, "version": recipe.rendering_version}
        rendering = with_prompts({"rendering": section}, counts)["rendering"]
        findings = [self._finding(place, group) for place, group in self._occurrences.items()]
        reader = self._reader
        prompt_tokens, hit_tokens = self._hits.tokens()
        return LintReport(
            requests=self.requests, prompt_tokens=prompt_tokens, hit_tokens=hit_tokens,
            block_size=self._block_size, findings=tuple(sorted(
                (finding for finding in findings if finding.tokens >= MIN_LOST),
                key=lambda finding: (-finding.tokens, finding.kind, finding.token),
            )),
            other_requests=self.other_requests, other_tokens=self.other_tokens, skipped=self.skipped,
            rejected=counts.rejected, left_out=counts.left_out, windows=self.windows, settings={
                "log": reader.recipe.reader.describe(),
                "tokenizer": None if reader.tokenizer is None else reader.tokenizer.describe(),
                "chat_template": None if reader.template is None else reader.template.describe(),
                "rendering": rendering,
                "note": reader.recipe.choice.note,
            },
        )  # fmt: skip

    def _finding(self, place: FindingPlace, group: list[Occurrence]) -> LintFinding:
        tokens = sorted(occurrence.token for occurrence in group)
        token = median_low(tokens)
        values = {value for occurrence in group for value in occurrence.values}
        return LintFinding(
            kind=place.kind, form=place.form, role=place.role or "any",
            message=median_low([occurrence.message for occurrence in group]), token=token,
            message_token=median_low([occurrence.in_message for occurrence in group]), first_token=tokens[0],
            last_token=tokens[-1], block=token // self._block_size,
            requests=len({occurrence.request for occurrence in group}),
            values=0 if place.kind == LOST_HISTORY else len(values),
            tokens=sum(occurrence.tokens for occurrence in group),
        )  # fmt: skip

    def _tokens(self) -> np.ndarray:
        """Chunk -> its tokens."""
        texts, tokenizer = self._table.texts, self._reader.tokenizer
        if tokenizer is None:
            raise UsageError("lint needs a tokenizer.")
        sizes = [
            np.diff(tokenizer.encode_batch(texts[start : start + BATCH])[1]) for start in range(0, len(texts), BATCH)
        ]
        return np.concatenate(sizes) if sizes else np.zeros(0, np.int64)


class BlockHits:
    """Gathers the blocks of batches; 4 bytes a block reference and 40 a distinct block are in memory.

    Args:
        block_size: Tokens of a block.
    """

    def __init__(self, block_size: int):
        self._block_size, self._index = block_size, DigestIndex()
        self._numbers: list[np.ndarray] = []
        self._blocks: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._times: list[np.ndarray] = []

    def add(self, batch: Batch) -> None:
        """Add the prompts of a batch."""
        self._numbers.append(self._index.add(batch.digests))
        self._blocks.append(batch.prompts)
        self._lengths.append(batch.input_length)
        self._times.append(batch.time_ns)

    def tokens(self) -> tuple[int, int]:
        """The tokens of all prompts, and those in their leading blocks that an earlier prompt has."""
        times, lengths, counts = map(np.concatenate, (self._times, self._lengths, self._blocks))
        blocks = RowBlocks(np.concatenate(self._numbers), offsets_of(counts), distinct=self._index.distinct)
        if not (times == NO_TIME).any():
            order = np.argsort(times, kind="stable")
            blocks, lengths = blocks.take(order), lengths[order]
        hits = sum_hits([(blocks.hits().astype(np.int64), blocks.prompts, lengths)], self._block_size)
        return hits.tokens, hits.hit_tokens
