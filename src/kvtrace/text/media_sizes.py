"""What a log states of a medium: the size of an image in pixels, the grid of its patches, the length of a sound.

Only headers are read, of images and sounds that are in the log themselves (data URLs, base64): PNG, JPEG (turned as its
EXIF says, as vLLM does), GIF, WebP and BMP, by the package imagesize; WAV, by the standard library. A header must be in
the first 256 KiB. Nothing here raises for any part, or takes more than a quarter of a second.
"""

from __future__ import annotations

import binascii
import io
import re
import wave
from collections.abc import Iterator, Mapping
from typing import Any

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


def _whole(value, most) -> int | None:
    """The value as a whole number from 1 to `most`, else None."""
    if type(value) is float and value.is_integer():
        value = int(value)
    return value if type(value) is int and 0 < value <= most else None
