"""The tokens of images and sounds: as many as the models' own processors give, and nothing that a log can break."""

import base64
import io
import json
import random
import wave
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtrace.text.media import RULES, MediaRule, rule_for, size_of
from kvtrace.text.media_counts import grid_of, samples_of

VECTORS = json.loads((Path(__file__).parent.parent / "vectors/media.json").read_text())
QWEN = rule_for("image", placeholder=None, model="Qwen2.5-VL-7B", config=None)


def url(data, kind="image/png"):
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


# -- as processors count -----------------------------------------------------------------------------------------------


def tokens_of(rule: MediaRule, case):
    return [rule.tokens({"type": "image", "width": width, "height": height}) for width, height in VECTORS["sizes"]]


@pytest.mark.parametrize("case", VECTORS["images"], ids=lambda case: str(case["model"] or case["config"])[:60])
def test_images_have_the_tokens_that_the_processor_gives(case):
    rule = rule_for("image", placeholder=None, model=None, config=case["config"])
    around = case.get("around", 0)
    wanted = [None if count is None else count + around for count in case["tokens"]]
    assert tokens_of(rule, case) == wanted


@pytest.mark.parametrize("case", [case for case in VECTORS["images"] if case["model"]], ids=lambda case: case["model"])
def test_a_model_name_gives_the_same_rule_as_its_configuration(case):
    by_config = rule_for("image", placeholder=None, model=None, config=case["config"])
    by_model = rule_for("image", placeholder=None, model=case["model"], config=None)
    assert tokens_of(by_model, case) == tokens_of(by_config, case)
    assert by_model.name == by_config.name


@pytest.mark.parametrize(
    "case", [case for case in VECTORS["images"] if "pieces" in case], ids=lambda case: case["model"]
)
def test_the_texts_in_place_of_a_placeholder_are_those_of_the_processor(case):
    rule = rule_for("image", placeholder=None, model=None, config=case["config"])
    sizes = [(1, 1), (640, 480), (1080, 1920)]
    for (width, height), wanted in zip(sizes, case["pieces"], strict=True):
        texts = [text for text, number in rule.pieces({"width": width, "height": height}) for _ in range(number)]
        assert [[text, len(list(run))] for text, run in groupby(texts)] == wanted


@pytest.mark.parametrize("case", VECTORS["audio"], ids=lambda case: case["model"])
def test_sounds_have_the_tokens_that_the_processor_gives(case):
    for rule in (
        rule_for("audio", placeholder=None, model=None, config=case["config"]),
        rule_for("audio", placeholder=None, model=case["model"], config=None),
    ):
        assert [rule.tokens({"duration": samples / 16_000}) for samples in case["samples"]] == [
            count if count > 0 else None for count in case["tokens"]
        ]


# -- what a log states -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", VECTORS["headers"], ids=lambda case: f"{case['format']}-{case['turn']}")
def test_sizes_come_from_headers_turned_as_engines_turn_images(case):
    wanted, data = tuple(case["size"]), case["base64"]
    kind = f"image/{case['format'].lower()}"
    for part in (
        {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}},
        {"type": "input_image", "image_url": f"data:{kind};base64,{data}"},
        {"type": "image", "source": {"type": "base64", "media_type": kind, "data": data}},
        {"type": "image", "image": f"data:{kind};base64,{data}", "width": 7, "height": 7},  # the image itself wins
        {"type": "image", "image": data},
        {"inline_data": {"mime_type": kind, "data": "\n".join(data[i : i + 76] for i in range(0, len(data), 76))}},
    ):
        assert size_of(part) == wanted


@pytest.mark.parametrize(
    "part, wanted",
    [
        ({"width": 640, "height": 480}, (640, 480)),
        ({"image_url": {"url": "https://example.org/a.png", "width": 3, "height": 4.0}}, (3, 4)),
        ({"size": [5, 6]}, (5, 6)),
        ({"size": "1024x768"}, (1024, 768)),
        ({"size": {"width": 8, "height": 9}}, (8, 9)),
        ({"image_url": "https://example.org/a.png"}, None),
        ({"width": True, "height": 4}, None),
        ({"width": 0, "height": 4}, None),
        ({"width": "640", "height": 10**30}, None),
        ({"size": 12_345}, None),  # a number of bytes
        ("text", None),
    ],
)
def test_fields_state_a_size(part, wanted):
    assert size_of(part) == wanted


def test_a_stated_grid_wins_over_a_size():
    """A patch of 14 pixels, four of them a token: 1 x 4 x 6 patches are 6 tokens, whatever the size."""
    part = {"type": "image", "width": 640, "height": 480, "image_grid_thw": [1, 4, 6]}
    assert grid_of(part, "image") == (1, 4, 6)
    assert QWEN.tokens(part) == 6
    video = rule_for("video", placeholder="<|video_pad|>", model="Qwen2-VL-7B", config=None)
    assert video.tokens({"type": "video", "video_grid_thw": [[8, 4, 6]]}) == 48
    assert video.tokens({"type": "video", "width": 640, "height": 480}) is None
    by_placeholder = rule_for(
        "image", placeholder="<|vision_start|><|image_pad|><|vision_end|>", model=None, config=None
    )
    assert by_placeholder.tokens(part) == 6
    assert by_placeholder.tokens({"width": 640, "height": 480}) is None  # Qwen2-VL or Qwen3-VL: not known


def test_the_length_of_a_wav_is_in_its_header():
    stream = io.BytesIO()
    with wave.open(stream, "wb") as sound:
        sound.setnchannels(2), sound.setsampwidth(2), sound.setframerate(44_100)
        sound.writeframes(bytes(4 * 44_100))
    part = {"type": "input_audio", "input_audio": {"data": url(stream.getvalue())[22:], "format": "wav"}}
    assert samples_of(part, 16_000) == 16_000
    streamed = bytearray(stream.getvalue())
    streamed[40:44] = b"\xff\xff\xff\xff"  # a length that is not known: what is there counts
    part["input_audio"]["data"] = base64.b64encode(streamed).decode()
    assert 16_000 <= samples_of(part, 16_000) < 16_020
    assert samples_of({"duration_ms": 1500}, 16_000) == 24_000
    assert samples_of({"input_audio": {"data": "bm90IGEgV0FW", "format": "mp3"}}, 16_000) is None


# -- which rule --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model, name",
    [
        ("Qwen/Qwen2-VL-2B-Instruct-AWQ", "qwen2-vl"),
        ("qwen2.5-vl-7b-instruct", "qwen2-vl"),
        ("/models/Qwen3-VL-235B-A22B-Instruct-FP8", "qwen3-vl"),
        ("Qwen/Qwen3.5-35B-A3B", "qwen3-vl"),
        ("Qwen/Qwen3-32B", None),
        ("google/gemma-3-1b-it", None),  # no images
        ("RedHatAI/gemma-3-12b-it-quantized.w4a16", "gemma-3"),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", "mistral-3"),
        ("mistralai/Mistral-Small-24B-Instruct-2501", None),  # no images
        ("moonshotai/Kimi-VL-A3B-Thinking-2506", None),  # other limits: its configuration has them
        ("OpenGVLab/InternVL3_5-8B", "internvl"),
        ("gpt-4o", None),
        ("claude-sonnet-4", None),
    ],
)
def test_model_names(model, name):
    rule = rule_for("image", placeholder=None, model=model, config=None)
    assert (rule and rule.name) == name


def test_a_configuration_wins_over_a_name_and_a_request_over_both():
    config = {"processor_class": "Qwen2_5_VLProcessor", "max_pixels": 28 * 28 * 100}
    part = {"width": 2000, "height": 2000}
    assert rule_for("image", placeholder=None, model="gemma-3-4b", config=config).tokens(part) == 100
    config["mm_processor_kwargs"] = {"max_pixels": 28 * 28 * 64}
    assert rule_for("image", placeholder=None, model=None, config=config).tokens(part) == 64
    nested = {"processor_class": "Qwen2_5_VLProcessor", "image_processor": {"max_pixels": 28 * 28 * 64}}
    assert rule_for("image", placeholder=None, model=None, config=nested).tokens(part) == 64


def test_the_placeholder_of_the_template_is_the_one_that_is_replaced():
    rule = rule_for("image", placeholder="<image>", model="InternVL2_5-8B", config=None)
    assert (rule.placeholder, rule.pieces({"size": [448, 448]})[1]) == ("<image>", ("<IMG_CONTEXT>", 256))
    assert rule_for("audio", placeholder=None, model="Qwen2.5-VL-7B", config=None) is None


# -- hostile -----------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["type", "image_url", "url", "source", "data", "image", "width", "height", "size", "image_grid_thw", "duration",
     "video_grid_thw", "input_audio", "patch_size", "merge_size", "max_pixels", "min_pixels", "max_patches",
     "longest_edge", "shortest_edge", "image_seq_length", "spatial_merge_size", "image_grid_pinpoints",
     "in_token_limit", "max_height"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)


@given(part=st.dictionaries(NAMES, VALUES), config=st.dictionaries(NAMES, VALUES), rule=st.sampled_from(RULES))
def test_any_part_and_configuration_give_a_number_or_none(part, config, rule):
    known = rule_for(
        rule.kind, placeholder=rule.placeholder, model=None, config=config | {"model_type": min(rule.types, default="")}
    )
    tokens = known and known.tokens(part)
    assert tokens is None or 0 < tokens <= 1 << 20


@pytest.mark.parametrize(
    "head", [b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"RIFF....WEBPVP8X", b"", b"P6 1", b"<svg"]
)
def test_headers_that_are_cut_or_false_state_no_size_or_a_possible_one(head):
    rng = random.Random(3)
    for length in (0, 1, 5, 30, 400, 3_000_000):
        for rest in (rng.randbytes(length), b"\xff" * length, bytes(length), b"1" * length):
            size = size_of({"image_url": {"url": url(head + rest)}})
            assert size is None or all(0 < side <= 1 << 20 for side in size)
