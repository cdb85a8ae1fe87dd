"""Print what pyproject.toml requires, a line each: `build` to compile kvtrace, `run` to run it. For the Makefile."""

import sys
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
print(
    *(project["build-system"]["requires"] if sys.argv[1] == "build" else project["project"]["dependencies"]), sep="\n"
)
