"""Whether compiled modules fit their sources: Python would run an uncompiled .py in its place, 100 times slower."""

from __future__ import annotations

import os
from importlib.machinery import EXTENSION_SUFFIXES

from .errors import NotCompiledError

ADVICE = "Run `make build` in the source folder, or `pip install .` (both need a C compiler)."


def require_built(init: str) -> None:
    """Raise NotCompiledError unless each compiled file beside the given __init__.py has an extension module that fits.

    A file is compiled when it is a .pyx, or a .py with a .pxd beside it. In a source folder the module must also be
    newer than its sources; an installed copy is written in one go, so there the times say nothing.
    """
    folder = os.path.dirname(init)
    times = {entry.name: entry.stat().st_mtime for entry in os.scandir(folder) if not entry.name.startswith("__")}
    is_installed = "site-packages" in folder
    missing: list[str] = []
    foreign: list[str] = []
    stale: list[str] = []
    for name in sorted({name.rpartition(".")[0] for name in times if name.endswith((".pxd", ".pyx"))}):
        sources = [times[name + suffix] for suffix in (".py", ".pyx", ".pxd") if name + suffix in times]
        if name + ".py" not in times and name + ".pyx" not in times:
            continue  # C declarations alone
        built = [times[name + suffix] for suffix in EXTENSION_SUFFIXES if name + suffix in times]
        if not built:
            others = [other for other in times if other.startswith(name + ".") and other.endswith((".so", ".pyd"))]
            (foreign if others else missing).append(name)
        elif not is_installed and max(sources) > max(built):
            stale.append(name)
    faults = {"not compiled": missing, "compiled for another Python": foreign, "changed since it was compiled": stale}
    for fault, names in faults.items():
        if names:
            shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
            raise NotCompiledError(f"{fault}: {shown} (in {folder}). {ADVICE}")
