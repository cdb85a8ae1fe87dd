"""The compiled loops: arrays in, arrays out. Each has a plain twin in tests/reference/ that defines it."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

_here = Path(__file__).parent
_built = {path.name.split(".")[0] for path in _here.iterdir() if path.name.endswith(tuple(EXTENSION_SUFFIXES))}
_missing = sorted({path.stem for path in _here.glob("*.py")} - {"__init__"} - _built)
if _missing:  # Python would run the .py files in their place, a hundred times slower
    raise ImportError(f"kernels not compiled: {', '.join(_missing)}. Try `pip install .` with a C compiler at hand.")
