"""Random requests, most of them valid, that exercise whatever of a request reaches the prompt: a list per seed.

`cases(seed, count)` gives (api, request) pairs; every request has a model's name, as Responses and Anthropic need one.
`common=True` leaves out what SGLang 0.5.23 refuses or does not know, so that both engines answer.
"""

import json
import random

TEXTS = (
    "Which boats sail to the island?", "Ja, gerne: 3 Boote.", "日本の船", "x", "", "  two  spaces \n\n and lines\n",
    "naïve café 🚤", "{\"json\": [1, 2.5, null]}", "<|im_start|>system", "</think> not a thought <think>", "12345678",
    "a{{ b }}c{% d %}", "e\u0301 ﬁ", "tab\there", "The quick brown fox. " * 6,
)  # fmt: skip
NAMES = ("find_boat", "weather", "sum2", "Écrire", "a-b")
SCHEMAS = (
    {"type": "object", "properties": {}},
    {"type": "object", "properties": {"place": {"type": "string", "description": "Où? 港"}}, "required": ["place"]},
    {
        "properties": {
            "z": {"type": "array", "items": {"type": "object", "properties": {"q": {"type": ["integer", "null"]}}}},
            "a": {"enum": ["x", "y", 3, None, True], "default": 1.5},
        },
        "type": "object",
        "additionalProperties": False,
        "$defs": {"n": {"anyOf": [{"type": "number"}, {"type": "string"}]}},
    },
)
ARGUMENTS = (
    "{}", '{"place": "Genf", "n": 1.0}', '{"b": [1, {"c": "é\\u00e9"}], "a": null}', '{"x": "<tag> & \\"q\\""}',
)  # fmt: skip
MODEL = "model"


def cases(seed, count, *, apis=("chat", "completions", "responses", "messages"), common=False):
    """Requests of a seed, as (api, request); the same for the same arguments."""
    draw = random.Random(seed)
    makers = {"chat": chat, "completions": completion, "responses": response, "messages": anthropic}
    weights = [{"chat": 6, "completions": 1, "responses": 2, "messages": 2}[api] for api in apis]
    for api in draw.choices(apis, weights, k=count):
        request = makers[api](draw, common) | {"model": MODEL}
        yield api, json.loads(json.dumps(request))  # no value is shared


def completion(draw, common):
    prompt = draw.choice([text(draw), text(draw), [text(draw) or "y"], [draw.randrange(200) for _ in range(5)]])
    request = {"prompt": prompt or "x"}
    if chance(draw, 0.6):
        request["add_special_tokens"] = True if common else chance(draw, 0.5)
    return request | some(draw, {"max_tokens": 3, "echo": False, "temperature": 0.5})


def chat(draw, common):
    tools = draw.random() < 0.4
    request = {"messages": conversation(draw, tools, common)}
    if tools:
        request["tools"] = [tool(draw) for _ in range(draw.randint(1, 3))]
        choices = ["auto", "required", None, {"type": "function", "function": {"name": name_of(request["tools"][0])}}]
        request |= some(draw, {"tool_choice": draw.choice(choices if common else [*choices, "none"])})
    request |= some(draw, {"reasoning_effort": draw.choice(["none", "low", "medium", "high"])}, 0.2)
    request |= some(draw, {"chat_template_kwargs": template_arguments(draw)}, 0.3)
    if not common:
        request |= some(draw, {"documents": [{"title": "T", "text": text(draw)}, {"text": "b", "title": "ü"}]}, 0.15)
        request |= some(draw, {"add_generation_prompt": chance(draw, 0.5)}, 0.2)
        request |= some(draw, {"add_special_tokens": chance(draw, 0.5)}, 0.1)
    if request["messages"][-1]["role"] == "assistant" and not request["messages"][-1].get("tool_calls"):
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    unseen = {"user": "u", "stop": ["\n"], "parallel_tool_calls": False, "response_format": {"type": "json_object"}}
    return request | some(draw, unseen)


def conversation(draw, tools, common):
    """Messages that open with an optional system or developer message and alternate, as most templates demand."""
    messages = []
    if chance(draw, 0.6):
        role = draw.choice(["system", "system", "developer"])
        messages.append({"role": role, "content": content(draw, media=False)})
    for turn in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": content(draw, media=False)} | some(draw, {"name": "ada"}, 0.1))
        if turn or chance(draw, 0.4):
            messages += answer(draw, tools, common)
    if messages[-1]["role"] == "assistant" and (common or chance(draw, 0.7)):
        messages.append({"role": "user", "content": text(draw)})
    return messages


def answer(draw, tools, common):
    """An assistant's message, with the results of the tools it calls and its answer to them."""
    message = {"role": "assistant", "content": content(draw, media=False)}
    message |= some(draw, {"reasoning_content": text(draw)} if common else {"reasoning": text(draw)}, 0.3)
    if not tools or chance(draw, 0.4):
        extra = {"refusal": None, "tool_calls": None} if common else {"refusal": None, "tool_calls": [], "audio": None}
        return [message | some(draw, extra)]
    calls = [
        {"id": f"call{number:05d}", "type": "function",
         "function": {"name": draw.choice(NAMES), "arguments": draw.choice(ARGUMENTS)}}
        for number in range(draw.randint(1, 2))
    ]  # fmt: skip
    if not common and chance(draw, 0.1):
        calls[0]["function"]["arguments"] = draw.choice(["", "{broken", "[1]"])
    message |= {"tool_calls": calls, "content": draw.choice([None, "", text(draw)])}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": content(draw, media=False)} for call in calls]
    for result in results:
        result |= some(draw, {"name": "find_boat"}, 0.2)
    return [message, *results, {"role": "assistant", "content": text(draw)}]


def content(draw, media=True):
    """A text, or a list of parts."""
    if chance(draw, 0.7):
        return text(draw)
    parts = [{"type": "text", "text": text(draw)} for _ in range(draw.randint(1, 3))]
    parts[0] |= some(draw, {"cache_control": {"type": "ephemeral"}}, 0.2)
    return parts


def tool(draw):
    """A tool with its keys in any order, some absent, some of no use to an engine."""
    function = {"name": draw.choice(NAMES), "description": text(draw), "parameters": draw.choice(SCHEMAS)}
    if chance(draw, 0.25):
        del function["description"]
    if chance(draw, 0.15):
        del function["parameters"]
    function |= some(draw, {"strict": chance(draw, 0.5)}, 0.2) | some(draw, {"x_note": "n"}, 0.15)
    whole = {"type": "function", "function": shuffled(draw, function)}
    return shuffled(draw, whole | some(draw, {"cache_control": {"type": "ephemeral"}}, 0.2))


def template_arguments(draw):
    """Arguments of chat templates: of Qwen3, DeepSeek, Granite, Llama and of none."""
    arguments = {
        "enable_thinking": chance(draw, 0.5), "thinking": chance(draw, 0.5), "date_string": "1 Jan 2026",
        "tools_in_user_message": False, "custom_instructions": "Be brief.", "of_no_template": [1, {"a": 2}],
        "builtin_tools": ["brave_search"], "reasoning_effort": "low", "preserve_thinking": True,
    }  # fmt: skip
    return {name: arguments[name] for name in draw.sample(sorted(arguments), draw.randint(1, 3))}


def response(draw, common):
    """A request of the Responses API."""
    request = {"input": (text(draw) or "x") if chance(draw, 0.3) else list(items(draw, common))}
    request |= some(draw, {"instructions": text(draw)}) | some(draw, {"reasoning": {"effort": "low"}}, 0.2)
    if chance(draw, 0.4):
        request["tools"] = [flat(tool(draw)) for _ in range(draw.randint(1, 2))]
    return request | some(draw, {"chat_template_kwargs": template_arguments(draw)}, 0.2)


def items(draw, common):
    """The input items of a Responses request, which ends in a user's message."""
    for number in range(draw.randint(0, 2)):
        yield message_item(draw, "user", "input_text")
        if not common and chance(draw, 0.3):
            thought = {"type": "reasoning_text", "text": text(draw)}
            yield {"type": "reasoning", "id": f"r{number}", "summary": [], "content": [thought]}
        if chance(draw, 0.4):
            call = {"call_id": f"call{number:05d}", "name": draw.choice(NAMES), "arguments": draw.choice(ARGUMENTS)}
            yield {"type": "function_call"} | call
            yield {"type": "function_call_output", "call_id": call["call_id"], "output": text(draw)}
        yield {"role": "assistant", "content": text(draw)}
    yield message_item(draw, "user", "input_text")


def message_item(draw, role, kind):
    parts = [{"type": kind, "text": text(draw)} for _ in range(draw.randint(1, 2))]
    return some(draw, {"type": "message"}) | {"role": role, "content": draw.choice([parts, text(draw)])}


def flat(tool):
    """A tool as the Responses API writes it: the function's fields beside its type; strict and parameters must be."""
    return {"type": "function", "parameters": {}, "strict": False} | tool["function"]


def anthropic(draw, common):
    """A request of Anthropic's Messages API."""
    blocks = [{"type": "text", "text": text(draw) or "x"} for _ in range(draw.randint(1, 2))]
    request = {"max_tokens": 4000, "messages": list(turns(draw))}
    request |= some(draw, {"system": draw.choice([text(draw), blocks])}, 0.6)
    if chance(draw, 0.4):
        request["tools"] = [
            {"name": draw.choice(NAMES), "input_schema": draw.choice(SCHEMAS)} | some(draw, {"description": text(draw)})
            for _ in range(draw.randint(1, 2))
        ]
        kinds = ["auto", "any"] if common else ["auto", "any", "none"]
        request |= some(draw, {"tool_choice": {"type": draw.choice(kinds)}}, 0.3)
    if not common:
        thinking = draw.choice([{"type": "disabled"}, {"type": "enabled", "budget_tokens": 2048}])
        request |= some(draw, {"thinking": thinking}, 0.3) | some(draw, {"output_config": {"effort": "low"}}, 0.1)
    return request | some(draw, {"metadata": {"user_id": "u"}}, 0.1)


def turns(draw):
    """Turns of an Anthropic conversation, which ends in the user's."""
    results = []
    for number in range(draw.randint(0, 2)):
        yield user_turn(draw, results)
        blocks = [{"type": "thinking", "thinking": text(draw), "signature": "s"}] if chance(draw, 0.3) else []
        blocks.append({"type": "text", "text": text(draw) or "y"})
        results = []
        if chance(draw, 0.4):
            call = {"type": "tool_use", "id": f"t{number}", "name": draw.choice(NAMES), "input": {"a": [1, "é"]}}
            blocks.append(call)
            output = draw.choice([text(draw), [{"type": "text", "text": text(draw)}, {"type": "text", "text": "2"}]])
            results = [{"type": "tool_result", "tool_use_id": f"t{number}", "content": output}]
        yield {"role": "assistant", "content": blocks}
    yield user_turn(draw, results)


def user_turn(draw, results):
    blocks = [*results, {"type": "text", "text": text(draw) or "z"}]
    return {"role": "user", "content": blocks if results or chance(draw, 0.3) else text(draw)}


def text(draw):
    return draw.choice(TEXTS)


def chance(draw, probability):
    return draw.random() < probability


def some(draw, fields, probability=0.5):
    """Each field with this probability."""
    return {name: value for name, value in fields.items() if draw.random() < probability}


def shuffled(draw, fields):
    return {name: fields[name] for name in draw.sample(list(fields), len(fields))}


def name_of(tool):
    return tool["function"]["name"]
