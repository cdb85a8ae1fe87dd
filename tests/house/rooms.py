"""The rooms of the package (its folders), and what each file imports. docs/design.md draws them."""

import ast
import importlib
from functools import cache, cached_property
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "src/kvtrace"
# from the basement up: a room imports from rooms that stand before it, and from nowhere else
ROOMS = ("_base", "_native", "trace", "formats", "text", "analysis", "synthesis", "privacy", "cache", "ingest",
         "serving", "report", "capture", "cli")  # fmt: skip
ALONE = {"__init__", "__main__", "from_log"}  # files outside all rooms


class Source:
    """A file of the package; it is parsed once."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text  # the name is its path without a suffix: cache/core/pool
        self.room = room_of(name)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [*ast.walk(self.tree)]

    @cached_property
    def imports(self) -> set[str]:
        """Each name that the file imports, those for types too; kvtrace's own as `kvtrace.x.y`."""
        return {name for node in self.nodes for name in self._names(node)}

    @cached_property
    def imports_at_once(self) -> set[str]:
        """Each name that is imported with the file: all but those inside functions."""
        functions = [node for node in self.nodes if isinstance(node, ast.FunctionDef)]
        deferred = {inner for function in functions for inner in ast.walk(function)}
        return {name for node in self.nodes if node not in deferred for name in self._names(node)}

    @cached_property
    def calls(self) -> set[str]:
        """The functions that the file calls, as they are written: `sys.exit`."""
        return {ast.unparse(node.func) for node in self.nodes if isinstance(node, ast.Call)}

    @cached_property
    def attributes(self) -> set[str]:
        return {ast.unparse(node) for node in self.nodes if isinstance(node, ast.Attribute)}

    def modules(self, files) -> set[str]:
        """The files of ours that this one imports: of `from . import x` the file x, where there is one."""
        names = {name.removeprefix("kvtrace.").replace(".", "/") for name in self.imports if is_ours(name)}
        parents = {name.rpartition("/")[0] for name in names if name in files or f"{name}/__init__" in files}
        packages = {f"{name}/__init__" for name in names - parents}
        return (names | packages) & files.keys()

    def _names(self, node):
        here = ("kvtrace", *self.name.split("/")[:-1])
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else ()
            module = ".".join((*base, *(node.module or "").split("."))).strip(".").removeprefix("cython.cimports.")
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name):
    """The room of a file or of an imported name: `kvtrace.cache.core.pool` is of `cache`."""
    return name.removeprefix("kvtrace.").replace("/", ".").split(".")[0]


def is_ours(name):
    return name.startswith("kvtrace.")


@cache
def files_of_the_package() -> dict[str, Source]:
    """Every file of the package by its name."""
    paths = {path.relative_to(PACKAGE).with_suffix("").as_posix(): path for path in PACKAGE.rglob("*.py")}
    return {name: Source(name, path.read_text(encoding="utf-8")) for name, path in paths.items()}


def public_values():
    """Name -> value of all public names, those of the rooms too, which go before a command of the same name."""
    import kvtrace

    rooms = [importlib.import_module(f"kvtrace.{room}") for room in ROOMS]
    packages = [kvtrace, *(room for room in rooms if hasattr(room, "__all__"))]
    needs_litellm = {"LiteLLMCallback"}
    names = ((package, name) for package in packages for name in package.__all__ if name not in needs_litellm)
    return {name: getattr(package, name) for package, name in names}
