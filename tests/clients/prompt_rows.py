"""What kvtrace makes of the cases of prompt_cases.py: rows of a log, read and rendered as all its commands do."""

import json
from functools import lru_cache
from types import SimpleNamespace

from kvtrace.ingest.encoding_options import EncodingOptions
from kvtrace.ingest.hashing import prompt_tokens
from kvtrace.ingest.keys import Key
from kvtrace.ingest.linting.prompts import PromptReader
from kvtrace.ingest.logs import open_reader
from kvtrace.ingest.preparation import recipe_of
from kvtrace.privacy.profiles import PROFILES

READERS = {"chat": "openai", "completions": "openai", "responses": "responses", "messages": "anthropic"}
ANSWERS = {
    "chat": {"choices": [{"message": {"role": "assistant", "content": "ok"}}]},
    "completions": {"choices": [{"text": "ok"}]},
    "responses": {"object": "response", "output_text": "ok"},
    "messages": {"content": [{"type": "text", "text": "ok"}]},
}


@lru_cache(maxsize=2)
def _loaded(tokenizer, engine):
    return PromptReader(_recipe(open_reader("openai", [], time_unit="s"), tokenizer, engine))


def _recipe(reader, tokenizer, engine):
    options = EncodingOptions(tokenizer=tokenizer, block_size=16, render_as=engine, max_errors=-1)
    return recipe_of(reader, options, PROFILES["exact"], Key.random())


def answer(case, engine):
    """The token ids of the case's prompts, and the fields that are not in them; or the error of the row."""
    row = {"timestamp": case.get("time", 0), "request": case["request"], "response": ANSWERS[case["api"]]}
    line = json.dumps(row).encode()
    reader = open_reader(READERS[case["api"]], [line], time_unit="s")
    encoder = PromptReader(_recipe(reader, case["tokenizer"], engine), like=_loaded(case["tokenizer"], engine))
    batch, records = encoder.encoded(SimpleNamespace(read=lambda: line, path="log", start=0))
    if batch.rejects:
        return {"error": str(batch.rejects[0].error)}
    tokens, offsets = prompt_tokens(records, encoder.tokenizer).tokens
    prompts = [tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(len(records))]
    if not prompts:
        return {"error": "no request"}
    line = {"ids": prompts[0], "text": records[0].text, "not_rendered": sorted(records[0].not_rendered)}
    return line | ({"prompts": prompts} if len(prompts) > 1 else {})
