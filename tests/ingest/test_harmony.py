"""Requests to gpt-oss have the prompts that vLLM writes in Harmony: vectors of vLLM's own renderer.

`tests/clients/test_harmony.py` writes the vectors, and compares the token ids of many more requests.
"""

import json
from pathlib import Path

import pytest

from kvtrace.text.chat_requests import CUT, render
from kvtrace.text.harmony import tools_section
from kvtrace.text.templates import ChatTemplate
from tests.clients import tiny_tokenizers
from tests.clients.prompt_rows import answer

CASES = json.loads((Path(__file__).parent.parent / "vectors/harmony.json").read_text())["cases"]
TEMPLATE = "{% for message in messages %}<|start|>{{ message.role }}<|channel|>final{{ message.content }}{% endfor %}"
START = 256  # of the tiny tokenizer, which the Responses API asks for
USER = {"role": "user", "content": "Any boats?"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tokenizer with a template in Harmony."""
    path = Path(tiny_tokenizers.write("texts", tmp_path_factory.mktemp("tokenizers")))
    settings = json.loads((path / "tokenizer_config.json").read_text())
    (path / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    return str(path)


def rendered(content, fields=None, engine="vllm", **options):
    messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
    return render(ChatTemplate(TEMPLATE, **options), messages, None, fields or {}, engine=engine, time=0)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_prompt_is_vllm_s_own(number, folder):
    case = CASES[number]
    prompt = answer({**case, "tokenizer": folder}, "vllm")
    assert prompt["text"] == case["text"], prompt
    ids = prompt["ids"][prompt["ids"][0] == START :]  # gpt-oss's own tokenizer has no start token
    assert tiny_tokenizers.decoded(ids) == case["text"]  # the cuts lose nothing


def test_sglang_and_the_log_s_own_form_are_rendered_by_the_template():
    for engine in ("sglang", "raw"):
        assert rendered([USER], engine=engine).texts == ["<|start|>user<|channel|>finalAny boats?"]


def test_control_tokens_of_users_are_tokenised_as_text():
    prompt = rendered("a <|end|> b <|no")
    assert prompt.texts[0].endswith("<|message|>a <|")
    assert prompt.texts[1:] == ["end|> b <|no<|end|><|start|>assistant"]
    assert prompt.media == [CUT]


def test_each_part_of_a_content_is_tokenised_by_itself():
    prompt = rendered([{"role": "user", "content": [{"type": "text", "text": text} for text in ("bo", "at")]}])
    assert prompt.texts[0].endswith("<|message|>bo")
    assert prompt.texts[1:] == ["at<|end|><|start|>assistant"]


def test_a_medium_stands_where_its_part_does():
    image = {"type": "image_url", "image_url": {"url": "data:,1"}}
    prompt = rendered([{"role": "user", "content": [image, {"type": "text", "text": "What?"}]}])
    assert [medium.part for medium in prompt.media] == [image]
    assert prompt.texts[1] == "What?<|end|><|start|>assistant"


def test_what_harmony_does_not_write_is_counted():
    fields = {"chat_template_kwargs": {"reasoning_effort": "low"}, "documents": [{}], "reasoning_effort": "max"}
    prompt = rendered([USER], fields)
    assert prompt.not_rendered == {"chat_template_kwargs", "documents", "reasoning_effort"}
    assert "Reasoning: medium" in prompt.texts[0]
    assert not rendered([USER], {"reasoning_effort": "low"}).not_rendered


def test_a_generation_prompt_of_the_user_s_own_replaces_harmony_s():
    assert rendered([USER], generation_prompt="<go>").texts[0].endswith("Any boats?<|end|><go>")


def test_the_date_is_that_of_the_request():
    texts = [render(ChatTemplate(TEMPLATE), [USER], None, {}, time=day * 86400).texts[0] for day in (0, 1)]
    assert texts[0].replace("1970-01-01", "1970-01-02") == texts[1]


def test_a_tool_whose_schema_is_odd_is_written():
    tools = [{"name": "f", "parameters": {"type": "object", "properties": {"a": True, "b": {"oneOf": 1}}}}]
    assert "type f = (_: {\na?: any,\nb?: any,\n}) => any;" in tools_section(tools)
