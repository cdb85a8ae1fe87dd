"""Chats whose prompts share much behind a difference, though nothing is wrong with them: what lint must not report."""

from __future__ import annotations

import random
from datetime import datetime, timedelta

from .faulty_chats import SURNAMES, WORDS, paragraph, sentence, tool

START = datetime(2031, 5, 2, 9).timestamp()


def documents(draw):
    """Questions on some of the same documents, in any order."""
    system, pool = paragraph(draw, 4, 8), [paragraph(draw, 3, 8) for _ in range(12)]
    for _ in range(30):
        asked = "\n\n".join([*draw.sample(pool, 4), f"Question: {sentence(draw)}"])
        yield [_system(system), _user(asked)], paragraph(draw, 1, 3)


def examples(draw):
    """Examples as turns, drawn anew for each request."""
    system, pool = paragraph(draw, 4, 8), [(sentence(draw), paragraph(draw, 1, 3)) for _ in range(8)]
    for _ in range(30):
        turns = [turn for asked, answer in draw.sample(pool, 4) for turn in (_user(asked), _answer(answer))]
        yield [_system(system), *turns, _user(sentence(draw))], paragraph(draw, 1, 3)


def two_applications(draw):
    """Two applications with the same rules behind another beginning."""
    rules = "\n".join(paragraph(draw, 1, 3) for _ in range(8))
    heads = [paragraph(draw, 4, 6) for _ in range(2)]
    for number in range(30):
        yield [_system(f"{heads[number % 2]}\n{rules}"), _user(paragraph(draw, 1, 3))], sentence(draw)


def new_version(draw):
    """A system prompt that changes for good, twice."""
    lines = [paragraph(draw, 1, 2) for _ in range(10)]
    for number in range(40):
        if number in (15, 28):
            lines[draw.randrange(5)] = sentence(draw)
        yield [_system("\n".join(lines)), _user(paragraph(draw, 1, 3))], sentence(draw)


def question_first(draw):
    """A question before instructions that all requests share, without a system prompt or with one."""
    system, rules = paragraph(draw, 3, 5), "\n".join(paragraph(draw, 1, 3) for _ in range(8))
    for _ in range(30):
        asked = (
            f"{draw.choice(['How many', 'Which', 'Who are the'])} {sentence(draw, 3, 9)} above {draw.randrange(99)}?"
        )
        yield [_system(system), _user(f"{asked}\n\n{rules}")], sentence(draw)


def retries(draw):
    """The same task several times: other words, the same results of tools."""
    system = "\n".join(paragraph(draw, 1, 2) for _ in range(6))
    for _ in range(6):
        asked, results = sentence(draw), [paragraph(draw, 4, 9) for _ in range(3)]
        for _ in range(4):
            messages = [_system(system), _user(asked)]
            for result in results:
                answer = paragraph(draw, 1, 3)
                yield list(messages), answer
                messages += [_answer(answer), _user(result)]


def regenerated(draw):
    """A last message that the user writes again, and answers that are drawn again."""
    system = "\n".join(paragraph(draw, 1, 2) for _ in range(6))
    for _ in range(8):
        messages = [_system(system)]
        for _ in range(4):
            for _ in range(draw.choice([1, 1, 2, 3])):
                asked, answer = _user(paragraph(draw, 1, 3)), paragraph(draw, 1, 4)
                yield [*messages, asked], answer
            messages += [asked, _answer(answer)]


def branches(draw):
    """Agents that start from one history and go on alone."""
    system = "\n".join(paragraph(draw, 1, 2) for _ in range(6))
    history = [_system(system), _user(paragraph(draw, 1, 3)), _answer(paragraph(draw, 2, 4))]
    for _ in range(6):
        messages = [*history, _user(paragraph(draw, 1, 3))]
        for _ in range(4):
            answer = paragraph(draw, 1, 3)
            yield list(messages), answer
            messages += [_answer(answer), _user(paragraph(draw, 1, 5))]


def agents(draw):
    """Agents with system prompts of their own that read one transcript."""
    heads = [paragraph(draw, 6, 9) for _ in range(3)]
    transcript = [_user(paragraph(draw, 1, 3))]
    for number in range(12):
        answer = paragraph(draw, 1, 5)
        yield [_system(heads[number % 3]), *transcript], answer
        transcript += [_answer(answer), _user(f"{draw.choice(SURNAMES)}: {paragraph(draw, 1, 2)}")]


def reminders(draw):
    """A reminder that always stands behind the last message."""
    system, reminder = paragraph(draw, 4, 8), paragraph(draw, 4, 6)
    for _ in range(6):
        messages = [_system(system)]
        for _ in range(5):
            messages.append(_user(paragraph(draw, 1, 3)))
            answer = paragraph(draw, 1, 3)
            yield [*messages, _user(reminder)], answer
            messages.append(_answer(answer))


def tool_sets(draw):
    """Other tools for other requests."""
    system, tools = "\n".join(paragraph(draw, 1, 2) for _ in range(6)), [tool(draw) for _ in range(6)]
    for number in range(24):
        yield [_system(system), _user(paragraph(draw, 1, 3))], sentence(draw), tools[: 3 + number % 3]


def items(draw):
    """Items to classify, in the middle of an instruction."""
    head, foot = paragraph(draw, 4, 8), paragraph(draw, 6, 9)
    for _ in range(40):
        item = " ".join(draw.sample(WORDS, draw.randint(2, 9)))
        yield [_user(f"{head}\n\nText: {item}\n\n{foot}")], draw.choice(WORDS)


PATTERNS = {one.__name__: one for one in (
    documents, examples, two_applications, new_version, question_first, retries, regenerated, branches, agents,
    reminders, tool_sets, items,
)}  # fmt: skip


def rows(pattern, seed):
    """The rows of a log."""
    made, time = [], START
    for messages, output, *tools in PATTERNS[pattern](random.Random(f"{pattern} {seed}")):
        time += timedelta(seconds=47).total_seconds()
        made.append({"timestamp": time, "input": messages, "output": output} | ({"tools": tools[0]} if tools else {}))
    return made


def _system(text):
    return {"role": "system", "content": text}


def _user(text):
    return {"role": "user", "content": text}


def _answer(text):
    return {"role": "assistant", "content": text}
