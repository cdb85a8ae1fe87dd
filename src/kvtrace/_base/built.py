"""Whether compiled modules are there: Python would run their .py files in their place, a hundred times slower."""

from __future__ import annotations

from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType


def require_built(init: str) -> None:
    """Raise ImportError where a .py file beside the given __init__.py was not compiled."""
    here = Path(init).parent
    built = {path.name.split(".")[0] for path in here.iterdir() if path.name.endswith(tuple(EXTENSION_SUFFIXES))}
    missing = sorted({path.stem for path in here.glob("*.py")} - {"__init__"} - built)
    if missing:
        raise ImportError(f"not compiled: {', '.join(missing)}. Try `pip install .` with a C compiler at hand.")


def load(name: str, package: str) -> ModuleType:
    """A compiled module, imported; ImportError where it was not compiled."""
    module = import_module(name, package)
    if not (module.__file__ or "").endswith(tuple(EXTENSION_SUFFIXES)):
        raise ImportError(f"not compiled: {module.__name__}. Try `pip install .` with a C compiler at hand.")
    return module
