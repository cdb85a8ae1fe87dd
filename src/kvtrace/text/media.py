"""How many tokens an image, sound or video has in a prompt, by the rule of its model's processor.

A chat template writes one placeholder for a medium; the processor puts as many tokens in its place as the medium has.
RULES has a row for each processor whose number is arithmetic on what a log can state. The rule of a log is chosen by
the configuration of the tokenizer's folder, else by the model's name, else by the placeholder itself where one
processor alone writes it. Where no rule fits, or the log does not state a size, the number is unknown: None.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from . import media_counts as counts
from .media_counts import Part, Pieces, Settings, size_of

__all__ = ["RULES", "MediaRule", "rule_for", "size_of"]

KINDS = ("image", "video", "audio")
MAX_TOKENS = 1 << 20  # of one medium; a log that states more is wrong


@dataclass(frozen=True, slots=True)
class MediaRule:
    """What one processor puts into a prompt for one kind of medium.

    >>> rule = rule_for("image", placeholder="<|image_pad|>", model="Qwen/Qwen2.5-VL-7B-Instruct", config=None)
    >>> rule.name, rule.tokens({"type": "image_url", "width": 640, "height": 480}), rule.tokens({"image_url": "a.png"})
    ('qwen2-vl', 391, None)
    """

    name: str
    kind: str  # one of KINDS
    placeholder: str  # what the template writes for a medium, and the processor replaces
    count: Callable[[Part, Settings], Pieces | None]
    settings: Settings  # of the processor, by the names in its configuration
    types: frozenset[str] = frozenset()  # names of the processor, or of its models, in configurations
    models: str = "(?!)"  # pattern of model names, in lower case
    inserted: str | None = None  # what vLLM writes into a message whose template takes texts only

    def tokens(self, part: Part) -> int | None:
        """The tokens that stand in place of the placeholder; None = unknown."""
        pieces = self.pieces(part)
        return None if pieces is None else _number(pieces)

    def pieces(self, part: Part) -> Pieces | None:
        """The same as texts: each is one token, and stands there as often as its number says; None = unknown.

        >>> rule_for("image", placeholder="[IMG]", model="pixtral-12b", config=None).pieces({"size": [40, 20]})
        (('[IMG]', 3), ('[IMG_BREAK]', 1), ('[IMG]', 3), ('[IMG_END]', 1))
        """
        settings = {"token": self.placeholder, "kind": self.kind} | dict(self.settings)
        try:
            pieces = self.count(part, settings)
        except (ArithmeticError, KeyError, TypeError, ValueError):  # settings that no processor has
            return None
        return None if pieces is None or _number(pieces) > MAX_TOKENS else pieces


def _number(pieces) -> int:
    return sum(number for _, number in pieces)


def _rows(name, placeholder, count, *, types, models, kind="image", inserted=None, **settings) -> MediaRule:
    return MediaRule(name, kind, placeholder, count, settings, frozenset(types.split()), models, inserted)


_VISION = "<|vision_start|>{}<|vision_end|>"
_GEMMA = {"before": (("\n\n", 1), ("<start_of_image>", 1)), "after": (("<end_of_image>", 1), ("\n\n", 1))}
RULES = (
    _rows("qwen2-vl", "<|image_pad|>", counts.smart_resize, inserted=_VISION.format("<|image_pad|>"),
          types="Qwen2VLProcessor Qwen2_5_VLProcessor qwen2_vl qwen2_5_vl Qwen2VLImageProcessor",
          models=r"qwen-?2([._-]?5)?-?vl|qvq", patch_size=14, merge_size=2,
          size={"shortest_edge": 3136, "longest_edge": 12_845_056}),
    _rows("qwen3-vl", "<|image_pad|>", counts.smart_resize, inserted=_VISION.format("<|image_pad|>"),
          types="Qwen3VLProcessor Qwen3OmniMoeProcessor qwen3_vl qwen3_vl_moe qwen3_5 qwen3_5_moe qwen3_omni_moe",
          models=r"qwen-?3[._][56]|qwen-?3-?vl", patch_size=16, merge_size=2,
          size={"shortest_edge": 65_536, "longest_edge": 16_777_216}),
    _rows("qwen2.5-omni", "<|IMAGE|>", counts.smart_resize, inserted=_VISION.format("<|IMAGE|>"),
          types="Qwen2_5OmniProcessor qwen2_5_omni qwen2_5_omni_thinker", models=r"qwen-?2[._-]?5-?omni",
          patch_size=14, merge_size=2, size={"shortest_edge": 3136, "longest_edge": 12_845_056}),
    _rows("glm-4v", "<|image|>", counts.smart_resize_twice, inserted="<|begin_of_image|><|image|><|end_of_image|>",
          types="Glm4vProcessor Glm46VProcessor glm4v glm4v_moe glm46v Glm4vImageProcessor Glm46VImageProcessor",
          models=r"glm-?4[._-]?[156]v", patch_size=14, merge_size=2,
          size={"shortest_edge": 12_544, "longest_edge": 9_633_792}),
    _rows("kimi-vl", "<|media_pad|>", counts.padded_patches,
          inserted="<|media_start|>image<|media_content|><|media_pad|><|media_end|>",
          types="KimiVLProcessor kimi_vl KimiVLImageProcessor", models="kimi-?vl(?!.*2506)",
          patch_size=14, merge_size=2, in_token_limit=4096),
    _rows("kimi-k2.5", "<|media_pad|>", counts.navit_resize,
          inserted="<|media_begin|>image<|media_content|><|media_pad|><|media_end|>",
          types="Kimi_K25Processor KimiK25Processor kimi_k25 Kimi_K25ImageProcessor", models=r"kimi-?k2[._-]?[56]",
          patch_size=14, merge_size=2, max_patches=16_384, size={"max_height": 512}),
    _rows("gemma-3", "<start_of_image>", counts.fixed, inserted="<start_of_image>",
          types="Gemma3Processor gemma3 Gemma3ImageProcessor", models=r"gemma-?3-(4|12|27)b|medgemma-(4|27)b",
          token="<image_soft_token>", image_seq_length=256, **_GEMMA),
    _rows("gemma-3n", "<image_soft_token>", counts.fixed, inserted="<image_soft_token>",
          types="Gemma3nProcessor gemma3n", models="gemma-?3n", image_seq_length=256, **_GEMMA),
    _rows("gemma-4", "<|image|>", counts.pooled_patches, inserted="<|image|>",
          types="Gemma4Processor gemma4 Gemma4ImageProcessor", models="gemma-?4",
          patch_size=16, pooling_kernel_size=3, max_soft_tokens=280,
          before=(("<|image>", 1),), after=(("<image|>", 1),)),
    _rows("llava-1.5", "<image>", counts.clip_patches, inserted="<image>", types="LlavaProcessor llava",
          models=r"llava-?(v?1[._]5)", patch_size=14, image_size=336),
    _rows("llava-next", "<image>", counts.unpadded_tiles, inserted="<image>",
          types="LlavaNextProcessor llava_next LlavaNextImageProcessor", models=r"llava-?(v?1[._]6|next)",
          patch_size=14, image_size=336,
          image_grid_pinpoints=((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))),
    _rows("pixtral", "[IMG]", counts.rows, types="PixtralProcessor pixtral PixtralImageProcessor",
          models="pixtral-?12b", patch_size=16, spatial_merge_size=1, size={"longest_edge": 1024}),
    _rows("mistral-3", "[IMG]", counts.rows, types="mistral3",
          models=r"mistral-small-(3[._][12]|2503|2506)|magistral-small-2509|ministral-?3-",
          patch_size=14, spatial_merge_size=2, size={"longest_edge": 1540}),
    _rows("internvl", "<IMG_CONTEXT>", counts.tiles, inserted="<image>",
          types="InternVLProcessor internvl internvl_chat GotOcr2ImageProcessor", models=r"internvl-?(2|3)",
          token="<IMG_CONTEXT>", tile=448, min_patches=1, max_patches=12, image_seq_length=256, use_thumbnail=True),
    _rows("llama-4", "<|image|>", counts.separated_tiles, inserted="<|image|>",
          types="Llama4Processor llama4 Llama4ImageProcessor", models=r"llama-?4|maverick|scout-17b",
          tile=336, max_patches=16, image_seq_length=144),
    _rows("qwen-vl grid", "<|image_pad|>", counts.grid_only, types="", models="(?!)", merge_size=2),
    _rows("qwen-vl video", "<|video_pad|>", counts.grid_only, kind="video", inserted=_VISION.format("<|video_pad|>"),
          types="Qwen2VLProcessor Qwen2_5_VLProcessor qwen2_vl qwen2_5_vl Qwen2VLImageProcessor",
          models=r"qwen-?2([._-]?5)?-?vl", merge_size=2),
    _rows("qwen2-audio", "<|AUDIO|>", counts.whisper_halves, kind="audio",
          inserted="Audio {}: <|audio_bos|><|AUDIO|><|audio_eos|>", types="Qwen2AudioProcessor qwen2_audio",
          models=r"qwen-?2-?audio", n_samples=480_000),
    _rows("qwen2.5-omni audio", "<|AUDIO|>", counts.whisper_halves, kind="audio",
          inserted="Audio {}: <|audio_bos|><|AUDIO|><|audio_eos|>",
          types="Qwen2_5OmniProcessor qwen2_5_omni qwen2_5_omni_thinker", models=r"qwen-?2[._-]?5-?omni",
          n_samples=4_800_000),
    _rows("gemma-3n audio", "<audio_soft_token>", counts.fixed, kind="audio", inserted="<audio_soft_token>",
          types="Gemma3nProcessor gemma3n", models="gemma-?3n", image_seq_length=188,
          before=(("\n\n", 1), ("<start_of_audio>", 1)), after=(("<end_of_audio>", 1), ("\n\n", 1))),
)  # fmt: skip
_BY_PLACEHOLDER = {  # where one processor alone writes it, or all that write it have the same arithmetic
    "<start_of_image>": "gemma-3", "<image_soft_token>": "gemma-3n", "<audio_soft_token>": "gemma-3n audio",
    "<IMG_CONTEXT>": "internvl", "<|image_pad|>": "qwen-vl grid",
}  # fmt: skip
_TYPES = ("processor_class", "image_processor_type", "model_type")  # in configurations, the most exact first
_PLACES = ("vision_config", None, "image_processor", "mm_processor_kwargs")  # of settings; the last one wins


def rule_for(
    kind: str, *, placeholder: str | None, model: str | None, config: Mapping[str, Any] | None
) -> MediaRule | None:
    """The rule of a model's processor for a kind of medium; None = unknown.

    Args:
        kind: image, video or audio.
        placeholder: what the chat template writes for the medium, alone or with the texts around it.
        model: the model's name, as a log or a server states it.
        config: preprocessor_config.json, processor_config.json and config.json of the tokenizer's folder as one object;
            `mm_processor_kwargs` in it, as of vLLM, win over all.

    >>> config = {"processor_class": "Qwen2_5_VLProcessor", "max_pixels": 200_704}
    >>> rule_for("image", placeholder=None, model=None, config=config).tokens({"width": 4000, "height": 3000})
    234
    >>> rule_for("image", placeholder="<|image|>", model="gpt-4o", config=None)
    """
    rule = _by_config(kind, config or {}) or _by_model(kind, model or "") or _by_placeholder(kind, placeholder or "")
    if rule is None or not placeholder or rule.placeholder in placeholder:
        return rule
    return replace(rule, placeholder=placeholder)


def _by_config(kind, config) -> MediaRule | None:
    for name in _TYPES:
        value = config.get(name)
        value = value.removesuffix("Fast") if isinstance(value, str) else None
        for rule in RULES:
            if rule.kind == kind and value in rule.types:
                if rule.name == "pixtral" and config.get("model_type") == "mistral3":
                    rule = next(other for other in RULES if other.name == "mistral-3")
                return replace(rule, settings=dict(rule.settings) | _settings(rule, config))
    return None


def _by_model(kind, model) -> MediaRule | None:
    name = model.lower()[:512]
    return next((rule for rule in RULES if rule.kind == kind and re.search(rule.models, name)), None)


def _by_placeholder(kind, placeholder) -> MediaRule | None:
    names = {name for text, name in _BY_PLACEHOLDER.items() if text in placeholder}
    return next((rule for rule in RULES if rule.kind == kind and rule.name in names), None)


def _settings(rule, config) -> dict[str, Any]:
    """What a configuration says of the settings that a rule has."""
    settings: dict[str, Any] = {}
    for place in _PLACES:
        values = config if place is None else config.get(place)
        if not isinstance(values, Mapping):
            continue
        settings |= {name: value for name, raw in values.items() if (value := _setting(name, raw)) is not None}
    size = settings.get("size", {})
    for name, side in (
        ("tile", size.get("height") or settings.get("force_image_size")),
        ("image_size", size.get("shortest_edge") or size.get("height")),
    ):
        if side:
            settings[name] = side
    for name, other in (("max_dynamic_patch", "max_patches"), ("min_dynamic_patch", "min_patches")):
        if name in settings:
            settings[other] = settings.pop(name)
    return {name: value for name, value in settings.items() if name in {*rule.settings, "min_pixels", "max_pixels"}}


def _setting(name, value) -> Any:
    """The value of a setting that arithmetic can use, else None: numbers, and a size of named numbers."""
    if name in ("patch_size", "merge_size", "image_size", "merge_kernel_size") and isinstance(value, list | tuple):
        value = value[0] if value else None
    if name == "patch_size" and isinstance(value, Mapping):
        value = value.get("height")
    if name == "size" and isinstance(value, Mapping):
        sizes = {side: number for side, number in value.items() if type(number) is int and number > 0}
        return sizes or None
    if name == "image_grid_pinpoints" and isinstance(value, list):
        return tuple(map(tuple, value)) if all(isinstance(pair, list) and len(pair) == 2 for pair in value) else None
    if name == "use_thumbnail" and type(value) is bool:
        return value
    return value if type(value) is int and value > 0 else None
