"""A page for each command, written from the command itself, and the list of all commands in docs/reference.md."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click

from kvtrace.cli import CONTEXT, SECTIONS, functions
from kvtrace.cli import commands as kvtrace_commands
from kvtrace.cli.help import GROUPS, Command

ROOT = Path(__file__).resolve().parents[2]
PAGES = {  # command -> its page of explanations and examples, in docs/
    "kvtrace start": "index.md",
    "kvtrace lint": "ingest/lint.md",
    "kvtrace anonymize": "ingest/anonymize.md",
    "kvtrace record": "capture/record.md",
    "kvtrace watch": "capture/watch.md",
    "kvtrace audit": "privacy/audit.md",
    "kvtrace release": "privacy/privacy.md",
    "kvtrace join": "capture/record.md",
    "kvtrace check": "formats/formats.md",
    "kvtrace analyze": "analysis/analyze.md",
    "kvtrace curve": "analysis/curve.md",
    "kvtrace convert": "formats/formats.md",
    "kvtrace report": "report/report.md",
    "kvtrace simulate": "cache/simulate.md",
    "kvtrace explain": "serving/explain.md",
    "kvtrace plan": "serving/plan.md",
    "kvtrace calibrate": "serving/calibrate.md",
    "kvtrace validate": "serving/calibrate.md",
    "kvtrace models": "serving/models.md",
    "kvtrace sweep": "cache/sweep.md",
    "kvtrace tune": "cache/sweep.md",
    "kvtrace synthesize": "synthesis/synthesize.md",
    "kvtrace compare": "analysis/compare.md",
    "kvtrace texts": "text/tokenizers.md",
    "kvtrace completion": "reference.md",
    "datagen analyze": "reference.md",
    "datagen synthesize": "synthesis/synthesize.md",
}
MAX_EXAMPLES = 4
DOCS_PATH = re.compile(r"docs/((?:[a-z-]+/)?[a-z-]+\.md)")
DEFAULT = re.compile(r"\s*\[(?P<notes>[^\[\]]*)\]$")
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)
LIST_PAGE = ROOT / "docs/reference.md"
LIST = re.compile(r"(?<=<!-- commands -->\n).*?(?=<!-- end of commands -->)", re.S)


def all_commands() -> dict[str, click.Command]:
    """Every command by its full name.

    >>> "kvtrace simulate" in all_commands()
    True
    """
    from kvtrace.cli import commands as kvtrace
    from kvtrace.cli import datagen

    groups = {"kvtrace": kvtrace, "datagen": datagen.commands}
    return {f"{name}{sub}": command for name, group in groups.items() for sub, command in _walk(group)}


def listed() -> str:
    """Each command with its page, its function and its task, a row each."""
    lines = [f"| [`{name}`]({PAGES[f'kvtrace {name}']}) | {call} | {task} |" for name, call, task in rows()]
    return "\n".join(["", "| `kvtrace` ... | `kvtrace.`... | task |", "|---|---|---|", *lines, "", ""])


def rows() -> list[tuple[str, str, str]]:
    """Name, function and task of each command, in the order of `kvtrace --help`."""
    return [(name, _call(name), _task(name)) for members in SECTIONS.values() for name in members]


def with_list(text: str) -> str:
    """The page with the list as it is now."""
    return LIST.sub(lambda _: listed(), text)


def write_list() -> None:
    """Write the list into docs/reference.md."""
    LIST_PAGE.write_text(with_list(LIST_PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def _call(name: str) -> str:
    """The function of a command, with the parameters that may go without their names."""
    if name not in functions.NAMES:
        return "-"
    parameters = functions.signature_of(kvtrace_commands.commands[name]).parameters.values()
    return f"`{name}({', '.join(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)})`"


def _task(name: str) -> str:
    return kvtrace_commands.commands[name].get_short_help_str(200).rstrip(".")


def _walk(group: click.Group, prefix: str = ""):
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from _walk(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def path_of(name: str) -> str:
    """The path of a command's page in the site.

    >>> path_of("kvtrace simulate")
    'reference/commands/kvtrace-simulate.md'
    """
    return f"reference/commands/{name.replace(' ', '-')}.md"


def page(name: str, command: click.Command) -> str:
    """The Markdown of a command's page."""
    context = context_of(name, command)
    usage = command.get_usage(context).removeprefix("Usage: ")
    sections = [f"# {name}", _escaped(inspect.cleandoc(command.help or "")), f"```text\n{usage}\n```"]
    if own := PAGES.get(name):
        sections.append(f"[Explanations and examples](../../{own}) · [Exit statuses](../../reference.md#exit-status)")
    if examples := examples_of(name, command):
        lines = "\n".join(examples)
        sections.append(f"## Examples\n\nA test runs each of these commands.\n\n```sh\n{lines}\n```")
    for group, params in _grouped(command, context).items():
        sections.append(f"## {group}\n\n" + "\n\n".join(_option(param, context) for param in params))
    return "\n\n".join(section for section in sections if section) + "\n"


def context_of(name: str, command: click.Command) -> click.Context:
    """The context of `kvtrace COMMAND --help`. click keeps the help option that it makes with the first context."""
    settings = {**CONTEXT, "max_content_width": 80, "terminal_width": 80}
    return click.Context(command, info_name=name, **settings)


def examples_of(name: str, command: click.Command) -> list[str]:
    """The examples of a command's --help, else those of its page; the suite runs both."""
    if own := [*getattr(command, "examples", ())]:
        return own
    text = "\n".join(SHELL.findall((ROOT / "docs" / PAGES[name]).read_text(encoding="utf-8")))
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    return [line for line in lines if shlex.split(line, comments=True)[:2] == name.split()][:MAX_EXAMPLES]


def _grouped(command, context) -> dict[str, list[click.Parameter]]:
    """The options by the groups of --help, in its order; arguments with a text of their own come first."""
    grouped: dict[str, list[click.Parameter]] = {}
    for param in _options(command, context):
        is_option = isinstance(param, click.Option) and isinstance(command, Command)
        grouped.setdefault(command.group_of(param) if is_option else "Options", []).append(param)
    order = ["Options", *GROUPS]
    return dict(sorted(grouped.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _options(command, context):
    """The options, and the arguments that have a text of their own."""
    records = [(param, param.get_help_record(context)) for param in command.get_params(context)]
    return [param for param, record in records if record and (record[1] or isinstance(param, click.Option))]


def _option(param: click.Parameter, context: click.Context) -> str:
    names, text = param.get_help_record(context) or ("", "")
    notes = []
    while match := DEFAULT.search(text):
        notes.append(match["notes"])
        text = text[: match.start()]
    anchor = max(param.opts, key=len).lstrip("-")
    parts = [_escaped(text.strip())] if text.strip() else []
    parts += [f"*{_escaped(note[:1].upper() + note[1:])}.*" for note in reversed(notes)]
    return f"`{names}` {{: #{anchor} }}\n:   " + "<br>".join(parts or ["-"])


def _escaped(text: str) -> str:
    """Help text as Markdown: a star, a bar or a bracket means itself.

    >>> _escaped("[a|b] for <TRACE>")
    '\\\\[a\\\\|b\\\\] for &lt;TRACE&gt;'
    """
    text = re.sub(r"([\\`*_\[\]|])", r"\\\1", text.replace("\b\n", ""))
    text = text.replace("<", "&lt;").replace(">", "&gt;")
    return DOCS_PATH.sub(r"[\1](../../\1)", text)
