"""For each prompt, the earlier prompt that it agrees with most, and the spans in which the two differ.

Prompts are taken in order of time. The leading chunks that any earlier prompt has would hit in an unlimited cache. Of
the chunks after them, some were in earlier prompts, too: the prompts that had them last are candidates, and the one
that has most tokens of them is the match.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from .alignment import Span, common_prefix, spans
from .chunks import BLANK
from .prompts import Prompt

MIN_TOKENS = 32  # shared tokens after a divergence that make it count
CANDIDATES = 3


class Match(NamedTuple):
    """A prompt that diverges from an earlier one that it nearly agrees with."""

    prompt: int
    earlier: int
    hit: int  # leading chunks that some earlier prompt has
    spans: list[Span]


class Matcher:
    """Finds matches among prompts; holds the prefixes and the last use of all chunks."""

    def __init__(self, prompts: list[Prompt], keys: np.ndarray, tokens: np.ndarray):
        self.prompts, self.keys, self.tokens = prompts, keys, tokens
        self.hits = array("i")  # prompt -> leading chunks that an earlier prompt has
        self._node: dict[int, int] = {}  # prefix << 32 | chunk -> the longer prefix
        self._last_of_prefix = array("i", [-1])  # prefix -> the last prompt with it
        self._last_of_key = np.full(int(keys.max(initial=0)) + 1, -1, np.int32)  # key -> the last prompt with it
        self._first_of_key = self._last_of_key.copy()
        self._last_of_session: dict[str, int] = {}

    def matches(self) -> Iterator[Match]:
        """The matches of all prompts, in order."""
        for number, prompt in enumerate(self.prompts):
            hit, deepest = self._insert(prompt, number)
            self.hits.append(hit)
            found = self._match(prompt, number, hit, deepest)
            keys = self.keys[prompt.chunks]
            self._last_of_key[keys] = number
            fresh = self._first_of_key[keys] < 0
            self._first_of_key[keys[fresh]] = number
            if prompt.session is not None:
                self._last_of_session[prompt.session] = number
            if found is not None:
                yield found

    def _insert(self, prompt: Prompt, number: int) -> tuple[int, int]:
        """Add the prefixes of a prompt. Returns how many it shares with earlier ones, and the last prompt of those."""
        node, hit, deepest = 0, 0, -1
        prefixes, last = self._node, self._last_of_prefix
        known = True
        for chunk in prompt.chunks.tolist():
            step = node << 32 | chunk
            if known and (longer := prefixes.get(step)) is not None:
                node, hit = longer, hit + 1
                deepest, last[node] = last[node], number
            else:
                known = False
                node = prefixes[step] = len(last)
                last.append(number)
        return hit, deepest

    def _match(self, prompt: Prompt, number: int, hit: int, deepest: int) -> Match | None:
        if prompt.last_answer is not None and hit >= prompt.last_answer:
            return None  # it extends an earlier prompt by an answer and what followed: all that can hit does
        rest = prompt.chunks[hit:]
        keys = self.keys[rest]
        tokens = np.where((self._last_of_key[keys] >= 0) & (keys != BLANK), self.tokens[rest], 0)
        if tokens.sum() < MIN_TOKENS:
            return None
        best, best_shared = -1, MIN_TOKENS - 1
        for candidate in self._candidates(prompt, keys, tokens, deepest):
            theirs = self.keys[self.prompts[candidate].chunks]
            shared = int(tokens[np.isin(keys, theirs)].sum())
            if shared > best_shared:
                best, best_shared = candidate, shared
        if best < 0:
            return None
        earlier = self.prompts[best].chunks
        if common_prefix(earlier, prompt.chunks) == len(prompt.chunks):
            return None
        return Match(number, best, hit, spans(earlier, prompt.chunks, self.keys))

    def _candidates(self, prompt, keys, tokens, deepest) -> list[int]:
        """Earlier prompts: of the same session, with the longest prefix, and with most of the other chunks."""
        found = [self._last_of_session.get(prompt.session, -1) if prompt.session is not None else -1, deepest]
        for users in (self._last_of_key, self._first_of_key):
            votes: Counter[int] = Counter()
            for user, weight in zip(users[keys].tolist(), tokens.tolist(), strict=True):
                if weight:
                    votes[user] += weight
            found += [user for user, _ in votes.most_common(CANDIDATES)]
        return [user for user in dict.fromkeys(found) if user >= 0]
