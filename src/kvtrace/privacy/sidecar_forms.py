"""The values that a published sidecar may state: the names of each section, and the forms of their values.

Nothing else is written or passes an audit. `trace/meta.py` types the sections and names their makers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from itertools import product
from typing import Any

from .._base.row_counts import UNSTATED, RowCounts
from .._base.row_counts import rounded as two_digits_of
from .._base.units import UNITS as DURATION_UNITS
from ..formats.format_table import NAMES
from ..formats.sidecar import FORMAT_VERSION
from ..formats.targets import TARGETS
from ..trace.columns import BLOCK_RULES, MEASURED, TAILS
from ..trace.invariants import MAX_LENGTH
from ..trace.meta import PREFIXES_UNKNOWN
from .allowed_values import (
    ENGINES,
    RENDERED_FIELDS,
    ListOf,
    Section,
    digest,
    faults,
    fit,
    flag,
    number,
    one_of,
    pattern,
    rounded,
    whole,
)
from .contributors import WARNINGS
from .profiles import COUNTED, PROFILES

MANY = 10**12  # requests, tokens, blocks
SMALL = 10**8  # a first id, a time step: smaller than a telephone number
SEED = 10**6
TOKENS = 1 << 24  # in a block

# names of readers, units and tokenizers that a sidecar may state; others are left out, and the digest remains
READERS = (
    "litellm-hashes", "litellm", "langfuse", "langsmith", "helicone", "portkey", "otel", "sglang", "vllm",
    "kv-events", "tokens", "dynamo", "ucm", "azure", "burstgpt", "aiperf", "conversations", "responses",
    "anthropic", "block-hash", "openai", "lengths",
)  # fmt: skip
LIVE_SOURCES = (  # of capture/, which a test compares
    "follow", "otlp", "litellm", "proxy-openai", "proxy-responses", "proxy-anthropic", "kv-events",
)  # fmt: skip
FIGURES = (  # that a synthetic trace is checked for: of synthesis/fidelity.py, which a test compares
    "input_length", "output_length", "length_correlation", "block_hit_rate", "token_hit_rate", "request_hit_rate",
    "lru_2", "lru_10", "lru_50", "dispersion_60s",
)  # fmt: skip
UNITS = ("seconds", "milliseconds", "microseconds", "nanoseconds")
TIMES = (*UNITS, *(f"epoch {unit}" for unit in UNITS), *(f"{unit} from the start" for unit in UNITS),
         "ISO 8601, UTC where no zone is given")  # fmt: skip
ORIGINS = ("detected", "stated")
TOKENIZERS = (
    "o200k_base", "cl100k_base",
    "deepseek-r1", "deepseek-ai/DeepSeek-R1", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.1",
    "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen3-8B", "Qwen/Qwen3-32B",
    "Qwen/Qwen3-235B-A22B", "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-70B-Instruct",
    "meta-llama/Llama-3.3-70B-Instruct", "mistralai/Mistral-7B-Instruct-v0.3", "openai/gpt-oss-20b",
    "openai/gpt-oss-120b", "moonshotai/Kimi-K2-Instruct", "zai-org/GLM-4.5",
)  # fmt: skip
CHOICES = (
    "asked for", "fastokens is not installed", "fastokens was used before this process was forked",
    "it agrees with tokenizers on the start-up sample",
    "fastokens does not accept this tokenizer, or disagrees on the start-up sample",
)  # fmt: skip
# the public models and GPUs that service times may be estimated for: the tables of serving/, which a test compares
MODELS = (
    "cohere-command-a-03-2025", "cohere-command-a-plus-05-2026", "cohere-command-r7b-12-2024",
    "cohere-command-r-plus", "cohere-command-r-v01", "deepseek-r1", "deepseek-v3", "deepseek-v3.2",
    "deepseek-v4-flash", "deepseek-v4-pro", "deepseek-v4.1-flash", "dots3-note-prev", "gemma-3-4b", "gemma-3-12b",
    "gemma-3-27b", "gemma-3n-e4b", "gemma-4-26b-a4b", "gemma-4-31b", "gemma-4-e2b", "gemma-4-e4b", "glm-5", "glm-5.1",
    "glm-5.2", "glm-5.3", "glm-5.3-flash", "gpt-oss-20b", "gpt-oss-120b", "inkling", "inkling-small", "jamba-v0.1",
    "kimi-k2.5", "kimi-k2.6", "kimi-k2.7-code", "kimi-k3", "llama-3-70b", "llama-3.1-8b", "llama-3.1-70b",
    "llama-3.3-70b", "llama-4-maverick", "llama-4-scout", "mimo-v2.5", "mimo-v2.5-pro", "minimax-m2", "minimax-m2.1",
    "minimax-m2.5", "minimax-m2.7", "minimax-m3", "mistral-7b-v0.1", "mixtral-8x7b", "nemotron-3-nano-30b-a3b",
    "qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b", "qwen2.5-72b", "qwen2.5-coder-32b", "qwen3-0.6b", "qwen3-1.7b",
    "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-30b-a3b", "qwen3-32b", "qwen3-235b-a22b", "qwen3-next-80b-a3b",
    "qwen3.5-0.8b", "qwen3.5-2b", "qwen3.5-4b", "qwen3.5-9b", "qwen3.5-27b", "qwen3.5-35b-a3b", "qwen3.5-122b-a10b",
    "qwen3.5-397b-a17b", "qwen3.6-27b", "qwen3.6-35b-a3b", "qwen3.8-2.4t-a95b", "qwen3.8-27b",
)  # fmt: skip
GPUS = (
    "h100", "h200", "a100", "a100-40gb", "h100-pcie", "h100-nvl", "a100-pcie", "b200", "l40s", "rtx-4090",
    "rtx-pro-6000", "rtx-pro-6000-server", "rtx-pro-6000-max-q", "mi300x", "tpu-v5e",
)  # fmt: skip
ROLE = "(?:system|user|assistant|tool)"
WANTS = (
    r"tool-call arguments as (?:objects|strings); "
    rf"lists of content parts (?:by the template: {ROLE}(?:, {ROLE}){{0,3}}|joined to text); "
    rf"null contents (?:kept: {ROLE}(?:, {ROLE}){{0,3}}|as empty text)"
)
STEP = rf"\d{{1,5}}(?:\.\d{{1,3}})?(?:/s)?@\d{{1,5}}(?:\.\d{{1,3}})? ?(?:{'|'.join(DURATION_UNITS)})"


def _with_origin(*words: str) -> list[str]:
    return [f"{word} ({origin})" for word, origin in product(words, ORIGINS)]


def _figure(value: Any) -> bool:
    """A figure of a trace, or None where the trace does not show it."""
    return value is None or (type(value) in (int, float) and abs(value) < MANY)


_HITS = Section({
    "requests": whole(MANY), "hit_blocks": whole(MANY), "blocks": whole(MANY), "hit_tokens": whole(MANY),
    "tokens": whole(MANY), "request_hits": number(MANY), "requests_with_blocks": whole(MANY),
    "block_hit_rate": number(1), "token_hit_rate": number(1), "request_hit_rate": number(1),
})  # fmt: skip
_FIGURES = Section({"working_set": whole(MANY), **dict.fromkeys(FIGURES, _figure)})
_FIDELITY = Section({
    "requests": whole(MANY), "seeds": whole(SMALL), "original": _FIGURES, "sample": _FIGURES,
    "kept": Section(dict.fromkeys(FIGURES, one_of(True, False, None))),
})  # fmt: skip
_SETTINGS = Section({
    "tail": one_of(*TAILS), "k": whole(10**6), "k_counts": one_of(*COUNTED), "time_step_ms": whole(SMALL),
    "round_input": whole(TOKENS, "exact", "block"), "round_output": whole(TOKENS, "exact", "pow2"),
    "drop_sessions": flag, "keep_measured": ListOf(one_of(*MEASURED), limit=len(MEASURED)),
})  # fmt: skip


def two_digits(value: Any) -> bool:
    """A count as a sidecar states it: rounded up to two digits."""
    return type(value) is int and 0 <= value <= MANY and value == two_digits_of(value)


def share(value: Any) -> bool:
    """A share as a sidecar states it, above -1: to three decimals."""
    return type(value) is float and -1 <= value <= 1000 and value == round(value, 3)


META = Section({
    "log": Section({
        "reader": one_of(*_with_origin(*READERS)),
        "time": one_of("none found in the first rows", *_with_origin(*TIMES)),
        "arrivals": Section({
            "model": one_of("poisson"), "conversations_per_s": rounded(SMALL), "mean_think_ms": rounded(SMALL),
            "seed": whole(SEED),
        }),
        "measured": ListOf(one_of(*MEASURED), limit=len(MEASURED)),
        "request_sample": rounded(1),
    }),
    "tokenizer": Section({
        "name": one_of(*TOKENIZERS), "sha256": digest,
        "backend": pattern(r"(?:fastokens|tokenizers) \d{1,2}(?:\.\d{1,2}){1,2}"), "why": one_of(*CHOICES),
    }, nullable=True),
    "chat_template": Section({
        "name": one_of("chat_template.jinja", "tokenizer_config.json", "openai_chat.jinja"), "sha256": digest,
        "generation_prompt": one_of(None), "wants": pattern(WANTS),
    }, nullable=True),
    "hash": one_of("SipHash-2-4-128, keyed, chained"),
    "rendering": Section({
        "engine": one_of(*ENGINES), "version": whole(99),
        "not_rendered": Section(dict.fromkeys(sorted(RENDERED_FIELDS), two_digits)), "unsized_media": two_digits,
    }),
    "session_mode": one_of("cumulative"),
    "prefixes": one_of(PREFIXES_UNKNOWN),
    "profile": one_of(*PROFILES),
    "release": Section({
        "settings": _SETTINGS, "k_counted": one_of(None, *WARNINGS), "sampled": flag, "tenants_isolated": flag,
    }),
    "service_times": Section({
        "measured": flag, "estimated": flag, "costs": one_of("roofline", "calibrated"), "model": one_of(*MODELS),
        "gpu": one_of(*GPUS), "gpus": whole(1024),
    }),
    "counts": Section({field.name: two_digits for field in fields(RowCounts) if field.name not in UNSTATED}),
    "usage": Section({"requests": two_digits, "difference": share}),
    "figures": Section({
        "requests": whole(MANY), "tokens": whole(MANY), "output_tokens": whole(MANY),
        "known_output_tokens": whole(MANY), "unknown_outputs": whole(MANY), "blocks": whole(MANY),
        "distinct_blocks": whole(MANY), "sessions": whole(MANY), "duration_ms": number(MANY), "hits": _HITS,
        "hits_with_outputs": _HITS,
    }),
    "converted": Section({
        "chained": flag, "folded_from": whole(TOKENS), "speedup_ratio": rounded(SMALL),
        "assumed_output": whole(MAX_LENGTH), "part": flag,
    }),
    "synthetic": Section({
        "method": one_of("attach", "tree", "sessions", "mixture"), "requests": whole(MANY), "sessions": whole(MANY),
        "seed": whole(SEED),
        "scale": one_of("rate", "duration"), "speedup_ratio": rounded(SMALL), "prefix_len_multiplier": rounded(SMALL),
        "prompt_len_multiplier": rounded(SMALL), "osl_multiplier": rounded(SMALL),
        "prefix_root_multiplier": whole(SMALL), "min_isl": whole(SMALL), "max_isl": whole(SMALL),
        "min_osl": whole(SMALL), "max_osl": whole(SMALL), "max_rejections": whole(SMALL),
        "fidelity": _FIDELITY,
        "step_rates": pattern(rf"{STEP}(?:, ?{STEP}){{0,9}}"),
        "rates": Section({
            "times_s": ListOf(number(MANY), limit=SMALL), "rates": ListOf(number(MANY), limit=SMALL),
            "period_s": number(MANY), "relative": flag,
        }),
        "models": ListOf(Section({
            "method": one_of("attach", "tree"), "share": number(1), "fitted_requests": whole(MANY),
            "requests": whole(MANY), "fidelity": _FIDELITY,
        }), limit=SMALL),
        "tenants": whole(SMALL), "tenant_skew": number(SMALL), "tenant_cv": number(SMALL),
        "tenant_models": ListOf(whole(SMALL), limit=SMALL),
    }),
    "recording": Section({
        "sources": ListOf(one_of(*LIVE_SOURCES), limit=len(LIVE_SOURCES)), "lost": two_digits, "dropped": two_digits,
    }),
    "client": one_of(*TARGETS),
})  # fmt: skip

OWN = Section({
    "kvtrace": Section({
        "version": pattern(r"\d{1,2}\.\d{1,2}(?:\.\d{1,2})?(?:(?:a|b|rc|\.dev|\.post)\d{1,2})?"),
        "format_version": one_of(FORMAT_VERSION),
    }),
    "block_size": whole(TOKENS), "tail": one_of(*BLOCK_RULES), "requests": whole(MANY), "blocks": whole(MANY),
    "output_blocks": whole(MANY), "distinct_blocks": whole(MANY), "first_id": whole(SMALL), "format": one_of(*NAMES),
})  # fmt: skip
PARTS = ListOf(
    Section({"file": pattern(r"part-\d{5,7}\.parquet"), "requests": whole(MANY), "blocks": whole(MANY)}), limit=10**6
)
SIDECAR = Section({**OWN.forms, **META.forms, "parts": PARTS})


def count_private(meta: Mapping[str, Any]) -> int:
    """The number of names and values that `public` leaves out.

    >>> count_private({"note": "call me", "log": {"reader": "ours"}, "hash": "SipHash-2-4-128, keyed, chained"})
    2
    """
    return sum(1 for _ in faults(meta, META))


def public(meta: Mapping[str, Any]) -> dict[str, Any]:
    """The sections of a trace that a published sidecar may have; all else is left out.

    >>> public({"note": "call me", "tokenizer": {"name": "acme/secret", "sha256": "ab" * 32}})["tokenizer"].keys()
    dict_keys(['sha256'])
    """
    return fit(meta, META)
