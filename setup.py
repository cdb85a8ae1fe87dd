"""Compile the kernels, the policies and the cache core; everything else is in pyproject.toml.

`python setup.py build_ext --inplace` (`make build`) compiles only what changed. Settings from the environment:
KVTRACE_DEBUG_KERNELS=1 compiles with bounds checks (`make debug`), KVTRACE_BUILD_JOBS=1 uses one processor,
KVTRACE_ONLY=_native compiles the modules of one folder of the package, KVTRACE_IS_BUILT=1 compiles nothing.
"""

import functools
import hashlib
import multiprocessing
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

SOURCE = Path("src/kvtrace")
# Helpers that Cython would otherwise write into each module; compiled once, as a module of its own.
SHARED = "kvtrace._native._shared"
LEVELS_ARE_SET = "/* levels of optimisation are set */\n"
# gcc takes -O2 for the functions that we wrote, and -O1 for what Cython writes around them, three quarters of the C:
# it compiles in two thirds of the time. Functions of Python get -O2 where their names begin with _, as the loops of
# _native do. These modules are -O2 as a whole: their loops use Python's objects, and were 5 to 35 % slower.
WHOLE = (
    "kvtrace.cache.live.",
    "kvtrace.cache.policies.adaptive",
    "kvtrace.serving.core.lockstep",
    "kvtrace.serving.core.vllm",
)
# Compiled with -O3, where it was measured to make a policy faster: lhd.
FASTEST = "kvtrace.cache.policies.learned"

IS_WINDOWS = sys.platform == "win32"
DEBUG = os.environ.get("KVTRACE_DEBUG_KERNELS") == "1"
ONLY = os.environ.get("KVTRACE_ONLY", "")
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


def compiled_files(source=SOURCE):
    """What is compiled: each .pyx, and each .py that has its C declarations in a .pxd beside it."""
    declared = [path.with_suffix(".py") for path in source.rglob("*.pxd")]
    return sorted([*source.rglob("*.pyx"), *(path for path in declared if path.exists())])


def build_folder(cython_version):
    """A folder for these settings: with other ones all is compiled again."""
    settings = [cython_version, DIRECTIVES, SHARED, WHOLE, FASTEST, flags(SHARED)]
    settings += [os.environ.get(name) for name in ("CC", "CFLAGS", "LDFLAGS")]
    return f"build/cython-{hashlib.sha256(repr(settings).encode()).hexdigest()[:12]}"


def extensions(folder):
    """The modules as C files, which Cython writes where they are missing or older than what they are made from."""
    check_policies()
    from Cython.Build import cythonize
    from Cython.Compiler import Errors, Options

    def fail_on_performance_hint(position, message, env=None):
        """A hint says that a loop takes the interpreter lock at each call: 20 times slower, and silent otherwise."""
        if not DEBUG:  # bounds checks have hints of their own
            raise SystemExit(f"performance hint at {position}: {message}")

    Errors.performance_hint = fail_on_performance_hint
    # A negative index without wraparound, or a method that hides the C method of its base class: never what was meant.
    Options.warning_errors = True
    if not IS_WINDOWS:
        multiprocessing.set_start_method("fork", force=True)  # Cython's worker processes must keep these two settings
    shared = Extension(SHARED, ["src/" + SHARED.replace(".", "/") + ".c"], extra_compile_args=flags(SHARED))
    modules = cythonize(
        [
            shared,
            *(
                Extension(name := ".".join(path.with_suffix("").parts[1:]), [str(path)], extra_compile_args=flags(name))
                for path in compiled_files()
                if path.is_relative_to(SOURCE / ONLY)
            ),
        ],
        build_dir=folder,
        include_path=["src"],
        nthreads=0 if IS_WINDOWS else JOBS,
        quiet=True,
        compiler_directives=DIRECTIVES,
        shared_utility_qualified_name=SHARED,
    )
    for module in modules:
        if takes_levels() and module.name != SHARED and not module.name.startswith(WHOLE):
            set_levels(Path(module.sources[0]), module.name)
    return modules


def set_levels(path, module):
    """Write beside each function of a C file how far gcc optimises it; the level of all others is that of `flags`."""
    text = path.read_text()
    if text.endswith(LEVELS_ARE_SET):
        return
    level = 3 if module == FASTEST else 2
    place = "_".join(f"{len(part)}{part}" for part in module.split("."))
    ours = rf"__pyx_(?:f_\w+|pf_{place}_(?:\d+[A-Z]\w*_)?\d*_[a-z]\w*(?<!__))\("
    attribute = f'static __attribute__((optimize("O{level}"))) '
    text = re.sub(rf"^static (?=[^=;({{]*?\b{ours})", attribute, text, flags=re.M)
    path.write_text(text + LEVELS_ARE_SET)


def check_policies():
    """Fail where a policy lacks a required verb, or has a method that no engine would call: a misspelt verb.

    A policy has the verbs of its base classes, too, and may define what a base class of its folder declares. Cython
    itself refuses a verb whose signature differs from that in base.pxd.
    """
    for base in SOURCE.rglob("policies/base.pxd"):
        interface = base.read_text().partition("cdef class Policy")[2]
        required, optional = (re.findall(r"cdef \w+ (\w+)\(", part) for part in interface.split("# optional"))
        classes = {}  # name -> its base class, its file, the methods that it defines, those that its header declares
        for header in base.parent.glob("*.pxd"):
            source = header.with_suffix(".py")
            parts = re.split(r"^cdef class (\w+)\((\w+)\)", header.read_text(), flags=re.M)[1:]
            for name, parent, declared in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
                body = re.search(rf"^class {name}\({parent}\):\n((?:[ #].*\n|\n)*)", source.read_text(), re.M)
                defined = re.findall(r"^    def ([a-z]\w*)\(", body[1] if body else "", re.M)
                classes[name] = (parent, source, defined, re.findall(r"cdef \w+ ([a-z]\w*)\(", declared))
        parents = {parent for parent, *_ in classes.values()}
        for name, (parent, source, defined, _) in classes.items():
            has, known = {*defined}, {*required, *optional}
            if name in parents:
                known.update(classes[name][3])
            while parent in classes:
                parent, _, inherited, declared = classes[parent]
                has.update(inherited)
                known.update(declared)
            if parent != "Policy":
                continue
            missing = [verb for verb in required if verb not in has]
            unknown = [verb for verb in defined if verb not in known]
            if missing and name not in parents:  # a base class may leave verbs to its policies
                raise SystemExit(f"{source}: {name} lacks {', '.join(missing)}. Required: {', '.join(required)}.")
            if unknown:
                raise SystemExit(
                    f"{source}: no engine calls {', '.join(unknown)} of {name}. Optional verbs: "
                    f"{', '.join(optional)}. Start the name of a helper with _."
                )


def flags(module):
    """The C compiler's options for a module."""
    if IS_WINDOWS:
        return ["/Od", "/Zi"] if DEBUG else ["/O2"]
    if DEBUG:
        return ["-O1", "-g"]
    return ["-O1" if takes_levels() and not module.startswith(WHOLE) else "-O2", "-g0"]


@functools.cache
def takes_levels():
    """Whether the compiler takes a level of optimisation for each function: gcc does, clang knows none."""
    if IS_WINDOWS or DEBUG:
        return False
    command = compiler_command()
    if shutil.which(command[0]) is None:  # a source archive needs none
        return False
    macros = subprocess.run([*command, "-dM", "-E", "-x", "c", os.devnull], capture_output=True, text=True).stdout
    return "__GNUC__" in macros and "__clang__" not in macros


def compiler_command():
    """The C compiler with its options, which may begin with another program, such as ccache."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler

    compiler = new_compiler()
    customize_compiler(compiler)
    return compiler.compiler


def require_compiler():
    """End with one line where a C compiler or Python's headers are missing; setuptools would give pages later on."""
    if IS_WINDOWS:
        return  # setuptools finds the compiler in the registry, and names what to install
    command = compiler_command()[0]
    if shutil.which(command) is None:
        raise SystemExit(
            f"kvtrace: no C compiler: {command} is not installed. Install it (Debian: `apt install gcc libc6-dev`, "
            "Fedora: `dnf install gcc`, macOS: `xcode-select --install`), or name one in CC."
        )
    if not any(Path(sysconfig.get_path(name), "Python.h").exists() for name in ("include", "platinclude")):
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        raise SystemExit(
            f"kvtrace: the headers of Python {version} are missing: there is no Python.h. Install them (Debian: "
            f"`apt install python{version}-dev`, Fedora: `dnf install python{version}-devel`)."
        )


class BuildExtensions(build_ext):
    """As setuptools', but Cython runs only where something is compiled, and what is compiled in place is kept."""

    def finalize_options(self):
        try:
            import Cython
        except ImportError:
            raise SystemExit(
                "kvtrace: Cython is not installed. Run pip without --no-build-isolation, or install what "
                "[build-system] of pyproject.toml requires."
            ) from None
        if not {"sdist", "egg_info"}.intersection(self.distribution.commands):  # a source archive compiles nothing
            require_compiler()
        self.parallel = self.parallel or JOBS
        folder = build_folder(Cython.__version__)
        if self.distribution.ext_modules == [PLACEHOLDER]:
            self.distribution.ext_modules[:] = extensions(folder)
        super().finalize_options()
        self.compiled = Path(folder, sys.implementation.cache_tag)
        if self.inplace or self.editable_mode:  # not in a temporary folder: the next run compiles only what changed
            self.build_lib = self.build_temp = str(self.compiled)

    def build_extension(self, extension):
        """Compile a module, or take the one for a wheel that these settings have compiled in place."""
        module = self.compiled / self.get_ext_filename(extension.name)
        target = Path(self.get_ext_fullpath(extension.name))
        changed = max(Path(source).stat().st_mtime for source in extension.sources)
        in_place = module.absolute() == target.absolute()  # setuptools hides self.inplace here
        if in_place or not module.exists() or module.stat().st_mtime < changed:
            super().build_extension(extension)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(module, target)

    def run(self):
        """Compile, and write the stubs beside the modules that type checkers cannot read."""
        super().run()
        in_place = self.inplace or self.editable_mode
        write_stubs = runpy.run_path("tools/kernel_stubs.py")["write_stubs"]
        write_stubs(SOURCE, SOURCE if in_place else Path(self.build_lib) / "kvtrace")


def description():
    """The README for a package index, where only absolute links lead somewhere: files are those of the repository."""
    repository = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    text = Path("README.md").read_text(encoding="utf-8")
    text = re.sub(r"(!\[[^]]*\]\()(?!\w+:|#)", rf"\1{repository}/raw/main/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?!\w+:|#)", rf"\1{repository}/blob/main/", text)


PLACEHOLDER = Extension("kvtrace", [])  # says that there are extensions, until they are wanted
IS_BUILT = os.environ.get("KVTRACE_IS_BUILT") == "1"  # make has compiled in place; an editable install need not look
if __name__ == "__main__":  # tools/times.py reads the settings
    setup(
        ext_modules=[] if IS_BUILT else [PLACEHOLDER],
        cmdclass={"build_ext": BuildExtensions},
        long_description=description(),
        long_description_content_type="text/markdown",
    )
