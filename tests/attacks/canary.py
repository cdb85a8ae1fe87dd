"""A canary, and the search for it: a word and a number planted in logs, found in no disguise in what a run leaves."""

from __future__ import annotations

import base64
import traceback
from pathlib import Path

import kvtrace

CANARY = "CanaryQz7xKw"
NUMBER = 7361904528173  # as a time, an id, a count
PACKAGE = str(Path(kvtrace.__file__).parent)

FORMS = [
    CANARY, CANARY[::-1], CANARY.upper(), CANARY.lower(), CANARY.encode().hex(), CANARY.encode("utf-16-le").hex(),
    "".join(f"\\u{ord(letter):04x}" for letter in CANARY), str(NUMBER), f"{NUMBER:,}", f"{NUMBER:x}",
]  # fmt: skip
for before in range(3):  # base64 of a text with the canary in it holds one of three runs of letters, by its place
    letters = base64.b64encode(b"-" * before + CANARY.encode()).decode().rstrip("=")
    FORMS.append(letters[4 * ((before + 2) // 3) : -2])
WORDS = [form for form in FORMS if form not in (str(NUMBER), f"{NUMBER:,}", f"{NUMBER:x}")]


def require_none(text: str, *, where: str, forms=FORMS) -> None:
    """AssertionError where the canary is in the text, in any of its forms."""
    for form in forms:
        assert form not in text, f"the canary is in {where}"


def all_of(error: BaseException) -> str:
    """An exception and all that hangs on it, in every way that it can be shown."""
    told = [f"{one} {one!r} {one.args!r} {vars(one)!r} {getattr(one, '__notes__', '')}" for one in chain(error)]
    return "\n".join([*told, *traceback.format_exception(error)])


def chain(error: BaseException) -> list[BaseException]:
    """The exception, its causes and its contexts."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        if (one := todo.pop()) is None or any(one is other for other in seen):
            continue
        seen.append(one)
        todo += [one.__cause__, one.__context__]
    return seen


def locals_of(error: BaseException) -> tuple[str, str]:
    """The local variables of the package's frames in all tracebacks of an exception: as they print, and opened.

    Error trackers open objects that print as their address. In ours are columns of the rows that are good, whose times
    and lengths are to be published: of those only words are secret.
    """
    printed, opened = [], []
    for one in chain(error):
        shown = traceback.TracebackException.from_exception(one, capture_locals=True)
        frames = [frame.tb_frame for frame in _frames(one.__traceback__)]
        for summary, frame in zip(shown.stack, frames, strict=True):
            if frame.f_code.co_filename.startswith(PACKAGE):
                printed += [f"{frame.f_code.co_name}: {name} = {text}" for name, text in (summary.locals or {}).items()]
                opened += [f"{frame.f_code.co_name}: {name} = {text}" for name, text in _opened(frame.f_locals)]
    return "\n".join(printed), "\n".join(opened)


def _frames(place):
    while place is not None:
        yield place
        place = place.tb_next


def _opened(values):
    for name, value in values.items():
        if type(value).__module__.partition(".")[0] == "kvtrace" and hasattr(value, "__dict__"):
            yield f"{name}.*", repr(vars(value))
