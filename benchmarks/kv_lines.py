"""Room for KV beside public start-up lines: bytes of a token, and tokens, ours and the engine's.

python -m benchmarks.kv_lines [FILE]

FILE has a line a row (source, engine, version, model, gpu, tp, ..., available_kv_gib, tokens, blocks, note); without
it, facts/kv_lines.csv of ../shared (or KVTRACE_SHARED). A row with memory and tokens checks the bytes of a token, and
one that states its deployment the memory too. A row that says too little, or that is another kind of line, is left out
with the reason.
"""

from __future__ import annotations

import csv
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from kvtrace._base.errors import KvtraceError
from kvtrace.serving.deployment import Deployment, Drafter
from kvtrace.serving.hardware.gpus import GPUS
from kvtrace.serving.hardware.room import kv_room
from kvtrace.serving.models.config import model_name, read_config

SHARED = Path(os.environ.get("KVTRACE_SHARED", Path(__file__).parents[2] / "shared"))
GIB = 1 << 30
CARDS = {
    "h100-80gb": "h100", "a100-80gb": "a100", "a100-40gb": "a100-40gb", "rtx pro 6000": "rtx-pro-6000",
    "rtx pro 6000 max-q": "rtx-pro-6000-max-q", "h100 nvl": "h100-nvl",
}  # fmt: skip
DATED = {  # rows that state no version: from their sources, or by their dates
    "vllm-project/vllm#21348": "0.9.2", "vllm-project/vllm#10517": "0.6.4", "vllm-project/vllm#13061": "0.7.2",
    "vllm-project/vllm#5248": "0.4.3", "stored file id:43459134158": "0.6.6", "stored file id:53530895476": "0.19.0",
    "stored file id:67213347492": "0.21.0", "stored file id:69808241206": "0.25.0",
    "vllm-project/recipes Kimi-K2-Thinking": "0.11.2",
}  # fmt: skip
DRAFTED = {"stored file id:60398735488": 3, "noonghunna/club-3090#642": 3}  # tokens of a drafter that fit the line
FP8 = ("noonghunna/club-3090#642", "stored file id:62379291084")  # caches in FP8 by their bytes; the lines do not say
WEIGHTS = {"awq": "awq", "gptq": "gptq", "int4": "int4", "nvfp4": "nvfp4", "fp8": "fp8"}
SHARING = ("gemma-4",)  # models whose drafter shares the cache of the last layers
MODELS = (  # what a line's model starts with, in lower case -> the model whose layers it has
    ("meta-llama/llama-3.1-8b", "llama-3.1-8b"), ("llama-3.1-8b", "llama-3.1-8b"), ("qwen/qwen2.5-7b", "qwen2.5-7b"),
    ("qwen/qwen2-7b", "qwen2-7b"), ("qwen2.5-vl-7b", "qwen2.5-7b"), ("qwen/qwen2.5-1.5b", "qwen2.5-1.5b"),
    ("qwen/qwen2.5-0.5b", "qwen2.5-0.5b"), ("qwen2.5-32b", "qwen2.5-32b"), ("deepseek-ai/deepseek-r1-distill-qwen-14b",
    "qwen2.5-14b"), ("qwen/qwen3-14b", "qwen3-14b"), ("qwen3-14b", "qwen3-14b"), ("qwen/qwen3-0.6b", "qwen3-0.6b"),
    ("qwen/qwen3-4b", "qwen3-4b"), ("qwen3-30b-a3b", "qwen3-30b-a3b"), ("qwen/qwen3-30b-a3b", "qwen3-30b-a3b"),
    ("qwen3-235b", "qwen3-235b-a22b"), ("google/gemma-3-27b", "gemma-3-27b"), ("google/gemma-3-4b", "gemma-3-4b"),
    ("mistralai/mistral-small-3.2-24b", "mistral-small-24b"), ("deepseek-v3.2", "deepseek-v3.2"),
    ("deepseek-ai/deepseek-v3", "deepseek-v3"), ("deepseek-ai/deepseek-r1-0528", "deepseek-r1"),
    ("cyankiwi/gemma-4-31b", "gemma-4-31b"), ("redhatai/gemma-4-31b", "gemma-4-31b"), ("redhatai gemma-4-31b",
    "gemma-4-31b"), ("google/gemma-4-31b", "gemma-4-31b"), ("gemma4-26b-a4b", "gemma-4-26b-a4b"),
    ("moonshotai/kimi-k2-thinking", "kimi-k2"), ("kimi-k2.5", "kimi-k2.5"), ("xiaomimimo/mimo-v2-flash",
    "mimo-v2-flash"), ("qwen3.6-27b", "qwen3.6-27b"), ("qwen3.8-27b", "qwen3.8-27b"), ("unsloth/qwen3.8-27b",
    "qwen3.8-27b"), ("qwen3.6-35b-a3b", "qwen3.6-35b-a3b"), ("qwen3.5-122b-a10b", "qwen3.5-122b-a10b"),
    ("qwen 9b", "qwen3.5-9b"), ("glm-5.2", "glm-5.2"), ("glm-5.3-flash", "glm-5.3-flash"),
    ("mistralai/ministral-3-14b", "ministral-3-14b"), ("mixtral", "mixtral-8x7b"), ("gpt-oss-120b", "gpt-oss-120b"),
    ("deepseek-ai/deepseek-v4-flash", "deepseek-v4-flash"), ("deepseek-v4-flash", "deepseek-v4-flash"),
    ("35-layer, 1 kv head x256", "google/gemma-4-E2B-it"),
    ("deepseek v4 flash", "deepseek-v4-flash"), ("deepseek-coder-6.7b", "deepseek-coder-6.7b"),
)  # fmt: skip
REASONS = {  # where a source begins, and a part of its row -> why it is left out, or far off
    ("vllm-project/vllm#13061", ""): "the quoted memory is that of the other rank; the smaller one limits the tokens",
    ("vllm-project/vllm#21348", ""): "the quoted memory may be that of another rank",
    ("noonghunna/club-3090#46", ""): "a DFlash drafter, whose layers are not modelled",
    ("noonghunna/club-3090#1084", ""): "a drafter that the line does not describe",
    ("stored file id:60398735488", "0.50"): "started without its drafter, by its bytes (+0.4 % so)",
    ("stored file id:62379291084", ""): "the drafter is not stated; with mtp:3 it is -0.2 %",
    ("llm-d-incubation", "Mistral-Small"): "an image with FlashInfer's sampler: 14 bytes a logit in place of 38",
    ("noonghunna/club-3090#652", ""): "the utilisation is not stated",
    ("noonghunna/club-3090#612", ""): "the utilisation is not stated; 0.24 took blocks of 2,096 tokens on this GPU",
    ("stored file id:62556972143", "r33"): "a DSpark drafter, whose layers are not modelled",
    ("stored file id:63105163196", ""): "another release of the weights (BF16), and a documented expectation",
    ("stored file id:56369170816", ""): "the model is inferred, the version not stated",
    ("stored file id:58565249531", "GLM"): "compressed layers beside states",
    ("stored file id:66853793177", ""): "a line of another program (kvcached), of half of the keys and values",
    ("stored file id:53259568910", ""): "two decimals of 0.24 GiB",
    ("", "A3B NVFP4 (inferred)"): "the model is inferred",
    ("vllm-project/vllm#25350", ""): "the line names no model",
    ("vllm-project/vllm#5248", ""): "neither utilisation nor the longest context is stated",
    ("vllm-project/recipes#762", ""): "of 8 ranks; with the 8,192 tokens a step of vllm#51454 it is +3.9 %",
    ("syv-ai/qwen38-27b-rtx3090#7", ""): "the weights are not stated; a DFlash drafter, whose layers are not modelled",
    ("stored file id:70545036044", ""): "keys and values in NVFP4, which are not modelled",
    ("stored file id:66151092131", ""): "the model's config is not known",
    ("stored file id:56193900378", ""): "the line names no model",
    ("stored file id:68375645720", ""): "the line names no model",
}  # fmt: skip
FAR = 0.1  # an error that needs a reason


@dataclass(frozen=True)
class Comparison:
    """One figure of one row."""

    source: str
    model: str
    figure: str  # "bytes" of a token, or "tokens" and "GiB" of a deployment
    ours: float | None
    line: float | None
    note: str = ""

    @property
    def error(self) -> float | None:
        """Ours over the line's, less 1."""
        return None if self.ours is None or not self.line else self.ours / self.line - 1


def compared(rows: list[Mapping[str, str]]) -> Iterator[Comparison]:
    """The comparisons of each row, or one that says why it has none."""
    for row in rows:
        try:
            found = list(_of_row(row))
            yield from found
            if not found:
                yield Comparison(row["source"], row["model"], "-", None, None, reason(row) or "it states too little")
        except KvtraceError as error:
            yield Comparison(row["source"], row["model"], "-", None, None, reason(row) or str(error))


def _of_row(row: Mapping[str, str]) -> Iterator[Comparison]:
    whole = _deployment(row)
    tokens, memory = _number(row["tokens"]), _number(row["available_kv_gib"])
    if row["engine"] == "SGLang":
        memory = None if memory is None or "SWA pool only" in row["note"] else memory
    if tokens and memory:
        fixed = replace(whole, kv_cache_memory_bytes=round(memory * GIB))
        room = kv_room(fixed)
        ours = memory * GIB / room.logged_tokens if room.logged_tokens else None
        yield Comparison(row["source"], row["model"], "bytes", ours, memory * GIB / tokens, reason(row))
    is_stated = whole.gpu_memory_utilization is not None or whole.engine_version is not None
    if whole.gpu is not None and is_stated and "pinned" not in row["note"]:
        room = kv_room(whole)
        if tokens:
            yield Comparison(row["source"], row["model"], "tokens", room.logged_tokens, tokens, reason(row))
        elif memory:
            yield Comparison(row["source"], row["model"], "GiB", (room.available_bytes or 0) / GIB, memory, reason(row))


def reason(row: Mapping[str, str]) -> str:
    """Why a row is far off, as far as it is known."""
    said = " ".join(row.values())
    return next((why for (start, part), why in REASONS.items() if row["source"].startswith(start) and part in said), "")


def _deployment(row: Mapping[str, str]) -> Deployment:
    card = CARDS.get(row["gpu"].lower(), row["gpu"].lower().replace(" ", "-"))
    model = row["model"].lower()
    name = model_name(row["model"]) or next((known for start, known in MODELS if model.startswith(start)), row["model"])
    share = re.search(r"[\d.]+$", row["gpu_memory_utilization"])
    batched = re.search(r"max_num_batched_tokens (\d+)", row["note"])
    seqs = re.search(r"max_num_seqs (\d+)", row["note"])
    ranks = re.search(r"DCP (\d+)", row["note"])
    return Deployment(
        name,
        "sglang" if row["engine"] == "SGLang" else "vllm",
        engine_version=next((at for start, at in DATED.items() if row["source"].startswith(start)), row["version"])
        or None,
        gpu=card if card in GPUS else None,
        tensor_parallel_size=int(_number(row["tp"]) or _number(row["gpus"]) or 1),
        pipeline_parallel_size=int(_number(row["pp"]) or 1),
        weights_dtype=_weights(row["weights"], name),
        kv_cache_dtype="fp8" if row["source"].startswith(FP8) else _kv_dtype(row["kv_dtype"]),
        block_size=None,
        speculative=_drafter(row, name),
        gpu_memory_utilization=float(share[0]) if share else None,
        max_model_len=int(row["max_model_len"]) if row["max_model_len"] else None,
        max_num_batched_tokens=int(batched[1]) if batched else None,
        max_num_seqs=int(seqs[1]) if seqs else None,
        decode_context_parallel_size=int(ranks[1]) if ranks else 1,
        enable_expert_parallel="expert parallel" in row["note"],
    )


def _weights(text: str, model: str) -> str | None:
    """The dtype of weights as a line names it; None for that of the model's config."""
    if model_name(model) and "quantization_config" in read_config(model):
        return None
    return next((dtype for word, dtype in WEIGHTS.items() if word in text.lower()), None)


def _drafter(row: Mapping[str, str], model: str) -> Drafter | None:
    stated = re.search(r"MTP ?(\d)?", row["note"])
    fitted = DRAFTED.get(row["source"])
    if (stated is None and fitted is None) or any(part in model.lower() for part in SHARING):
        return None
    return Drafter("mtp", int((stated and stated[1]) or fitted or 1))


def _kv_dtype(text: str) -> str:
    return "auto" if not text or text.startswith("auto") or text == "bf16" else text.partition(" ")[0]


def _number(text: str) -> float | None:
    return float(text) if re.fullmatch(r"[\d.]+", text) else None


def main(path: Path) -> None:
    """Print the table, and the median of the errors."""
    with path.open(newline="") as file:
        found = list(compared(list(csv.DictReader(file))))
    for each in found:
        figures = f"{each.ours:>13,.1f} {each.line:>13,.1f}" if each.ours and each.line else f"{'-':>13} {'-':>13}"
        error = "" if each.error is None else f"{each.error:+.2%}"
        print(f"{each.figure:6} {figures} {error:>8} {each.model[:40]:40} {each.source[-34:]:34} {each.note[:110]}")
    for figure in ("bytes", "tokens", "GiB"):
        known = [each for each in found if each.figure == figure and each.error is not None]
        plain = [abs(each.error or 0) for each in known if not each.note]
        silent = [each for each in known if abs(each.error or 0) > FAR and not each.note]
        if plain:
            errors = f"median {median(plain):.2%}, at most {max(plain):.2%}"
            print(
                f"{figure}: {len(known)} rows; {len(plain)} without a reason to differ: {errors}; {len(silent)} silent"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED / "facts/kv_lines.csv")
