"""Hooks of the site's builder (MkDocs): they add the generated pages and link the written pages to them."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "src")) if path not in sys.path]

from tools.docs_site import api, commands  # noqa: E402  # the builder loads this file without the root on its path

COMMAND_LINK = re.compile(r"\]\((?:\.\./)*(?:cli/)?cli\.md#(kvtrace|datagen)-(\w+)\)")
OUTSIDE_LINK = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?:contrib|examples|experiments|tests|src|benchmarks|README|CHANGELOG)[^)]*\)"
)


def on_config(config):
    """Put the generated pages into the navigation, where mkdocs.yml leaves room for them."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    for part in reference:
        if isinstance(part, dict) and "Commands" in part:
            part["Commands"] += [{name: commands.path_of(name)} for name in commands.all_commands()]
        elif isinstance(part, dict) and "Python" in part:
            part["Python"] = [{title: api.path_of(room)} for room, title in api.ROOMS.items()]
    return config


def on_files(files, config):
    """Add a page for each command and for each room of the API."""
    for name, command in commands.all_commands().items():
        files.append(File.generated(config, commands.path_of(name), content=commands.page(name, command)))
    for room in api.ROOMS:
        files.append(File.generated(config, api.path_of(room), content=api.page(room)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Lead links to `cli.md#kvtrace-NAME` to the page of the command; files outside of docs/ become plain names."""
    here = PurePosixPath(page.file.src_uri).parent
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.src_uri == "cli/cli.md":
        page.meta["search"] = {"exclude": True}  # each command has a page of its own

    def to_command(match):
        target = PurePosixPath(commands.path_of(f"{match[1]} {match[2]}"))
        up = "../" * len(here.parts)
        return f"]({up}{target})"

    return OUTSIDE_LINK.sub(r"\1", COMMAND_LINK.sub(to_command, markdown))
