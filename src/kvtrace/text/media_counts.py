"""How many placeholder tokens a processor puts for an image or a sound: arithmetic on its size, a function a processor.

Each function takes a content part and the settings of a processor, by the names that its own configuration has, and
returns what stands in the prompt in place of the one placeholder that the chat template wrote: texts of one token, each
with its number. They follow the processors of Hugging Face transformers 5.20 (and vLLM 0.33 for Kimi-VL), which
tests/clients/media_tokens.py runs to write tests/vectors/media.json. None = the part does not state what is needed.

The size is what the log states: pixels of an image, the grid of its patches, the length of a sound. Of media that are
in the log themselves (data URLs, base64) only headers are read: PNG, JPEG (turned as its EXIF says, as vLLM does), GIF,
WebP and BMP, by the package imagesize; WAV, by the standard library. A header must be in the first 256 KiB. Reading one
never raises and never takes more than a quarter of a second.
"""

from __future__ import annotations

import binascii
import io
import math
import re
import wave
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

MAX_SIDE = 1 << 20  # pixels
MAX_GRID = 1 << 24  # patches in one direction
MAX_SECONDS = 1 << 20
_HEADERS = (1 << 12, 1 << 18)  # bytes that are decoded: nearly all headers are in the first
_IMAGE = re.compile(rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|GIF8[79]a|BM|RIFF....WEBP", re.DOTALL)
_INSIDE = ("image_url", "input_image", "image", "source", "inline_data", "inlineData", "file", "video_url", "video",
           "input_audio", "audio_url", "audio")  # fmt: skip
_URLS = ("url", "image_url", "image", "audio_url", "audio", "file_data", "data", "b64_json")
_BASE64 = ("data", "b64_json", "image", "audio", "file_data")  # may be base64 without "data:"
_GRIDS = {"image": ("image_grid_thw", "image_grid", "grid_thw"), "video": ("video_grid_thw", "grid_thw")}
_SECONDS = ("duration", "duration_s", "duration_seconds", "seconds", "audio_duration")
_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]+")
_BY_SIDES = re.compile(r"\s*(\d{1,7})\s*[x×*,]\s*(\d{1,7})\s*")


def size_of(part: Mapping[str, Any]) -> tuple[int, int] | None:
    """The width and the height in pixels of an image; None if the log does not let us know.

    Args:
        part: a content part of a message, in the form of any API. The image itself wins over fields that state its
            size: `width` and `height`, or `size`.

    >>> gif = "data:image/gif;base64,R0lGODlhAQACAIAAAAUEBAAAACwAAAAAAQABAAACAkQBADs="
    >>> size_of({"type": "image_url", "image_url": {"url": gif}})
    (1, 2)
    >>> size_of({"type": "image", "width": 640, "height": 480}), size_of({"image_url": "https://example.org/a.png"})
    ((640, 480), None)
    """
    for place in _places(part):
        size = _size_in(place)
        if size is not None:
            return size
    return next(filter(None, map(_stated_size, _places(part))), None)


def grid_of(part: Mapping[str, Any], kind: str) -> tuple[int, int, int] | None:
    """The patches of an image or video, in time, height and width, as Qwen's processors state them; None = not stated.

    >>> grid_of({"type": "image", "image_grid_thw": [[1, 4, 6]]}, "image")
    (1, 4, 6)
    """
    for place in _places(part):
        for name in _GRIDS.get(kind, ()):
            grid = place.get(name)
            if isinstance(grid, list | tuple) and len(grid) == 1:
                grid = grid[0]
            if isinstance(grid, list | tuple) and len(grid) == 3:
                sides = [_whole(side, MAX_GRID) for side in grid]
                if None not in sides:
                    return tuple(sides)  # type: ignore[return-value]
    return None


def samples_of(part: Mapping[str, Any], rate: int) -> int | None:
    """The samples of a sound at a sampling rate, from its WAV header or a field of its seconds; None = not known.

    >>> samples_of({"type": "audio_url", "audio_url": {"url": "https://example.org/a.mp3"}, "duration": 2.5}, 16_000)
    40000
    """
    for place in _places(part):
        length = _wav_length(place)
        if length is not None:
            return -(-length[0] * rate // length[1])
    for place in _places(part):
        for name in (*_SECONDS, "duration_ms"):
            seconds = place.get(name)
            if isinstance(seconds, int | float) and 0 < seconds <= MAX_SECONDS * 1000:
                return round(seconds * rate / (1000 if name == "duration_ms" else 1))
    return None


def _places(part) -> Iterator[Mapping[str, Any]]:
    """The part, and the objects in it that hold its medium."""
    if isinstance(part, Mapping):
        yield part
        for name in _INSIDE:
            inner = part.get(name)
            if isinstance(inner, Mapping):
                yield inner


def _size_in(place) -> tuple[int, int] | None:
    """The size in the header of an image that stands in a field."""
    import imagesize  # here, since it loads a client of HTTP, which we never use

    for text, start in _base64_texts(place):
        for size in _HEADERS:
            head = _decoded(text, start, size)
            if not _IMAGE.match(head):
                break
            sides = tuple(_whole(side, MAX_SIDE) for side in imagesize.get(io.BytesIO(head)))
            if None not in sides:
                return sides  # type: ignore[return-value]
            if len(text) <= size:
                break
    return None


def _stated_size(place) -> tuple[int, int] | None:
    """The size that fields state: width and height, or size as [width, height], an object or "640x480"."""
    size = place.get("size")
    if isinstance(size, str) and (match := _BY_SIDES.fullmatch(size)):
        size = list(map(int, match.groups()))
    for width, height in (
        (place.get("width"), place.get("height")),
        (size.get("width"), size.get("height")) if isinstance(size, Mapping) else (None, None),
        size if isinstance(size, list | tuple) and len(size) == 2 else (None, None),
    ):
        sides = _whole(width, MAX_SIDE), _whole(height, MAX_SIDE)
        if None not in sides:
            return sides  # type: ignore[return-value]
    return None


def _wav_length(place) -> tuple[int, int] | None:
    """The samples and the sampling rate in the header of a WAV that stands in a field."""
    for text, start in _base64_texts(place):
        head = _decoded(text, start, _HEADERS[0])
        if not head.startswith(b"RIFF"):
            continue
        try:
            with wave.open(io.BytesIO(head)) as sound:
                rate, stated = sound.getframerate(), sound.getnframes()
                frame = sound.getnchannels() * sound.getsampwidth()
        except (wave.Error, EOFError, ValueError, RuntimeError):
            continue
        frames = min(stated, len(text) * 3 // 4 // frame)  # a stream's header states more than there is
        if frames > 0 and rate > 0:
            return frames, rate
    return None


def _base64_texts(place) -> Iterator[tuple[str, int]]:
    """The texts in the fields of a part that may hold its medium, and where base64 begins in each."""
    for name in _URLS:
        text = place.get(name)
        if isinstance(text, str) and text[:5].lower() == "data:":
            comma = text.find(",", 0, 1024)
            if comma > 0 and text[:comma].lower().endswith(";base64"):
                yield text, comma + 1
        elif isinstance(text, str) and name in _BASE64:
            yield text, 0


def _decoded(text, start, size) -> bytes:
    """The first bytes of a base64 text, also with line breaks and in the alphabet of URLs."""
    text = text[start : start + size * 4 // 3 // 4 * 4]
    try:
        if "-" not in text and "_" not in text:
            return binascii.a2b_base64(text)
    except ValueError:  # it has line breaks, or other characters: its end is within a byte
        pass
    text = _NOT_BASE64.sub("", text.replace("-", "+").replace("_", "/"))
    return binascii.a2b_base64(text[: len(text) - (len(text) % 4 == 1)] + "==")


def _whole(value, limit) -> int | None:
    """The value as a whole number from 1 to `limit`, else None."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= limit else None


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
        width, height = (min(max(1, int(length * scale)), side) for length in (width, height))
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
    unit, longest = settings["patch_size"] * settings["spatial_merge_size"], _size(settings)["longest_edge"]
    ratio = max(side / longest for side in size)
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
    patch, pool, max_tokens = settings["patch_size"], settings["pooling_kernel_size"], settings["max_soft_tokens"]
    unit = patch * pool
    scale = math.sqrt(max_tokens * pool**2 * patch**2 / (width * height))
    columns, lines = math.floor(scale * width / unit), math.floor(scale * height / unit)
    if not columns and not lines:
        return None
    if not lines:
        lines, columns = 1, min(math.floor(width / height), max_tokens)
    elif not columns:
        columns, lines = 1, min(math.floor(height / width), max_tokens)
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
    lines, columns = (patches * (length // side) for length in best)
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


def _rounded(width, height, unit, min_pixels, max_pixels, frames=1) -> tuple[int, int] | None:
    """The sides in whole units, with a product between two limits."""
    if max(width, height) / min(width, height) > MAX_ASPECT:
        return None
    sides = round(width / unit) * unit, round(height / unit) * unit
    pixels = frames * math.prod(sides)
    if pixels > max_pixels:
        beta = math.sqrt(frames * height * width / max_pixels)
        return max(unit, math.floor(width / beta / unit) * unit), max(unit, math.floor(height / beta / unit) * unit)
    if pixels < min_pixels:
        beta = math.sqrt(min_pixels / (frames * height * width))
        return math.ceil(width * beta / unit) * unit, math.ceil(height * beta / unit) * unit
    return sides


def _up(side, unit) -> int:
    return -(-side // unit) * unit


@lru_cache(maxsize=1024)
def _nearest_canvas(width, height, tile, min_tiles, max_tiles) -> tuple[int, int]:
    """Columns and rows of tiles with the ratio nearest to the image; of equals a larger one, if the image fills it."""
    max_tiles = min(max_tiles, MAX_TILES)
    canvases = sorted(
        ((c, r) for c in range(1, max_tiles + 1) for r in range(1, max_tiles + 1) if min_tiles <= c * r <= max_tiles),
        key=math.prod,
    )
    best, best_difference = (1, 1), math.inf
    for columns, lines in canvases:
        difference = abs(width / height - columns / lines)
        fills = width * height > 0.5 * tile * tile * columns * lines
        if difference < best_difference or (difference == best_difference and fills):
            best, best_difference = (columns, lines), difference
    return best


@lru_cache(maxsize=1024)
def _best_canvas(width, height, tile, max_tiles) -> tuple[int, int]:
    """Columns and rows of tiles that the image enters with the least enlargement, else the least reduction."""
    max_tiles = min(max_tiles, MAX_TILES)
    # in the order and the float32 of the processor, since equal scales decide
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for number in range(max_tiles, 0, -1):
        for lines in (divisor for divisor in range(1, number + 1) if number % divisor == 0):
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
