"""Print what pyproject.toml requires, a line each: `build` to compile kvtrace, `run` to run it, or an extra's name."""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
required = {
    "build": project["build-system"]["requires"],
    "run": project["project"]["dependencies"],
    **project["project"]["optional-dependencies"],
}
print(*required[sys.argv[1]], sep="\n")
