"""A log's requests have the prompts that vLLM and SGLang make of them: vectors of the engines' own renderers.

`tests/clients/test_prompts.py` writes the vectors and compares many more requests, also over real templates.
"""

import json
from pathlib import Path

import pytest

from tests.clients import tiny_tokenizers
from tests.clients.prompt_rows import answer

VECTORS = Path(__file__).parent.parent / "vectors/prompts.json"
CASES = json.loads(VECTORS.read_text())["cases"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Template -> the folder of its tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")
    return {name: tiny_tokenizers.write(name, folder) for name in tiny_tokenizers.TEMPLATES}


@pytest.mark.parametrize("number", range(len(CASES)))
def test_the_prompt_is_the_engine_s_own(number, folders):
    case = CASES[number]
    rendered = answer({**case, "tokenizer": folders[case["template"]]}, case["engine"])
    assert tiny_tokenizers.decoded(rendered["ids"]) == case["text"], rendered


def test_the_vectors_cover_each_engine_api_and_template():
    covered = {(case["engine"], case["api"]) for case in CASES}
    apis = {"chat", "completions", "responses", "messages"}
    assert covered == {(engine, api) for engine in ("vllm", "sglang") for api in apis}
    assert {case["template"] for case in CASES} == tiny_tokenizers.TEMPLATES.keys()
