"""The checkpoint of `kvtrace anonymize`: the finished batches of a run, in a file beside its output.

    header   versions, a check value of the key, the settings that batches depend on, the inputs
    frames   one a batch, in input order: length and keyed digest of the batch, then the batch (a JSON header for plain
             values and rejects, then the bytes of its arrays; no pickle)

Batches are a pure function of inputs, settings and key. A resumed run therefore writes the same bytes as an undisturbed
one. The file holds keyed digests, lengths and times, but neither text nor the key, and only its owner can read it. A
frame that a kill left incomplete, or that a run with this key did not write at this place, fails its digest; it and all
after it are cut off. `_base/checkpoint.py` has what all checkpoints share.
"""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from hashlib import blake2b
from hmac import compare_digest
from math import prod
from typing import Any, BinaryIO

import numpy as np

from .. import __version__
from .._base.checkpoint import CheckpointFile, CheckpointKind, differing, is_sealed, sealed
from .._base.errors import InputError, RowError, UsageError
from .._base.files import is_regular
from .._base.input_files import unreadable
from .encoding import Batch, Encoder, Reject, RowPosition
from .keys import Key
from .logs import sources
from .usage import UsageCheck

HEADER_LENGTH = struct.Struct("<I")  # bytes of the JSON header


def packed(batch: Batch) -> bytes:
    """Serialise a batch: the header's length, the header (with each array's type and shape), the arrays end to end.

    >>> len(unpacked(packed(Batch(lines=7, type=["text", None])))), unpacked(packed(Batch(lines=7))).lines
    (0, 7)
    """
    values: dict[str, Any] = {}
    arrays: list[np.ndarray] = []
    for name in (field.name for field in fields(Batch)):
        value = getattr(batch, name)
        if isinstance(value, np.ndarray):
            arrays.append(value)
            value = {"dtype": value.dtype.str, "shape": value.shape}
        elif name == "rejects":
            value = [_row(reject) for reject in value]
        elif name == "usage" and value is not None:
            value = value.to_list()
        values[name] = value
    header = json.dumps(values).encode()
    return b"".join([HEADER_LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays)])


def unpacked(data: bytes) -> Batch:
    """The batch that `packed` serialised.

    Raises:
        InputError: The data are not a batch.
    """
    with suppress(*MALFORMED):
        (size,) = HEADER_LENGTH.unpack_from(data)
        offset = HEADER_LENGTH.size + size
        values = json.loads(data[HEADER_LENGTH.size : offset])
        for name, value in values.items():
            if isinstance(value, dict) and "dtype" in value:
                dtype, shape = np.dtype(value["dtype"]), value["shape"]
                array = np.frombuffer(data, dtype, prod(shape), offset).reshape(shape)
                values[name] = array.copy()  # aligned, writable
                offset += values[name].nbytes
        usage = values["usage"]
        values["usage"] = None if usage is None else UsageCheck.from_list(usage)
        values["rejects"] = [_reject(row) for row in values["rejects"]]
        if all(type(number) in (int, float) for row in usage or () for number in row):
            return Batch(**values)
    raise InputError(DAMAGED)


def consistent(batch: Batch) -> Batch:
    """The batch; InputError if its columns do not fit each other, as in a file that has been damaged.

    >>> len(consistent(unpacked(packed(Batch(lines=7)))))
    0
    """
    with suppress(*MALFORMED):
        if _is_consistent(batch):
            return batch
    raise InputError(DAMAGED)


DAMAGED = "a batch is damaged."


MALFORMED = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError, RecursionError, struct.error)
ENDS = {"digests": "offsets", "output_digests": "output_offsets"}  # column of digests -> the ends of each request's
KINDS = {"output_known": "b", "ttft_ms": "f", "e2e_ms": "f", "queue_ms": "f"}  # column -> kind of its numbers, else "i"
KINDS |= dict.fromkeys((*ENDS, "session", "account", "user", "domain"), "u")  # digests are pairs of them
MAX_COUNT = 1 << 62


def _is_consistent(batch: Batch) -> bool:
    """Whether all fields have their types, and the columns an entry for each request: kernels rely on it."""
    rows, ends = len(batch.time_ns), [batch.offsets, batch.output_offsets]
    if any(one is not None and (one[0] != 0 or (np.diff(one) < 0).any()) for one in ends):
        return False
    counts = [getattr(batch, field.name) for field in fields(Batch) if field.type == "int"]
    return (
        all(type(count) is int and 0 <= count < MAX_COUNT for count in (*counts, *batch.not_rendered.values()))
        and (batch.output_digests is None) == (batch.output_offsets is None)
        and len(batch.type) == rows and all(kind is None or type(kind) is str for kind in batch.type)
        and all(
            _fits(batch, field.name, rows) for field in fields(Batch)
            if field.type == "np.ndarray" or ("np.ndarray" in field.type and getattr(batch, field.name) is not None)
        )
    )  # fmt: skip


def _fits(batch: Batch, name: str, rows: int) -> bool:
    """Whether a column has the numbers and the shape that belong to it."""
    values, kind = getattr(batch, name), KINDS.get(name, "i")
    length = getattr(batch, ENDS[name])[-1] if name in ENDS else rows + (name in ENDS.values())
    return (
        values.dtype.kind == kind
        and values.itemsize == (1 if kind == "b" else 8)
        and values.shape == ((length, 2) if kind == "u" else (length,))
    )


def _row(reject: Reject) -> dict[str, Any]:
    position, error = reject.position, reject.error
    return {
        "place": [position.line, position.offset, position.length], "error": [error.reason, error.field, error.hint]
    }  # fmt: skip


def _reject(row: dict[str, Any]) -> Reject:
    reason, field, hint = row["error"]
    place, texts = RowPosition(*row["place"]), [text for text in (field, hint) if text is not None]
    if not all(type(text) is str for text in (reason, *texts)) or not all(type(number) is int for number in place):
        raise TypeError("a reject without a reason, or without a place")
    return Reject(place, RowError(reason, field=field, hint=hint))


FORMAT = 3
DIGEST_BYTES = 16
FRAME_HEADER = struct.Struct(f"<Q{DIGEST_BYTES}s")  # bytes of a batch, and their digest under the key


CHECKPOINT: CheckpointKind = CheckpointKind(  # messages name the file as {path}
    magic=b'{"kvtrace_checkpoint": ',
    exists="{path}: the checkpoint of an unfinished run exists. Continue it with --resume, or delete it to start over.",
    foreign="{path}: not a checkpoint, but the run needs this file name. Choose another output.",
    busy="{path}: another run is writing this output. Wait for it, or choose another output.",
    unlockable="{path}: cannot be locked ({fault}). Write to another file system.",
)


class Checkpoint(CheckpointFile):
    """A file of finished batches. It is deleted if the `with` block ends without an error, and kept otherwise.

    Enter it before any work, call `begin` when the settings are known, read the saved `batches`, and `append` new ones.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Checkpoint(f"{folder}/day.jsonl.resume") as checkpoint:
    ...         print(os.listdir(folder))
    ...     print(os.listdir(folder))
    ['day.jsonl.resume']
    []
    """

    kind = CHECKPOINT

    def begin(
        self, encoder: Encoder, inputs: list[sources.LogSource], settings: Mapping[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        """Record what the batches depend on: the encoder's settings and others, its key, and the inputs.

        Returns:
            The header; values of `more` are those of the earlier run.

        Raises:
            UsageError: the checkpoint was made with other options; the message names them.
            InputError: an input has changed since.
        """
        key, all_settings = encoder.recipe.key, settings_of(encoder) | {"--runner": bool(settings), **(settings or {})}
        header = {
            "kvtrace_checkpoint": FORMAT,
            "version": __version__,
            "columns": [field.name for field in fields(Batch)],
            "key": key.subkey("resume check").hex(),
            "settings": {
                name: key.subkey(f"resume setting {name}={value!r}").hex() for name, value in all_settings.items()
            },
            "inputs": [_identity(source, key) for source in inputs],
            **more,
        }
        if self.earlier is not None:
            header |= {name: self.earlier.get(name) for name in more}
            _require_same(self.path, self.earlier, header, inputs, key)
        header = sealed(header, key.subkey("resume header"))
        self._frame_key, self._header = key.subkey("resume frames"), header["digest"].encode()
        self.start(header)
        return header

    def batches(self) -> Iterator[Batch]:
        """The saved batches, in input order. An incomplete last one is cut off."""
        return map(unpacked, self.payloads())

    def append(self, batch: Batch) -> None:
        """Save the next batch. StoppedError if the disk is full; earlier batches stay intact."""
        self.append_payload(packed(batch))

    def payloads(self) -> Iterator[bytes]:
        """The saved frames, in order. An incomplete last one is cut off."""
        return self.entries(self._payload)

    def append_payload(self, data: bytes) -> None:
        """Save the bytes of the next frame."""
        self.append_entry(FRAME_HEADER.pack(len(data), self._digest(data)) + data)

    def _digest(self, data: bytes) -> bytes:
        """The digest of the next frame, which depends on the key, the header and the frame's place."""
        place = self._count.to_bytes(blake2b.SALT_SIZE, "little")
        digest = blake2b(self._header, key=self._frame_key, digest_size=DIGEST_BYTES, salt=place)
        digest.update(data)
        return digest.digest()

    def _payload(self, file: BinaryIO, remaining: int) -> bytes | None:
        """The bytes of the next batch; None at the end of the file and if the frame is incomplete or not ours."""
        header = file.read(FRAME_HEADER.size)
        if len(header) < FRAME_HEADER.size:
            return None
        size, digest = FRAME_HEADER.unpack(header)
        data = file.read(size) if 0 < size <= remaining else b""
        return data if len(data) == size and compare_digest(self._digest(data), digest) else None


def path_beside(output: str | os.PathLike[str]) -> str:
    """The path of the checkpoint of an output.

    >>> path_beside("day.jsonl")
    'day.jsonl.resume'
    """
    return f"{os.fspath(output).rstrip(os.sep)}.resume"


def why_not_resumable(inputs, output: str | os.PathLike[str], key_file: str | os.PathLike[str] | None) -> str | None:
    """The reason why a run cannot be resumed, or None.

    >>> why_not_resumable("-", "day.jsonl", "day.key")
    '--resume requires files as inputs: stdin and pipes cannot be read twice.'
    """
    if key_file is None:
        return "--resume requires --key-file: finished batches can only be reused under the same key."
    if not is_regular(str(output)):
        return "--resume requires a file as output: stdout, pipes and devices cannot be rewritten."
    if any(source.form is None for source in sources.find(inputs)):
        return "--resume requires files as inputs: stdin and pipes cannot be read twice."
    if importlib.util.find_spec("fcntl") is None:
        return "--resume requires file locks, which this system does not have."
    return None


def settings_of(encoder: Encoder) -> dict[str, Any]:
    """Option -> value, for all settings that the batches depend on, beside the inputs and the key.

    Later steps (profile, sample, format), the number of workers and the handling of bad rows do not matter: a batch
    with a bad row is saved only if the row was skipped.
    """
    recipe = encoder.recipe
    parts = (recipe.reader, recipe, recipe.options)
    settings = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    for name in UNSETTLED:
        del settings[name]
    settings["block_size"] = recipe.block_size
    settings["tokenizer"] = encoder.tokenizer and encoder.tokenizer.sha256
    settings["chat_template"] = encoder.template and encoder.template.sha256
    settings["piece_bytes"] = sources.PIECE_BYTES
    return {f"--{OPTIONS.get(name, name).replace('_', '-')}": value for name, value in settings.items()}


RENDERING = "--rendering-version"
UNSETTLED = (  # fields of a reader and a recipe that batches do not depend on, or that other settings state
    "reader", "options", "key", "name_detected", "unit_detected", "about_ns", "models", "text_models", "choice",
    "log_format", "time_unit", "field_map", "arrivals", "request_sample", "max_errors", "on_mismatch",
)  # fmt: skip
OPTIONS = {
    "name": "log_format", "unit": "time_unit", "fields": "map", "columns": "heading", "untimed": "arrivals",
    "use_template": "no_chat_template",
}  # fmt: skip


def _require_same(
    path: str, earlier: dict[str, Any], header: dict[str, Any], inputs: list[sources.LogSource], key: Key
) -> None:
    """UsageError or InputError if the batches of the earlier run are not those that this run would make."""
    start_over = f"Or delete {path} to start over."
    if any(earlier.get(name) != header[name] for name in ("kvtrace_checkpoint", "version", "columns")):
        raise UsageError(f"{path}: made by another version of kvtrace. Use that version. {start_over}")
    if earlier.get("key") != header["key"]:
        raise UsageError(f"{path}: made with another key. Use the same --key-file. {start_over}")
    if not is_sealed(earlier, key.subkey("resume header")):  # from here on, its values have our types
        raise UsageError(f"{path}: the checkpoint is damaged. Delete it to start over.")
    changed = differing(earlier.get("settings", {}), header["settings"])
    if RENDERING in changed:  # not an option
        raise UsageError(f"{path}: another version of kvtrace rendered its prompts. Use that version. {start_over}")
    if changed:
        raise UsageError(f"{path}: made with another {', '.join(changed)}. Use the same options. {start_over}")
    before, now = earlier.get("inputs", []), header["inputs"]
    if [name for name, *_ in before] != [name for name, *_ in now]:
        raise InputError(f"{path}: made with other inputs, or in another order. Use the same inputs. {start_over}")
    for source, identity_before, identity_now in zip(inputs, before, now, strict=True):
        if identity_before != identity_now:
            raise InputError(f"{source.path}: has changed since the interrupted run. Delete {path} to start over.")


def _identity(source: sources.LogSource, key: Key) -> list[Any]:
    """The identity of an input: a keyed digest of its path, its size, its time of change."""
    try:
        about = os.stat(source.path)
    except OSError as error:
        raise unreadable(source.path, error) from None
    return [key.subkey(f"resume input {source.path}").hex(), about.st_size, about.st_mtime_ns]
