"""Five checks of block ids: numbering, gaps, chains, tails, block_size.

* numbering: ids count by first appearance. A raw digest depends on the content, and some can be inverted at once.
* gaps: ids are contiguous. An unused number reveals how much was left out.
* chains: each block id always follows the same id. An id with several predecessors was hashed without its prefix, so it
  reveals equal text anywhere in a prompt.
* tails: no two requests share a partial block. A shared partial block reveals that two prompts end in the same few
  tokens, and few tokens can be guessed.
* block_size: blocks are large enough to be hard to guess. The smaller the blocks, the more precisely their sharing
  describes a prompt.
"""

from __future__ import annotations

import numpy as np

from .dictionary import inverted
from .evidence import Evidence
from .finding import Finding, failed, not_checked, passed, warned

REMEDY = "Renumber the ids with `kvtrace convert`; `kvtrace anonymize` also hashes with a key."


def check_numbering(evidence: Evidence) -> Finding:
    """Look for raw digests and check the order of the distinct ids."""
    numbers = evidence.numbers
    raw, distinct = numbers.raw, numbers.distinct
    figure = {"distinct_ids": distinct, "raw_digests": len(raw), "inverted": 0, "by": {}}
    if len(raw):
        figure["by"] = by = inverted(raw)
        figure["inverted"] = sum(by.values())
        inversions = f"; a small public dictionary inverts {sum(by.values()):,} of them" if by else ""
        return failed(figure, f"{len(raw):,} of {distinct:,} ids are raw digests{inversions}.", REMEDY)
    if not numbers.in_order:
        sentence = "ids are not numbered in the order of their first appearance: their order can hide text."
        return failed(figure, sentence, REMEDY) if evidence.profile.coarsens else warned(figure, sentence, REMEDY)
    return passed(figure, f"{distinct:,} ids are numbered in the order of their first appearance.")


NAMES = ("session_id", "chat_id", "session", "domain")  # fields of numbers that count from 0


def check_gaps(evidence: Evidence) -> Finding:
    """Count the unused numbers among block ids, sessions and request names."""
    numbers = evidence.numbers
    unused = numbers.largest - numbers.smallest + 1 - numbers.distinct if numbers.distinct else 0
    names = {name: gap for name in NAMES if (gap := _unused(evidence.fields.get(name)))}
    figure = {"unused_ids": unused, "unused_names": names}
    if unused:
        return failed(
            figure,
            f"{unused:,} numbers between the smallest and the largest block id are not used: they reveal how much was "
            "left out.",
            "Renumber the ids with `kvtrace convert`.",
        )
    if names:
        fields = ", ".join(f"{count:,} of {name}" for name, count in names.items())
        return warned(
            figure,
            f"block ids are contiguous, but other fields have unused numbers: {fields}.",
            "Renumber these fields.",
        )
    return passed(figure, "block ids are contiguous.")


def _unused(values) -> int:
    """Integers missing between the smallest and the largest value; 0 if the field has other values."""
    if values is None:
        return 0
    if values.dtype.kind in "iu":
        from ..._native import numbering

        numbers = values[values != -1]
        return int(numbers.max()) - int(numbers.min()) + 1 - numbering.renumber(numbers)[1] if len(numbers) else 0
    distinct = {value for value in values.tolist() if value is not None and value != -1}
    if not distinct or any(type(value) is not int for value in distinct):
        return 0
    return max(distinct) - min(distinct) + 1 - len(distinct)


def check_chains(evidence: Evidence) -> Finding:
    """Count the ids of prompts and outputs that follow different ids."""
    if evidence.requests is None:
        return not_checked("no row is a valid request")
    if evidence.sums.parents.are_one:
        return passed({"ids_of_several_parents": 0}, "each id always follows the same id.")
    several = max(1, evidence.sums.parents.several)
    return failed(
        {"ids_of_several_parents": several},
        f"{several:,} id{' follows' if several == 1 else 's follow'} different ids in different places: an observer "
        "can find equal text anywhere in a prompt.",
        "Chain the ids with `kvtrace convert --chain`.",
    )


SHORT = 2  # tokens: an attacker can guess this many within minutes


def check_tails(evidence: Evidence) -> Finding:
    """Count the tail blocks of prompts and outputs whose id is used more than once, and their tokens."""
    requests, allowed = evidence.requests, evidence.profile.tail
    if requests is None:
        return not_checked("no row is a valid request")
    tails, uses = evidence.sums.tails, evidence.sums.uses.anywhere
    shared, lengths = int(np.count_nonzero(uses[tails.numbers] > 1)), tails.tokens
    short = int((lengths <= SHORT).sum())
    figure = {"tails": len(lengths), "shared": shared, "of_1_or_2_tokens": short, "tokens": _histogram(lengths)}
    if allowed == "kept":
        return passed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared; {evidence.profile.name} allows it."
        )
    if allowed == "dropped" and len(lengths):
        return failed(
            figure, f"the trace has {len(lengths):,} tail blocks, but {evidence.profile.name} drops them.",
            "Release it with `kvtrace release --tail dropped`.",
        )  # fmt: skip
    if shared:
        return failed(
            figure, f"{shared:,} of {len(lengths):,} tail blocks are shared: an attacker can confirm a guess of their "
            "tokens.",
            "Release it with `kvtrace release --tail unique`, which gives each tail block its own id.",
        )  # fmt: skip
    return passed(figure, f"none of the {len(lengths):,} tail blocks is shared.")


def _histogram(lengths) -> dict[str, int]:
    """Tail blocks by tokens, in powers of two: 1, 2-3, 4-7, ..."""
    power = np.log2(lengths).astype(np.int64)
    return {_range(1 << p): count for p, count in enumerate(np.bincount(power).tolist())}


def _range(low: int) -> str:
    return "1" if low == 1 else f"{low}-{2 * low - 1}"


MIN_TOKENS = 16


def check_block_size(evidence: Evidence) -> Finding:
    """Compare the block size with the smallest one that is hard to guess."""
    size = evidence.block_size
    if size is None:
        return not_checked("the block size is not known", "WARN")
    if size < MIN_TOKENS:
        return warned(
            {"block_size": size},
            f"blocks have {size:,} tokens: an attacker can guess the text block by block.",
            f"Use blocks of at least {MIN_TOKENS} tokens: `kvtrace convert --fold N` merges N blocks into one.",
        )
    return passed({"block_size": size}, f"blocks have {size:,} tokens.")
