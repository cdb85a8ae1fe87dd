"""The prompts of a log as numbers of chunks, and for each the earlier prompt that it agrees with most.

Prompts are read as `anonymize` reads them. A prompt that is logged as text is cut at the marks of roles that its
template has written.

Prompts are matched in order of time. The leading chunks that any earlier prompt has would hit in an unlimited cache. Of
the chunks after them, some were in earlier prompts, too: the prompts that had them last are candidates, and the one
that has most tokens of them is the match.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, NamedTuple

import numpy as np
import orjson

from ..encoding import Encoder
from ..logs.fields import identity_of
from ..logs.record import Record
from .segments import BLANK, ChunkTable, Span, common_prefix, plain, spans

SYSTEM, OPENING, HISTORY = 0, 1, 2  # regions: before the first user message, up to the first answer, and after
TEXT = 3  # region of a prompt of which the roles are unknown
ROLES = {"developer": "system", "human": "user", "ai": "assistant", "model": "assistant", "function": "tool",
         "observation": "tool", "ipython": "tool", "inst": "user", "/inst": "assistant"}  # fmt: skip
MARKS = re.compile(
    r"<\|im_start\|>(?P<a>\w+)|<\|start_header_id\|>(?P<b>\w+)<\|end_header_id\|>|<\|start\|>(?P<c>\w+)"
    r"|<｜(?P<d>User|Assistant)｜>|<\|(?P<e>system|user|assistant|tool|observation|developer)\|>"
    r"|<start_of_turn>(?P<f>\w+)|\[(?P<g>/?INST)\]"
)
TAGS = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")
NAMES = re.compile(r"^(?P<a>system|user|human|assistant|ai|tool): ", re.MULTILINE | re.IGNORECASE)  # a plain transcript


class Segment(NamedTuple):
    """A part of a prompt."""

    text: str
    message: int  # from 0; -1 before the first
    role: str  # system, user, assistant, tool; template = text that the template writes; prompt = unknown
    region: int


def of_messages(prompt: str, messages: list[dict[str, Any]]) -> list[Segment]:
    """The segments of a rendered prompt. The template's text after a message belongs to it.

    >>> prompt = "<s>Be brief.<user>Boats?<assistant>"
    >>> messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Boats?"}]
    >>> [(part.text, part.message, part.role, part.region) for part in of_messages(prompt, messages)]
    [('<s>', -1, 'template', 0), ('Be brief.', 0, 'system', 0), ('<user>', 0, 'template', 0), \
('Boats?', 1, 'user', 1), ('<assistant>', 1, 'template', 1)]
    """
    segments: list[Segment] = []
    end, before, region = 0, -1, SYSTEM
    for index, message in enumerate(messages):
        role = _role(message.get("role"))
        reached = max(region, SYSTEM if role == "system" else OPENING if role == "user" else HISTORY)
        for text in _texts(message.get("content")):
            start, passage = _find(prompt, text, end)
            if start < 0:
                continue
            if start > end:
                segments.append(Segment(prompt[end:start], before, "template", region))
            region = reached
            segments.append(Segment(passage, index, role, region))
            end, before = start + len(passage), index
        if role == "assistant" and before != index:  # a call of tools without text: the template writes it
            before, region = index, reached
    if end < len(prompt):
        segments.append(Segment(prompt[end:], before, "template", region))
    return segments


def of_text(prompt: str) -> list[Segment]:
    """The segments of a prompt that is logged as text, by the marks of roles in it.

    >>> [(part.role, part.region) for part in of_text("<|im_start|>system\\nBe brief.<|im_end|><|im_start|>user\\nHi")]
    [('system', 0), ('user', 1)]
    >>> [part.role for part in of_text("Boats?")]
    ['prompt']
    """
    marks = list(MARKS.finditer(prompt))
    if not marks and NAMES.match(prompt):
        marks = list(NAMES.finditer(prompt))
    if not marks:
        return [Segment(prompt, 0, "prompt", TEXT)]
    segments, region = [], SYSTEM
    starts = [0, *(mark.start() for mark in marks), len(prompt)]
    if marks[0].start():
        segments.append(Segment(prompt[: marks[0].start()], -1, "template", SYSTEM))
    for index, mark in enumerate(marks):
        role = _role(mark.group(mark.lastgroup or 0))
        region = max(region, SYSTEM if role == "system" else OPENING if role == "user" else HISTORY)
        segments.append(Segment(prompt[starts[index + 1] : starts[index + 2]], index, role, region))
    return segments


def is_markup(text: str) -> bool:
    """Whether a text holds nothing but the marks of a template.

    >>> is_markup("<|im_end|>\\n<|im_start|>assistant\\n"), is_markup("<b>Boats</b>")
    (True, False)
    """
    if "<" not in text and "[" not in text:
        return not text.strip()
    return not any(character.isalnum() for character in without_marks(text))


def without_marks(text: str) -> str:
    """A text without a template's marks and other tags.

    >>> without_marks("<|im_start|>assistant\\nBoats<|im_end|>")
    '\\nBoats'
    """
    return NAMES.sub("", TAGS.sub("", MARKS.sub("", text)))


def _role(role: Any) -> str:
    name = role.lower() if type(role) is str else "user"
    name = ROLES.get(name, name)
    return name if name in ("system", "user", "assistant", "tool") else "user"


def _texts(content: Any) -> list[str]:
    """The texts of a message's content: one, or those of its parts."""
    if type(content) is str:
        return [content] if content.strip() else []
    parts = content if type(content) is list else []
    texts = [part if type(part) is str else part.get("text") for part in parts if type(part) in (str, dict)]
    return [text for text in texts if type(text) is str and text.strip()]


def _find(prompt: str, text: str, start: int) -> tuple[int, str]:
    """Where a message's text stands in the prompt, and the text as it is there; -1 if the template changed it."""
    at = prompt.find(text, start)
    if at < 0:
        text = text.strip()
        at = prompt.find(text, start)
    return at, text


MIN_ANSWER = 20  # characters of an answer that tells a conversation from others


class Tools(NamedTuple):
    """Numbers that stand for the tools of a request: as they are sent, and without their order and that of keys."""

    sent: int
    sorted: int


@dataclass(slots=True, repr=False)
class Prompt:
    """The prompt of one request: its chunks, and the message and role of each."""

    chunks: np.ndarray  # int32
    starts: np.ndarray  # segment -> its first chunk
    messages: list[int]  # segment -> message
    roles: list[str]  # segment -> role
    regions: list[int]  # segment -> region
    last_answer: int | None  # the first chunk of the last assistant message; None = it has none
    session: str | None
    time_ns: int
    tools: Tools | None = None  # None = the log has none
    output: int | None = None  # a number that stands for the answer; None = unknown, or too short to tell
    answers: frozenset[int] = frozenset()  # those of the answers in the prompt


class PromptReader(Encoder):
    """Encodes pieces of a log as `anonymize` does; its records keep their messages and tools."""

    keeps_messages = True


def prompt_of(record: Record, time_ns: int, table: ChunkTable) -> Prompt | None:
    """The prompt of a request; None if it holds no text."""
    text = _with_media(record)
    if not text:
        return None
    if record.messages is None:
        parts = of_text(text)
        answers = [part.message for part in parts[:-1] if part.role == "assistant"]
    else:
        parts = of_messages(text, record.messages)
        answers = [place for place, message in enumerate(record.messages) if message.get("role") == "assistant"]
    chunks, starts = array("i"), []
    for part in parts:
        starts.append(len(chunks))
        chunks.extend(table.cut(part.text))
    return Prompt(
        np.array(chunks, np.int32), np.array(starts, np.int32), [part.message for part in parts],
        [part.role for part in parts], [part.region for part in parts],
        _start_of(answers[-1], parts, starts) if answers else None, record.session, time_ns,
        _tools(record.tools), _answer(record.output_text), frozenset(_answers(record, parts)),
    )  # fmt: skip


def _with_media(record: Record) -> str | None:
    """The text of the prompt, with a word in the place of each medium, which is another one for another medium."""
    if not record.placed:
        return record.text
    words = [_word(medium.part) for medium in record.placed]
    texts = record.texts or []
    return "".join(piece for pair in zip(texts, [*words, ""], strict=True) for piece in pair)


def _word(part: dict[str, Any] | None) -> str:
    if part is None:
        return ""
    digest = int.from_bytes(sha256(identity_of(part, "messages")).digest()[:8], "big")
    return "\ufffc" + "".join(chr(0xE100 + (digest >> shift) % 4096) for shift in range(0, 48, 12)) + "\n"


def _answers(record: Record, parts: list[Segment]) -> Iterator[int]:
    """The numbers of the answers in a request's messages, or in its text between the marks of roles."""
    if record.messages is None:
        texts: list[Any] = [part.text for part in parts if part.role == "assistant"]
    else:
        texts = [message.get("content") for message in record.messages if message.get("role") == "assistant"]
    for text in texts:
        if (number := _answer(text)) is not None:
            yield number


def _answer(text: Any) -> int | None:
    short = plain(without_marks(text)) if type(text) is str else ""
    return hash(short) if len(short) >= MIN_ANSWER else None


def _tools(tools: list[dict[str, Any]] | None) -> Tools | None:
    if not tools:
        return None
    kept = [orjson.dumps(tool, option=orjson.OPT_SORT_KEYS) for tool in tools]
    return Tools(hash(orjson.dumps(tools)), hash(tuple(sorted(kept))))


def _start_of(answer: int, parts: list[Segment], starts: list[int]) -> int:
    """The first chunk of an answer, or of the template's text before it, which a cue for the answer may change."""
    place = next((place for place, part in enumerate(parts) if part.message >= answer), len(parts) - 1)
    return starts[max(0, place - 1)] if parts[max(0, place - 1)].role == "template" else starts[place]


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
            match = self._match(prompt, number, hit, deepest)
            keys = self.keys[prompt.chunks]
            self._last_of_key[keys] = number
            fresh = self._first_of_key[keys] < 0
            self._first_of_key[keys[fresh]] = number
            if prompt.session is not None:
                self._last_of_session[prompt.session] = number
            if match is not None:
                yield match

    def _insert(self, prompt: Prompt, number: int) -> tuple[int, int]:
        """Add the prefixes of a prompt. Returns how many it shares with earlier ones, and the last prompt of those."""
        node, hit, deepest = 0, 0, -1
        prefixes, last = self._node, self._last_of_prefix
        is_shared = True
        for chunk in prompt.chunks.tolist():
            step = node << 32 | chunk
            if is_shared and (longer := prefixes.get(step)) is not None:
                node, hit = longer, hit + 1
                deepest, last[node] = last[node], number
            else:
                is_shared = False
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
        candidates = [self._last_of_session.get(prompt.session, -1) if prompt.session is not None else -1, deepest]
        for users in (self._last_of_key, self._first_of_key):
            votes: Counter[int] = Counter()
            for user, weight in zip(users[keys].tolist(), tokens.tolist(), strict=True):
                if weight:
                    votes[user] += weight
            candidates += [user for user, _ in votes.most_common(CANDIDATES)]
        return [user for user in dict.fromkeys(candidates) if user >= 0]
