"""How many placeholder tokens a processor puts for an image or a sound: arithmetic on its size, a function a processor.

Each function takes a content part and the settings of a processor, by the names that its own configuration has, and
returns what stands in the prompt in place of the one placeholder that the chat template wrote: texts of one token, each
with its number. They follow the processors of Hugging Face transformers 5.20 (and vLLM 0.33 for Kimi-VL), which
tests/clients/media_tokens.py runs to write tests/vectors/media.json. None = the part does not state what is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from .media_sizes import grid_of, samples_of, size_of

Part = Mapping[str, Any]
Settings = Mapping[str, Any]
Pieces = tuple[tuple[str, int], ...]  # a text that is one token, and how often it stands there
MAX_ASPECT = 200  # of an image's sides: processors of Qwen and GLM refuse more
MAX_TILES = 256  # processors have 4 to 40
WHISPER_HOP = 160  # samples between two frames
WHISPER_HZ = 16_000


def smart_resize(part: Part, settings: Settings) -> Pieces | None:
    """Qwen2-VL to Qwen3.6: sides rounded to whole patches of patches, their product within limits.

    >>> smart_resize({"width": 640, "height": 480}, {"patch_size": 14, "size": {}, "min_pixels": 1, "token": "<i>"})
    (('<i>', 391),)
    """
    return _patches(part, settings, lambda width, height, unit: _rounded(width, height, unit, *_limits(settings)))


def smart_resize_twice(part: Part, settings: Settings) -> Pieces | None:
    """GLM-4.1V to 4.6V: the same, of two frames of the image (a video's limits), and no side below one unit."""

    def resized(width, height, unit):
        least = min(width, height)
        if least < unit:
            scale = max(unit / height, unit / width)
            width, height = int(width * scale), int(height * scale)
        return _rounded(width, height, unit, *_limits(settings), frames=2)

    return _patches(part, settings, resized)


def grid_only(part: Part, settings: Settings) -> Pieces | None:
    """A Qwen model that we know by its placeholder alone, and its videos: the grid that the log states."""
    return _patches(part, settings, None)


def padded_patches(part: Part, settings: Settings) -> Pieces | None:
    """Kimi-VL: as many patches as a limit allows, then padded to whole units."""

    def resized(width, height, unit):
        patch, limit = settings["patch_size"], settings["in_token_limit"]
        patches = (width // patch) * (height // patch)
        if patches > limit:
            scale = math.sqrt(limit / patches)
            width, height = int(width * scale), int(height * scale)
        return _up(width, unit), _up(height, unit)

    return _patches(part, settings, resized)


def navit_resize(part: Part, settings: Settings) -> Pieces | None:
    """Kimi-K2.5: the same, with a limit for each side, too."""

    def resized(width, height, unit):
        patch, limit = settings["patch_size"], settings["max_patches"]
        side = _size(settings).get("max_height", 512) * patch
        patches = max(1.0, height // patch) * max(1.0, width // patch)
        scale = min(1.0, math.sqrt(limit / patches), side / height, side / width)
        width, height = (min(max(1, int(one * scale)), side) for one in (width, height))
        return _up(width, unit), _up(height, unit)

    return _patches(part, settings, resized)


def fixed(part: Part, settings: Settings) -> Pieces | None:
    """LLaVA-1.5 and Gemma 3: a number of tokens that no image changes, and what stands around them."""
    return (*settings.get("before", ()), (settings["token"], settings["image_seq_length"]), *settings.get("after", ()))


def clip_patches(part: Part, settings: Settings) -> Pieces | None:
    """LLaVA-1.5: the patches of its one resolution, without the class token."""
    return ((settings["token"], (settings["image_size"] // settings["patch_size"]) ** 2),)


def rows(part: Part, settings: Settings) -> Pieces | None:
    """Pixtral and Mistral Small 3.1: rows of patches, each with a token at its end."""
    size = size_of(part)
    if size is None:
        return None
    unit, most = settings["patch_size"] * settings["spatial_merge_size"], _size(settings)["longest_edge"]
    ratio = max(side / most for side in size)
    columns, lines = ((math.floor(side / ratio) if ratio > 1 else side) for side in size)
    if not columns or not lines:
        return None
    columns, lines = (columns - 1) // unit + 1, (lines - 1) // unit + 1
    row = (settings["token"], columns)
    return (row, ("[IMG_BREAK]", 1)) * (lines - 1) + (row, ("[IMG_END]", 1))


def pooled_patches(part: Part, settings: Settings) -> Pieces | None:
    """Gemma 4: the largest size of the image's shape whose pooled patches are at most `max_soft_tokens`."""
    size = size_of(part)
    if size is None:
        return None
    width, height = size
    patch, pool, most = settings["patch_size"], settings["pooling_kernel_size"], settings["max_soft_tokens"]
    unit = patch * pool
    scale = math.sqrt(most * pool**2 * patch**2 / (width * height))
    columns, lines = math.floor(scale * width / unit), math.floor(scale * height / unit)
    if not columns and not lines:
        return None
    if not lines:
        lines, columns = 1, min(math.floor(width / height), most)
    elif not columns:
        columns, lines = 1, min(math.floor(height / width), most)
    return (*settings["before"], (settings["token"], columns * lines), *settings["after"])


def tiles(part: Part, settings: Settings) -> Pieces | None:
    """InternVL: tiles in the arrangement nearest to the image's shape, and the whole image if they are several."""
    size = size_of(part)
    if size is None:
        return None
    columns, lines = _nearest_canvas(*size, settings["tile"], settings["min_patches"], settings["max_patches"])
    number = columns * lines
    number += number > 1 and settings["use_thumbnail"]
    return ("<img>", 1), (settings["token"], settings["image_seq_length"] * number), ("</img>", 1)


def separated_tiles(part: Part, settings: Settings) -> Pieces | None:
    """Llama 4: tiles on the best canvas, with separators, then the whole image."""
    size = size_of(part)
    if size is None:
        return None
    columns, lines = _best_canvas(*size, settings["tile"], settings["max_patches"])
    tile = ("<|patch|>", settings["image_seq_length"])
    row = (tile, ("<|tile_x_separator|>", 1)) * (columns - 1) + (tile, ("<|tile_y_separator|>", 1))
    grid = row * lines if columns * lines > 1 else ()
    return ("<|image_start|>", 1), *grid, ("<|image|>", 1), tile, ("<|image_end|>", 1)


def unpadded_tiles(part: Part, settings: Settings) -> Pieces | None:
    """LLaVA-NeXT: the whole image, and patches of the best resolution without its padding, each row with an end."""
    size = size_of(part)
    if size is None:
        return None
    width, height = size
    best = _best_resolution(width, height, settings["image_grid_pinpoints"])
    if best is None:
        return None
    side = settings["image_size"]
    patches = side // settings["patch_size"]
    lines, columns = (patches * (one // side) for one in best)
    if not lines or not columns:
        return None
    if width / height > columns / lines:
        lines -= (lines - int(round(height * (columns / width), 7))) // 2 * 2
    else:
        columns -= (columns - int(round(width * (lines / height), 7))) // 2 * 2
    return ((settings["token"], columns * lines + lines + patches**2),)


def whisper_halves(part: Part, settings: Settings) -> Pieces | None:
    """Qwen2-Audio and Qwen2.5-Omni: a token for four frames, of at most `n_samples`."""
    samples = samples_of(part, WHISPER_HZ)
    if samples is None:
        return None
    frames = -(-min(samples, settings["n_samples"]) // WHISPER_HOP)
    number = ((frames - 1) // 2 - 1) // 2 + 1
    return ((settings["token"], number),) if number > 0 else None


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _patches(part, settings, resized) -> Pieces | None:
    """One token for each square of `merge_size` patches, by the stated grid, else by the image's size."""
    patch, merge = settings.get("patch_size", 14), settings.get("merge_size", 2)
    grid = grid_of(part, settings.get("kind", "image"))
    if grid is not None:
        number = math.prod(grid) // merge**2
        return ((settings["token"], number),) if number else None
    size = None if resized is None else size_of(part)
    if size is None:
        return None
    resized_size = resized(*size, patch * merge)
    if resized_size is None:
        return None
    return ((settings["token"], math.prod(side // patch for side in resized_size) // merge**2),)


def _limits(settings) -> tuple[int, int]:
    """The least and the most pixels of an image; the older names win, as in the processor."""
    size = _size(settings)
    least = settings.get("min_pixels", size.get("shortest_edge", 56 * 56))
    return least, settings.get("max_pixels", size.get("longest_edge", 28 * 28 * 1280))


def _size(settings) -> Mapping[str, int]:
    return settings.get("size", {})


def _rounded(width, height, unit, least, most, frames=1) -> tuple[int, int] | None:
    """The sides in whole units, with a product between two limits."""
    if max(width, height) / min(width, height) > MAX_ASPECT:
        return None
    sides = round(width / unit) * unit, round(height / unit) * unit
    pixels = frames * math.prod(sides)
    if pixels > most:
        beta = math.sqrt(frames * height * width / most)
        return max(unit, math.floor(width / beta / unit) * unit), max(unit, math.floor(height / beta / unit) * unit)
    if pixels < least:
        beta = math.sqrt(least / (frames * height * width))
        return math.ceil(width * beta / unit) * unit, math.ceil(height * beta / unit) * unit
    return sides


def _up(side, unit) -> int:
    return -(-side // unit) * unit


@lru_cache(maxsize=1024)
def _nearest_canvas(width, height, tile, least, most) -> tuple[int, int]:
    """Columns and rows of tiles with the ratio nearest to the image; of equals a larger one, if the image fills it."""
    most = min(most, MAX_TILES)
    canvases = sorted(
        ((c, r) for c in range(1, most + 1) for r in range(1, most + 1) if least <= c * r <= most), key=math.prod
    )
    best, best_difference = (1, 1), math.inf
    for columns, lines in canvases:
        difference = abs(width / height - columns / lines)
        fills = width * height > 0.5 * tile * tile * columns * lines
        if difference < best_difference or (difference == best_difference and fills):
            best, best_difference = (columns, lines), difference
    return best


@lru_cache(maxsize=1024)
def _best_canvas(width, height, tile, most) -> tuple[int, int]:
    """Columns and rows of tiles that the image enters with the least enlargement, else the least reduction."""
    most = min(most, MAX_TILES)
    # in the order and the float32 of the processor, since equal scales decide
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for number in range(most, 0, -1):
        for lines in (one for one in range(1, number + 1) if number % one == 0):
            by_ratio.setdefault(lines / (number // lines), []).append((lines, number // lines))
    canvases = np.array([canvas for group in by_ratio.values() for canvas in group])
    sides = (canvases * tile).astype(np.float32) / np.array([height, width], dtype=np.float32)
    scales = sides.min(axis=1)
    larger = scales[scales >= 1]
    scale = larger.min() if len(larger) else scales.max()
    chosen = canvases[scales == scale]
    lines, columns = chosen[chosen.prod(axis=1).argmin()]
    return int(columns), int(lines)


def _best_resolution(width, height, resolutions) -> tuple[int, int] | None:
    """The (height, width) that keeps most of the image's pixels, and wastes least."""
    best, best_rank = None, (-1, 0)
    for tall, wide in resolutions:
        scale = min(wide / width, tall / height)
        pixels = min(int(width * scale) * int(height * scale), width * height)
        rank = pixels, pixels - wide * tall
        if rank > best_rank:
            best, best_rank = (tall, wide), rank
    return best
