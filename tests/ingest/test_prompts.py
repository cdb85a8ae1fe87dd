"""What of a request is in its prompt: each field that an engine renders changes the tokens, and the rest is counted."""

import json
from pathlib import Path

import pytest

import kvtrace
from kvtrace._base.errors import UsageError
from kvtrace.ingest.logs.contents import SHAPING
from kvtrace.privacy.allowed_values import RENDERED_FIELDS
from kvtrace.text import chat_requests, tokenizers
from kvtrace.trace.trace_figures import figures

HERE = Path(__file__).resolve().parents[1]
TINY, TEMPLATES = HERE / "data/tokenizers/tiny", HERE / "data/tokenizers/templates"
USER = {"role": "user", "content": "Which boats float in the harbour of the old town at night?"}
SYSTEM = {"role": "system", "content": "You answer questions about boats, harbours and the sea. " * 8}

TURNS = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
PROMPT = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
THINKS_LAST = TURNS + PROMPT + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
THINKS_FIRST = "{% if enable_thinking %}<think>{% endif %}" + TURNS + PROMPT
EFFORT = "<|system|>Effort: {{ reasoning_effort or 'high' }}<|end|>" + TURNS + PROMPT
DOCUMENTS = "{% for d in documents or [] %}<|system|>{{ d.title }}: {{ d.text }}<|end|>{% endfor %}" + TURNS + PROMPT
PARTS = (
    "{% for m in messages %}<|{{ m.role }}|>{% for part in m.content %}"
    "{% if part.type == 'image' %}<|image|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|end|>{% endfor %}" + PROMPT
)


def anonymized(folder, requests, *, template=None, **options):
    """The exact trace of these requests, a second apart, with the tiny tokenizer."""
    rows = [{"timestamp": second * 1000, "output_length": 1, **request} for second, request in enumerate(requests)]
    log = folder / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    if template is not None:
        options["chat_template"] = folder / "template.jinja"
        options["chat_template"].write_text(template)
    return kvtrace.ingest.anonymize(log, **{"tokenizer": str(TINY), "profile": "exact", "block_size": 4, **options})


def prompts(trace):
    return [trace.prompt(row).tolist() for row in range(len(trace))]


def shared(trace, one=0, other=1):
    """Leading blocks that two prompts share."""
    pairs = zip(trace.prompt(one).tolist(), trace.prompt(other).tolist(), strict=False)
    return next((count for count, (a, b) in enumerate(pairs) if a != b), min(trace.prompt_blocks[[one, other]]))


def not_rendered(trace):
    return set(trace.meta["rendering"].get("not_rendered", ()))


def tool(name, **function):
    return {"type": "function", "function": {"name": name, **function}}


# -- tools -----------------------------------------------------------------------------------------------------------


def with_tools(request, count=20):
    tools = [
        tool(f"boat_{request}_{number}", description=f"Finds boat {number} of list {request}.", parameters={})
        for number in range(count)
    ]
    return {"messages": [SYSTEM, USER], "tools": tools}


def test_tools_are_in_the_prompt_even_if_the_template_does_not_write_them(tmp_path):
    requests = [with_tools(request) for request in range(6)]
    trace = anonymized(tmp_path, requests, template=TURNS + PROMPT, block_size=16)
    alone = anonymized(tmp_path, [{"messages": [SYSTEM, USER]}] * 2, template=TURNS + PROMPT, block_size=16)
    assert not_rendered(trace) == {"tools"} and trace.meta["rendering"]["not_rendered"]["tools"] == 10  # rounded
    system_blocks = shared(trace)
    assert 0 < system_blocks <= alone.prompt_blocks[0]  # the system prompt is shared, the tools are not
    assert figures(trace)["hits"]["hit_blocks"] == 5 * system_blocks
    assert figures(trace)["hits"]["block_hit_rate"] < 0.2


def test_the_default_tokenizer_counts_tools(tmp_path):
    requests = [with_tools(request) for request in range(6)]
    trace = anonymized(tmp_path, requests, tokenizer="deepseek-r1", block_size=16)
    assert not_rendered(trace) == {"tools"} and trace.input_length.min() > 400
    assert figures(trace)["hits"]["block_hit_rate"] < 0.2


def test_a_template_that_writes_tools_gets_them(tmp_path):
    trace = anonymized(tmp_path, [with_tools(0)] * 2, chat_template=TEMPLATES / "objects.jinja")
    assert not_rendered(trace) == set() and shared(trace) == trace.prompt_blocks[0]


def test_a_tool_is_rendered_in_the_declared_order_with_nulls_and_without_unknown_keys(tmp_path):
    parameters = {"type": "object", "properties": {"b": {}, "a": {}}}
    one = {"type": "function", "function": {"name": "find", "parameters": parameters}, "cache_control": {}}
    two = {"function": {"parameters": parameters, "name": "find", "strictly": 1}, "type": "function"}
    full = tool("find", description=None, parameters=parameters)
    requests = [{"messages": [USER], "tools": [each]} for each in (one, two, full)]
    trace = anonymized(tmp_path, requests, chat_template=TEMPLATES / "objects.jinja")
    assert len(set(trace.input_length.tolist())) == 1 and shared(trace) == shared(trace, 0, 2) == trace.prompt_blocks[0]
    raw = anonymized(tmp_path, requests, chat_template=TEMPLATES / "objects.jinja", render_as="raw")
    assert len({*map(tuple, prompts(raw))}) == 3  # a client's own order and keys


def test_sglang_renders_no_tools_if_none_may_be_called_and_vllm_renders_them(tmp_path):
    requests = [{"messages": [USER], "tools": [tool("find")], "tool_choice": choice} for choice in ("auto", "none")]
    options = {"chat_template": TEMPLATES / "objects.jinja"}
    vllm = anonymized(tmp_path, requests, **options)
    sglang = anonymized(tmp_path, requests, **options, render_as="sglang")
    assert vllm.input_length[0] == vllm.input_length[1] and sglang.input_length[0] > sglang.input_length[1]


# -- arguments of the template ---------------------------------------------------------------------------------------


def test_template_arguments_change_the_end_of_a_prompt(tmp_path):
    off = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}
    trace = anonymized(tmp_path, [off, {"messages": [USER]}], template=THINKS_LAST)
    assert trace.input_length[0] == trace.input_length[1] + 2  # <think></think>
    assert shared(trace) == trace.input_length[1] // 4 and not_rendered(trace) == set()


def test_template_arguments_change_the_start_of_a_prompt(tmp_path):
    on = {"messages": [USER], "chat_template_kwargs": {"enable_thinking": True}}
    assert shared(anonymized(tmp_path, [on, {"messages": [USER]}], template=THINKS_FIRST)) == 0


def test_a_reasoning_effort_switches_thinking_and_its_field_wins(tmp_path):
    requests = [{"messages": [USER], **more} for more in (
        {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, {"reasoning_effort": "high"},
    )]  # fmt: skip
    first, second, third, fourth = prompts(anonymized(tmp_path, requests, template=THINKS_LAST))
    assert first == second != third == fourth
    efforts = [
        {"messages": [USER], "reasoning_effort": "low"},
        {"messages": [USER], "chat_template_kwargs": {"reasoning_effort": "high"}, "reasoning_effort": "low"},
    ]
    assert shared(trace := anonymized(tmp_path, efforts, template=EFFORT)) == trace.prompt_blocks[0]


def test_arguments_of_a_clients_extra_body_count(tmp_path):
    requests = [{"request": {"messages": [USER], "extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}},
                {"request": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}}}]  # fmt: skip
    trace = anonymized(tmp_path, requests, template=THINKS_LAST)
    assert shared(trace) == trace.prompt_blocks[0]


def test_documents_are_rendered_or_counted(tmp_path):
    requests = [{"messages": [USER], "documents": [{"title": name, "text": "About boats. " * 3}]} for name in "AB"]
    trace = anonymized(tmp_path, requests, template=DOCUMENTS, block_size=8)
    assert shared(trace) == 0 and not_rendered(trace) == set()
    without = anonymized(tmp_path, requests, template=TURNS + PROMPT, block_size=8)
    assert shared(without) == without.prompt_blocks[0] < trace.prompt_blocks[0]
    assert not_rendered(without) == {"documents"}


def test_what_the_template_does_not_read_is_named(tmp_path):
    request = {
        "messages": [USER], "reasoning_effort": "low", "chat_template_kwargs": {"mood": "good"},
        "response_format": {"type": "json_schema", "json_schema": {}}, "truncate_prompt_tokens": 5,
        "documents": "not a list",
    }  # fmt: skip
    expected = {"reasoning_effort", "chat_template_kwargs", "response_format", "truncate_prompt_tokens", "documents"}
    assert not_rendered(anonymized(tmp_path, [request], template=TURNS)) == expected


def test_a_prefilled_answer_ends_the_prompt(tmp_path):
    answer = {"role": "assistant", "content": "The boats that float are "}
    turns = [{"messages": [USER, answer], "continue_final_message": True, "add_generation_prompt": False},
             {"messages": [USER, answer]}, {"messages": [USER]}]  # fmt: skip
    trace = anonymized(tmp_path, turns, template=TURNS + PROMPT, block_size=1)
    prefilled, closed, asked = trace.input_length
    assert closed == prefilled + 2  # <|end|><|assistant|>
    words = len(tokenizers.load(str(TINY)).encode(answer["content"]))
    assert shared(trace, 0, 2) == asked == prefilled - words  # ... <|assistant|>, and the answer
    assert shared(trace, 0, 1) == prefilled


def test_a_prompt_without_a_generation_prompt(tmp_path):
    requests = [{"messages": [USER], "add_generation_prompt": add} for add in (True, False)]
    lengths = anonymized(tmp_path, requests, template=TURNS + PROMPT).input_length
    assert lengths[0] == lengths[1] + 1


def test_each_field_that_may_be_counted_is_on_the_list_of_the_sidecar():
    counted = {*SHAPING, *chat_requests.UNRENDERED, "tools", "media"}
    assert counted == RENDERED_FIELDS


def test_media_beside_token_ids_are_counted_and_change_all_blocks(tmp_path):
    rows = [{"prompt_token_ids": list(range(20)), "token_ids": [1], "messages": chat(image(url))["messages"]}
            for url in ("A", "B")]  # fmt: skip
    trace = anonymized(tmp_path, rows)
    assert not_rendered(trace) == {"media"} and shared(trace) == 0


# -- the start token -------------------------------------------------------------------------------------------------


@pytest.fixture
def starting(tmp_path):
    """A copy of the tiny tokenizer that puts <|bos|> before each text."""
    folder = tmp_path / "starting"
    folder.mkdir()
    values = json.loads((TINY / "tokenizer.json").read_text())
    bos = next(token["id"] for token in values["added_tokens"] if token["content"] == "<|bos|>")
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [bos], "tokens": ["<|bos|>"]}},
    }
    (folder / "tokenizer.json").write_text(json.dumps(values))
    (folder / "tokenizer_config.json").write_text((TINY / "tokenizer_config.json").read_text())
    return str(folder)


def test_a_completion_starts_with_the_start_token(tmp_path, starting):
    text = "Boats float."
    requests = [{"prompt": text}, {"prompt": text, "add_special_tokens": False}, {"prompt": text}]
    with_start, without, _ = anonymized(tmp_path, requests, tokenizer=starting).input_length
    assert with_start == without + 1
    trace = anonymized(tmp_path, requests, tokenizer=starting, block_size=1)
    assert shared(trace) == 0 and shared(trace, 0, 2) == with_start


def test_a_chat_has_the_start_token_of_its_template_alone(tmp_path, starting):
    chat = {"messages": [USER]}
    plain, asked = anonymized(tmp_path, [chat, {**chat, "add_special_tokens": True}], tokenizer=starting,
                              template=TURNS).input_length  # fmt: skip
    assert asked == plain + 1


def test_token_ids_stay_as_they_are(tmp_path, starting):
    assert anonymized(tmp_path, [{"prompt": [5, 6, 7]}], tokenizer=starting).input_length.tolist() == [3]


# -- media -----------------------------------------------------------------------------------------------------------


def image(url, **more):
    return {"type": "image_url", "image_url": {"url": url}, **more}


def chat(*parts):
    contents = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in parts]
    return {"messages": [SYSTEM, {"role": "user", "content": contents}]}


@pytest.mark.parametrize("template", [PARTS, TURNS + PROMPT])
def test_an_image_changes_the_blocks_from_its_place_on(tmp_path, template):
    before, after = "What is in this picture of a boat? " * 4, "Tell me more about it. " * 4
    requests = [chat(before, image(url), after) for url in ("A", "B", "A")]
    trace = anonymized(tmp_path, [chat(before), *requests], template=template)
    _, first, second, third = prompts(trace)
    assert first == third and trace.meta["rendering"]["unsized_media"] == 10  # three, rounded
    same = shared(trace, 1, 2)
    assert 0 < same < len(first) and set(first[same:]).isdisjoint(second)
    assert same == shared(trace, 0, 1) or template != PARTS
    assert same >= (trace.input_length[0] - 4) // 4  # all text before the image is shared


def test_an_image_of_known_size_has_as_many_tokens_as_its_model_gives_it(tmp_path):
    sized = chat("Look: ", {**image("A"), "width": 280, "height": 280}, " Well?")
    requests = [{**sized, "model": "Qwen/Qwen2.5-VL-7B-Instruct"}, {**chat("Look: ", " Well?")}]
    template = PARTS.replace("<|image|>", "<|image_pad|>")
    one, none = anonymized(tmp_path, requests, template=template, block_size=1).input_length
    assert one == none + 100  # 280 / 28 = 10 patches of 28 pixels a side


def test_two_images_in_one_block_and_a_text_that_looks_like_one(tmp_path):
    pairs = [("A", "B"), ("B", "A"), ("A", "B")]
    requests = [chat(image(one), image(two), "Compare <|image|> them.") for one, two in pairs]
    first, second, third = prompts(anonymized(tmp_path, requests, template=PARTS))
    assert first == third != second


def test_an_image_in_the_last_block_changes_the_blocks_of_the_output(tmp_path):
    requests = [chat(image(url)) | {"output_length": 6, "output": "Boats float in the harbour."} for url in "AB"]
    for request in requests:
        del request["output_length"]
    rows = [{"timestamp": second, **request} for second, request in enumerate(requests)]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "template.jinja").write_text(PARTS)
    trace = kvtrace.ingest.anonymize(
        log,
        tokenizer=str(TINY),
        chat_template=tmp_path / "template.jinja",
        profile="exact",
        block_size=64,
        outputs=True,
    )
    first, second = (trace.output_ids[start:stop].tolist() for start, stop in
                     zip(trace.output_offsets, trace.output_offsets[1:], strict=False))  # fmt: skip
    assert first and set(first).isdisjoint(second)


def test_lint_counts_the_tokens_and_the_hits_of_anonymize(tmp_path):
    before, after = "What is in this picture of a boat? " * 4, "Tell me more about it. " * 4
    requests = [chat(before), *(chat(before, image(url), after) for url in ("A", "B", "A")), with_tools(1, 3)]
    trace = anonymized(tmp_path, requests, template=PARTS)
    report = kvtrace.ingest.lint(tmp_path / "log.jsonl", tokenizer=str(TINY), chat_template=tmp_path / "template.jinja",
                          block_size=4)  # fmt: skip
    hits = figures(trace)["hits"]
    assert (report.prompt_tokens, report.hit_tokens) == (trace.input_length.sum(), hits["hit_tokens"])
    assert report.settings["rendering"] == trace.meta["rendering"]


# -- a template of the request's own ---------------------------------------------------------------------------------


def test_a_requests_own_template_is_off_unless_asked_for(tmp_path):
    own = {"messages": [USER], "chat_template": "<|system|>{{ messages[0].content }}"}
    off, on = (anonymized(tmp_path, [own, {"messages": [USER]}], template=TURNS, request_templates=asked)
               for asked in (False, True))  # fmt: skip
    assert not_rendered(off) == {"chat_template"} and shared(off) == off.prompt_blocks[0]
    assert not_rendered(on) == set() and shared(on) == 0


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(t='a') %}{% for i in range(60) %}{% set ns.t = ns.t ~ ns.t %}{% endfor %}{{ ns.t }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{% if",
        "{{ raise_exception('no') }}",
    ],
)
def test_a_template_that_takes_too_much_is_counted_and_not_used(tmp_path, source):
    requests = [{"messages": [USER], "chat_template": source}, {"messages": [USER]}]
    trace = anonymized(tmp_path, requests, template=TURNS, request_templates=True)
    assert not_rendered(trace) == {"chat_template"} and shared(trace) == trace.prompt_blocks[0]


def test_an_unknown_engine_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'ollama' is not a value of --render-as"):
        anonymized(tmp_path, [{"messages": [USER]}], render_as="ollama")
