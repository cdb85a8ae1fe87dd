"""Random chats of a few applications, with faults that break the sharing of prefixes, each at a random place.

`chats(seed, kinds)` makes the rows of a log and the list of what was seeded. Every text is made up from common words.
"""

from __future__ import annotations

import json
import random
import uuid
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

ALL_WORDS = """
able about account across action after again agent answer apply area article ask available balance base basic before
begin benefit best board book bring budget build call careful carry case center chance change check choice city
class clear close collect color common company compare complete concern condition consider contain content control
copy correct cost cover create current customer damage data deal decide deliver depend describe design detail
develop device differ direct discuss document draw drive early easy edge effect effort either employ enable end
energy enough ensure enter equal event exact example exchange expect expert explain express extra fact fail family
fast feature field figure file final find first fit focus follow form found free front full function future gain
general give goal good great group grow guide handle happen head help high hold home hour house idea image impact
include increase indicate industry inform inside instead intend interest involve issue item join judge keep kind
know language large last later lead learn least leave legal length less level light likely limit line list local
long look lower main maintain major make manage manner mark market material matter measure meet member mention
method middle mind model moment money month move much name nature near need network never next night normal note
notice object obtain occur offer office often open operate option order other outside owner page paper part partner
party past pay people perform period person phone pick picture piece place plain plan play point policy popular
position possible power practice prepare present press price print private problem process produce product program
project proper protect prove provide public purpose push quality question quick quiet quote raise range rate reach
read ready real reason receive recent record reduce refer reflect region relate release rely remain remember remove
repair repeat replace reply report request require research respond rest result return reveal review right risk role
rule safe sale same sample save scale scene school season second section seek select send sense serve service set
several shape share short show side sign similar simple single site size skill small social solve sort source space
speak special specific staff stage standard start state stay step stock stop store story strategy street strong
structure study style subject success suggest summer supply support surface system table take target task teach team
term test text thing think time title today tool topic total touch toward track trade train travel treat trial trip
trouble true trust try turn type under unit until update use usual value various version view visit voice wait walk
wall want watch water way week weight west whole wide window wish word work world worth write year young
"""
ALL_NAMES = """
Ada Bela Chidi Dana Emre Farah Goran Hana Imre Jonas Kofi Leila Mila Nadia Omar Petra Quinn Rosa Sami Tove
Uma Vera Wen Ximena Yara Zeno"""
ALL_SURNAMES = "Abt Brandt Cruz Diaz Engel Fink Gupta Huber Ito Jansen Klein Lopez Mori Novak Okafor Popov Rossi Sato"
WORDS, NAMES, SURNAMES = ALL_WORDS.split(), ALL_NAMES.split(), ALL_SURNAMES.split()


@dataclass
class Fault:
    """What was seeded: the kind, its form, and the text of the prompt's first message before it."""

    kind: str
    form: str
    application: int
    before: str | None = None  # of the system prompt; None = elsewhere


@dataclass
class Application:
    """One application of a log: its system prompt, its tools, and its conversations."""

    number: int
    lines: list[str]
    tools: list[dict]
    requests: list[dict] = field(default_factory=list)  # messages, tools, session, time, output


def sentence(draw, low=6, high=16):
    words = [draw.choice(WORDS) for _ in range(draw.randint(low, high))]
    return " ".join(words).capitalize() + draw.choice([".", ".", ".", ":", "!"])


def paragraph(draw, low, high):
    return " ".join(sentence(draw) for _ in range(draw.randint(low, high)))


def tool(draw):
    names = draw.sample(WORDS, 4)
    properties = {
        name: {"type": draw.choice(["string", "integer"]), "description": sentence(draw)} for name in names[1:]
    }
    parameters = {"type": "object", "properties": properties, "required": names[1:3]}
    return {"type": "function", "function": {
        "name": f"{names[0]}_{draw.choice(WORDS)}", "description": sentence(draw), "parameters": parameters,
    }}  # fmt: skip


def application(draw, number):
    """An application with conversations: each turn extends the one before."""
    lines = [f"You are {draw.choice(['an assistant', 'an expert', 'a guide'])} for {sentence(draw)}"]
    lines += [draw.choice(["", "- ", "* "]) + paragraph(draw, 1, 3) for _ in range(draw.randint(8, 16))]
    made = Application(number, lines, [tool(draw) for _ in range(draw.choice([0, 3, 5]))])
    start = datetime(2031, 5, 2, 9) + timedelta(minutes=draw.randint(0, 600))
    for number in range(draw.randint(6, 10)):
        messages, session = [], f"{made.number}-{number}"
        time = start + timedelta(minutes=37 * number + draw.randint(0, 30))
        for _ in range(draw.randint(2, 5)):
            messages.append({"role": "user", "content": paragraph(draw, 1, 4)})
            if made.tools and draw.random() < 0.5:
                name, call = made.tools[0]["function"]["name"], f"call_{draw.randrange(16**8):08x}"
                asked = {
                    "id": call,
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"a": sentence(draw)})},
                }
                messages += [
                    {"role": "assistant", "content": None, "tool_calls": [asked]},
                    {"role": "tool", "tool_call_id": call, "content": paragraph(draw, 2, 6)},
                ]
            answer = paragraph(draw, 1, 6)
            made.requests.append({
                "messages": [dict(message) for message in messages], "tools": made.tools, "session": session,
                "time": time, "output": answer,
            })  # fmt: skip
            messages.append({"role": "assistant", "content": answer})
            time += timedelta(seconds=draw.randint(10, 200))
    return made


# -- faults ----------------------------------------------------------------------------------------------------------


def _by(draw, made, often, value):
    """A value for each request: a new one for each request, or one for each session."""
    values: dict[object, object] = {}
    for place, request in enumerate(made.requests):
        key = request["session"] if often == "session" else place
        if key not in values:
            values[key] = value(draw, request, place)
        request["value"] = values[key]


def _insert(draw, made, often, value, frames):
    """Put a value into a line of the system prompt, or into a line of its own, in its first half."""
    _by(draw, made, often, value)
    place, frame = draw.randrange(0, len(made.lines) // 2), draw.choice(frames)
    text = "\n".join(made.lines[:place]) + "\n" * bool(place)
    if draw.random() < 0.4:
        words = made.lines[place].split(" ")
        cut = draw.randint(1, len(words) - 1)
        head, tail = text + " ".join(words[:cut]) + " ", " " + " ".join(words[cut:]) + "\n"
        tail += "\n".join(made.lines[place + 1 :])
    else:
        head, tail = text, "\n" + "\n".join(made.lines[place:])
    for request in made.requests:
        request["system"] = head + frame.format(request.pop("value")) + tail
    return head + frame.partition("{")[0]


DATE_FORMATS = (
    "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%A, %B %d, %Y at %H:%M", "%d/%m/%Y %H:%M", "%B %d %Y, %I:%M %p",
    "%H:%M:%S",
    "%d %b %Y %H:%M", "%a %d %B %Y %H:%M", "%m/%d/%Y, %I:%M:%S %p", "%Y%m%dT%H%M%SZ", "EPOCH", "%Y-%m-%d %H:%M UTC",
)  # fmt: skip
DATE_FRAMES = ("Today is {}.", "Current date and time: {}", "({})", "Date: {}.", "now={}", "The time is {}, local.")


def date(draw, made):
    form = draw.choice(DATE_FORMATS)

    def value(draw, request, _):
        return f"{request['time'].timestamp():.0f}" if form == "EPOCH" else request["time"].strftime(form)

    return Fault(
        "date", form, made.number, _insert(draw, made, draw.choice(["request", "session"]), value, DATE_FRAMES)
    )


def some_uuid(draw, *_):
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


def some_hex(draw, *_):
    return f"{draw.getrandbits(64):016x}"


def counter(_draw, _request, place):
    return 1000 + 7 * place


def some_number(draw, *_):
    return draw.randrange(10**5, 10**9)


def some_code(draw, *_):
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"
    return "req_2" + "".join(draw.choice(letters) for _ in range(12))


ID_FRAMES = ("Session: {}", "[{}]", "Request id: {}.", "trace={}", "This is conversation {} of this service.", "#{}")


def some_id(draw, made):
    form = draw.choice([some_uuid, some_hex, counter, some_number, some_code])
    often = draw.choice(["request", "session"])
    return Fault("id", form.__name__, made.number, _insert(draw, made, often, form, ID_FRAMES))


def tool_order(draw, made):
    if not made.tools:
        made.tools = [tool(draw) for _ in range(4)]
    form, often = draw.choice(["order", "keys"]), draw.choice(["request", "session"])

    def value(draw, *_):
        tools = json.loads(json.dumps(made.tools))
        if form == "order":
            draw.shuffle(tools)
            return tools
        return [{**one, "function": _shuffled(draw, one["function"])} for one in tools]

    _by(draw, made, often, value)
    for request in made.requests:
        request["tools"] = request.pop("value")
    return Fault("tool_order", form, made.number)


def _shuffled(draw, value):
    if isinstance(value, dict):
        keys = list(value)
        draw.shuffle(keys)
        return {key: _shuffled(draw, value[key]) for key in keys}
    return value


def name(draw, *_):
    return f"{draw.choice(NAMES)} {draw.choice(SURNAMES)}"


def address(draw, *_):
    return ".".join(str(draw.randrange(1, 255)) for _ in range(4))


def email(draw, *_):
    return f"{draw.choice(NAMES).lower()}.{draw.choice(SURNAMES).lower()}@example.org"


def several(draw, request, place):
    return f"{name(draw)}, request {place}, from {address(draw)}"


METADATA_FRAMES = ("User: {}", "You talk to {}.", "Customer: {} (verified)", "caller={}", "<user>{}</user>")


def metadata(draw, made):
    form = draw.choice([name, address, email, several])
    often = draw.choice(["request", "session"])
    return Fault("metadata", form.__name__, made.number, _insert(draw, made, often, form, METADATA_FRAMES))


def drift(draw, made):
    form = draw.choice(["trailing", "line_ends", "blank_line", "tab", "word", "added_line"])
    place = draw.randrange(0, len(made.lines) // 2)
    lines = list(made.lines)
    before = "\n".join(lines[:place]) + "\n" * bool(place)
    end = "\n"
    if form == "trailing":
        lines[place] += draw.choice([" ", "  "])
    elif form == "line_ends":
        end, before = "\r\n", ""
    elif form == "blank_line":
        lines[place] += "\n"
    elif form == "tab":
        lines[place] = lines[place].replace(" ", "\t", 1)
    elif form == "word":
        words = lines[place].split(" ")
        words[draw.randrange(1, len(words))] = draw.choice(WORDS)
        lines[place] = " ".join(words)
    else:
        lines.insert(place, "- " + sentence(draw))
    texts = "\n".join(made.lines), end.join(lines)
    often = draw.choice(["request", "session"])
    while True:  # until a text has come back twice: one that changes for good is no fault
        _by(draw, made, often, lambda draw, *_: texts[draw.randrange(2)])
        values = [request["value"] for request in made.requests]
        if sum(a != b for a, b in pairwise(values)) >= 3:
            break
    for request in made.requests:
        request["system"] = request.pop("value")
    return Fault("drift", form, made.number, before)


def lost_history(draw, made):
    form = draw.choice(["window", "dropped", "rewritten", "inserted"])
    by_session: dict[str, list[dict]] = {}
    for request in made.requests:
        by_session.setdefault(request["session"], []).append(request)
    for requests in by_session.values():
        for place, request in enumerate(requests):
            messages = request["messages"]
            users = [at for at, message in enumerate(messages) if message["role"] == "user"]
            if place == 0 or len(users) < 3:
                continue
            if form == "window":
                request["messages"] = messages[users[-2] :]
            elif form == "dropped" and place == len(requests) - 1:
                request["messages"] = messages[: users[0]] + messages[users[1] :]
            elif form == "rewritten" and place == len(requests) - 1:
                messages[users[0] + draw.randrange(2)] = {
                    "role": messages[users[0]]["role"],
                    "content": paragraph(draw, 1, 3),
                }
            elif form == "inserted" and place == len(requests) - 1:
                messages.insert(users[1], {"role": "system", "content": paragraph(draw, 1, 3)})
    return Fault("lost_history", form, made.number)


KINDS = {
    "date": date,
    "id": some_id,
    "tool_order": tool_order,
    "metadata": metadata,
    "drift": drift,
    "lost_history": lost_history,
}


def chats(seed, kinds=(), clean=1, with_sessions=True, form="messages"):
    """Rows of a log, and its faults: one application for each kind, and some without a fault.

    Args:
        form: "messages"; "user", with the system prompt at the head of the first user message; or "text", as templated.
    """
    draw = random.Random(seed)
    applications = [application(draw, number) for number in range(len(kinds) + clean)]
    faults = [KINDS[kind](draw, made) for kind, made in zip(kinds, applications, strict=False)]
    requests = sorted((one for made in applications for one in made.requests), key=lambda one: one["time"])
    system_of = {made.number: "\n".join(made.lines) for made in applications}
    return [_row(request, system_of, with_sessions, form) for request in requests], faults


def _row(request, system_of, with_sessions, form):
    system = request.get("system") or system_of[int(request["session"].partition("-")[0])]
    messages = [{"role": "system", "content": system}, *request["messages"]]
    if form == "user":
        first = request["messages"][0]
        messages = [{**first, "content": f"{system}\n{first['content']}"}, *request["messages"][1:]]
    given = messages if form != "text" else templated(messages, request["tools"])
    row = {"timestamp": request["time"].timestamp(), "output": request["output"], "input": given}
    row |= {"tools": request["tools"]} if request["tools"] and form != "text" else {}
    return row | ({"session_id": request["session"]} if with_sessions else {})


def templated(messages, tools):
    """The prompt as a template like Qwen's writes it."""
    lines = "".join(f"\n{json.dumps(tool)}" for tool in tools)
    head = f"\n\n# Tools{lines}" if tools else ""
    text = ""
    for message in messages:
        calls = "".join(f"\n<tool_call>{json.dumps(call['function'])}" for call in message.get("tool_calls") or ())
        text += f"<|im_start|>{message['role']}\n{message['content'] or ''}{head}{calls}<|im_end|>\n"
        head = ""
    return f"{text}<|im_start|>assistant\n"
