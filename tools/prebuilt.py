"""Take the compiled modules of a wheel that was built from these sources: nothing needs to be compiled then.

    python tools/prebuilt.py FOLDER [FOLDER ...]

It ends with status 1, and changes nothing, where no folder holds a wheel for this Python and these sources.
"""

import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


def matches(wheel: zipfile.ZipFile) -> bool:
    """Whether a wheel has a module for this Python for each that is compiled, made from the same source."""
    names = {*wheel.namelist()}
    for header in SOURCE.rglob("*.pxd"):
        for path in (header, header.with_suffix(".py")):
            name = path.relative_to(SOURCE).as_posix()
            if path.exists() and (name not in names or wheel.read(name) != path.read_bytes()):
                return False
        module = header.with_suffix(EXTENSION_SUFFIXES[0]).relative_to(SOURCE).as_posix()
        if header.with_suffix(".py").exists() and module not in names:
            return False
    return True


def main(folders: list[str]) -> int:
    """Put the modules of the first wheel that fits, and their stubs, beside their sources."""
    for path in (path for folder in folders for path in sorted(Path(folder).glob("kvtrace-*.whl"))):
        with zipfile.ZipFile(path) as wheel:
            if not matches(wheel):
                continue
            for name in wheel.namelist():
                if name.endswith((EXTENSION_SUFFIXES[0], ".pyi")) and not (SOURCE / name).exists():
                    (SOURCE / name).write_bytes(wheel.read(name))
        print(f"the kernels are those of {path.name}; nothing is compiled")
        return 0
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
