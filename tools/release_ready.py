"""Compare the places that name the version; for a tag also the tag and the heading of CHANGELOG.md."""

import os
import re
import sys
import tomllib
from pathlib import Path


def first(pattern: str, path: str) -> str:
    """The first group of the pattern in a file; empty if it is not there."""
    found = re.search(pattern, Path(path).read_text(encoding="utf-8"), re.M)
    return found[1] if found else ""


version = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
versions = {
    "src/kvtrace/__init__.py": first(r'^__version__ = "(.*)"$', "src/kvtrace/__init__.py"),
    "CITATION.cff": first(r'^version: "?([^"\n]*)"?$', "CITATION.cff"),
}
if os.environ.get("GITHUB_REF_TYPE") == "tag":
    versions["the tag"] = os.environ["GITHUB_REF_NAME"].removeprefix("v")
    versions["CHANGELOG.md"] = first(rf"^## ({re.escape(version)})\b", "CHANGELOG.md")
wrong = [f"{place} has {other or 'none'}" for place, other in versions.items() if other != version]
if wrong:
    sys.exit(f"pyproject.toml has version {version}, but {'; '.join(wrong)}. Name one version everywhere.")
print(f"version {version}: all files agree")
