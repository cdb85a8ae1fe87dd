"""The tables of variants: which file, twin, vector and line in the docs each row needs. docs/design.md lists them.

`missing(repository)` gives one sentence for each thing that is not there: what it is and where to put it.
"""

import ast
import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.reference.policies import file_of

ROOT = Path(__file__).resolve().parents[2]


class Repository:
    """The files of the repository as a test sees them: some may be hidden, and lines of others left out."""

    def __init__(self, hidden: Iterable[str] = (), without: dict[str, str] | None = None):
        self.hidden, self.without = set(hidden), without or {}  # without: path -> lines with this text are left out

    def exists(self, path: str) -> bool:
        return path not in self.hidden and (ROOT / path).exists()

    def read(self, path: str) -> str:
        text = (ROOT / path).read_text(encoding="utf-8")
        if path in self.without:
            text = "\n".join(line for line in text.split("\n") if self.without[path] not in line)
        return text

    def modules(self, folder: str) -> set[str]:
        """The Python modules of a folder, as paths without a suffix."""
        paths = [*(ROOT / folder).glob("*.py"), *(ROOT / folder).glob("*/reader.py")]
        names = {path.relative_to(ROOT / folder).with_suffix("").as_posix() for path in paths}
        return {name for name in names if self.exists(f"{folder}/{name}.py")} - {"__init__"}


@dataclass(frozen=True)
class Table:
    """A table of variants: where its rows and files are, and what else each row needs."""

    kind: str  # what a row is: "policy"
    name: str  # the dict, as `module:NAME`
    folder: str  # of its files
    rows: Callable[[], dict[str, str]]  # row -> its file in the folder, without .py
    pages: tuple[str, ...]  # of the docs
    line: Callable[[str], str] = lambda row: rf"^\|[^|]*`{re.escape(row)}`"  # the pattern of its line there
    others: frozenset[str] = frozenset()  # files of the folder that are no rows
    is_row: Callable[[str], bool] = lambda source: True  # whether a file's source is a row's
    twin: Callable[[Repository, str, str], Iterator[str]] = lambda repository, row, file: iter(())
    vector: Callable[[Repository, str, str], Iterator[str]] = lambda repository, row, file: iter(())
    more: Callable[[Repository, str, str], Iterator[str]] = lambda repository, row, file: iter(())

    def missing(self, repository: Repository) -> Iterator[str]:
        """A sentence for each thing that is not there."""
        rows = self.rows()
        module, _, table = self.name.partition(":")
        for file in sorted(repository.modules(self.folder) - self.others - {*rows.values()}):
            if self.is_row(repository.read(f"{self.folder}/{file}.py")):
                yield f"{self.folder}/{file}.py has no row in {table}: add one in {module}."
        text = "\n".join(repository.read(page) for page in self.pages)
        for row, file in rows.items():
            if not repository.exists(f"{self.folder}/{file}.py"):
                yield f"{self.kind} `{row}` has no file: write {self.folder}/{file}.py."
            if not re.search(self.line(row), text, re.M):
                yield f"{self.kind} `{row}` has no line in {' or '.join(self.pages)}: add one to its table."
            yield from self.twin(repository, row, file)
            yield from self.vector(repository, row, file)
            yield from self.more(repository, row, file)


def missing(repository: Repository, tables: Iterable[Table] = ()) -> list[str]:
    """A sentence for each thing that a row of any table lacks."""
    return [sentence for table in tables or TABLES for sentence in table.missing(repository)]


def module(name: str):
    return importlib.import_module(f"kvtrace.{name}")


# ---- what is particular to a table


def policies() -> dict[str, str]:
    return {name: row.module for name, row in module("cache.policies").POLICIES.items()}


def policy_twin(repository, row, file):
    path = f"tests/reference/policies/{file_of(row)}.py"
    if not repository.exists(path):
        cls = module("cache.policies").POLICIES[row].cls
        yield f"policy `{row}` has no twin: write the class {cls} in plain Python in {path}."


def policy_vector(repository, row, file):
    text = repository.read("tests/vectors/policies.json")
    cases = {case["policy"].partition(":")[0] for case in json.loads(text)["cases"]}
    if row not in cases and row != "unlimited":  # which is LRU with room for everything
        yield f"policy `{row}` has no case in tests/vectors/policies.json: run `make vectors`."


def policy_memory(repository, row, file):
    if module("cache.policies").POLICIES[row].block_bytes is None:
        yield f"policy `{row}` has no memory class: state block_bytes (bytes a block, or HEAPS) in its row of POLICIES."
    numbered = module("cache.policies").POLICIES[row].block_bytes not in (None, module("cache.policies").HEAPS)
    if numbered and f"`{row}`" not in repository.read("docs/ingest/large.md"):
        yield f"policy `{row}` has no line in docs/ingest/large.md: name it beside others of its block_bytes."
    header, cls = f"src/kvtrace/cache/policies/{file}.pxd", module("cache.policies").POLICIES[row].cls
    if f"cdef class {cls}(" not in repository.read(header):
        yield f"policy `{row}` is not compiled: declare its class {cls} in {header}."


def engines() -> dict[str, str]:
    return {name: row.module for name, row in module("cache.engines").ENGINES.items()}


TWINS = {name: "sglang_hybrid" for name in ("hybrid_radix", "state_radix", "window_radix")}
TWINS |= {name: "sglang_hicache" for name in ("hi_radix", "storage_pool")}


def engine_twin(repository, row, file):
    """The twin of each kind of cache in cache/core that the engine's file imports: FreeQueue's is free_queue.py."""
    path = f"src/kvtrace/cache/engines/{file}.py"
    if not repository.exists(path):
        return
    imports = [node for node in ast.walk(ast.parse(repository.read(path))) if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports if (node.module or "").startswith("core.") for alias in node.names}
    snake = (re.sub("(?<=[a-z])(?=[A-Z])", "_", name).lower() for name in names)
    for core in sorted({TWINS.get(name, name) for name in snake}):
        if not repository.exists(f"tests/reference/{core}.py"):
            yield f"engine `{row}` has no twin: write its cache in plain Python in tests/reference/{core}.py."


def engine_vector(repository, row, file):
    """The hits of the engine itself; a model that was never compared with it must say so in the docs."""
    line = re.search(rf"^\| *`{re.escape(row)}`.*$", repository.read("docs/cache/simulate.md"), re.M)
    vector = f"tests/vectors/engine_{file}.json"
    if line and "request by request" in line[0] and not repository.exists(vector):
        yield f"engine `{row}` has no vectors of the engine itself: write {vector} with tests/clients/{file}_cache.py."


def readers() -> dict[str, str]:
    prefix = "kvtrace.ingest.logs."
    rows = module("ingest.logs").READERS.items()
    return {name: reader.__name__.removeprefix(prefix).replace(".", "/") for name, reader in rows}


def reader_sample(repository, row, file):
    """A log that the docs and the fuzzers use."""
    stem = row.replace("-", "_")
    names = [path.name for path in (ROOT / "tests/data/logs").glob(f"{stem}*")]
    if not any(repository.exists(f"tests/data/logs/{name}") for name in names):
        yield f"log reader `{row}` has no sample log: write tests/data/logs/{stem}.jsonl (or .csv)."


def modules_of(name: str, table: str) -> Callable[[], dict[str, str]]:
    """The rows of a table of modules, or of functions of modules."""

    def rows():
        values = getattr(module(name), table).items()
        return {row: (getattr(one, "__module__", None) or one.__name__).rpartition(".")[2] for row, one in values}

    return rows


def format_vector(repository, row, file):
    yield from in_help(repository, "trace format", row)
    if row not in json.loads(repository.read("tests/vectors/formats.json"))["smallest"]:
        yield f"trace format `{row}` has no case in tests/vectors/formats.json: run `make vectors`."


def target_vector(repository, row, file):
    yield from in_help(repository, "client target", row)
    text = repository.read("tests/vectors/clients.json")
    if row not in {case.split()[0] for case in json.loads(text)}:
        yield f"client target `{row}` has no case in tests/vectors/clients.json: run `make vectors`."


def in_help(repository, kind, row):
    """The help of --to is a plain text, so that `--help` imports no format."""
    (names,) = re.findall(r'"--to", metavar="NAME", help="(.*?)\[', repository.read("src/kvtrace/cli/convert.py"))
    if row not in re.split(r"[ ,.():]+", names):
        yield f"{kind} `{row}` is not in the help of --to: name it in src/kvtrace/cli/convert.py."


def defines(*names: str) -> Callable[[str], bool]:
    """Whether a source defines all of these functions."""

    def is_row(source):
        return {*names} <= {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}

    return is_row


def has_check(source: str) -> bool:
    """Whether a source defines an audit check: `check`, or `check_NAME` beside others."""
    return re.search(r"^def check(_\w+)?\(evidence: Evidence\)", source, re.M) is not None


def in_words(row: str) -> str:
    """The first or second cell of a table's line: the row in words, or as code."""
    words = "[-_ ]".join(map(re.escape, re.split("[-_ ]", row)))
    return rf"^\| (?:[^|]*\| )?`?{words}[^|]*\|"


def check_fault(repository, row, file):
    """A fault of a trace that the check finds."""
    text = repository.read("tests/privacy/test_audit.py")
    number = [*module("privacy.checks").CHECKS].index(row) + 1
    if not re.search(rf'[{{ ]({number}|"{row}"): "', text):
        yield f"audit check `{row}` has no fault in tests/privacy/test_audit.py: add one to FAULTS."


def steps() -> dict[str, str]:
    """The steps of a release, which are members of one enum, in one file."""
    return {step.value: "account" for step in module("privacy.account").ReleaseStep}


def step_label_and_test(repository, row, file):
    names = module("privacy.account")
    if names.ReleaseStep(row) not in names.LABELS:
        yield f"release step `{row}` has no label: add one to LABELS in src/kvtrace/privacy/account.py."
    if f'"{row}": ' not in repository.read("tests/privacy/test_release.py"):
        yield f"release step `{row}` has no test: add a release with it to STEPS in tests/privacy/test_release.py."


TABLES = [
    Table(
        "policy", "src/kvtrace/cache/policies/__init__.py:POLICIES", "src/kvtrace/cache/policies", policies,
        ("docs/cache/policies.md",), others=frozenset({"base"}), twin=policy_twin, vector=policy_vector,
        more=policy_memory,
    ),
    Table(
        "engine", "src/kvtrace/cache/engines/__init__.py:ENGINES", "src/kvtrace/cache/engines", engines,
        ("docs/cache/simulate.md",), others=frozenset({"cache_groups", "packed_groups"}), twin=engine_twin,
        vector=engine_vector,
    ),
    Table(
        "log reader", "src/kvtrace/ingest/logs/__init__.py:READERS", "src/kvtrace/ingest/logs", readers,
        ("docs/ingest/logs.md", "docs/ingest/logs-gateways.md", "docs/ingest/logs-more.md"),
        line=lambda row: rf"^## `{re.escape(row)}`", is_row=defines("matches", "small_unit"), vector=reader_sample,
    ),
    Table(
        "trace format", "src/kvtrace/formats/format_table.py:FORMATS", "src/kvtrace/formats",
        modules_of("formats.format_table", "FORMATS"), ("docs/formats/formats.md",),
        others=frozenset({"dataset", "weka"}),
        is_row=lambda source: any(defines(read, "write")(source) for read in ("result_of", "read")),
        vector=format_vector,
    ),
    Table(
        "client target", "src/kvtrace/formats/targets/__init__.py:TARGETS", "src/kvtrace/formats/targets",
        modules_of("formats.targets", "TARGETS"), ("docs/formats/formats.md",),
        others=frozenset({"portable", "lengths", "losses"}), vector=target_vector,
    ),
    Table(
        "plot", "src/kvtrace/report/plots/__init__.py:PLOTS", "src/kvtrace/report/plots",
        modules_of("report.plots", "PLOTS"), ("docs/report/report.md",), line=in_words,
        others=frozenset({"plot", "compared", "planned", "sources", "validated", "workers"}),
    ),
    Table(
        "audit check", "src/kvtrace/privacy/checks/__init__.py:CHECKS", "src/kvtrace/privacy/checks",
        modules_of("privacy.checks", "CHECKS"), ("docs/privacy/audit.md",), line=in_words, is_row=has_check,
        vector=check_fault,
    ),
    Table(
        "release step", "src/kvtrace/privacy/account.py:ReleaseStep", "src/kvtrace/privacy", steps,
        ("docs/privacy/privacy.md",), line=lambda row: rf"(^\d\. \*\*|^A run prints).*`{row}`",
        is_row=lambda source: "class ReleaseStep" in source, more=step_label_and_test,
    ),
]  # fmt: skip
