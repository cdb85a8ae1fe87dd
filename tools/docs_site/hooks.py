"""Hooks of the site's builder (MkDocs): they add the generated pages and link the written pages to them."""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [path for path in (str(ROOT), str(ROOT / "src")) if path not in sys.path]

from tools.docs_site import api, commands, llms, metrics  # noqa: E402  # the builder loads this file without the root on its path

HELP = re.compile(r"`((?:kvtrace|datagen) [a-z]+) --help`")
OUTSIDE_LINK = re.compile(
    r"\[([^\]]*)\]\((?:\.\./)+(?:contrib|examples|experiments|tests|src|benchmarks|README|CHANGELOG|SECURITY)[^)]*\)"
)


def on_config(config):
    """Put the generated pages into the navigation, where mkdocs.yml leaves room for them."""
    (reference,) = (part["Reference"] for part in config.nav if "Reference" in part)
    for part in reference:
        if isinstance(part, dict) and "Commands" in part:
            part["Commands"] += [{name: commands.path_of(name)} for name in commands.all_commands()]
        elif isinstance(part, dict) and "Python" in part:
            part["Python"] = [{title: api.path_of(room)} for room, title in api.ROOMS.items()]
    reference.append({"Metrics": metrics.PATH})
    return config


def on_files(files, config):
    """Add a page for each command and each room of the API, one of the metrics, and llms.txt."""
    files.append(File.generated(config, llms.PATH, content=llms.text(llms.of_site)))
    for name, command in commands.all_commands().items():
        files.append(File.generated(config, commands.path_of(name), content=commands.page(name, command)))
    files.append(File.generated(config, metrics.PATH, content=metrics.page()))
    for room in api.ROOMS:
        files.append(File.generated(config, api.path_of(room), content=api.page(room)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Link `kvtrace COMMAND --help` to the page of the command; files outside of docs/ become plain names."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]
    up = "../" * len(PurePosixPath(page.file.src_uri).parent.parts)
    linked = HELP.sub(lambda match: f"[{match[0]}]({up}{commands.path_of(match[1])})", markdown)
    return OUTSIDE_LINK.sub(r"\1", linked)
