"""Which public models have which tokenizer: the family of a model by its name, and the tokenizers to look for.

A service names its models as it likes: `Qwen/Qwen3-8B`, `openai/gpt-4o-2024-08-06`, `azure/gpt-4o`. The last part of
the name decides. Only the names of families are shown: a model's own name is a value of the log.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from typing import NamedTuple

from . import encodings, tokenizer_files


class Family(NamedTuple):
    """Models that share a tokenizer."""

    name: str
    pattern: str  # of the last part of a model's name, in small letters
    tokenizers: tuple[str, ...] = ()  # names for --tokenizer, the first one that is here is used
    is_exact: bool = True  # False: the chat template is not public, and ours an approximation


def _hub(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}/{name}" for name in names)


# the first pattern that matches decides
FAMILIES = (
    Family("gpt-oss", r"gpt-oss-.+", _hub("openai", "gpt-oss-20b", "gpt-oss-120b")),
    Family("OpenAI's o200k_base", r"(chatgpt-4o|gpt-4o|gpt-4\.[15]|gpt-5|o1|o3|o4|codex-mini)([-.:].*)?",
           ("o200k_base",), False),
    Family("OpenAI's cl100k_base", r"(gpt-4|gpt-3\.5|gpt-35)(-.*)?", ("cl100k_base",), False),
    Family("DeepSeek-R1 distilled", r"deepseek-r1.*distill.*"),
    Family("DeepSeek-R1", r"deepseek-r1(-zero|-0120|-0528)?", ("deepseek-r1",)),
    Family("DeepSeek-V3", r"deepseek-(v3|v3-0324|chat)", _hub("deepseek-ai", "DeepSeek-V3", "DeepSeek-V3-0324")),
    Family("DeepSeek-V3.1", r"deepseek-v3\.[12].*", _hub("deepseek-ai", "DeepSeek-V3.1")),
    Family("DeepSeek", r"deepseek.*"),
    Family("Qwen3", r"(qwen3|qwq)([-.].*)?", _hub("Qwen", "Qwen3-8B", "Qwen3-32B", "Qwen3-235B-A22B")),
    Family("Qwen2.5", r"qwen2\.5-.*", _hub("Qwen", "Qwen2.5-7B-Instruct", "Qwen2.5-72B-Instruct")),
    Family("Qwen", r"qwen.*"),
    Family("Llama 3", r"(meta-)?llama-?3.*", _hub("meta-llama", "Llama-3.1-8B-Instruct", "Llama-3.1-70B-Instruct",
                                                   "Llama-3.3-70B-Instruct")),
    Family("Llama 4", r"llama-?4.*"),
    Family("Mistral", r"(mistral|mixtral|ministral|codestral|devstral|magistral|pixtral)([-.].*)?",
           _hub("mistralai", "Mistral-7B-Instruct-v0.3")),
    Family("Gemma", r"gemma-?\d.*"),
    Family("Kimi", r"kimi.*", _hub("moonshotai", "Kimi-K2-Instruct")),
    Family("GLM", r"glm-?\d.*", _hub("zai-org", "GLM-4.5")),
    Family("MiniMax", r"minimax.*"),
    Family("Claude", r"claude-.*"),
    Family("Gemini", r"gemini-.*"),
    Family("Grok", r"grok-.*"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def family_of(model: str | None) -> Family | None:
    """The family of a model; None if the table has no such model.

    >>> family_of("azure/gpt-4o-2024-08-06").name, family_of("Qwen/Qwen3-8B").name, family_of("our-model")
    ("OpenAI's o200k_base", 'Qwen3', None)
    """
    name = "" if model is None else base_name(model)
    return next((family for family in FAMILIES if re.fullmatch(family.pattern, name)), None)


def base_name(model: str) -> str:
    """The last part of a model's name or path, in small letters; fine-tuned ones have their base model's.

    >>> base_name("deepseek-ai/DeepSeek-R1"), base_name("ft:gpt-4o-mini-2024-07-18:acme::x1"), base_name("/models/Q/")
    ('deepseek-r1', 'gpt-4o-mini-2024-07-18', 'q')
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    return last.split(":")[1] if last.startswith("ft:") else last


def local_tokenizer(model: str) -> str | None:
    """The name of a model's tokenizer for --tokenizer, if it can be used without a download; else None.

    >>> local_tokenizer("deepseek-ai/DeepSeek-R1")
    'deepseek-r1'
    """
    family = family_of(model)
    for name in (model, *(family.tokenizers if family else ())):
        if name in tokenizer_files.BUILTIN or (name in encodings.ENCODINGS and encodings.is_here(name)):
            return name
        if tokenizer_files.in_hub_cache(name):
            return f"{tokenizer_files.CACHED}{name}"
    return None


def is_of(tokenizer: str, model: str) -> bool:
    """Whether a tokenizer, by its name or the name of its folder, is known to be that of a model.

    >>> is_of("/models/Qwen3-8B", "Qwen/Qwen3-8B"), is_of("deepseek-r1", "qwen3-8b")
    (True, False)
    """
    family = family_of(model)
    if family is not None and not family.is_exact:
        return False
    if tokenizer in tokenizer_files.BUILTIN and family is not None and tokenizer in family.tokenizers:
        return True
    folder = tokenizer.removeprefix(tokenizer_files.CACHED).removesuffix(f"{os.sep}{tokenizer_files.TOKENIZER}")
    return base_name(folder) == base_name(model)
