"""Hostile templates and mutated requests: each is rendered, counted or refused by row; none hangs or breaks the run."""

import copy
import itertools
import json
import random
from pathlib import Path

import orjson
import pytest

from kvtrace._base.errors import RowError
from kvtrace.ingest.encoding import Encoder
from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.keys import Key
from kvtrace.ingest.logs import open_reader
from kvtrace.ingest.logs.sources import LogPiece
from kvtrace.ingest.preparation import recipe_of
from kvtrace.privacy.profiles import PROFILES
from kvtrace.text import chat_requests
from kvtrace.text.engine_forms import FORMS
from kvtrace.text.templates import ChatTemplate
from tests.conftest import drawn

HERE = Path(__file__).resolve().parents[1]
TINY, TEMPLATES = HERE / "data/tokenizers/tiny", HERE / "data/tokenizers/templates"
ASK = [{"role": "user", "content": "Which boats float?"}]

HANGS = (
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro again() %}{{ again() }}{{ again() }}{% endmacro %}{{ again() }}",
)
ATTACKS = (
    "{{ 'a' * 10**9 }}", "{{ '%999999999d' % 1 }}", "{{ '{:>999999999}'.format(1) }}", "{{ 9**9**9 }}",
    "{% set ns = namespace(t='a') %}{% for i in range(64) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
    "{{ [1] * 10**9 }}", "{{ range(10**9) | list }}", "{{ lipsum(n=1000) }}", "{{ [1, 2] | random }}",
    "{{ messages.__class__.__mro__[1].__subclasses__() }}", "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ self._TemplateReference__context }}", "{{ messages.append(1) }}", "{{ messages[0].update({'role': 'x'}) }}",
    "{% include 'secret' %}", "{% import 'os' as os %}{{ os }}", "{% extends '/etc/passwd' %}",
    "{{ raise_exception(1) }}",
    "{{ messages[7] }}", "{{ messages | tojson(indent=10**9) }}", "{{ undefined_name.attribute }}",
    "{{ strftime_now('%' * 9999) }}", "{{ messages | map(attribute='content.x.y') | list }}", "{{ '\\u0000' }}",
)  # fmt: skip
WRAPPERS = (
    "%s", "{%% for m in messages %%}%s{%% endfor %%}", "{%% if messages %%}%s{%% endif %%}", "{%% if %s",
    "{%% generation %%}%s{%% endgeneration %%}", "{%% set x %%}%s{%% endset %%}{{ x }}",
    "{%% filter upper %%}%s{%% endfilter %%}", "{%% macro f() %%}%s{%% endmacro %%}{{ f() }}",
)  # fmt: skip


def hostile_templates():
    """Each attack in a quarter of the wrappers (in all of them when it is thorough), and two that never end."""
    yield from HANGS
    pairs = itertools.product(enumerate(WRAPPERS), enumerate(ATTACKS))
    every = 4 // drawn(4)
    yield from (wrapper % attack for (row, wrapper), (column, attack) in pairs if (row + column) % every == 0)


def test_hostile_templates_end_in_a_second_each_and_break_nothing():
    own, count = ChatTemplate("{{ messages[0].content }}"), 0
    for source in hostile_templates():
        prompt = chat_requests.render_with_own(own, source, ASK, None, {})
        assert prompt is None or sum(map(len, prompt.texts)) < chat_requests.MEMORY
        count += 1
    assert count >= 2 + 2 * len(ATTACKS)


def test_a_hostile_template_that_hangs_is_ended():
    own = ChatTemplate("{{ messages[0].content }}")
    assert chat_requests.render_with_own(own, HANGS[0], ASK, None, {}) is None


# -- mutated requests ------------------------------------------------------------------------------------------------

REQUEST = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "name": "Ann", "content": [
            {"type": "text", "text": "Look:"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, "And?",
        ]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"boat": 1}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Found."}]},
        {"role": "developer", "content": "Answer in French.", "tools": []},
        {"role": "assistant", "content": "It is"},
    ],
    "tools": [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}],
    "tool_choice": {"type": "function", "function": {"name": "find"}}, "model": "Qwen2.5-VL",
    "chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low", "reasoning": {"effort": "low"},
    "documents": [{"title": "A", "text": "B"}], "add_generation_prompt": False, "continue_final_message": True,
    "image_grid_thw": [[1, 4, 4]], "chat_template": "{{ messages }}", "add_special_tokens": True,
    "response_format": {"type": "json_schema", "json_schema": {}},
}  # fmt: skip
VALUES = (
    None, True, False, 0, -1, 2**31, 2**63, 1.5, float("1e300"), "", "x", "\ud800", "\u0000", "{{ x }}", [], {}, [None],
    [[]], {"a": {}}, ["x"], {"type": "text"}, {"type": 5}, {"type": "image"}, {"role": "user"}, "none", "auto",
)  # fmt: skip
NAMES = ("content", "role", "type", "text", "tools", "function", "arguments", "messages", "name", "image_url", "")


def places(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


def mutated(rng):
    """A request with one to three values replaced, removed, repeated or renamed."""
    request = copy.deepcopy(REQUEST)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([path for path in places(request) if path])
        holder = request
        for name in path[:-1]:
            holder = holder[name]
        match rng.randrange(4):
            case 0:
                holder[path[-1]] = copy.deepcopy(rng.choice(VALUES))
            case 1:
                del holder[path[-1]]
            case 2 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[path[-1]]))
            case _ if isinstance(holder, dict):
                holder[rng.choice(NAMES)] = holder.pop(path[-1])
    return request


def encoder(template, engine):
    reader = open_reader("openai", [], time_unit="s")
    options = EncodingOptions(
        tokenizer=str(TINY), chat_template=str(template), block_size=4, render_as=engine, max_errors=-1
    )
    return Encoder(recipe_of(reader, options, PROFILES["exact"], Key(bytes(16))))


@pytest.mark.parametrize("engine", sorted(FORMS))
@pytest.mark.parametrize("template", ["objects", "parts", "strict"])
def test_1000_mutated_requests_are_rendered_or_refused_by_row(engine, template):
    rng = random.Random(f"{engine} {template}")
    rows = [{"created": 5, "request": mutated(rng), "usage": {"completion_tokens": 1}} for _ in range(1000 // 9 + 1)]
    data = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    batch = encoder(TEMPLATES / f"{template}.jinja", engine)(LogPiece("log", 0, 0, len(data), 0, data))
    assert len(batch) + len(batch.rejects) + batch.empty + batch.others == len(rows)
    assert all(type(reject.error) is not None and reject.error.reason for reject in batch.rejects)


@pytest.mark.parametrize("engine", sorted(FORMS))
def test_messages_of_any_json_are_rendered_or_refused(engine):
    rng, template = random.Random(engine), ChatTemplate((TEMPLATES / "objects.jinja").read_text(), bos_token="")
    for _ in range(300):
        request = mutated(rng)
        try:
            request = orjson.loads(orjson.dumps(request))
            messages = request.get("messages")
            chat_requests.render(template, messages, request.get("tools") or None, {}, engine=engine, time=0)
        except (RowError, orjson.JSONEncodeError):
            pass
