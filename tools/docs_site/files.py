"""What each file of the package is: the first sentence of its docstring, in a list of docs/design.md."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/design.md"
LIST = re.compile(r"(?<=<!-- files -->\n).*?(?=<!-- end of files -->)", re.S)


def sentence(path: Path) -> str:
    """The first sentence of a file's docstring, on one line."""
    text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n\n")[0].split())
    return text.partition(". ")[0].rstrip(".:")


def listed() -> str:
    """The files of each room, one a line."""
    lines, folder = [], None
    for path in sorted((ROOT / "src/kvtrace").rglob("*.py"), key=lambda path: (path.parent.parts, path.name)):
        if path.name == "__init__.py":
            continue
        if path.parent != folder:
            folder = path.parent
            name = "/".join(folder.relative_to(ROOT / "src/kvtrace").parts)
            package = folder / "__init__.py"
            lines.append(f"\n`{name or 'kvtrace'}/`: {sentence(package)}.\n\n")
        lines.append(f"* `{path.stem}`: {sentence(path)}.\n")
    return "".join(lines) + "\n"


def with_files(text: str) -> str:
    """The page with the list as it is now."""
    return LIST.sub(lambda _: listed(), text)


def without_files(text: str) -> str:
    """The page without the list, which is for looking up."""
    return LIST.sub("", text)


def write() -> None:
    """Write the list into docs/design.md."""
    PAGE.write_text(with_files(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
