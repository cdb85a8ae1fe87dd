"""The fields of a request that can change its prompt, beside messages, tools and media.

SHAPING lists them for all APIs, with the type that the API gives each. A value of another type has no meaning for the
engine, and is counted as not rendered. `text/chat_requests.py` decides what the template gets of them.
"""

from __future__ import annotations

from typing import Any

from .measured import Places

SHAPING: dict[str, type | tuple[type, ...]] = {
    "chat_template_kwargs": dict,  # vLLM, SGLang: variables of the template
    "reasoning_effort": (str, int, float),  # OpenAI chat, vLLM, SGLang
    "reasoning": dict,  # OpenAI Responses, OpenRouter, SGLang: {"effort": ...}
    "documents": list,  # vLLM: of retrieval templates
    "add_generation_prompt": bool,  # vLLM
    "continue_final_message": bool,  # vLLM, SGLang
    "add_special_tokens": bool,  # vLLM
    "chat_template": str,  # vLLM: a template of the request's own
    "tool_choice": (str, dict),
    "response_format": dict,  # a JSON schema, which some services write into the prompt
    "text": dict,  # OpenAI Responses: {"format": ...}, likewise
    "mm_processor_kwargs": dict,  # vLLM: other sizes of images
    "image_grid_thw": list,  # what a Qwen-VL processor made of the images, in their order
    "image_grid": list,
    "truncate_prompt_tokens": int,  # vLLM
    "suffix": str,  # completions that fill in the middle
    "thinking": dict,  # Anthropic
    "output_config": dict,  # Anthropic: {"effort": ...}
    "context_management": (dict, list),  # Anthropic, Responses: the server edits earlier turns
    "mcp_servers": list,  # Anthropic: the server adds tools
}
INNER = ("extra_body", "chat_template_kwargs")  # clients put fields of engines into the first
OF_ANSWERS = ("reasoning", "text", "suffix", "thinking", "output_config")  # in a row, these may be of the answer
CONTENT_FREE_FORMATS = ("text", None)  # response formats that no prompt shows


def shaping_of(places: Places) -> dict[str, Any] | None:
    """The fields of a request that can change its prompt, and `invalid`: names of those with another type; else None.

    >>> shaping_of([("", {"reasoning_effort": "low", "documents": "a"})])
    {'reasoning_effort': 'low', 'invalid': ['documents']}
    >>> shaping_of([("", {"model": "m"})]) is None
    True
    """
    shaping: dict[str, Any] = {}
    for _, place in places:
        inner = place.get("extra_body")
        for source in (place, inner) if type(inner) is dict else (place,):
            for name in SHAPING.keys() & source.keys():
                if source[name] is not None:
                    shaping.setdefault(name, source[name])
    return _checked(shaping) if shaping else None


def _checked(shaping):
    """The fields that have their API's type, in the order of SHAPING, those of the Responses API under chat's names."""
    checked: dict[str, Any] = {}
    invalid = []
    for name, kind in SHAPING.items():
        if name not in shaping:
            continue
        value = shaping[name]
        if _has_type(value, kind) and (name != "documents" or all(type(one) is dict for one in value)):
            checked[name] = value
        elif name not in OF_ANSWERS:
            invalid.append(name)
    text = checked.pop("text", None)
    if text is not None and type(text.get("format")) is dict:
        checked.setdefault("response_format", text["format"])
    if "response_format" in checked and checked["response_format"].get("type") in CONTENT_FREE_FORMATS:
        del checked["response_format"]
    effort = checked.get("reasoning", {}).get("effort")
    if type(effort) is str:
        checked.setdefault("reasoning_effort", effort)
    return (checked | ({"invalid": invalid} if invalid else {})) or None


def _has_type(value, kind):
    kinds = kind if isinstance(kind, tuple) else (kind,)
    return type(value) in kinds
