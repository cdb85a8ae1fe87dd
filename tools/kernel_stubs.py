"""Write the .pyi of compiled modules: what Python sees of them. A type checker cannot read their C declarations.

`python tools/kernel_stubs.py` writes those that are out of date; a stub without MARK in it is written by hand and kept.
The methods are those of the .py, the attributes those of the compiled class, with their types in the .pxd.
"""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src/kvtrace"
FOLDERS = ("cache/core", "cache/live", "cache/policies", "cache/structures", "serving/core")
MARK = "Written by tools/kernel_stubs.py"
TYPES = {"int": "int", "long": "int", "double": "float", "bint": "bool", "str": "str", "list": "list[Any]",
         "dict": "dict[str, Any]", "tuple": "tuple[Any, ...]", "bytes": "bytes"}  # fmt: skip
PLAIN = {"int", "float", "bool", "str", "None", "bytes"}  # annotations that need no import


def names() -> list[str]:
    """The compiled modules whose stubs are not written by hand, as `cache/policies/lru`."""
    found = [path.with_suffix("") for folder in FOLDERS for path in (PACKAGE / folder).glob("*.pxd")]
    modules = [path for path in found if path.with_suffix(".py").exists() and not by_hand(path.with_suffix(".pyi"))]
    return sorted(path.relative_to(PACKAGE).as_posix() for path in modules)


def by_hand(stub: Path) -> bool:
    """Whether a stub was written by a person."""
    return stub.exists() and MARK not in stub.read_text(encoding="utf-8")


def stub_of(name: str) -> str:
    """The text of a module's stub."""
    module = importlib.import_module(f"kvtrace.{name.replace('/', '.')}")
    tree = ast.parse((PACKAGE / f"{name}.py").read_text(encoding="utf-8"))
    declared = (PACKAGE / f"{name}.pxd").read_text(encoding="utf-8")
    visible = {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)} & vars(
        module
    ).keys()
    parts, imports = [], {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name in visible:
            kind = getattr(module, node.name)
            base = kind.__mro__[1]
            if base is not object and base.__module__ != module.__name__:
                imports[base.__name__] = base.__module__
            own = declared.partition(f"cdef class {node.name}")[2].partition("cdef class ")[0]
            parts.append("\n".join(_class(node, kind, base, own)))
        elif isinstance(node, ast.FunctionDef) and node.name in visible and not node.name.startswith("_"):
            parts.append(f"{_signature(node)}: ...")
    lines = [f"from {module} import {base}" for base, module in sorted(imports.items(), key=lambda item: item[1])]
    body = "\n\n".join(parts)
    text = f'"""{MARK}: what Python sees of {name.rpartition("/")[2]}.py, which is compiled."""\n\n'
    if "Any" in body:
        text += "from typing import Any\n\n"
    return text + "".join(f"{line}\n" for line in lines) + f"\n{body}\n"


def is_current(name: str) -> bool:
    """Whether a module's stub says what the module has now; its format does not count."""
    stub = PACKAGE / f"{name}.pyi"
    return stub.exists() and ast.dump(ast.parse(stub.read_text(encoding="utf-8"))) == ast.dump(ast.parse(stub_of(name)))


def _class(node, kind, base, declared):
    """The lines of a class: its attributes, then the methods that Python can call."""
    parent = "" if base is object else f"({base.__name__})"
    visible = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)}
    attributes = [name for name in visible if name not in methods or inspect.isdatadescriptor(visible[name])]
    lines = [f"    {name}: {_type(name, declared)}" for name in attributes]
    constructor = [methods["__init__"]] if "__init__" in methods else []
    called = [one for name, one in methods.items() if name in visible and name not in attributes]
    lines += [f"    {_signature(one)}: ..." for one in (*constructor, *called)]
    return [f"class {node.name}{parent}:{'' if lines else ' ...'}", *lines]


def _type(name, declared):
    """The type of a public attribute, from its declaration in the .pxd."""
    match = re.search(rf"cdef (?:public|readonly) ([\w.]+) (?:\w+, )*{name}\b", declared)
    return TYPES.get(match[1], "Any") if match else "Any"


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


if __name__ == "__main__":
    old = [module_name for module_name in names() if not is_current(module_name)]
    for module_name in old:
        (PACKAGE / f"{module_name}.pyi").write_text(stub_of(module_name), encoding="utf-8")
        sys.stdout.write(f"wrote {module_name}.pyi\n")
    if old:
        files = [str(PACKAGE / f"{module_name}.pyi") for module_name in old]
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", *files], check=True)
