"""Try a tokenizer of the user's in a child process before it is loaded here: its library may panic, abort or hang.

The library is written in Rust. It panics on some files, and some panics end the process. The verdict is cached, as that
of tokenizer_parity.py is.
"""

from __future__ import annotations

from .._base.errors import InputError
from . import tokenizer_parity, trial
from .tokenizer_files import TokenizerFiles
from .tokenizer_libraries import ReferenceLibrary, is_panic, version_of

USABLE, UNREADABLE, PANICS = range(3)  # exit statuses of the child


def require_usable(files: TokenizerFiles, sha256: str) -> None:
    """InputError if the library crashes, panics or hangs on a sample of texts; a known file needs no trial."""
    key = (sha256, repr(files.added_tokens), version_of("tokenizers"))
    if files.sha256 is not None or tokenizer_parity.recall(key, "usable"):
        return
    status = trial.in_child(lambda: _try(files))
    fault = "panics on a sample of texts" if status == PANICS else trial.why(status)
    if fault:
        raise InputError(f"{files.tokenizer}: this tokenizer cannot be used: the library `tokenizers` {fault}.")
    if status == USABLE:
        tokenizer_parity.remember(key, True, "usable")


def _try(files) -> int:
    library = ReferenceLibrary(files)
    try:
        library.ready()
    except InputError:
        return UNREADABLE  # loading it here gives the reason
    try:
        library.encode_singly(tokenizer_parity.sample(library.control_tokens()))
    except BaseException as error:
        if is_panic(error):
            return PANICS
    return USABLE  # another error is of one text: a tokenizer may have no token for unknown words
