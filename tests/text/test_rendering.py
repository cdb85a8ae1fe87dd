"""Rendering from memory: the same bytes as rendering each prompt as a whole, or no memory at all."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvtrace._base.errors import KvtraceError, RowError
from kvtrace.text import templates
from kvtrace.text.templates import ChatTemplate
from tests.conftest import drawn

PLAIN = """{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}
{% if add_generation_prompt %}<a>{% endif %}"""
STATEFUL = """{% set ns = namespace(system='', tools=false, turn=0) %}{% for m in messages %}{% if m.role == 'system' %}
{% set ns.system = ns.system + m.content %}{% endif %}{% endfor %}[{{ ns.system }}]
{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}{% set ns.turn = ns.turn + 1 %}
{% if m.role == 'tool' %}{% if not ns.tools %}<tools>{% endif %}{% set ns.tools = true %}{% else %}
{% if ns.tools %}</tools>{% endif %}{% set ns.tools = false %}{% endif %}{{ ns.turn }} {{ m.content }}
{% for c in m.tool_calls %}{{ loop.index }}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{% endfor %}{% if ns.tools %}</tools>{% endif %}{% if tools %}{{ tools | tojson }}{% endif %}"""
POSITION = """{% for m in messages %}{% if loop.first %}first {% else %}, {% endif %}
{{ loop.index0 }}{{ m.content }}{% endfor %}"""
CONDITIONAL = """{% if add_generation_prompt %}{% for m in messages %}({{ m.content }}){% endfor %}{% else %}
{% for m in messages %}[{{ m.role }}]{% endfor %}{% endif %}{% if tools is not none %}{{ tools | length }}{% endif %}"""
PROVED = {"plain": PLAIN, "stateful": STATEFUL, "position": POSITION, "conditional": CONDITIONAL}
FILES = sorted((Path(__file__).parents[1] / "data/tokenizers/templates").glob("*.jinja"))

arguments = st.sampled_from([{}, {"n": 1}, {"n": True}, {"n": 1.0}, {"n": None}, {"m": 0, "n": 1}, {"n": 1, "m": 0}])
words = st.sampled_from(["", "a", "1", "boats", "</think>b", "<mark>", "π\n"])
function = st.fixed_dictionaries({"name": words, "arguments": arguments})
calls = st.lists(function.map(lambda called: {"type": "function", "function": called}), min_size=1, max_size=2)
message = st.one_of(
    st.fixed_dictionaries({"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": words}),
    st.fixed_dictionaries({"content": words, "role": st.sampled_from(["user", "assistant"])}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": words, "tool_calls": calls}),
)
request = st.tuples(
    st.lists(message, min_size=1, max_size=5), st.sampled_from([None, [{"name": "f"}], [{"name": "g"}]])
)


@st.composite
def logs(draw):
    """Conversations that grow turn by turn, mixed, some of their requests with tools."""
    requests = []
    for messages, tools in draw(st.lists(request, min_size=1, max_size=4)):
        requests += [(messages[:end], tools) for end in range(1, len(messages) + 1)]
    return draw(st.permutations(requests))


def outcome(template, messages, tools):
    try:
        return template.render(messages, tools, time=0)
    except RowError as error:
        return str(error)


def assert_same(template, requests):
    whole = [outcome(template, *request) for request in requests]
    with template.remembering():
        assert [outcome(template, *request) for request in requests] == whole


@pytest.mark.parametrize("name", PROVED)
@given(requests=logs())
def test_rendering_from_memory_equals_full_rendering(name, requests):
    template = ChatTemplate(PROVED[name], bos_token="<s>")
    assert template._renderer is not None
    assert_same(template, requests)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
@settings(max_examples=20, deadline=None)
@given(requests=logs())
def test_any_template_at_hand_gives_the_same(file, requests):
    assert_same(ChatTemplate(file.read_text(encoding="utf-8"), bos_token="<s>", eos_token="</s>"), requests)


@settings(max_examples=drawn(40), deadline=None)
@given(requests=logs())
def test_the_built_in_tokenizer_s_template_is_proved(requests):
    template = templates.load("deepseek-r1")
    assert template._renderer is not None
    assert_same(template, requests)


@pytest.mark.parametrize("name", ["deepseek-r1-think", "qwen3"])
def test_real_conversations_in_real_templates(shared, name):
    template, requests = templates.load(str(shared / "data/tokenizers" / name)), []
    for log in ("swe_agent", "tau_airline_gpt4o", "intercode"):
        with open(shared / f"data/chats/{log}.jsonl", encoding="utf-8") as lines:
            for _, line in zip(range(6), lines, strict=False):
                messages = json.loads(line)["messages"]
                requests += [(messages[:end], None) for end in range(1, min(len(messages), 30), 3)]
    assert_same(template, requests)


REFUSED = {
    "looks at the last": "{% for m in messages %}{{ m.content }}{% if loop.last %}.{% endif %}{% endfor %}",
    "looks ahead": "{% for m in messages %}{{ loop.nextitem is defined }}{% endfor %}",
    "hands the loop on": "{% for m in messages %}{% set l = loop %}{{ l.length }}{% endfor %}",
    "counts messages": "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "breaks off": "{% for m in messages %}{% if m.content == 'a' %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "filters": "{% for m in messages if m.content %}{{ m.content }}{% endfor %}",
    "has an else": "{% for m in messages %}{{ m.content }}{% else %}none{% endfor %}",
    "tells the time": "{{ strftime_now('%Y') }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "draws lots": "{% for m in messages %}{{ ['a', 'b'] | random }}{% endfor %}",
    "names our names": "{% set kvtrace_mark = 1 %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "captures the loop": "{% set x %}{% for m in messages %}{{ m.content }}{% endfor %}{% endset %}{{ x }}",
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_template_that_is_not_a_state_machine_is_rendered_in_full(why):
    assert ChatTemplate(REFUSED[why])._renderer is None


GIVEN_UP = {
    "a list in the state": "{% set x = [1] %}{% for m in messages %}{{ x[0] }}{{ m.content }}{% endfor %}",
    "a macro": "{% macro f(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ f(m) }}{% endfor %}",
    "one namespace, two names": "{% set a = namespace(n=0) %}{% set b = a %}{% for m in messages %}"
    "{% set a.n = a.n + 1 %}{{ b.n }}{% endfor %}",
    "a namespace as a whole": "{% set a = namespace(n=0) %}{% for m in messages %}"
    "{% set a.n = a.n + 1 %}{{ a }}{% endfor %}",
}


@pytest.mark.parametrize("why", GIVEN_UP)
def test_values_that_are_no_state_are_met_by_giving_up(why):
    template = ChatTemplate(GIVEN_UP[why])
    messages = [{"role": "user", "content": word} for word in "abc"]
    assert template._renderer is not None and template._renderer.render({"messages": messages}) is None
    assert_same(template, [(messages[:end], None) for end in (1, 2, 3)])


def test_errors_are_the_same_when_rendering_from_memory():
    source = (
        "{% for m in messages %}\n{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}{% endfor %}"
    )
    good, bad = [{"role": "user", "content": "a"}], [{"role": "user", "content": "no"}]
    requests = [good, good + bad, good, bad, good + good]
    assert_same(ChatTemplate(source), [(messages, None) for messages in requests])


def test_text_is_forgotten_afterwards():
    template = ChatTemplate(PLAIN)
    with template.remembering():
        template.render([{"role": "user", "content": "secret"}])
        assert any(loop.states for loop in template._renderer._loops)
    assert template._memory is None and not template._renderer._starts
    assert not any(loop.states for loop in template._renderer._loops)


def test_where_little_comes_again_memory_is_given_up():
    template = ChatTemplate(STATEFUL)
    assert_same(template, [([{"role": "system", "content": str(n)}], None) for n in range(100)])
    with template.remembering():
        for n in range(100):
            template.render([{"role": "system", "content": str(n)}])
        assert template._renderer._given_up


def test_a_prompt_that_comes_out_differently_stops_the_run(monkeypatch):
    template = ChatTemplate(PLAIN)
    with template.remembering():
        template.render([{"role": "user", "content": "a"}])
        monkeypatch.setattr(templates, "CHECK_INTERVAL", 1)
        monkeypatch.setattr(template._memory, "render", lambda given: "else")
        with pytest.raises(KvtraceError, match="differs from the full rendering"):
            template.render([{"role": "user", "content": "a"}])
