"""No command overwrites its input or writes a file whose name states another content: the mistakes, as a table."""

import os
import shlex

import click
import pytest

import kvtrace
from kvtrace.cli import commands, datagen, run
from kvtrace.cli.completion import FileName
from kvtrace.cli.output import INPUTS, OUTPUTS, option_of
from tests.unaudited import write

# In a folder with day.jsonl (a trace of 4 requests), link.jsonl -> day.jsonl, hard.jsonl (the same inode), day.dataset
# and day.parquet (the same trace), words.txt, users.txt, config.json, log.jsonl and logs/log.jsonl (raw logs), sub/.
# Each line: the command; what its one line on stderr says. The status is 2, and no file changes or appears.
SAME = [
    ("convert day.jsonl -o day.jsonl", "-o day.jsonl is the same file as TRACE day.jsonl and would overwrite it."),
    ("convert day.jsonl -o link.jsonl", "-o link.jsonl is the same file as TRACE day.jsonl"),
    ("convert link.jsonl -o day.jsonl", "-o day.jsonl is the same file as TRACE link.jsonl"),
    ("convert day.jsonl -o hard.jsonl", "-o hard.jsonl is the same file as TRACE day.jsonl"),
    ("convert day.jsonl -o sub/../day.jsonl", "-o sub/../day.jsonl is the same file as TRACE day.jsonl"),
    ("convert day.jsonl -o ./day.jsonl --to vllm", "-o ./day.jsonl is the same file as TRACE day.jsonl"),
    ("convert day.dataset -o day.dataset/", "-o day.dataset/ is the same file as TRACE day.dataset"),
    ("convert day.dataset -o day.dataset/new.jsonl", "-o day.dataset/new.jsonl is inside TRACE day.dataset."),
    ("convert day.dataset/part-00000.parquet -o day.dataset", "-o day.dataset contains TRACE day.dataset/part-00000"),
    ("convert day.jsonl.meta.json -o day.jsonl", "the sidecar of -o (day.jsonl.meta.json) is the same file as TRACE"),
    ("start day.jsonl -o day.jsonl", "-o day.jsonl is the same file as LOG"),
    ("synthesize day.jsonl -o day.jsonl", "-o day.jsonl is the same file as TRACE day.jsonl"),
    ("synthesize day.jsonl --save-model day.jsonl", "--save-model day.jsonl is the same file as TRACE day.jsonl"),
    ("synthesize day.jsonl -o out.jsonl --save-model out.jsonl", "--save-model out.jsonl is the same file as -o out"),
    ("synthesize day.jsonl -o out.jsonl --save-model out.jsonl.meta.json", "the same file as the sidecar of -o"),
    ("synthesize day.jsonl -o - --save-model -", "both write to stdout. Name a file for one of them."),
    ("sweep day.jsonl -o day.jsonl --capacity 2", "-o day.jsonl is the same file as TRACE day.jsonl"),
    ("sweep more.csv.cells.jsonl -o more.csv", "the list of cells of -o (more.csv.cells.jsonl) is the same file as"),
    ("sweep link.jsonl hard.jsonl -o day.jsonl", "-o day.jsonl is the same file as TRACE link.jsonl"),
    ("tune day.jsonl --capacity 2 --save-table day.jsonl", "--save-table day.jsonl is the same file as TRACE day"),
    ("texts day.jsonl -o day.jsonl --tokenizer deepseek-r1", "-o day.jsonl is the same file as TRACE day.jsonl"),
    ("texts day.jsonl -o words.txt --tokenizer deepseek-r1 --words words.txt", "the same file as --words words.txt"),
    ("report day.jsonl -o day.jsonl", "-o day.jsonl is the same file as TRACE day.jsonl"),
    ("report day.jsonl link.jsonl -o hard.jsonl", "-o hard.jsonl is the same file as TRACE day.jsonl"),
    ("report day.jsonl -o page --png page", "--png page is the same file as -o page. Choose another name for --png."),
    ("join day.jsonl -o link.jsonl", "-o link.jsonl is the same file as WINDOW day.jsonl"),
    ("release day.jsonl -o link.jsonl", "-o link.jsonl is the same file as TRACE day.jsonl"),
    ("release day.jsonl -o users.txt --users users.txt", "-o users.txt is the same file as --users users.txt"),
    ("release day.jsonl -o hard.jsonl --against hard.jsonl", "-o hard.jsonl is the same file as TRACE day.jsonl"),
    ("anonymize log.jsonl -o log.jsonl", "-o log.jsonl is the same file as LOG log.jsonl and would overwrite it."),
    ("anonymize logs -o logs/log.jsonl", "-o logs/log.jsonl is the same file as LOG logs/log.jsonl"),
    ("anonymize log.jsonl -o out.jsonl --on-error skip --rejects log.jsonl", "--rejects log.jsonl is the same file as"),
    ("anonymize log.jsonl -o out.jsonl --on-error skip --rejects out.jsonl.card.md", "data card of -o (out.jsonl.card"),
    ("anonymize log.jsonl -o out.jsonl --key-file log.jsonl", "--key-file log.jsonl is the same file as LOG log.jsonl"),
    ("anonymize log.jsonl -o w/out.jsonl --runner local --work-dir w", "--work-dir w contains -o w/out.jsonl."),
    ("record --follow log.jsonl -o log.jsonl", "-o log.jsonl is the same file as --follow log.jsonl"),
    ("record --follow log.jsonl -o sub --key-file log.jsonl", "--key-file log.jsonl is the same file as --follow log"),
    ("simulate day.jsonl --capacity 3 --per-request day.jsonl", "--per-request day.jsonl is the same file as TRACE"),
    ("simulate day.jsonl --capacity 3 --per-request day.jsonl.meta.json", "same file as the sidecar of TRACE (day.j"),
    ("simulate day.jsonl --per-request config.json --model-config config.json", "the same file as --model con"),
    ("explain day.jsonl --capacity 3 --per-request day.jsonl", "--per-request day.jsonl is the same file as TRACE"),
    ("audit day.jsonl --card day.jsonl", "--card day.jsonl is the same file as TRACE day.jsonl"),
    ("audit day.jsonl --card users.txt --users users.txt", "--card users.txt is the same file as --users users.txt"),
    (
        "datagen synthesize --input-file day.jsonl --output-file day.jsonl",
        "--output-file day.jsonl is the same file as",
    ),
    ("curve day.jsonl --png a.png --svg a.png", "--svg a.png is the same file as --png a.png"),
    ("sweep day.jsonl -o a.svg --svg a.svg", "--svg a.svg is the same file as -o a.svg"),
    ("validate logs --html logs/log.jsonl", "--html logs/log.jsonl is the same file as the file of LOG (logs/log.js"),
    ("validate log.jsonl --per-request log.jsonl", "--per-request log.jsonl is the same file as LOG log.jsonl"),
    ("validate log.jsonl --trace day.jsonl --html day.jsonl", "--html day.jsonl is the same file as --trace day.jsonl"),
    ("validate log.jsonl --costs config.json --html config.json", "the same file as --costs config.json"),
    ("validate log.jsonl --html a.html --png a.html", "--html a.html is the same file as --png a.html"),
    (
        "calibrate log.jsonl -o log.jsonl --model llama-3.1-8b --gpu h100",
        "-o log.jsonl is the same file as LOG log.jsonl",
    ),
    ("validate log.jsonl --html a.html --svg a.html", "--html a.html is the same file as --svg a.html"),
]
SAME += [
    (f"{line} {option} day.jsonl", f"{option} day.jsonl is the same file as TRACE day.jsonl")
    for option in ("--png", "--svg")
    for line in (
        "analyze day.jsonl", "curve day.jsonl", "compare day.jsonl more.jsonl", "simulate day.jsonl --capacity 3",
        "explain day.jsonl --capacity 3", "sweep day.jsonl", "plan day.jsonl --model llama-3.1-8b",
    )
]  # fmt: skip
NAMES = [
    (
        "convert day.jsonl -o x.csv",
        "x.csv: the suffix stands for CSV, but the format mooncake is JSON lines. Use -o x.jsonl.",
    ),
    ("convert day.jsonl -o day.csv", "Use -o day-2.jsonl."),  # day.jsonl is the input
    ("convert day.jsonl -o 'my x.csv'", "Use -o 'my x.jsonl'."),
    (
        "convert day.jsonl -o x.json",
        "x.json: the suffix stands for JSON, but the format mooncake is JSON lines. Use -o x.jsonl.",
    ),
    ("convert day.jsonl -o x.jsonl --to parquet", "the format parquet is Parquet. Use -o x.parquet."),
    ("convert day.jsonl -o x.parquet --to mooncake", "the format mooncake is JSON lines. Use -o x.jsonl."),
    ("convert day.jsonl -o x.jsonl --to dataset", "the format dataset is a data set. Use -o x.dataset."),
    ("convert day.jsonl -o x.dataset --to bailian", "stands for a data set, but the format bailian is JSON lines."),
    ("convert day.jsonl -o x.jsonl.GZ", "the file would not be compressed as .GZ. Use -o x.jsonl.gz."),
    ("convert day.jsonl -o x.bz2", "the file would not be compressed as .bz2. Use -o x.jsonl.gz."),
    ("convert day.jsonl -o x.dataset.zst --to dataset", "which is not compressed. Use -o x.dataset."),
    ("convert day.jsonl -o x.csv --to vllm", "stands for CSV, but the client's input is JSON lines. Use -o x.jsonl."),
    ("convert day.jsonl -o x.jsonl.GZ --to vllm", "the client reads plain files only. Remove .GZ from the name."),
    ("convert day.jsonl -o x.jsonl --to vidur", "stands for JSON lines, but the client's input is CSV. Use -o x.csv."),
    ("convert day.jsonl -o x.jsonl --to libcachesim", "the client's input is oracleGeneral. Use -o x.oracleGeneral."),
    ("release day.jsonl -o x.parquet --format mooncake", "the format mooncake is JSON lines. Use -o x.jsonl."),
    ("join day.jsonl -o x.pdf", "x.pdf: the suffix stands for PDF, but the format mooncake is JSON lines."),
    ("release day.jsonl -o x.pdf", "x.pdf: the suffix stands for PDF, but the format mooncake is JSON lines."),
    ("synthesize day.jsonl -o x.csv.gz", "the format mooncake is JSON lines. Use -o x.jsonl.gz."),
    ("synthesize day.jsonl --save-model x.jsonl", "but a model is JSON. Use --save-model x.json."),
    ("texts day.jsonl -o x.parquet --tokenizer deepseek-r1", "but a file of prompts is JSON lines. Use -o x.jsonl."),
    ("report day.jsonl -o r.pdf", "r.pdf: the suffix stands for PDF, but a report is HTML. Use -o r.html."),
    ("report day.jsonl -o r.json", "r.json: the suffix stands for JSON, but a report is HTML. Use -o r.html."),
    ("sweep day.jsonl -o x.xlsx", "x.xlsx: unknown file type. Try .csv, .json, .jsonl or .parquet."),
    (
        "simulate day.jsonl --capacity 3 --per-request x.parquet",
        "the table of requests is CSV. Use --per-request x.csv.",
    ),
    ("audit day.jsonl --card x.html", "but a data card is Markdown. Use --card x.md."),
    ("anonymize log.jsonl -o x.html", "x.html: the suffix stands for HTML, but the format mooncake is JSON lines."),
    (
        "anonymize log.jsonl -o x.jsonl --on-error skip --rejects r.csv",
        "bad rows is JSON lines. Use --rejects r.jsonl.",
    ),
]
VALID = [  # names that state nothing else, and files that only look the same
    "convert day.jsonl -o x",
    "convert day.jsonl -o x.mine",
    "convert day.jsonl -o x.JSONL",
    "convert day.jsonl -o x.v2",
    "convert day.jsonl -o x.txt.gz",
    "convert day.jsonl -o day.jsonl.gz",
    "convert day.jsonl -o x.csv --to azure",
    "convert day.jsonl -o sub/day.jsonl",
    "convert day.jsonl -o /dev/null",
    "convert day.jsonl -o new.dataset",
    "convert day.dataset -o new/",
    "synthesize day.dataset -o new/",
    "synthesize day.jsonl -o x.jsonl --save-model x.json",
    "simulate day.jsonl --capacity 3 --per-request day.jsonl.csv",
    "audit day.jsonl --profile exact --card day.jsonl.card.md",
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trace = kvtrace.toy("0 1", "0 2", "0 1 3", "4", block_size=16, gap_ms=60_000)
    for name in ("day.jsonl", "day.parquet", "day.dataset", "more.csv.cells.jsonl"):
        write(trace, name, **({"format": "mooncake"} if "cells" in name else {}))
    os.symlink("day.jsonl", "link.jsonl")
    os.link("day.jsonl", "hard.jsonl")
    for name in ("sub", "logs", "w"):
        os.mkdir(name)
    row = '{"timestamp": 0, "input": [1, 2, 3], "output": 1}\n'
    texts = {
        "words.txt": "a b c",
        "users.txt": "1\n2\n3\n4\n",
        "config.json": "{}",
        "log.jsonl": row,
        "logs/log.jsonl": row,
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def files(folder):
    """What is in a folder: names, inodes and bytes."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path), path.stat().st_ino, path.read_bytes()) for path in paths]


def started(line):
    words = shlex.split(line)
    if words[0] == "datagen":
        return run(words[1:], datagen.commands, "datagen")
    return run(words)


@pytest.mark.parametrize(("line", "message"), SAME + NAMES, ids=[line for line, _ in SAME + NAMES])
def test_a_mistaken_output_is_one_line_and_changes_no_file(folder, capsys, line, message):
    before = files(folder)
    status, shown = started(line), capsys.readouterr()
    assert status == 2 and shown.out == "" and files(folder) == before, shown.err
    assert shown.err.count("\n") == 1 and message in shown.err, shown.err


@pytest.mark.parametrize("line", VALID)
def test_a_name_that_states_nothing_else_is_written(folder, capsys, line):
    assert started(line) == 0, capsys.readouterr().err


def test_what_the_refusal_proposes_is_accepted(folder, capsys):
    for line, message in NAMES:
        if line.startswith("convert day.jsonl -o x.") and "Use -o" in message:
            assert started(line) == 2
            name = capsys.readouterr().err.rpartition(" -o ")[2].strip().rstrip(".")
            words = shlex.split(line)
            assert run([*words[:3], name, *words[4:]]) == 0, capsys.readouterr().err


def test_a_trace_that_is_appended_to_itself_is_refused(folder):
    import subprocess
    import sys

    before = files(folder)
    command = f"{sys.executable} -m kvtrace convert day.jsonl -o - >> day.jsonl"
    process = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert process.returncode == 2 and "-o - is the same file as TRACE day.jsonl" in process.stderr
    assert files(folder) == before


@pytest.mark.parametrize("how", ["{}", "./{}", "sub/../{}"])
def test_the_functions_refuse_as_the_commands_do(folder, how):
    day = how.format("day.jsonl")
    before = files(folder)
    trace = kvtrace.read("day.jsonl")
    calls = [
        lambda: kvtrace.formats.convert_file("day.jsonl", day),
        lambda: kvtrace.formats.convert_file("day.dataset", how.format("day.dataset")),
        lambda: kvtrace.cache.sweep(kvtrace.cache.Grid(("day.jsonl",), capacity="3"), day),
        lambda: kvtrace.privacy.write_card(kvtrace.privacy.audit("day.jsonl"), "day.jsonl", day),
        lambda: kvtrace.report.write_report("page", trace, png=how.format("page")),
        lambda: kvtrace.privacy.publish(
            kvtrace.privacy.release(trace, kvtrace.privacy.profile("exact")).trace, day, against="day.jsonl"
        ),
        lambda: kvtrace.write(trace, "x.csv"),
        lambda: kvtrace.report.write_report("x.pdf", trace),
        lambda: kvtrace.synthesis.fit(trace).save("x.parquet"),
    ]
    for call in calls:
        with pytest.raises(kvtrace.UsageError, match="Choose another name|the suffix stands for"):
            call()
    assert files(folder) == before


# What the value of a text option is, by its metavar: a file, or something else.
FILES = {"FILE", "DIR", "FOLDER", "TRACE", "TRACE2", "PREVIOUS", "LOG"}
OTHERS = {
    "A", "ADDRESS", "B,...", "C", "C,...", "COMMAND", "D", "E", "E,...", "ENDPOINT", "F", "FIELD=PATH", "FORM",
    "G", "HOW", "K=V,...", "KIND", "LIST", "M", "M,...", "METHOD:N:M", "MODEL", "N", "N,...", "NAME", "NAMES",
    "NAME=C,...", "NAME=SIZE@RATE,...", "P", "P,...", "PATH", "Q,...", "R", "R,...", "RATE", "RATE@TIME,...", "RULE",
    "OPTIONS", "S", "S,...", "SIZE", "TEXT", "TIME", "TOKEN", "TOKENS", "SHARE", "SUFFIX", "UNIT", "URL", "V", "VIEW",
    "WHAT", "WHICH", "WINDOW", "X", "[RANGE]", "ttft=TIME[,quantile=Q]",
}  # fmt: skip


def test_every_option_that_names_a_file_passes_through_the_refusal():
    for group in (commands, datagen.commands):
        for name, command in group.commands.items():
            for parameter in command.params:
                if not isinstance(parameter.type, click.types.StringParamType | click.Path | click.File | FileName):
                    continue
                metavar = (parameter.metavar or "").strip("[]").removesuffix("...")
                option = f"{name} {option_of(parameter)} {metavar}"
                if metavar in FILES:
                    assert parameter.name in (*INPUTS, *OUTPUTS), (
                        f"{option}: add it to INPUTS or OUTPUTS in cli/output.py"
                    )
                else:
                    is_listed = parameter.name in (*INPUTS, *OUTPUTS) or parameter.metavar in OTHERS
                    assert is_listed, f"{option}: add its metavar to OTHERS, or the option to cli/output.py"


def test_every_command_with_an_output_is_guarded():
    for group in (commands, datagen.commands):
        for name, command in group.commands.items():
            if {parameter.name for parameter in command.params} & set(OUTPUTS):
                assert hasattr(command.callback, "__wrapped__"), f"{name}: pass it through keep_inputs"


def test_the_table_of_mistakes_has_each_output():
    lines = [line.split() for line, _ in SAME]
    for group, prefix in ((commands, []), (datagen.commands, ["datagen"])):
        for name, command in group.commands.items():
            for parameter in command.params:
                if parameter.name in OUTPUTS:
                    tried = [line for line in lines if line[: len(prefix) + 1] == [*prefix, name]]
                    assert any(option_of(parameter) in line for line in tried), (name, option_of(parameter))
