"""--help as its reader meets it: grouped options, lines that fit, examples that run; and what a shell completes."""

import ast
import contextlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from importlib.util import find_spec

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

import kvtrace
from kvtrace import cli
from kvtrace._base import units
from kvtrace._base.errors import docs_page
from kvtrace.capture.recorder import Recorder
from kvtrace.cli import run
from kvtrace.cli.completion import SHELLS, FileName, Name
from kvtrace.cli.help import OTHERS, AmountType, Command
from kvtrace.cli.simulation_options import shares
from kvtrace.serving.calibration.calibration import calibrate
from kvtrace.serving.deployment import Deployment
from kvtrace.serving.recordings import read_recording
from kvtrace.synthesis.session_fitting import fit_sessions
from tests.capture.windows import sealed, waited
from tests.docs import ROOT
from tests.serving.quick_fits import quick_fits
from tests.synthesis.session_forests import forest

COMMANDS = {name: command for name, command in cli.commands.commands.items() if isinstance(command, Command)}
EACH = pytest.mark.parametrize("name", COMMANDS)
EXAMPLES = [(name, example) for name, command in COMMANDS.items() for example in command.examples]


def shown(name, width=80):
    return CliRunner().invoke(cli.commands, [*name.split(), "--help"], prog_name="kvtrace", terminal_width=width).output


@EACH
def test_every_option_has_a_group(name):
    command = COMMANDS[name]
    options = [param for param in command.params if isinstance(param, click.Option)]
    alone = [option.opts[-1] for option in options if command.group_of(option) == OTHERS]
    assert not alone, f"add {', '.join(alone)} to GROUPS in src/kvtrace/cli/help.py"


@EACH
def test_help_fits_80_columns_but_for_examples(name):
    text, _, examples = shown(name).partition("Examples:")
    assert max(map(len, text.splitlines())) <= 80 and examples


def test_each_command_has_a_line_that_is_not_cut():
    lines = [line for line in shown("").splitlines() if re.match(r"  [a-z]+  ", line)]
    assert len(lines) == len(cli.commands.commands)
    assert all(line.endswith(".") and not line.endswith("..") and len(line) <= 80 for line in lines)


def test_the_line_of_a_command_is_the_first_sentence_of_its_help():
    for members in cli.SECTIONS.values():
        assert members == {name: cli.commands.commands[name].get_short_help_str(150) for name in members}


def test_commands_stand_in_the_order_of_the_work():
    names = list(cli.commands.list_commands(click.Context(cli.commands)))
    assert names.index("anonymize") < names.index("release") < names.index("analyze") < names.index("simulate")
    assert len(names) == len(set(names)) == len(cli.commands.commands)


# -- examples --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The files that examples name, made as a reader makes them."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "logs").mkdir()
    shutil.copy(ROOT / "examples/raw_log.jsonl", folder / "log.jsonl")
    shutil.copy(ROOT / "examples/raw_log.jsonl", folder / "logs/monday.jsonl")
    shutil.copy(ROOT / "tests/data/models/llama-3.1-8b.json", folder / "config.json")
    shutil.copytree(ROOT / "examples/recording", folder / "recording")
    recording = read_recording(folder / "recording")
    with quick_fits(worth=False):
        calibrate(recording, Deployment("llama-3.1-8b", gpu="h100")).costs.save(folder / "costs.json")
    fit_sessions(forest(3)).save(folder / "sessions.json")
    make_windows(folder / "windows")
    with contextlib.chdir(folder):
        assert run(shlex.split("anonymize log.jsonl -o trace.jsonl --block-size 16 -q")) == 0
        assert run(shlex.split("release trace.jsonl -o public.jsonl --profile strict -q")) == 0
        assert run(shlex.split("synthesize trace.jsonl -n 300 -o synthetic.jsonl -q")) == 0
    return folder


def make_windows(folder):
    """Two linked windows, monday.jsonl and tuesday.jsonl, as a recorder seals them."""
    now, lines = [86_400.0], (ROOT / "examples/raw_log.jsonl").read_bytes().splitlines()
    with Recorder(folder, window_s=86_400, link_windows=True, block_size=16, clock=lambda: now[0]) as recorder:
        for half, day in ((lines[::2], 2), (lines[1::2], 3)):
            for line in half:
                recorder.put("follow", line)
            if day == 2:
                now[0] = 86_400.0 * day + 1
                waited(lambda: recorder.counts().sealed == 1)
    for name, window in zip(("monday", "tuesday"), sealed(folder), strict=True):
        for path in folder.glob(f"{window.name}*"):
            path.rename(path.with_name(path.name.replace(window.name, f"{name}.jsonl")))


@pytest.mark.enable_socket
@pytest.mark.allow_hosts(["127.0.0.1"])
@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_each_example_runs(name, example, files, tmp_path, capsys):
    folder = tmp_path / "here"
    shutil.copytree(files, folder)
    program, *arguments = shlex.split(example)
    if "aiconfigurator" in arguments and find_spec("aiconfigurator_core") is None:
        pytest.skip("needs the extra silicon")
    with contextlib.chdir(folder):
        assert program == "kvtrace" and arguments[0] == name
        if any("--for" in param.opts for param in COMMANDS[name].params):
            arguments += ["--for", "1s"]  # a service runs until it is stopped
            for address in {"--otlp", "--proxy", "--metrics"}.intersection(arguments):
                arguments += [address, "0"]  # any free port: other tests and programs may hold the example's
        with quick_fits():
            assert run(arguments) == 0, capsys.readouterr().err
    assert 2 <= len(COMMANDS[name].examples) <= 4


# -- completion ------------------------------------------------------------------------------------------------------


def completed(*words):
    complete = BashComplete(cli.commands, {}, "kvtrace", "_KVTRACE_COMPLETE")
    return [item.value for item in complete.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["simulate", "t", "--policy", "ar"], ["arc"]),
        (["simulate", "t", "--policy", "lru,si"], ["lru,sieve"]),
        (["simulate", "t", "--engine", "v"], ["vllm"]),
        (["simulate", "t", "--router", "kv"], ["kv-aware"]),
        (["simulate", "t", "--pool", "l"], ["leaf-first"]),
        (["plan", "t", "--gpu", "h"], ["h100", "h200", "h20", "h100-pcie", "h100-nvl"]),
        (["plan", "t", "--model", "gpt"], ["gpt2", "gpt-oss-20b", "gpt-oss-120b"]),
        (["models", "mix"], ["mixtral-8x7b", "mixtral-8x22b"]),
        (["release", "t", "--profile", "s"], ["standard", "strict"]),
        (["anonymize", "l", "--log-format", "lite"], ["litellm-hashes", "litellm"]),
        (["convert", "t", "--to", "ba"], ["bailian"]),
        (["convert", "t", "--to", "v"], ["vllm", "vidur"]),
        (["texts", "t", "--to", "open"], ["openai"]),
        (["co"], ["convert", "compare", "completion"]),
    ],
)
def test_names_complete(words, expected):
    assert completed(*words) == expected


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"models"}))  # its argument is a name
def test_arguments_that_are_files_complete_as_files(name):
    arguments = [param for param in COMMANDS[name].params if isinstance(param, click.Argument)]
    assert arguments or name in ("record", "watch")  # services: they take no files
    assert all(isinstance(argument.type, FileName) for argument in arguments)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_of_a_shell_is_printed(shell, capsys):
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "_KVTRACE_COMPLETE" in script and "kvtrace" in script
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, env=os.environ).returncode == 0


# -- amounts ---------------------------------------------------------------------------------------------------------


@EACH
def test_every_number_may_have_separators_of_thousands(name):
    kinds = [param.type for param in COMMANDS[name].params]
    assert not [kind for kind in kinds if isinstance(kind, (click.types.IntParamType, click.types.FloatParamType))]
    parsers = [kind.parse for kind in kinds if isinstance(kind, AmountType)]
    with_units = (units.share, shares, units.milliseconds)
    assert all(parse("1,000") == 1000 for parse in parsers if parse not in with_units)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["curve", "t", "--points", "0"], "--points must be at least 1."),
        (["curve", "t", "--points", "20,000"], "--points must be at most 10,000."),
        (["curve", "t", "--sample", "25"], "--sample: '25' is not a share from 0 to 1. Examples: 25%, 0.25."),
        (["synthesize", "t", "-n", "many"], "--requests: 'many' is not a number of requests. Examples: 1000, 10k"),
        (["sweep", "t", "--requests", "many"], "--requests: 'many' is not a whole number. Examples: 8, 1000, 1,000."),
        (
            ["plan", "t", "--model-config", "c", "--input-price", "x"],
            "--input-price: 'x' is not a number. Examples: 2, 0.5.",
        ),
        (["analyze", "t", "--ms-per-token", "soon"], "--ms-per-token: 'soon' is not a duration. Examples: 30s, 10m"),
        (["plan", "t", "--ttft", "2"], "--ttft: '2' is not a duration. Examples: 30s, 10m"),
        (["convert", "t", "-o", "u", "--start", "-1s"], "--start: '-1s' is not a duration. Examples: 30s, 10m"),
        (["synthesize", "t", "--sessions", "few"], "--sessions: 'few' is not a number of sessions. Examples: 1000"),
        (["analyze", "t", "--memory", "2G"], "'2G' could be 2GB or 2GiB. Write one of them."),
        (["simulate", "t", "--capacity", "20,208"], "for one of 20,208 blocks, write 20208."),
    ],
)
def test_an_amount_that_is_not_valid_is_one_line_that_says_how_to_write_it(options, message, files, capsys):
    with contextlib.chdir(files):
        assert run(["trace.jsonl" if word == "t" else word for word in options]) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_names_are_checked_by_the_library_which_lists_them():
    assert Name(lambda: ["a"]).convert("b", None, None) == "b"


def test_a_command_that_is_called_without_its_group_keeps_both_names_of_help():
    printed = CliRunner().invoke(cli.commands.commands["convert"], ["-h"])
    assert printed.exit_code == 0 and "-h, --help" in printed.output


@EACH
def test_help_ends_with_the_address_of_a_page_that_exists(name):
    page = COMMANDS[name].page
    assert page and (ROOT / "docs" / page).is_file() and shown(name).rstrip().endswith(docs_page(page))


@EACH
def test_help_names_no_file_that_a_wheel_lacks(name):
    assert not re.search(r"(?<![/\w])docs/", shown(name, 200))


def test_no_message_names_a_file_that_a_wheel_lacks():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in texts_of(ast.parse(path.read_text()))
        if re.search(r"(?<![/\w.])docs/[a-z-]+[/.]", node.value)
    ]
    assert not wrong, "a wheel has no docs/: write docs_page(PAGE) of _base/errors.py"


def test_no_docstring_of_a_public_name_names_a_file_that_a_wheel_lacks():
    rooms = [kvtrace, *(room for name in kvtrace.__all__ if inspect.ismodule(room := getattr(kvtrace, name)))]
    public = [(room, name) for room in rooms for name in room.__all__ if name != "LiteLLMCallback"]  # needs LiteLLM
    values = [getattr(room, name) for room, name in public]
    members = [member for value in values if inspect.isclass(value) for _, member in inspect.getmembers(value)]
    texts = {text for value in (*rooms, *values, *members) if isinstance(text := getattr(value, "__doc__", None), str)}
    assert len(texts) > 300
    assert [text for text in texts if re.search(r"(?<![/\w.])docs/\w", text)] == []


def texts_of(tree):
    """The texts of a module but its docstrings."""
    lone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in lone:
            yield node


def test_the_address_of_the_docs_is_that_of_the_project():
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert docs_page("").replace("/blob/", "/tree/").rstrip("/") == urls["Documentation"]


def test_messages_name_the_spelling_that_the_docs_teach():
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in texts_of(ast.parse(path.read_text()))
        if re.search("--model-config(?! --model )", node.value) and node.value != "--model-config"
    ]
    assert not wrong, "write --model"
