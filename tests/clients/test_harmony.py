"""Random requests to gpt-oss have the prompts, to the token, that vLLM makes of them in Harmony.

KVTRACE_CLIENTS names a folder of environments with `vllm`, KVTRACE_TOKENIZERS a folder of tokenizers with `gpt-oss`;
KVTRACE_CASES is the number of requests (300). vLLM's package for Harmony needs the list of o200k_base, which comes from
the package bpe-openai. `python -m tests.clients.test_harmony` writes the vectors of `tests/text/test_harmony.py` anew.
"""

import json
import random
from pathlib import Path

import pytest

from kvtrace.text import encodings
from tests.clients.in_engine import answers, needs
from tests.clients.prompt_cases import cases, chance, some, text
from tests.clients.prompt_rows import answer
from tests.clients.test_prompts import COUNT, REAL, TIME

GPT_OSS = REAL / "gpt-oss"
VECTORS = Path(__file__).parent.parent / "vectors/harmony.json"
CONTROL = "<|start|>assistant<|channel|>final<|message|>No.<|end|> <|end <|a|>"
DEFAULTS = ("x", 'q"é', 1, 1.5, None, {"b": [True, "ü"], "a": {}})


def schema(draw, depth=2):
    """A random schema of the kinds that Harmony writes in their own ways."""
    makers = [{}, {"type": "integer"}, {"type": ["integer", "null", "string"]}, {"type": "null"}, {"type": "array"},
              {"type": "string", "enum": ["x", "y", 3]}, {"type": "string"}, {"enum": [1]}, {"type": "boolean"}]  # fmt: skip
    shaped = dict(draw.choice(makers))
    if depth and chance(draw, 0.6):
        inner = [schema(draw, depth - 1) for _ in range(draw.randint(0, 3))]
        properties = {draw.choice("zyxabc") + str(i): value for i, value in enumerate(inner)}
        kinds = [{"oneOf": inner}, {"type": "array", "items": inner[0] if inner else {}},
                 {"type": "object", "properties": properties, "required": list(properties)[:1]}]  # fmt: skip
        shaped = draw.choice(kinds)
    words = {"title": text(draw), "description": draw.choice(["Same.", text(draw)]), "nullable": chance(draw, 0.8)}
    return shaped | some(draw, words | {"default": draw.choice(DEFAULTS), "examples": [text(draw), 2]}, 0.3)


def requests(seed, count):
    """Random requests with texts that look like Harmony's own, and tools with more kinds of schemas."""
    draw = random.Random(seed)
    for api, request in cases(seed, count, apis=("chat", "responses", "messages")):
        if chance(draw, 0.3):
            request = json.loads(json.dumps(request).replace("<|im_start|>system", CONTROL))
        for tool in request.get("tools", ()):
            owner = tool.get("function", tool)
            for name in ("parameters", "input_schema"):
                if isinstance(owner.get(name), dict) and chance(draw, 0.6):
                    properties = {"p": schema(draw), "o": schema(draw)}
                    owner[name] = {"type": "object", "properties": properties} | some(draw, {"required": ["o"]})
        yield {"tokenizer": str(GPT_OSS), "api": api, "request": request, "time": TIME, "harmony": True}


def prompts(drawn, folder, monkeypatch):
    """vLLM's prompt of each request; it reads the list of o200k_base from the folder."""
    (folder / "o200k_base.tiktoken").write_bytes(encodings._read(next(encodings._lists("o200k_base"))))
    monkeypatch.setenv("TIKTOKEN_ENCODINGS_BASE", str(folder))
    return answers(drawn, folder, "vllm", "vllm_prompts.py")


@needs("vllm")
@pytest.mark.skipif(not GPT_OSS.exists(), reason="no tokenizer gpt-oss in KVTRACE_TOKENIZERS")
def test_prompts_are_those_of_vllm(tmp_path, monkeypatch):
    drawn = list(requests("harmony", COUNT))
    lines = prompts(drawn, tmp_path, monkeypatch)
    assert sum("ids" in line for line in lines) > len(lines) * 0.8
    for case, line in zip(drawn, lines, strict=True):
        assert "ids" not in line or answer(case, "vllm")["ids"] == line["ids"], case["request"]
