"""Isolation domains: the blocks of different tenants, adapters, salts or models, kept apart or shared.

The column `domain` says which requests an engine keeps apart: vLLM's `cache_salt` and LoRA adapters, SGLang's
`extra_key`. Equal ids mean equal text in any domain. A view gives the ids that a cache of an engine would see.
"""

from __future__ import annotations

import numpy as np

from .._base.arrays import in_first, joined, offsets_of
from .._base.errors import UsageError
from .columns import fields_of, replace_columns, require_trace
from .trace import Trace

SPLIT, MERGE, SHARED = "split", "merge", "shared"


def in_domains(trace: Trace, domains: str | None = None) -> Trace:
    """The trace as a cache sees it: blocks of different domains have different ids, and the column is gone.

    Args:
        trace: The trace.
        domains: "split" keeps domains apart, as engines do; "merge" shares all equal blocks; "shared:N" shares the
            blocks within the first N tokens of prompts. None is "split" if the trace has domains.

    Returns:
        A trace without the column `domain`; the trace itself if it has no such column and `domains` is None.

    Raises:
        UsageError: The trace has no domains, or `domains` is not valid.
        InputError: The ids do not form a forest.

    >>> from kvtrace.trace.building import toy
    >>> trace = toy("0 1 2", "0 1 2", "0 1 2")
    >>> trace.domain = np.array([0, 1, 0])
    >>> in_domains(trace).hash_ids
    array([0, 1, 2, 3, 4, 5, 0, 1, 2])
    >>> in_domains(trace, "shared:2").hash_ids
    array([0, 1, 2, 0, 1, 3, 0, 1, 2])
    """
    require_trace(trace)
    shared_tokens = None if domains is None else parse_domains(domains)
    if trace.domain is None:
        if domains is not None:
            raise UsageError(f"--domains {domains}: the trace has no domains.")
        return trace
    columns = replace_columns(trace, domain=None)
    if domains != MERGE:
        _split(columns, trace.require_chained(), (shared_tokens or 0) // trace.block_size)
    return Trace(**fields_of(columns), block_size=trace.block_size, tail=trace.tail, meta=trace.meta)


def parse_domains(domains: str) -> int | None:
    """The N of "shared:N"; 0 for "split" and None for "merge". UsageError for any other word.

    >>> parse_domains("split"), parse_domains("merge"), parse_domains("shared:512")
    (0, None, 512)
    """
    word, _, tokens = str(domains).partition(":")
    if domains in (SPLIT, MERGE):
        return 0 if domains == SPLIT else None
    if word != SHARED or not (tokens.isascii() and tokens.isdigit() and len(tokens) <= 12):
        raise UsageError(f"--domains {domains} is not valid. Use merge, split or shared:N, with N tokens.")
    return int(tokens)


def count_domains(trace: Trace) -> int:
    """The number of domains; requests of none (-1) are one domain together. 0 without the column.

    >>> from kvtrace.trace.building import toy
    >>> count_domains(toy("0", "1"))
    0
    """
    return 0 if trace.domain is None else len(np.unique(trace.domain))


def _split(columns, trace, shared_blocks) -> None:
    """Give each (domain, id) pair a new id, but for ids at a depth below `shared_blocks`: those keep one for all.

    In a chained trace an id is a block with its whole prefix, so equal pairs are equal chains of one domain.
    """
    from .._native import numbering

    prompts, starts = trace.prompt_blocks, trace.domain + 2  # 1 and up: 0 marks a shared block
    columns.hash_ids = _pairs(trace.hash_ids, prompts, starts, np.zeros_like(prompts), shared_blocks, trace.distinct)
    if trace.output_ids is None or trace.output_offsets is None:
        columns.hash_ids = numbering.renumber(columns.hash_ids)[0]
        return
    outputs = np.diff(trace.output_offsets)
    depth = np.minimum(trace.full_blocks, prompts)  # an output continues after the last full block
    pairs = _pairs(trace.output_ids, outputs, starts, depth, shared_blocks, trace.distinct)
    blocks = numbering.renumber(joined((columns.hash_ids, prompts), (pairs, outputs)))[0]
    in_prompt = in_first(prompts, outputs)
    columns.hash_ids, columns.output_ids = blocks[in_prompt], blocks[~in_prompt]


def _pairs(numbers, counts, starts, depth, shared_blocks, distinct) -> np.ndarray:
    """A number for each (domain, id) pair of rows with so many blocks, the first of each row at a depth."""
    domain = np.repeat(starts, counts)
    if shared_blocks:
        first = offsets_of(counts)[:-1]
        depths = np.arange(len(numbers)) - np.repeat(first - depth, counts)
        domain[depths < shared_blocks] = 0
    return numbers + domain * distinct
