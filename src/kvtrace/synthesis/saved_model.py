"""Models as files: one small JSON object, compressed if the name ends in .gz or .zst."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

from .._base.errors import InputError
from .._base.files import Content, name_of, require_name
from .._base.input_files import open_read
from .._base.output_files import write_atomically
from .._base.results import Result
from .bins import InvalidModelError
from .fidelity import Fidelity, Figures, figures_from

MAX_BYTES = 1 << 28  # of a file; models have up to a few MB


class SavedModel(Result):
    """A model that is saved as one JSON file, compressed if its name ends in .gz or .zst."""

    kind: ClassVar[str]  # the value of the key `what`
    figures: Figures  # of the fitted trace
    fidelity: Fidelity | None  # as it was checked

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of the file."""
        raise NotImplementedError

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The model of `to_dict`; ValueError, KeyError or TypeError if the values are not a model."""
        raise NotImplementedError

    def checked(self, fidelity: Fidelity) -> Self:
        """The model with its fidelity, which is saved with it."""
        return replace(self, fidelity=fidelity)  # type: ignore[type-var]

    def _checks(self) -> dict[str, Any]:
        """The figures of the trace, and the fidelity, for `to_dict`."""
        return {"figures": self.figures, "fidelity": None if self.fidelity is None else self.fidelity.to_dict()}

    @staticmethod
    def _checks_of(values: Mapping[str, Any]) -> dict[str, Any]:
        """The same fields from the values of `to_dict`."""
        fidelity = values["fidelity"]
        return {
            "figures": figures_from(values["figures"]),
            "fidelity": None if fidelity is None else Fidelity.from_dict(fidelity),
        }

    def save(self, path: str | Path) -> str:
        """Write the model as JSON, compressed if the name ends in .gz or .zst, and return the name of the file.

        Raises:
            UsageError: The name states another content than JSON.
            KvtraceError: The file cannot be written.

        >>> import tempfile
        >>> from kvtrace.synthesis.attach_fitting import fit
        >>> from kvtrace.trace.building import toy
        >>> model = fit(toy("0 1", "0 2"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = model.save(f"{folder}/model.json.gz")
        ...     type(model).load(f"{folder}/model.json.gz").rows
        2
        """
        require_name(path, Content.JSON, "a model", option="--save-model")
        with write_atomically(path) as stream:
            stream.write(json.dumps(self.to_dict(), separators=(",", ":")).encode() + b"\n")
        return name_of(path)

    @classmethod
    def is_model(cls, path: str | Path) -> bool:
        """Whether a file starts like a saved model of this kind. stdin is always a trace."""
        if str(path) == "-" or not Path(path).is_file():
            return False
        with open_read(path) as stream:
            return cls.kind.encode() in stream.read(200)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a saved model; InputError if the file is not a saved model."""
        with open_read(path) as stream:
            text = stream.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise InputError(f"{name_of(path)}: not a model of kvtrace (longer than {MAX_BYTES:,} bytes).")
        try:
            return cls.from_dict(json.loads(text))
        except KeyError as error:
            reason = f"{error} is missing"  # a key of ours
        except InvalidModelError as error:
            reason = str(error)
        except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
            reason = "inconsistent values"  # the message of a library may quote values
        raise InputError(f"{name_of(path)}: not a model of kvtrace ({reason}). Write it again with --save-model.")
