"""Cut a rendered prompt into the texts of its messages and the template's text between them.

A prompt that is logged as text is cut at the marks of roles that its template has written.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

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
            start, found = _find(prompt, text, end)
            if start < 0:
                continue
            if start > end:
                segments.append(Segment(prompt[end:start], before, "template", region))
            region = reached
            segments.append(Segment(found, index, role, region))
            end, before = start + len(found), index
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
