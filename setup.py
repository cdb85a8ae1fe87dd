"""Compile the kernels, the policies and the cache core; everything else is in pyproject.toml.

`python setup.py build_ext --inplace` (`make build`) compiles only what changed. Settings from the environment:
KVTRACE_DEBUG_KERNELS=1 compiles with bounds checks (`make debug`), KVTRACE_BUILD_JOBS=1 uses one processor.
"""

import hashlib
import multiprocessing
import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/kvtrace")
# Helpers that Cython would otherwise write into each module; compiled once, as a module of its own.
SHARED = "kvtrace._native._shared"
# Folders and modules that gcc compiles with -O3; the others take no longer with -O2, and compile sooner.
FASTEST = {"cache", "serving", "reuse", "rows", "siphash"}

DEBUG = os.environ.get("KVTRACE_DEBUG_KERNELS") == "1"
JOBS = int(os.environ.get("KVTRACE_BUILD_JOBS") or os.cpu_count() or 1)
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "wraparound": False,
    "initializedcheck": DEBUG,
    "cdivision": True,
    "embedsignature": True,
    "auto_pickle": False,  # nothing pickles these classes, and each would get 300 lines of C for it
}


def compiled_files():
    """What is compiled: each .pyx, and each .py that has its C declarations in a .pxd beside it."""
    declared = [path.with_suffix(".py") for path in SOURCE.rglob("*.pxd")]
    return sorted([*SOURCE.rglob("*.pyx"), *(path for path in declared if path.exists())])


def build_folder(cython_version):
    """A folder for these settings: with any other Cython, compiler flags or setup.py, all is compiled again."""
    settings = [Path(__file__).read_text(), cython_version, DEBUG, os.environ.get("CFLAGS"), os.environ.get("CC")]
    return f"build/cython-{hashlib.sha256(repr(settings).encode()).hexdigest()[:12]}"


def extensions(folder):
    """The modules as C files, which Cython writes where they are missing or older than what they are made from."""
    from Cython.Build import cythonize
    from Cython.Compiler import Errors, Options

    def fail_on_performance_hint(position, message, env=None):
        """A hint says that a loop takes the interpreter lock at each call: 20 times slower, and silent otherwise."""
        if not DEBUG:  # bounds checks have hints of their own
            raise SystemExit(f"performance hint at {position}: {message}")

    Errors.performance_hint = fail_on_performance_hint
    # A negative index without wraparound, or a method that hides the C method of its base class: never what was meant.
    Options.warning_errors = True
    multiprocessing.set_start_method("fork", force=True)  # Cython's worker processes must keep these two settings
    shared = Extension(SHARED, ["src/" + SHARED.replace(".", "/") + ".c"], extra_compile_args=flags(Path("shared")))
    return cythonize(
        [
            shared,
            *(
                Extension(
                    ".".join(path.with_suffix("").parts[1:]),
                    [str(path)],
                    extra_compile_args=flags(path.relative_to(SOURCE)),
                )
                for path in compiled_files()
            ),
        ],
        build_dir=folder,
        include_path=["src"],
        nthreads=JOBS,
        quiet=True,
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=SHARED,
    )


def flags(path):
    """gcc's options for a source file."""
    if DEBUG:
        return ["-O1", "-g"]
    return ["-O3" if FASTEST.intersection(path.with_suffix("").parts) else "-O2", "-g0"]


class BuildExtensions(build_ext):
    """As setuptools', but Cython runs only where something is compiled, and what is compiled in place is kept."""

    def finalize_options(self):
        import Cython

        self.parallel = self.parallel or JOBS
        folder = build_folder(Cython.__version__)
        if self.distribution.ext_modules == [PLACEHOLDER]:
            self.distribution.ext_modules[:] = extensions(folder)
        super().finalize_options()
        if self.inplace or self.editable_mode:  # not in a temporary folder: the next run compiles only what changed
            self.build_lib = self.build_temp = f"{folder}/{sys.implementation.cache_tag}"


PLACEHOLDER = Extension("kvtrace", [])  # says that there are extensions, until they are wanted
setup(ext_modules=[PLACEHOLDER], cmdclass={"build_ext": BuildExtensions})
