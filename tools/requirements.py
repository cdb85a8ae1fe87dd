"""Print what pyproject.toml requires, a line each: `build` to compile kvtrace, `run` to run it, an extra or a group."""

import re
import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
REQUIRED = {
    "build": project["build-system"]["requires"],
    "run": project["project"]["dependencies"],
    **project["project"]["optional-dependencies"],
    **project["dependency-groups"],
}


def requirements(name: str) -> list[str]:
    """The packages of a list, with those of the groups and of kvtrace's extras that it names."""
    packages = []
    for line in REQUIRED[name]:
        if isinstance(line, dict):
            packages += requirements(line["include-group"])
        elif extras := re.fullmatch(r"kvtrace\[(.*)\]", line):
            packages += [package for extra in extras[1].split(",") for package in requirements(extra)]
        else:
            packages.append(line)
    return packages


print(*requirements(sys.argv[1]), sep="\n")
