"""A chat template renders what the engine rendered, gets messages in the form it takes, and fails without content."""

import json
import pickle
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from kvtrace._base.errors import InputError, KvtraceError, RowError, UsageError
from kvtrace.text import templates
from kvtrace.text.templates import ChatTemplate

DATA = Path(__file__).parents[1] / "data" / "tokenizers"
TINY = str(DATA / "tiny")
ASK = {"role": "user", "content": "Which boat?"}
NOON = 1_700_000_000  # 14 November 2023, 22:13:20 UTC


def template(name, **named):
    return ChatTemplate((DATA / "templates" / f"{name}.jinja").read_text(encoding="utf-8"), name=name, **named)


def written(source, messages=(ASK,), **named):
    return ChatTemplate(source).render(list(messages), **named)


def call(arguments, content=""):
    function = {"name": "ring", "arguments": arguments}
    calls = [{"id": "1", "type": "function", "function": function}]
    return {"role": "assistant", "content": content, "tool_calls": calls}


def parts(*texts):
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def error_of(rendering, *args, **named):
    with pytest.raises(KvtraceError) as caught:
        rendering(*args, **named)
    assert "\n" not in str(caught.value) and "secret" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    return caught.value


# -- the environment -----------------------------------------------------------------------------------------------


def test_a_conversation_is_rendered_with_its_control_tokens_and_asks_for_an_answer():
    rendered = templates.load(TINY).render([{"role": "system", "content": "Be brief."}, ASK])
    assert rendered == "<|bos|><|system|>Be brief.<|end|><|user|>Which boat?<|end|><|assistant|>"


def test_blocks_are_trimmed_and_lines_before_them():
    source = "  {% if true %}\n   a\n  {% endif %}\n\t{# c #}\nb  \n  {%+ if true %}x{% endif %}\n\n"
    assert written(source) == "   a\nb  \n  x"


def test_loops_can_be_broken_and_continued():
    source = "{% for n in [0, 1, 2] %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% break %}{% endfor %}"
    assert written(source) == "0"
    assert written(source.replace("{% break %}", "")) == "02"


def test_json_is_not_escaped_and_keeps_its_order():
    tools = [{"z": "<ü> & '", "a": [1.5, None, True]}]
    assert written("{{ tools | tojson }}", tools=tools) == json.dumps(tools, ensure_ascii=False)
    assert written("{{ tools | tojson(indent=2) }}", tools=tools) == json.dumps(tools, ensure_ascii=False, indent=2)
    assert written("{{ tools | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}", tools=tools) == (
        '[{"a":[1.5,null,true],"z":"<\\u00fc> & \'"}]'
    )


def test_template_variables_are_defined_as_in_transformers():
    source = "{{ documents is none }} {{ tools is none }} {{ bos_token is defined }} {{ strftime_now is defined }}"
    assert written(source) == "True True False True"
    assert ChatTemplate("{{ eos_token }}", bos_token=None, eos_token="</s>").render([ASK]) == "</s>"


def test_variables_go_to_the_template_and_before_special_tokens():
    thinking = ChatTemplate("{{ bos_token }}{{ enable_thinking is defined and not enable_thinking }}", bos_token="<s>")
    assert thinking.render([ASK]) == "<s>False"
    assert thinking.render([ASK], enable_thinking=False, bos_token="<b>") == "<b>True"


def test_the_generation_tag_is_its_body_with_a_scope_of_its_own():
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}[{{ x }}]{% endgeneration %}{{ x }}"
    assert written(source) == "[2]1"


def test_the_sandbox_is_shut():
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ cycler.__init__.__globals__ }}"):
        error = error_of(written, source)
        assert "SecurityError" in str(error)


# -- time ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "time",
    [NOON, NOON + 0.25, datetime(2023, 11, 14, 22, 13), datetime(2023, 11, 15, 3, tzinfo=timezone(timedelta(hours=5)))],
)
def test_the_date_is_that_of_the_request_in_utc(time):
    assert template("dated").render([ASK], time=time) == "Today is 14 Nov 2023.Which boat?"


def test_a_template_that_prints_the_date_needs_a_request_with_a_time():
    assert "has no time" in str(error_of(template("dated").render, [ASK]))


def test_a_time_beyond_all_calendars_is_a_bad_row():
    assert "OverflowError" in str(error_of(template("dated").render, [ASK], time=1e30))


def test_the_same_request_renders_the_same_on_any_day():
    later = datetime.fromtimestamp(NOON, UTC)
    assert template("dated").render([ASK], time=later) == template("dated").render([ASK], time=NOON)


# -- generation prompt ---------------------------------------------------------------------------------------------


def test_a_generation_prompt_replaces_the_templates_own():
    assert template("strings").render([ASK]) == "<|user|>Which boat?<|assistant|>"
    assert template("strings", generation_prompt=r"<|go|>\n").render([ASK]) == "<|user|>Which boat?<|go|>\n"
    assert template("strings", generation_prompt="").render([ASK]) == "<|user|>Which boat?"


def test_a_generation_prompt_is_appended_where_the_template_appends_none_at_all():
    assert template("strict", generation_prompt="<go>").render([ASK]).endswith("<|end|><go>")


def test_a_generation_prompt_adds_nothing_after_a_tool_message_if_the_template_does_not():
    #  strings.jinja appends after a user's message, but not after a tool's; objects.jinja after both
    answered = [ASK, call("{}"), {"role": "tool", "content": "Ding.", "tool_call_id": "1"}]
    assert template("strings", generation_prompt="<go>").render(answered).endswith("<|tool|>Ding.")
    assert template("objects", generation_prompt="<go>").render(answered).endswith("<|tool|>Ding.<|end|><go>")


# -- what a template wants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ['{"times": 2}', {"times": 2}])
def test_tool_call_arguments_come_in_the_form_that_the_template_takes(given):
    objects, strings = template("objects"), template("strings")
    assert "<call ring times=2>" in objects.render([ASK, call(given)])
    assert '<call ring {"times": 2}>' in strings.render([ASK, call(given)])
    assert (objects.arguments, strings.arguments) == ("objects", "strings")


def test_parts_are_joined_for_a_template_of_text_and_left_to_one_that_takes_them():
    image = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}, "b"]}
    assert "<|user|>a\nb<|end|>" in template("objects").render([image])
    assert template("parts").render([image]) == "<|user|>a<|image|>b"
    assert template("lists").render([parts("a", "b")]) == "<|user|>ab"


def test_text_is_a_part_for_a_template_of_lists_alone():
    assert template("lists").render([ASK]) == "<|user|>Which boat?"


def test_a_null_content_stays_null_for_a_template_that_checks_for_it():
    assert "<|assistant|>(null)<call" in template("strings").render([ASK, call("{}", content=None)])


def test_a_null_content_is_empty_text_for_a_template_that_would_print_none_or_raise():
    assert "<|assistant|><call ring>" in template("objects").render([ASK, call("{}", content=None)])
    missing = {"role": "assistant"}
    assert "<|assistant|><|end|>" in template("strict").render([ASK, missing])


def test_the_answers_of_the_probes_can_be_read():
    assert template("objects").wants == (
        "tool-call arguments as objects; lists of content parts joined to text; null contents as empty text"
    )
    assert template("strings").wants == (
        "tool-call arguments as strings; lists of content parts joined to text; null contents kept: assistant"
    )
    assert "by the template: system, user, assistant" in template("parts").wants


def test_probing_a_template_that_takes_nothing_ends():
    nothing = ChatTemplate("{{ raise_exception('Never.') }}")
    assert nothing.describe()["wants"].startswith("tool-call arguments as objects; ")
    assert str(error_of(nothing.render, [ASK])) == "the chat template raised TemplateError at its line 1: Never."


def test_unknown_roles_are_rendered():
    assert "<|ghost|>a\nb" in template("objects").render([{"role": "ghost", "content": parts("a", "b")["content"]}])


# -- sources -------------------------------------------------------------------------------------------------------


def test_chat_template_jinja_precedes_the_settings_and_a_file_precedes_both(tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((DATA / "tiny" / name).read_bytes())
    (tmp_path / "mine.jinja").write_text("mine")
    assert templates.load(str(tmp_path)).name == "tokenizer_config.json"
    (tmp_path / "chat_template.jinja").write_text("beside {{ bos_token }}")
    assert templates.load(str(tmp_path)).render([ASK]) == "beside <|bos|>"
    assert templates.load(str(tmp_path), chat_template=tmp_path / "mine.jinja").render([ASK]) == "mine"
    assert templates.load(None, chat_template=str(tmp_path / "mine.jinja")).name == "mine.jinja"


def test_a_tokenizer_without_a_template_has_none(tmp_path):
    (tmp_path / "tokenizer.json").write_bytes((DATA / "tiny" / "tokenizer.json").read_bytes())
    assert templates.load(str(tmp_path)) is None
    assert templates.load(None) is None


def test_a_missing_template_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=re.escape(str(tmp_path / "none.jinja"))):
        templates.load(TINY, chat_template=tmp_path / "none.jinja")


@pytest.mark.parametrize("listed", [True, False])
def test_of_named_templates_tool_use_is_for_requests_with_tools(listed):
    named = {"default": "D", "tool_use": "T{{ tools | length }}", "rag": "R"}
    chosen = ChatTemplate([{"name": key, "template": text} for key, text in named.items()] if listed else named)
    assert [chosen.render([ASK]), chosen.render([ASK], tools=[{}]), chosen.render([ASK], tools=[])] == ["D", "T1", "T0"]
    assert chosen.sha256 != ChatTemplate("D").sha256


def test_named_templates_without_a_default_are_a_usage_error():
    for source in ({"rag": "R"}, [], [{"name": "rag"}], {"default": 3}):
        assert "chat templates is named default" in str(error_of(ChatTemplate, source))


@pytest.mark.parametrize("source, words", [("a\n{% if %}", ":2: the"), ("{{ 'a' | nope }}", "nope"), ("{% for", "")])
def test_an_invalid_template_is_a_usage_error(source, words):
    error = error_of(written, source)
    assert isinstance(error, InputError) and "not valid Jinja" in str(error) and words in str(error)


def test_a_pickled_template_renders_the_same():
    prompted = templates.load(TINY, generation_prompt=r"\n<go>")
    copy = pickle.loads(pickle.dumps(prompted))
    assert copy.render([ASK]) == prompted.render([ASK])
    assert copy.describe() == prompted.describe()


# -- templates that raise ------------------------------------------------------------------------------------------


def test_the_templates_own_words_are_shown():
    late = [ASK, {"role": "system", "content": "secret"}]
    assert str(error_of(template("strict").render, late)) == (
        "the chat template raised TemplateError at its line 3: The system message must come first."
    )


def test_words_that_hold_content_are_not_shown():
    error = error_of(template("strict").render, [{"role": "secret", "content": "secret"}])
    assert isinstance(error, RowError)
    assert str(error) == "the chat template raised TemplateError at its line 5."
    assert error.reason == str(error)  # the same for all such rows, so that they can be counted


@pytest.mark.parametrize(
    "source, words",
    [
        ("\n\n{{ messages[0].content + 1 }}", "TypeError at its line 3."),
        ("{{ messages[0].secret.secret }}", "UndefinedError at its line 1."),
        ("{% macro m(x) %}\n{{ 1 // x }}{% endmacro %}\n{{ m(0) }}", "ZeroDivisionError at its line 2."),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
        ("{{ range(10 ** 9) }}", "OverflowError"),
        ("{{ raise_exception(messages[0].content) }}{{ raise_exception('Fine.') }}", "TemplateError at its line 1."),
        ("{{ messages | tojson(indent=messages) }}", "TypeError"),
    ],
)
def test_whatever_a_template_raises_is_a_bad_row_with_a_line(source, words):
    assert words in str(error_of(written, source, [{"role": "user", "content": "secret"}]))


@pytest.mark.parametrize("messages", [[], None, "secret", {"role": "user"}])
def test_no_messages_are_a_bad_row(messages):
    assert error_of(ChatTemplate("x").render, messages).field == "messages"


# -- real conversations --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek-r1-think", "qwen3"])
def test_real_conversations_with_tool_calls_and_null_contents_render(name, shared):
    chat = templates.load(str(shared / "data" / "tokenizers" / name))
    with (shared / "data" / "chats" / "tau_airline_gpt4o.jsonl").open(encoding="utf-8") as lines:
        for _, line in zip(range(10), lines, strict=False):
            messages = json.loads(line)["messages"]
            rendered = chat.render(messages)
            for message in messages:
                if message["role"] == "user":
                    assert message["content"] in rendered
    assert chat.arguments == ("objects" if name == "qwen3" else "strings")
