"""What `make quick` runs: `python -m tests.quick [ROOM ...]` prints pytest's arguments for what was changed.

All fast tests of the rooms that were changed, and one case of each fast test of the rooms that import these.
"""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

from tests.docs import ROOT
from tests.house.rooms import ROOMS, files_of_the_package, room_of

FOLDERS = {"_base": "base", "_native": "native"}  # room -> its folder of tests, where that has another name
OUTSIDE = {"experiments": "experiments", "benchmarks": "experiments", "fuzz": "attacks"}  # folder -> that of its tests
NAMED = ("reference", "vectors", "data")  # folders of tests/ whose files are used by the tests that name them
DOCS = "tests/house/test_docs.py"
RULES = ["tests/house/test_boundaries.py", "tests/house/test_tables.py", "tests/house/test_quick.py",
         f"{DOCS}::test_links_between_pages_lead_somewhere"]  # fmt: skip


def changed_files() -> list[str]:
    """The files that differ from where the branch began, and those that git does not know yet."""
    base = _git("merge-base", "HEAD", "origin/main") or _git("merge-base", "HEAD", "main") or ["HEAD"]
    return [*_git("diff", "--name-only", *base), *_git("ls-files", "--others", "--exclude-standard")]


def _git(*arguments):
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.split()


def importers(rooms: Iterable[str]) -> set[str]:
    """The other rooms that import one of these."""
    files = files_of_the_package()
    imported = {(file.room, room_of(name)) for file in files.values() for name in file.modules(files)}
    return {room for room, other in imported if other in rooms and room in ROOMS} - {*rooms}


def arguments(changed: Iterable[str]) -> list[str]:
    """The arguments of pytest for changed files."""
    parts = [PurePosixPath(path).parts for path in changed]
    rooms = {part[2] for part in parts if part[:2] == ("src", "kvtrace") and part[2] in ROOMS}
    tested = {part[1] for part in parts if part[0] == "tests" and len(part) > 2} - {"house", *NAMED}
    tested |= {OUTSIDE[part[0]] for part in parts if part[0] in OUTSIDE}
    whole = {f"tests/{folder}" for folder in tested | {FOLDERS.get(room, room) for room in rooms}}
    partly = {f"tests/{FOLDERS.get(room, room)}" for room in importers(rooms)} - whole
    stems = [PurePosixPath(part[-1]).stem for part in parts if part[0] == "tests" and part[1] in NAMED]
    tests = [path for path in (ROOT / "tests").rglob("test_*.py") if stems and _names(path, stems)]
    named = {path.relative_to(ROOT).as_posix() for path in tests if f"tests/{path.parent.name}" not in whole | partly}
    examples = {f"{DOCS}::test_docstring_examples_run[{room}]" for room in rooms}
    return [*sorted({*RULES, *examples, *whole, *partly, *named}), *(f"--one-case={path}" for path in sorted(partly))]


def _names(path, stems):
    text = path.read_text(encoding="utf-8")
    return any(stem in text for stem in stems)


def main(rooms: list[str]) -> int:
    if wrong := {*rooms} - {*ROOMS}:
        print(f"{', '.join(sorted(wrong))}: not a room. Rooms: {', '.join(ROOMS)}.", file=sys.stderr)
        return 2
    print(*arguments([f"src/kvtrace/{room}/__init__.py" for room in rooms] or changed_files()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
