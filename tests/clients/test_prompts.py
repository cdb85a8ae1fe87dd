"""Random requests have the prompts, to the token, that vLLM and SGLang make of them with their own code.

KVTRACE_CLIENTS names a folder of environments (see test_load.py), `vllm` and `sglang` among them. KVTRACE_TOKENIZERS
names a folder of tokenizers with chat templates, which are compared beside our own tiny ones; KVTRACE_CASES is the
number of requests for each (300). `KVTRACE_CLIENTS=... python -m tests.clients.test_prompts` writes the vectors anew.
"""

import json
import os
from pathlib import Path

import pytest

from tests.clients import tiny_tokenizers
from tests.clients.in_engine import answers, needs
from tests.clients.prompt_cases import cases
from tests.clients.prompt_rows import answer

VECTORS = Path(__file__).parent.parent / "vectors/prompts.json"
ENGINES = ("vllm", "sglang")
REAL = Path(os.environ.get("KVTRACE_TOKENIZERS", "no-such-folder"))
COUNT = int(os.environ.get("KVTRACE_CASES", "300"))
TIME = 1_700_000_000
NAMES = [*tiny_tokenizers.TEMPLATES, *sorted(path.parent.name for path in REAL.glob("*/tokenizer_config.json"))]


def requests(tokenizer, engine, name, count=COUNT):
    """Random requests of a tokenizer, as cases of the engines' drivers."""
    return [
        {"tokenizer": tokenizer, "api": api, "request": request, "time": TIME}
        for api, request in cases(f"{engine} {name}", count, common=engine == "sglang")
    ]


def difference(case, engine, theirs):
    """What differs in the prompts of a request; None if they are equal, or the engine refuses the request."""
    if "error" in theirs:
        return None
    ours = answer(case, engine)
    if "tools" in ours.get("not_rendered", ()):
        return None  # the template writes no tools; they go into our prompt as JSON, and the summary says so
    if ours.get("ids") == theirs["ids"] and ours.get("prompts") == theirs.get("prompts"):
        return None
    return {"request": case["request"], "ours": ours.get("text", ours.get("error")), "theirs": theirs["text"]}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("engine", [pytest.param(engine, marks=needs(engine)) for engine in ENGINES])
def test_prompts_are_those_of_the_engine(engine, name, tmp_path):
    tokenizer = str(REAL / name) if name not in tiny_tokenizers.TEMPLATES else tiny_tokenizers.write(name, tmp_path)
    drawn = requests(tokenizer, engine, name)
    lines = answers(drawn, tmp_path, engine, f"{engine}_prompts.py")
    assert sum("ids" in line for line in lines) > len(lines) // 10  # most templates take most requests
    differences = [difference(case, engine, line) for case, line in zip(drawn, lines, strict=True)]
    assert [found for found in differences if found] == []


def write_vectors(folder):
    """A few requests of each tiny template, engine and API that are short and not refused."""
    folders = {name: tiny_tokenizers.write(name, folder) for name in tiny_tokenizers.TEMPLATES}
    chosen = []
    for engine in ENGINES:
        drawn = [(name, case) for name in folders for case in requests(folders[name], engine, name, 200)]
        lines = answers([case for _, case in drawn], folder, engine, f"{engine}_prompts.py")
        for name in folders:
            pairs = [(case, line) for (owner, case), line in zip(drawn, lines, strict=True) if owner == name]
            for api, count in (("chat", 3), ("completions", 1), ("responses", 1), ("messages", 1)):
                chosen += [
                    {"engine": engine, "template": name, **{key: case[key] for key in ("api", "request", "time")},
                     "text": tiny_tokenizers.decoded(line["ids"])}
                    for case, line in _telling([pair for pair in pairs if pair[0]["api"] == api], engine, count)
                ]  # fmt: skip
    rows = ",\n".join(json.dumps(case, ensure_ascii=False) for case in chosen)
    VECTORS.write_text(f'{{"vllm": "0.33.0", "sglang": "0.5.23", "cases": [\n{rows}\n]}}\n')


def _telling(pairs, engine, count):
    """Requests that together have the most fields and kinds of messages, of those that both sides answer alike."""
    kept = [
        (case, line) for case, line in pairs
        if "ids" in line and len(json.dumps(case["request"])) < 900 and difference(case, engine, line) is None
        and "tools" not in answer(case, engine)["not_rendered"]
    ]  # fmt: skip
    chosen, covered = [], set()
    for _ in range(min(count, len(kept))):
        chosen.append(max(kept, key=lambda pair: len(_features(pair[0]["request"]) - covered)))
        covered |= _features(chosen[-1][0]["request"])
    return chosen


def _features(request):
    """The fields of a request and of all that it holds, with short values."""
    if isinstance(request, dict):
        inner = [_features(value) | {(name, str(value)[:12])} for name, value in request.items()]
        return set(request) | set().union(*inner)
    return set().union(*map(_features, request)) if isinstance(request, list) else set()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as temporary:
        write_vectors(Path(temporary))
