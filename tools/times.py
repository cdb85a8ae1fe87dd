"""Measure what a fresh clone takes to set up, and rewrite tools/times.mk, which has all such figures (`make times`).

It clones the last commit into a temporary folder, so it needs the package index and some minutes. The times of a slow
machine differ; the cost of a compiled module with one empty class is measured beside them, for comparison.
"""

import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import spent

ROOT = Path(__file__).resolve().parents[1]
PLACE = Path("tools/times.mk")
LARGEST_POLICIES = "src/kvtrace/cache/policies/classic.py"
MEANING = "# Written by `make times`: how long things take here, beside what an empty compiled module costs. CPU_S is "


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder, "kvtrace")
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        os.chdir(clone)
        figures = measured()
    text = f"{MEANING}processor time.\n" + "".join(f"{name} := {value:g}\n" for name, value in figures.items())
    (ROOT / PLACE).write_text(text, encoding="utf-8")
    sys.stdout.write(text)


def measured() -> dict[str, float]:
    """The figures of the clone in the current folder."""
    build = [".venv/bin/python", "setup.py", "-q", "build_ext", "--inplace"]
    os.environ["PIP_NO_CACHE_DIR"] = "1"
    set_up, demo = spent("make", ".venv/installed"), spent("sh", "examples/demo.sh", ".venv/bin/kvtrace")
    rest, dev = spent("make", "build"), spent("make", ".venv/dev")
    shutil.rmtree("build")
    for module in Path("src").rglob("*.so"):
        module.unlink()
    whole = spent(*build)
    os.utime(LARGEST_POLICIES)
    policy = spent(*build)
    setup = runpy.run_path("setup.py", run_name="settings")
    sources = [path for path in Path("build").rglob("*.c") if "src/kvtrace" in path.as_posix()]
    gcc_cpu_s = sum(gcc(path, setup["flags"](".".join(path.with_suffix("").parts[3:]))) for path in sources)
    empty_cpu_s = min(gcc(empty(setup), ["-O2", "-g0"]) for _ in range(5))  # as when the goals were set
    return {
        "EMPTY_MODULE_CPU_S": round(empty_cpu_s, 2),
        "GCC_CPU_S": round(gcc_cpu_s),
        "GCC_IN_EMPTY_MODULES": round(gcc_cpu_s / empty_cpu_s),
        "POLICY_CPU_S": round(policy.processor_s, 1),
        "LINES_OF_C": sum(path.read_bytes().count(b"\n") for path in sources),
        "MODULES": len(sources),
        "BUILD_S": round(whole.wall_s),
        "DEMO_S": round(set_up.wall_s + demo.wall_s),
        "REST_S": round(rest.wall_s),
        "DEV_S": round(dev.wall_s),
    }


def empty(setup: dict) -> Path:
    """The C file of a compiled module with one empty class."""
    folder = Path("build/empty")
    folder.mkdir(exist_ok=True)
    (folder / "empty.py").write_text("class Empty:\n    pass\n")
    (folder / "empty.pxd").write_text("cdef class Empty:\n    pass\n")
    directives = [f"--directive={name}={value}" for name, value in setup["DIRECTIVES"].items()]
    shared = f"--shared={setup['SHARED']}"
    subprocess.run([Path(".venv/bin/cython").absolute(), *directives, shared, "empty.py"], cwd=folder, check=True)
    return folder / "empty.c"


def gcc(path: Path, flags: list[str]) -> float:
    """The processor time in which a C file is compiled with these flags, beside Python's own."""
    from setuptools._distutils.ccompiler import new_compiler
    from setuptools._distutils.sysconfig import customize_compiler, get_python_inc

    compiler = new_compiler()
    customize_compiler(compiler)
    command = [*compiler.compiler_so, f"-I{get_python_inc()}", *flags, "-c", str(path)]
    return spent(*command, "-o", os.devnull).processor_s


if __name__ == "__main__":
    main()
