"""Write the .pyi of compiled modules: what Python sees of them. A type checker cannot read their C declarations.

The build runs this, so it reads sources only. A module whose stub is in git is left out: that one is written by hand.
Functions, methods and constants are those of the .py, without those that the .pxd declares for C alone; attributes are
the public and readonly ones of the .pxd.
"""

import ast
import re
from pathlib import Path

FOLDERS = ("cache/core", "cache/live", "cache/policies", "cache/structures", "serving/core")
BY_HAND = ("cache/live/prefix_cache", "cache/policies/base")
TYPES = {"int": "int", "long long": "int", "Py_ssize_t": "int", "double": "float", "bint": "bool", "str": "str",
         "list": "list[Any]", "dict": "dict[str, Any]", "tuple": "tuple[Any, ...]", "bytes": "bytes"}  # fmt: skip
PLAIN = {"int", "float", "bool", "str", "None", "bytes"}  # annotations that need no import


def write_stubs(package: Path, target: Path) -> None:
    """Write the stubs of compiled modules below a folder, where they are older than a source or this file."""
    for name in names(package):
        path = target / f"{name}.pyi"
        sources = [Path(package, name + suffix) for suffix in (".py", ".pxd")]
        changed = max(source.stat().st_mtime for source in (*sources, Path(__file__)))
        if not path.exists() or path.stat().st_mtime < changed:
            path.write_text(stub_of(package, name), encoding="utf-8")


def names(package: Path) -> list[str]:
    """The compiled modules whose stubs are made here, as `cache/policies/classic`."""
    headers = [path.with_suffix("") for folder in FOLDERS for path in (package / folder).glob("*.pxd")]
    modules = {path.relative_to(package).as_posix() for path in headers if path.with_suffix(".py").exists()}
    return sorted(modules.difference(BY_HAND))


def stub_of(package: Path, name: str) -> str:
    """The text of a module's stub."""
    tree = ast.parse((package / f"{name}.py").read_text(encoding="utf-8"))
    header = (package / f"{name}.pxd").read_text(encoding="utf-8")
    hidden = {*re.findall(r"^cdef [^(\n]*?(\w+)(?:\(|$)", header, re.M)}
    parts, bases = [], set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases.update(base.id for base in node.bases if isinstance(base, ast.Name))
            parts.append(_class(package, name, node))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name not in hidden:
            parts.append(f"{_signature(node)}: ...")
        elif isinstance(node, ast.Assign) and not ast.unparse(node.value).startswith("cython.declare("):
            parts += [f"{one.id}: Any" for one in node.targets if isinstance(one, ast.Name) and one.id not in hidden]
    lines = ["from typing import Any"] if re.search(r"\bAny\b", "\n".join(parts)) else []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            used = [alias.name for alias in node.names if alias.name in bases]
            if used:
                module = "." * node.level + (node.module or "").removeprefix("cython.cimports.")
                lines.append(f"from {module} import {', '.join(used)}")
    body = "\n\n".join(["\n".join(lines), *parts] if lines else parts)
    return (
        f'"""Written by the build: what Python sees of {name.rpartition("/")[2]}.py, which is compiled."""\n\n{body}\n'
    )


def _class(package, name, node):
    """A class: its attributes, then the methods that Python can call."""
    attributes, hidden = _declared(package, name, node.name)
    methods = [one for one in node.body if isinstance(one, ast.FunctionDef)]
    shown = [one for one in methods if not one.name.startswith("_") and one.name not in hidden]
    lines = [f"    {attribute}: {kind}" for attribute, kind in attributes.items()]
    lines += [f"    {one.name}: Any" for one in shown if one.decorator_list]
    lines += [f"    {_signature(one)}: ..." for one in methods if one.name == "__init__"]
    lines += [f"    {_signature(one)}: ..." for one in shown if not one.decorator_list]
    bases = ", ".join(map(ast.unparse, node.bases))
    return "\n".join([f"class {node.name}{f'({bases})' if bases else ''}:{'' if lines else ' ...'}", *lines])


def _declared(package, name, cls):
    """The attributes of a class that Python sees, with their types, and the methods of it and its bases for C alone."""
    header = (package / f"{name}.pxd").read_text(encoding="utf-8")
    match = re.search(rf"^cdef class {cls}(?:\((\w+)\))?:\n((?:[ \n].*\n?|\n)*)", header, re.M)
    if match is None:
        return {}, set()
    attributes = {}
    for kind, listed in re.findall(r"^    cdef (?:public|readonly) (.+?) (\w+(?:, \w+)*)(?: *#.*)?$", match[2], re.M):
        attributes.update(dict.fromkeys(listed.split(", "), TYPES.get(kind, "Any")))
    hidden = {*re.findall(r"^    cdef [^(\n]*?(\w+)\(", match[2], re.M)}
    if match[1]:
        source = re.search(rf"^from kvtrace\.([\w.]+) cimport .*\b{match[1]}\b", header, re.M)
        hidden |= _declared(package, source[1].replace(".", "/") if source else name, match[1])[1]
    return attributes, hidden


def _signature(node):
    """The first line of a function; types that a stub would have to import are Any."""
    arguments, result = node.args, "None" if node.name == "__init__" else _annotation(node.returns)
    for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg):
        if one is not None and one.arg != "self":
            one.annotation = ast.Name(_annotation(one.annotation))
    return f"def {node.name}({ast.unparse(arguments)}) -> {result}"


def _annotation(node):
    text = "Any" if node is None else ast.unparse(node)
    return text if set(re.findall(r"[\w.]+", text)) <= PLAIN else "Any"
