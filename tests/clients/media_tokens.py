"""Hugging Face transformers' processors, without weights: the placeholder tokens of images and sounds of many sizes.

Run in vLLM's environment: `python media_tokens.py tests/vectors/media.json`. The arithmetic, the texts that replace a
placeholder and the frames of a sound are the processors' own, unmodified, and Kimi-VL's is vLLM's; ours are the sizes.
Pillow makes the images whose headers are read, and says their sizes, turned as vLLM turns them.
"""

import base64
import io
import itertools
import json
import random
import re
import sys
from types import SimpleNamespace

import numpy as np
import torch
import transformers
import vllm_absent  # noqa: F401 - before vllm
from PIL import Image
from transformers import WhisperFeatureExtractor
from transformers.image_utils import SizeDict
from transformers.models.clip.image_processing_clip import CLIPImageProcessor
from transformers.models.gemma3.processing_gemma3 import Gemma3Processor
from transformers.models.gemma4.image_processing_gemma4 import Gemma4ImageProcessor
from transformers.models.gemma4.processing_gemma4 import Gemma4Processor
from transformers.models.glm4v.image_processing_glm4v import Glm4vImageProcessor
from transformers.models.glm4v.processing_glm4v import Glm4vProcessor
from transformers.models.got_ocr2.image_processing_got_ocr2 import GotOcr2ImageProcessor
from transformers.models.internvl.processing_internvl import InternVLProcessor
from transformers.models.kimi_k25.image_processing_kimi_k25 import Kimi_K25ImageProcessor
from transformers.models.kimi_k25.processing_kimi_k25 import Kimi_K25Processor
from transformers.models.llama4.image_processing_llama4 import (
    Llama4ImageProcessor,
    find_supported_resolutions,
    get_best_fit,
)
from transformers.models.llama4.processing_llama4 import Llama4Processor
from transformers.models.llava.processing_llava import LlavaProcessor
from transformers.models.llava_next.image_processing_llava_next import LlavaNextImageProcessor
from transformers.models.llava_next.processing_llava_next import LlavaNextProcessor
from transformers.models.pixtral.image_processing_pixtral import get_resize_output_image_size
from transformers.models.pixtral.processing_pixtral import PixtralProcessor
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
from transformers.models.qwen2_vl.processing_qwen2_vl import Qwen2VLProcessor
from vllm import __version__ as vllm_version
from vllm.model_executor.models.kimi_vl import KimiVLProcessingInfo
from vllm.multimodal.image import normalize_image, open_image

SEED = 20260
SQUARES = [1, 2, 13, 14, 27, 28, 29, 56, 100, 224, 335, 336, 337, 448, 512, 896, 1000, 1024, 1540, 2048, 4096, 10_000]
EXTREME = [(1, 200), (1, 201), (3000, 14), (14, 3000), (5600, 28), (28, 5601), (20_000, 100), (199, 1), (50, 8000)]


def sizes():
    """Widths and heights: squares, extreme shapes, common screens, random ones."""
    rng = random.Random(SEED)
    common = [(640, 480), (1280, 720), (1920, 1080), (1080, 1920), (2550, 3300), (3024, 4032), (1170, 2532)]
    some = [(round(2 ** rng.uniform(0, 13)), round(2 ** rng.uniform(0, 13))) for _ in range(120)]
    return [(side, side) for side in SQUARES] + EXTREME + common + some


def number(count, width, height):
    """What a processor says of one size; None where it refuses the image."""
    try:
        return int(count(width, height))
    except (TypeError, ValueError, ZeroDivisionError, RuntimeError):
        return None


def by_processor(processor, **attributes):
    """The count of `_get_num_multimodal_tokens` of a processor that has these attributes and no tokenizer."""
    own = SimpleNamespace(**attributes)
    for name in ("_get_number_of_features", "_get_unpadded_features"):
        if hasattr(processor, name):
            setattr(own, name, getattr(processor, name).__get__(own))
    return lambda width, height: processor._get_num_multimodal_tokens(own, [(height, width)])["num_image_tokens"][0]


def kimi_vl(limit):
    image = SimpleNamespace(patch_size=14, merge_kernel_size=(2, 2), in_token_limit=limit)
    own = SimpleNamespace(get_hf_processor=lambda: SimpleNamespace(image_processor=image))
    return lambda width, height: KimiVLProcessingInfo.get_num_image_tokens(own, image_width=width, image_height=height)


def llama4_text(width, height):
    """The text of an image, from its best canvas on: 336 is the side of a tile, and 144 its tokens."""
    image = Llama4ImageProcessor()
    canvases = torch.tensor(find_supported_resolutions(image.max_patches, SizeDict(height=336, width=336)))
    fit = get_best_fit((height, width), canvases, resize_to_max_canvas=image.resize_to_max_canvas)
    return Llama4Processor._prompt_split_image(None, tuple(int(one) // 336 for one in fit), 144)


def pixtral_text(patch, merge, longest):
    def text(width, height):
        if max(width, height) / longest > min(width, height):
            return None  # a side of no pixel: the processor fails
        unit = patch * merge
        image = np.empty((height, width, 3), dtype=np.uint8)
        size = get_resize_output_image_size(image, (longest, longest), (unit, unit), "channels_last")
        own = SimpleNamespace(
            patch_size=patch, spatial_merge_size=merge, image_token="[IMG]", image_break_token="[IMG_BREAK]",
            image_end_token="[IMG_END]",
        )  # fmt: skip
        return PixtralProcessor.replace_image_token(own, {"image_sizes": [size]}, 0)

    return text


def gemma4_text(count):
    own = SimpleNamespace(boi_token="<|image>", image_token="<|image|>", eoi_token="<image|>")

    def text(width, height):
        return Gemma4Processor.replace_image_token(own, {"num_soft_tokens_per_image": [count(width, height)]}, 0)

    return text


def gemma3_text(width, height):
    tokens = SimpleNamespace(boi_token="<start_of_image>", image_token="<image_soft_token>", eoi_token="<end_of_image>")
    expanded = tokens.image_token * 256
    return f"\n\n{tokens.boi_token}{expanded}{tokens.eoi_token}\n\n"  # Gemma3Processor.__init__: full_image_sequence


TOKEN = re.compile(r"\[[A-Z_]+\]|<[^<>]+>|\n\n")


def pieces(text):
    """Runs of equal tokens."""
    return [[token, len(list(run))] for token, run in itertools.groupby(TOKEN.findall(text))]


def counted(text):
    """The tokens of a processor's text."""
    return lambda width, height: len(TOKEN.findall(text(width, height)))  # TypeError where it fails


def rows():
    """A row for each processor and its settings: `config` as of a tokenizer's folder, and its counts."""
    qwen = lambda **more: by_processor(Qwen2VLProcessor, image_processor=Qwen2VLImageProcessor(**more))  # noqa: E731
    pixels = {"min_pixels": 3136, "max_pixels": 12_845_056}
    size3 = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
    size_glm = {"shortest_edge": 12_544, "longest_edge": 9_633_792}
    few = {"min_pixels": 200_704, "max_pixels": 1_003_520}
    gemma4 = by_processor(Gemma4Processor, image_processor=Gemma4ImageProcessor())
    pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    wide = [[384, 384], [384, 768], [768, 384], [768, 768], [1152, 384], [384, 1152]]
    internvl = lambda most: by_processor(  # noqa: E731
        InternVLProcessor, image_seq_length=256,
        image_processor=GotOcr2ImageProcessor(size={"height": 448, "width": 448}, max_patches=most, crop_to_patches=1),
    )  # fmt: skip
    llava = {"num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}
    yield "Qwen/Qwen2-VL-7B-Instruct", {"processor_class": "Qwen2VLProcessor"} | pixels, qwen(**pixels), None
    yield "Qwen/Qwen2.5-VL-72B-Instruct", {"processor_class": "Qwen2_5_VLProcessor"} | pixels, qwen(**pixels), None
    yield None, {"image_processor_type": "Qwen2VLImageProcessorFast"} | few, qwen(**few), None
    yield (
        "Qwen/Qwen3-VL-8B-Instruct",
        {"processor_class": "Qwen3VLProcessor", "size": size3, "patch_size": 16},
        qwen(size=size3, patch_size=16),
        None,
    )
    yield (
        "zai-org/GLM-4.5V",
        {"processor_class": "Glm4vProcessor", "size": size_glm},
        by_processor(Glm4vProcessor, image_processor=Glm4vImageProcessor(size=size_glm)),
        None,
    )
    yield "moonshotai/Kimi-VL-A3B-Instruct", {"model_type": "kimi_vl", "in_token_limit": 4096}, kimi_vl(4096), None
    yield None, {"model_type": "kimi_vl", "in_token_limit": 16_384}, kimi_vl(16_384), None
    yield (
        "moonshotai/Kimi-K2.5",
        {"model_type": "kimi_k25"},
        by_processor(Kimi_K25Processor, image_processor=Kimi_K25ImageProcessor()),
        None,
    )
    gemma3 = by_processor(Gemma3Processor, image_seq_length=256)
    yield "google/gemma-3-27b-it", {"processor_class": "Gemma3Processor"}, gemma3, gemma3_text
    yield "google/gemma-4-31b-it", {"processor_class": "Gemma4Processor"}, gemma4, gemma4_text(gemma4)
    yield (
        "llava-hf/llava-1.5-7b-hf",
        {"processor_class": "LlavaProcessor", "patch_size": 14},
        by_processor(
            LlavaProcessor,
            image_processor=CLIPImageProcessor(crop_size={"height": 336, "width": 336}),
            patch_size=14,
            **llava,
        ),
        None,
    )
    next_ = LlavaNextImageProcessor(size={"shortest_edge": 336}, image_grid_pinpoints=pinpoints)
    yield (
        "llava-hf/llava-v1.6-mistral-7b-hf",
        {"processor_class": "LlavaNextProcessor", "patch_size": 14},
        by_processor(LlavaNextProcessor, image_processor=next_, patch_size=14, **llava),
        None,
    )
    next_ = LlavaNextImageProcessor(size={"shortest_edge": 384}, image_grid_pinpoints=wide)
    config = {"processor_class": "LlavaNextProcessor", "size": {"shortest_edge": 384}, "image_grid_pinpoints": wide}
    yield (
        None,
        config | {"patch_size": 14},
        by_processor(LlavaNextProcessor, image_processor=next_, patch_size=14, **llava),
        None,
    )
    for model, model_type, patch, merge, longest in (
        ("mistral-community/pixtral-12b", "llava", 16, 1, 1024),
        ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", "mistral3", 14, 2, 1540),
    ):
        text = pixtral_text(patch, merge, longest)
        config = {"processor_class": "PixtralProcessor", "model_type": model_type, "size": {"longest_edge": longest}}
        yield model, config | {"patch_size": patch, "spatial_merge_size": merge}, counted(text), text
    yield "OpenGVLab/InternVL3-8B", {"processor_class": "InternVLProcessor", "max_patches": 12}, internvl(12), None
    yield None, {"processor_class": "InternVLProcessor", "max_patches": 6}, internvl(6), None
    yield (
        "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        {"processor_class": "Llama4Processor"},
        counted(llama4_text),
        llama4_text,
    )


def audio():
    """Samples of sounds at 16 kHz, and the tokens of each."""
    rng = random.Random(SEED)
    lengths = [160, 161, 480, 640, 1600, 3200, 16_000, 16_001, 479_840, 480_000, 480_001, 900_000]
    lengths += [rng.randrange(1000, 480_000) for _ in range(12)]
    for name, config, seconds in (
        ("Qwen/Qwen2-Audio-7B-Instruct", {"processor_class": "Qwen2AudioProcessor"}, 30),
        ("Qwen/Qwen2.5-Omni-7B", {"processor_class": "Qwen2_5OmniProcessor"}, 300),
    ):
        extractor = WhisperFeatureExtractor(feature_size=128, chunk_length=seconds)
        counts = []
        for length in lengths:
            mask = extractor(
                np.zeros(length, dtype=np.float32), sampling_rate=16_000, return_attention_mask=True,
                padding="max_length",
            )["attention_mask"]  # fmt: skip
            frames = int(mask.sum())
            counts.append((((frames - 1) // 2 + 1) - 2) // 2 + 1)  # as Qwen2AudioProcessor._process_audio
        yield {"model": name, "config": config, "samples": lengths, "tokens": counts}


def headers():
    """Images of each format, turned or not, and the size that vLLM sees."""
    rng = random.Random(SEED)
    for kind, options, turn in (
        *((kind, {}, None) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")),
        ("JPEG", {"progressive": True}, None), ("WEBP", {"lossless": True}, None), ("JPEG", {}, 6), ("JPEG", {}, 3),
        ("JPEG", {"progressive": True}, 8), ("JPEG", {"icc_profile": bytes(20_000)}, 5), ("PNG", {"bits": 8}, None),
    ):  # fmt: skip
        width, height = rng.randrange(1, 60), rng.randrange(1, 60)
        image, stream = Image.new("1" if kind in ("BMP", "PNG", "GIF") else "RGB", (width, height)), io.BytesIO()
        if turn is not None:
            exif = Image.Exif()
            exif[0x0112] = turn
            options = options | {"exif": exif}
        image.save(stream, kind, **options)
        seen = normalize_image(open_image(io.BytesIO(stream.getvalue())))
        yield {"format": kind, "turn": turn, "base64": base64.b64encode(stream.getvalue()).decode(), "size": seen.size}


def main():
    images = sizes()
    models = []
    for model, config, count, text in rows():
        row = {"model": model, "config": config, "tokens": [number(count, *size) for size in images]}
        if text:
            row["pieces"] = [pieces(text(*size)) for size in images if size in ((1, 1), (640, 480), (1080, 1920))]
            row["around"] = len(TOKEN.findall(text(640, 480))) - number(count, 640, 480)  # beside those it counts
        models.append(row)
    versions = {"transformers": transformers.__version__, "vllm": vllm_version}
    vectors = {
        "versions": versions,
        "sizes": images,
        "images": models,
        "audio": list(audio()),
        "headers": list(headers()),
    }
    with open(sys.argv[1], "w") as stream:
        lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in vectors.items() if name != "images"]
        lines.append('"images": [\n' + ",\n".join(map(json.dumps, models)) + "\n]")
        stream.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
