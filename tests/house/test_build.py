"""What the build refuses, and what an import says of compiled modules that do not fit their sources."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from kvtrace._base.process import require_built

ROOT = Path(__file__).resolve().parents[2]
POLICY = """class Mine(Policy):
    def insert(self, block):
        return 0

    def use(self, block):
        return 0

    def release(self, block):
        return 0

    def victim(self):
        return -2

    def remove(self, block):
        return 0
"""
# what the build may grow to; more, and gcc takes long again: put a new kernel into a module of its family
MODULES = 37
LINES_OF_C = 910_000
TIMES = ROOT / "tools/times.mk"
IMPORT = "from cython.cimports.kvtrace.cache.policies.base import Policy\n\n\n"
HEADER = "from kvtrace.cache.policies.base cimport Policy\n\ncdef class Mine(Policy):\n    pass\n"


def put_setup(folder):
    """Put setup.py into a folder, and what it reads."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)


def cython(folder, source):
    """What Cython says of a policy of this source."""
    (folder / "mine.py").write_text(IMPORT + source)
    (folder / "mine.pxd").write_text(HEADER)
    command = [sys.executable, "-m", "cython", "-3", "-Werror", "-I", ROOT / "src", "mine.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stderr


def test_a_policy_that_fits_compiles(tmp_path):
    pytest.importorskip("Cython")
    assert cython(tmp_path, POLICY) == ""


@pytest.mark.parametrize(
    "right, wrong",
    [("victim(self)", "victim(self, extra)"), ("insert(self, block)", "insert(self)")],
)
def test_a_verb_with_a_wrong_signature_fails_the_build(tmp_path, right, wrong):
    pytest.importorskip("Cython")
    assert "wrong number of arguments" in cython(tmp_path, POLICY.replace(right, wrong))


@pytest.mark.parametrize(
    "right, wrong, message",
    [
        ("victim", "victm", "mine.py: Mine lacks victim. Required: insert, use, release, victim, remove."),
        ("insert", "_insert", "mine.py: Mine lacks insert. "),
        (
            "    def use",
            "    def expird(self):\n        return -2\n\n    def use",
            "mine.py: no engine calls expird of Mine. ",
        ),
    ],
)
def test_a_misspelt_verb_fails_the_build(tmp_path, right, wrong, message):
    pytest.importorskip("Cython")
    policies = tmp_path / "src/kvtrace/cache/policies"
    policies.mkdir(parents=True)
    put_setup(tmp_path)
    shutil.copy(ROOT / "src/kvtrace/cache/policies/base.pxd", policies)
    (policies / "mine.py").write_text(IMPORT + POLICY.replace(right, wrong))
    (policies / "mine.pxd").write_text(HEADER)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0 and message in done.stderr


def test_what_changed_is_compiled_again_in_place_and_nothing_else(tmp_path):
    pytest.importorskip("Cython")
    put_setup(tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    folders = [tmp_path / "src/kvtrace" / name for name in ("_native", "cache")]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "count.py").write_text("class Count:\n    pass\n")
        (folder / "count.pxd").write_text("cdef class Count:\n    cdef public int value\n")

    def built(**environment):
        command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        subprocess.run(command, cwd=tmp_path, env=os.environ | environment, capture_output=True, check=True)
        return {path.relative_to(tmp_path / "src/kvtrace").as_posix().partition(".")[0]: path.stat().st_mtime_ns
                for path in tmp_path.glob("src/**/*.so")}  # fmt: skip

    first = built(KVTRACE_ONLY="_native")
    assert first.keys() == {"_native/count", "_native/_shared"}
    whole = built()
    assert whole.keys() == {*first, "cache/count"}
    source = folders[1] / "count.py"
    source.write_text(source.read_text() + "\nSTEP = 1\n")
    changed = built()
    assert {name for name in whole if changed[name] != whole[name]} == {"cache/count"}


def test_without_a_compiler_a_source_archive_is_made_and_a_build_says_so_in_one_line(tmp_path):
    pytest.importorskip("Cython")
    put_setup(tmp_path)
    (tmp_path / "src/kvtrace/_native").mkdir(parents=True)
    for command, status in (("sdist", 0), ("build_ext", 1)):
        line = [sys.executable, "setup.py", "-q", command]
        run = subprocess.run(
            line, cwd=tmp_path, env=os.environ | {"CC": "no-such-compiler"}, capture_output=True, text=True
        )
        assert run.returncode == status, run.stderr
    assert run.stderr.splitlines()[-1].startswith("kvtrace: no C compiler: no-such-compiler is not installed.")


def test_the_compiled_code_keeps_within_its_budget():
    setup = runpy.run_path(str(ROOT / "setup.py"), run_name="settings")
    modules = [path.relative_to(ROOT) for path in setup["compiled_files"](ROOT / setup["SOURCE"])]
    assert len(modules) + 1 <= MODULES  # with the helpers that they share
    built = [path for path in ROOT.glob("build/cython-*") if all(map(Path.exists, c_files(path, modules)))]
    if built:  # an installed copy's sources of C are gone
        newest = max(built, key=lambda path: path.stat().st_mtime)
        lines = sum(path.read_bytes().count(b"\n") for path in c_files(newest, modules))
        assert 100_000 < lines <= LINES_OF_C


def c_files(folder, modules):
    return [folder / path.with_suffix(".c") for path in (*modules, Path("src/kvtrace/_native/_shared.c"))]


def test_the_source_archive_has_every_file_of_the_project():
    """It has pyproject.toml, setup.py and MANIFEST.in anyway."""
    named = " ".join(re.findall(r"^(?:include|graft) (.*)$", (ROOT / "MANIFEST.in").read_text(), re.M)).split()
    kinds = ("*.md", "*.yml", "*.txt", "*.cff", "*file", ".*ignore")
    assert {path.name for kind in kinds for path in ROOT.glob(kind)} - {*named} == set()


def test_messages_about_times_come_from_one_file():
    figures = dict(re.findall(r"^(\w+) := ([\d.]+)$", TIMES.read_text(), re.M))
    makefile = (ROOT / "Makefile").read_text()
    assert {*re.findall(r"\$\((\w+_S)\)", makefile)} <= figures.keys()
    assert re.findall(r"\d+ (?:s|seconds)\b|a minute", makefile) == []
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    stated = re.findall(r"`make (demo|build)`[^.\n]*?(\d+) s\b", "\n".join(map(Path.read_text, texts)))
    assert [(target, value) for target, value in stated if value != figures[f"{target.upper()}_S"]] == []


@pytest.mark.parametrize(
    "built, age, message",
    [
        (None, 0, "^not compiled: loop "),
        (".cpython-12-other.so", 0, "^compiled for another Python: loop "),
        (EXTENSION_SUFFIXES[0], -60, "^changed since it was compiled: loop "),
        (EXTENSION_SUFFIXES[0], 60, None),
    ],
)
def test_an_import_says_what_does_not_fit(tmp_path, built, age, message):
    for name in ("__init__.py", "loop.py", "loop.pxd", "types.pxd", "plain.py"):
        (tmp_path / name).write_text("")
    if built:
        module = tmp_path / f"loop{built}"
        module.write_text("")
        time = (tmp_path / "loop.py").stat().st_mtime + age
        os.utime(module, (time, time))
    if message is None:
        require_built(str(tmp_path / "__init__.py"))
    else:
        with pytest.raises(ImportError, match=message):
            require_built(str(tmp_path / "__init__.py"))


def test_wheels_are_built_for_every_python_that_the_project_names():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = settings["project"]
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert settings["tool"]["cibuildwheel"]["build"] == [f"cp{version.replace('.', '')}-*" for version in named]
    assert f"python: {json.dumps(named)}" in (ROOT / ".github/workflows/ci.yml").read_text()
    assert project["requires-python"] == f">={named[0]}"


def test_the_workflows_run_commands_of_the_makefile_and_nothing_of_their_own():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    commands = [
        command
        for workflow in (ROOT / ".github/workflows").glob("*.yml")
        for command in re.findall(r"^ *(?:- )?run: (.*)$", workflow.read_text(), re.M)
    ]
    assert commands
    for command in commands:
        make, target, *_ = command.split()
        assert make == "make" and target in targets, command


def test_a_package_index_gets_links_that_lead_to_the_repository(tmp_path):
    pytest.importorskip("setuptools")
    program = f"import os, setuptools.build_meta as backend; os.chdir({str(ROOT)!r}); "
    program += f"backend.prepare_metadata_for_build_wheel({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    metadata = next(tmp_path.glob("*.dist-info/METADATA")).read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)]*)\)", metadata)
    assert links and not [link for link in links if not link.startswith("https://")]
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    files = [re.sub(rf"{base}/(raw|blob)/main/", "", link) for link in links if link.startswith(f"{base}/")]
    assert files and [file for file in files if not (ROOT / file.partition("#")[0]).exists()] == []


@pytest.mark.parametrize(
    "fault, status", [(None, 0), ("another source", 1), ("no module", 1), ("another Python", 1)], ids=str
)
def test_kernels_come_from_a_wheel_of_the_same_sources_alone(tmp_path, fault, status):
    package, (suffix, *_) = tmp_path / "src/kvtrace", EXTENSION_SUFFIXES
    package.joinpath("_native").mkdir(parents=True)
    (package / f"loop{suffix}").write_text("compiled from other sources")
    put_setup(tmp_path)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    with zipfile.ZipFile(tmp_path / "kvtrace-0.1-py3.whl", "w") as wheel:
        for name in ("loop.py", "loop.pxd", "types.pxd"):
            (package / name).write_text(name)
            wheel.writestr(f"kvtrace/{name}", "other" if fault == "another source" else name)
        for name in ("_native/_shared", "loop")[: 1 if fault == "no module" else 2]:
            ending = ".cpython-12-other.so" if fault == "another Python" else suffix
            wheel.writestr(f"kvtrace/{name}{ending}", "compiled")
    done = subprocess.run([sys.executable, "tools/prebuilt.py", "nowhere", "."], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (status, b"")
    assert (package / f"loop{suffix}").read_text() == ("compiled" if status == 0 else "compiled from other sources")
    assert len([*package.rglob(f"*{suffix}")]) == (2 if status == 0 else 1)


def test_no_extra_brings_torch():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert not [name for name, packages in extras.items() if any(line.startswith("torch") for line in packages)]


def test_the_source_archive_names_files_that_exist():
    named = [
        name
        for line in (ROOT / "MANIFEST.in").read_text().splitlines()
        if line.startswith(("include ", "graft "))
        for name in line.split()[1:]
    ]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_files_that_name_the_version_agree():
    done = subprocess.run([sys.executable, "tools/release_ready.py"], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(sys.platform == "win32", reason="setuptools finds the compiler elsewhere")
def test_a_missing_compiler_is_one_line_before_anything_is_compiled(tmp_path):
    pytest.importorskip("Cython")
    put_setup(tmp_path)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    environment = os.environ | {"CC": "no-such-compiler"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith("kvtrace: no C compiler: no-such-compiler is not installed. Install it (")
    assert done.stderr.count("\n") == 1


def test_a_missing_cython_is_one_line(tmp_path):
    put_setup(tmp_path)
    program = "import sys; sys.modules['Cython'] = None; sys.argv = ['setup.py', '-q', 'build_ext']; "
    command = [sys.executable, "-c", program + "exec(open('setup.py').read())"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode != 0
    assert done.stderr.startswith("kvtrace: Cython is not installed. ") and done.stderr.count("\n") == 1


def test_an_uncompiled_tree_is_one_line_on_the_command_line(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__"))
    command = [sys.executable, "-m", "kvtrace", "check", "trace.jsonl"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("kvtrace: not compiled: ") and done.stderr.count("\n") == 1


def test_each_line_of_the_changelog_stands_under_a_heading_of_keep_a_changelog():
    section = ""
    for number, line in enumerate((ROOT / "CHANGELOG.md").read_text().splitlines(), 1):
        if line.startswith("## "):
            section = ""
        elif line.startswith("### "):
            section = line.removeprefix("### ")
            assert section in ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"), f"line {number}"
        elif line.startswith("* "):
            assert section, f"CHANGELOG.md:{number}: move this line below Added, Changed, Fixed or Security"
