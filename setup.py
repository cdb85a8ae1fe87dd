"""Build what is compiled: kernels, policies and the cache core; everything else is in pyproject.toml.

KVTRACE_DEBUG_KERNELS=1 builds them with bounds checks and wraparound errors (`make test-debug`).
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler import Errors
from setuptools import Extension, setup

DEBUG = os.environ.get("KVTRACE_DEBUG_KERNELS") == "1"
COMPILED = [
    "_native",
    "cache/core",
    "cache/live",
    "cache/policies",
    "cache/structures",
    "serving/core",
]  # folders whose files are all compiled
KERNELS = sorted(
    path
    for folder in COMPILED
    for path in Path("src/kvtrace", folder).glob("*.py")
    if path.stem not in ("__init__", "policy_choice", "self_check")
)


def fail_on_performance_hint(position, message, env=None):
    """A hint says that a loop takes the interpreter lock back at each call: 20 times slower, and silent otherwise."""
    if not DEBUG:  # bounds checks have hints of their own
        raise SystemExit(f"performance hint at {position}: {message}")


Errors.performance_hint = fail_on_performance_hint

setup(
    ext_modules=cythonize(
        [
            Extension(
                ".".join(path.with_suffix("").parts[1:]),
                [str(path)],
                extra_compile_args=["-O1", "-g"] if DEBUG else ["-O3"],
            )
            for path in KERNELS
        ],
        build_dir="build/cython",
        include_path=["src"],
        language_level=3,
        compiler_directives={
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "cdivision": True,
            "embedsignature": True,
        },
    )
)
