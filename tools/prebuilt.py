"""Take the compiled modules of a wheel that was built from these sources: nothing needs to be compiled then.

    python tools/prebuilt.py FOLDER [FOLDER ...]

It ends with status 1, and changes nothing, where no folder holds a wheel for this Python and these sources.
"""

import os
import runpy
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(folders: list[str]) -> int:
    """Put the modules of the first wheel that fits beside their sources, and write their stubs."""
    wheels = [path.resolve() for folder in folders for path in sorted(Path(folder).glob("kvtrace-*.whl"))]
    os.chdir(ROOT / "src")
    setup = runpy.run_path("../setup.py", run_name="settings")
    compiled = setup["compiled_files"](Path("kvtrace"))
    sources = [*compiled, *Path("kvtrace").rglob("*.pxd")]
    names = [*(path.with_suffix("").as_posix() for path in compiled), setup["SHARED"].replace(".", "/")]
    for path in wheels:
        with zipfile.ZipFile(path) as wheel:
            if fits(wheel, sources, [name + EXTENSION_SUFFIXES[0] for name in names]):
                for name in names:
                    Path(name + EXTENSION_SUFFIXES[0]).write_bytes(wheel.read(name + EXTENSION_SUFFIXES[0]))
                runpy.run_path("../tools/kernel_stubs.py")["write_stubs"](Path("kvtrace"), Path("kvtrace"))
                print(f"the kernels are those of {path.name}; nothing is compiled")
                return 0
    return 1


def fits(wheel: zipfile.ZipFile, sources: list[Path], modules: list[str]) -> bool:
    """Whether a wheel holds these modules, made from the same sources."""
    held = {*wheel.namelist()}
    if not held.issuperset(modules) or not held.issuperset(map(Path.as_posix, sources)):
        return False
    return all(wheel.read(path.as_posix()) == path.read_bytes() for path in sources)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
