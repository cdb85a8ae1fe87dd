"""Judge segments in which prompts differ, by their shape: a finding of some kind, or a difference that is expected.

A kind of finding has a name, what it is, and what to change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from . import segments
from .prompts import HISTORY, MIN_TOKENS, SYSTEM, TEXT, Match, Prompt, is_markup
from .segments import Span, words_of

DATE, ID, TOOL_ORDER, METADATA, DRIFT, LOST_HISTORY = "date", "id", "tool_order", "metadata", "drift", "lost_history"

KINDS = {  # kind -> what it is
    DATE: "a date or time",
    ID: "an id or a number",
    TOOL_ORDER: "tools in another order",
    METADATA: "data of the request or the user",
    DRIFT: "two versions of one text",
    LOST_HISTORY: "a turn that does not extend the one before",
}

REMEDIES = {  # form of a finding -> what to change
    "date": "Move the date or time behind the part that all requests share, or make it coarser.",
    "id": "Move the id behind the part that all requests share, or leave it out.",
    "order": "Send the tools in one fixed order, with the keys of each in one fixed order.",
    "value": "Move the data of the request behind the part that all requests share.",
    "white_space": "Send one version of the text: make white space and line ends the same in all requests.",
    "wording": "Send one version of the text: the versions alternate, and each fills the cache anew.",
    "dropped": "Keep earlier turns, or drop many at once and rarely: after a dropped turn nothing behind it hits.",
    "rewritten": "Leave earlier messages as they were sent: after a changed message nothing behind it hits.",
    "inserted": "Add messages at the end: after an inserted message nothing behind it hits.",
}


CONTINUED = {segments.SPACE, "order"}  # forms of which one fault is in many lines
UNDECIDED = "undecided"  # words or numbers: the values at the place, over all requests, decide
SHARE = 0.7  # of the words of a span that stand elsewhere in the other prompt: they moved
MAX_REWORDED = 12  # words of a user's message that change between turns; more is another message
MAX_VERSION = 20  # words by which two versions of a user's message differ
MIN_MOVED = 4  # words of such a span


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One divergence of a request from an earlier one. It holds numbers only."""

    kind: str
    form: str  # a key of REMEDIES, or a shape
    request: int
    earlier: int
    message: int
    role: str
    region: int
    chunk: int  # of the prompt
    left: int  # key of the chunk before; equal at the same place of other prompts
    token: int  # of the prompt, from 0
    in_message: int  # token of the message
    tokens: int  # shared tokens after it, up to the next difference
    values: tuple[int, int]
    is_labelled: bool
    versions_only: bool = False  # it is a finding only if the values are versions of one text
    lost: str = ""  # the form of lost history, if the values show no other kind; "" = none


class Judge:
    """Judges matches, one by one."""

    def __init__(self, prompts: list[Prompt], texts: list[str], keys: np.ndarray, tokens: np.ndarray):
        self._prompts, self._texts, self._keys, self._tokens = prompts, texts, keys, tokens
        self._markup = np.array([is_markup(text) for text in texts], bool)  # chunk -> it holds a template's marks only
        self.other_requests = self.other_tokens = 0  # shared tokens after differences of no kind

    def occurrences(self, match: Match) -> list[Occurrence]:
        """The occurrences of a match, in order, up to the first difference that is part of the conversation."""
        earlier, later = self._prompts[match.earlier], self._prompts[match.prompt]
        costs = self._tokens[later.chunks]
        gains = [int(costs[max(span.b1, match.hit) : span.end].sum()) for span in match.spans]
        worded = np.where(self._markup[later.chunks], 0, costs)
        kept = [int(worded[max(span.b1, match.hit) : span.end].sum()) for span in match.spans]
        behind = np.cumsum(kept[::-1])[::-1].tolist()
        ordered = self._ordered(match, earlier, later)
        conversation = self._same_conversation(match, earlier, later)
        occurrences: list[Occurrence] = []
        for place, span in enumerate(match.spans):
            if behind[place] < MIN_TOKENS:
                break
            new = self._judged(match, span, gains[place], place in ordered, conversation, earlier, later)
            if not new:
                self.other_requests += not occurrences
                self.other_tokens += behind[place]
                break
            if (
                occurrences
                and (new[0].kind, new[0].form) == (occurrences[-1].kind, occurrences[-1].form)
                and new[0].form in CONTINUED
            ):
                occurrences[-1] = replace(occurrences[-1], tokens=occurrences[-1].tokens + new[0].tokens)
            else:
                occurrences += new
        return occurrences

    def _judged(
        self, match, span: Span, gain, ordered, conversation, earlier: Prompt, later: Prompt
    ) -> list[Occurrence]:
        place, region, role, message = self._where(span, earlier, later)
        left = int(self._keys[later.chunks[span.b0 - 1]]) if span.b0 else -1
        costs = self._tokens[later.chunks]
        token = int(costs[: span.b0].sum())
        start = int(later.starts[place]) if span.b0 < len(later.chunks) else span.b0
        before = {
            "request": match.prompt, "earlier": match.earlier, "message": message, "role": role, "region": region,
            "chunk": span.b0, "left": left, "token": token, "in_message": int(costs[start : span.b0].sum()),
        }  # fmt: skip
        if ordered:
            before["left"] = later.tools.sorted if later.tools else -1
            gain += int(costs[max(span.b0, match.hit) : span.b1].sum())
            return [Occurrence(TOOL_ORDER, "order", **before, tokens=gain, values=(0, 0), is_labelled=False)]
        if role == "template" and region == SYSTEM and earlier.tools != later.tools:
            return []  # other tools
        lost = self._lost(span, earlier, later) if conversation else ""
        kinds = self._kinds(span, region, bool(lost), earlier, later)
        if kinds is None and lost:
            return [Occurrence(LOST_HISTORY, lost, **before, tokens=gain, values=(0, 0), is_labelled=False)]
        if not kinds:
            return []
        shares = [gain // len(kinds)] * len(kinds)
        shares[0] += gain - sum(shares)
        return [
            Occurrence(
                kind,
                change.shape,
                **before,
                tokens=share,
                values=change.values,
                is_labelled=change.is_labelled,
                versions_only=region not in (SYSTEM, HISTORY) and not lost,
                lost=lost,
            )
            for (kind, change), share in zip(kinds, shares, strict=True)
        ]

    def _kinds(self, span, region, in_turns, earlier, later) -> list[tuple[str, segments.Change]] | None:
        """(kind, change) of each change in a span; None if one of them is a part of the conversation."""
        before, after = self._text(earlier, span.a0, span.a1), self._text(later, span.b0, span.b1)
        lead, trail = self._text(later, max(0, span.b0 - 2), span.b0), self._text(later, span.b1, span.b1 + 2)
        kinds = []
        for change in segments.changes(before, after, lead, trail):
            kind = _kind_of(change, region, in_turns)
            if kind is None:
                return None
            kinds.append((kind, change))
        words = [kind == UNDECIDED and change.shape != segments.SPACE for kind, change in kinds]
        if region != SYSTEM and not in_turns and any(words) and not all(words):
            return None  # a question with other words and another date
        if any(change.shape == segments.ADDRESS for _, change in kinds):  # a line of several values of the request
            kinds = [(kind if kind == DATE else METADATA, change) for kind, change in kinds]
        by_kind = {(kind, change.shape): (kind, change) for kind, change in reversed(kinds)}
        return list(reversed(by_kind.values()))

    def _ordered(self, match: Match, earlier: Prompt, later: Prompt) -> set[int]:
        """The spans that differ because the same tools, or the keys of one, are sent in another order."""
        head = [place for place, span in enumerate(match.spans) if self._where(span, earlier, later)[1] == SYSTEM]
        if earlier.tools and later.tools:
            if earlier.tools == later.tools or earlier.tools.sorted != later.tools.sorted:
                return set()
            return {place for place in head if self._where(match.spans[place], earlier, later)[2] == "template"}
        return self._moved(match.spans, head, earlier, later)

    def _moved(self, spans: list[Span], head: list[int], earlier: Prompt, later: Prompt) -> set[int]:
        """The spans of system prompts from the first to the last whose words stand elsewhere in the other prompt."""
        rest_a, rest_b, moved = {}, {}, set()
        for place in head:
            span = spans[place]
            a, b = (words_of(self._text(earlier, span.a0, span.a1)), words_of(self._text(later, span.b0, span.b1)))
            rest_a[place], rest_b[place] = a - b, b - a
            same_words = not rest_a[place] and not rest_b[place] and a.total() > 1
            if same_words and self._plain(earlier, span.a0, span.a1) != self._plain(later, span.b0, span.b1):
                moved.add(place)
        for smallest, share in ((1, 1.0), (MIN_MOVED, SHARE)):
            large = [place for place in head if (rest_a[place] + rest_b[place]).total() >= smallest]
            all_a, all_b = (sum((rest[place] for place in large), Counter()) for rest in (rest_a, rest_b))
            both = all_a & all_b
            if both and both.total() >= share * max(all_a.total(), all_b.total()):
                moved |= {
                    place
                    for place in large
                    if ((rest_a[place] & both) + (rest_b[place] & both)).total()
                    >= share * (rest_a[place] + rest_b[place]).total()
                }
        return set(range(min(moved), max(moved) + 1)) if moved else moved

    def _same_conversation(self, match: Match, earlier: Prompt, later: Prompt) -> bool:
        """Whether the later prompt is a later turn of the earlier one's conversation.

        It holds the logged answer to the earlier one, or the earlier one's last message and something after it. A
        session alone does not tell: it may be a user's, with requests that are independent.
        """
        named = earlier.session is not None and later.session is not None
        if named and earlier.session != later.session:
            return False
        if earlier.output is not None and earlier.output in later.answers:
            return True
        shared = np.zeros(len(later.chunks), bool)  # chunk -> it is in the earlier prompt, too
        shared[: match.spans[0].b0] = True
        for span in match.spans:
            shared[span.b1 : span.end] = True
        worded = ~self._markup[later.chunks]
        last = np.flatnonzero(shared & worded)
        grows = bool(worded[int(last[-1]) + 1 :].any()) if len(last) else False
        if not grows or not self._ends_in(match, earlier):
            return False
        if named:
            return True
        if later.last_answer is None or TEXT in later.regions:
            return False
        history = shared & (self._region_of(later) == HISTORY)
        history[: match.spans[0].b0] = False
        return int(self._tokens[later.chunks][history].sum()) >= MIN_TOKENS

    def _ends_in(self, match: Match, earlier: Prompt) -> bool:
        """Whether the earlier prompt's last message is in the later one; without roles, its last line."""
        if TEXT in earlier.regions:
            worded = np.flatnonzero(~self._markup[earlier.chunks])
            start = int(worded[-1]) if len(worded) else 0
            stop = start + 1
        else:
            asked = [place for place, role in enumerate(earlier.roles) if role in ("user", "tool", "system")]
            place = asked[-1] if asked else len(earlier.roles) - 1
            start = int(earlier.starts[place])
            stop = int(earlier.starts[place + 1]) if place + 1 < len(earlier.starts) else len(earlier.chunks)
        return not any(max(span.a0, start) < min(span.a1, stop) for span in match.spans)

    def _lost(self, span: Span, earlier: Prompt, later: Prompt) -> str:
        """The form of lost history that a span between two turns is; "" if it is none."""
        if not self._shares_head(span, earlier, later):
            return ""
        has_old, has_new = (
            bool((~self._markup[prompt.chunks[start:stop]]).any())
            for prompt, start, stop in ((earlier, span.a0, span.a1), (later, span.b0, span.b1))
        )
        form = "rewritten" if has_old == has_new else "dropped" if has_old else "inserted"
        return form if form != "inserted" or self._answer_behind(span, later) else ""

    def _shares_head(self, span: Span, earlier: Prompt, later: Prompt) -> bool:
        """Whether the prompts differ behind their system prompts: agents of one session may share a transcript."""
        places = (earlier, span.a0), (later, span.b0)
        if TEXT in later.regions:
            return int(self._tokens[later.chunks[: span.b0]].sum()) >= MIN_TOKENS
        return all(self._region_of(prompt)[min(at, len(prompt.chunks) - 1)] != SYSTEM for prompt, at in places)

    def _answer_behind(self, span: Span, later: Prompt) -> bool:
        """Whether an earlier answer stands behind an insertion, and not only a message that is always the last one."""
        if TEXT in later.regions:
            return False
        return any(
            role == "assistant" and span.b1 <= start < span.end
            for role, start in zip(later.roles, later.starts.tolist(), strict=True)
        )

    def _where(self, span: Span, earlier: Prompt, later: Prompt) -> tuple[int, int, str, int]:
        """Segment, region, role and message of the place; of an omission, those of what the earlier prompt had."""
        prompt, at = (later, span.b0) if span.b0 < span.b1 else (earlier, span.a0)
        place = min(int(np.searchsorted(prompt.starts, at, side="right")) - 1, len(prompt.starts) - 1)
        here = min(int(np.searchsorted(later.starts, span.b0, side="right")) - 1, len(later.starts) - 1)
        role = prompt.roles[place]
        return here, prompt.regions[place], role, prompt.messages[place]

    def _region_of(self, prompt: Prompt) -> np.ndarray:
        """Chunk -> region."""
        sizes = np.diff(np.append(prompt.starts, len(prompt.chunks)))
        return np.repeat(np.array(prompt.regions), sizes)

    def _text(self, prompt: Prompt, start: int, stop: int) -> str:
        return "".join([self._texts[chunk] for chunk in prompt.chunks[start:stop].tolist()])

    def _plain(self, prompt: Prompt, start: int, stop: int) -> str:
        return "".join(self._text(prompt, start, stop).split())


def _kind_of(change: segments.Change, region: int, in_turns: bool) -> str | None:
    """The kind of a change by its shape; None if conversations differ in this way anyway.

    In a system prompt every short change counts. In a user's message, and in a prompt of unknown roles, a change needs
    a shape that questions do not have, or a label; or its values must show it, as between turns of one conversation
    (`in_turns`), in which a question stays.
    """
    if region == HISTORY or change.shape == segments.FREE:
        return None
    if change.shape == segments.DATE:
        return DATE
    if change.shape == segments.ADDRESS:
        return METADATA
    if change.shape == segments.ID:
        return ID
    if change.shape == segments.SPACE or region == SYSTEM:
        return UNDECIDED
    if not change.is_labelled:
        return UNDECIDED if change.words <= (MAX_REWORDED if in_turns else MAX_VERSION) else None
    return ID if change.shape in (segments.NUMBER, segments.CODE) else METADATA
