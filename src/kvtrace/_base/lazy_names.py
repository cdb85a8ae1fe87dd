"""The public names of a package, each imported when it is first used: its `__init__.pyi` says where each lives."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

LINE = re.compile(r"^from (\.\S*) import (\w+) as \2$", re.M)  # what type checkers and completion read, too


def attach(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package.

    >>> import kvtrace._base.lazy_names as names, kvtrace.trace
    >>> find, listed, public = names.attach("kvtrace.trace", kvtrace.trace.__file__)
    >>> find("toy")("0 1").working_set, "toy" in listed(), "toy" in public
    (2, True, True)
    """
    modules = {name: module for module, name in LINE.findall(Path(file).with_suffix(".pyi").read_text("utf-8"))}

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules[name]
        if module == ".":
            return import_module(f".{name}", package)
        value = getattr(import_module(module, package), name)
        return sys.modules[package].__dict__.setdefault(name, value)

    return find, lambda: sorted(modules), sorted(modules)
