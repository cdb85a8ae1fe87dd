"""Chat templates in Jinja: the environment that parses and renders them, and what the syntax tree of one shows.

The environment is the one of Hugging Face's transformers: jinja2's immutable sandbox, with trimmed blocks, `break` and
`continue`, a `tojson` that escapes nothing, `raise_exception`, `strftime_now`, and the tag `{% generation %}`.

The tree shows the form of content that a template wants, and loops that are state machines. Engines read off it
whether the template gets text or a list of parts. vLLM (renderers/hf.py) takes a template that loops over the content
of a message for one that wants parts; it follows the messages, and their contents, through assignments, namespaces and
macros. SGLang (parser/jinja_template_utils.py) looks at the names of loop variables, and takes each template that
mentions an image, a sound or a video for one. A template whose loops over the messages are state machines is rendered
turn by turn (rendering.py).
"""

from __future__ import annotations

import hashlib
import json
import marshal
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from types import CodeType
from typing import Any

from jinja2 import Environment, nodes

from .._base.errors import RowError, UsageError
from .._base.files import cache_folder
from .._base.output_files import read_cached, write_cached
from .tokenizer_libraries import version_of

ENVIRONMENT_VERSION = 1  # raise it when `environment` or a question to templates changes: caches become invalid
FILENAME = "<chat template>"  # of compiled templates, in tracebacks


@lru_cache(maxsize=1)
def environment():
    """The Jinja environment of chat templates, shared by all."""
    from jinja2 import TemplateError, ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %} ... {% endgeneration %}` marks the model's text for training. It renders as its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message):
        raise TemplateError(message)

    jinja = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    jinja.filters["tojson"] = _tojson
    jinja.globals["raise_exception"] = raise_exception
    jinja.globals["lipsum"], jinja.filters["random"] = _random("lipsum"), _random("random")
    return jinja


@lru_cache(maxsize=16)
def code_of(source: str, *, is_kept: bool = False) -> CodeType:
    """The compiled code of a template; raises what jinja2 and Python's compiler raise.

    With `is_kept` it comes from the user's cache folder, or is left there for later runs.
    """
    return _kept("code", source, lambda: environment().compile(source, filename=FILENAME), CodeType, is_kept)


def wants_parts_of(source: str, engine: str, *, is_kept: bool = False) -> bool:
    """As `wants_parts`, of a template's text, which may be kept as in `code_of`."""
    return _kept(f"parts-{engine}", source, lambda: wants_parts(environment(), source, engine), bool, is_kept)


def wants_of(source: str, tokens: Mapping[str, str], make: Callable[[], str], *, is_kept: bool = False) -> str:
    """What a template with these special tokens wants, in words, which may be kept as in `code_of`.

    `make` renders twenty probes, which took a tenth of the time of a small log.
    """
    return _kept(f"wants-{sorted(tokens.items())}", source, make, str, is_kept)


def _kept(kind: str, source: str, make: Callable[[], Any], of_type: type, is_kept: bool) -> Any:
    """What was made of a template by an earlier run with the same versions, else by this one."""
    if not is_kept:
        return make()
    key = (ENVIRONMENT_VERSION, kind, source, sys.version, sys.implementation.cache_tag, version_of("jinja2"))
    place = cache_folder() / f"template-{hashlib.sha256(repr(key).encode()).hexdigest()[:32]}"
    if (data := read_cached(place)) is not None:
        with suppress(ValueError, EOFError, TypeError):
            if isinstance(value := marshal.loads(data), of_type):
                return value
    value = make()
    write_cached(place, marshal.dumps(value))
    return value


def _random(name):
    """In place of a function of jinja2 that gives another text at each call, which no prefix would survive."""

    def refuse(*_arguments, **_options):
        raise RowError(f"the chat template uses `{name}`, which gives another text at each call.")

    return refuse


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """Plain JSON; jinja2's own filter escapes for HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime(time, format):
    """Format the time of a request (seconds since 1970, or a datetime), in UTC; RowError if it has none."""
    if time is None:
        raise RowError("the chat template prints the date, but the request has no time.")
    if not isinstance(time, datetime):
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)
    return (time if time.tzinfo is None else time.astimezone(UTC)).strftime(format)


ADDRESS = " at 0x"  # in the text of most objects of Python


def without_addresses(text, messages, tools) -> str:
    """The text; RowError if it shows the memory address of an object of jinja2, which differs in each run."""
    if ADDRESS in text:
        request = f"{messages} {tools}"
        if any(address not in request for address in set(re.findall(f"{ADDRESS}[0-9a-f]+", text))):
            raise RowError("the chat template prints an object (a function or an iterator) in place of its text.")
    return text


def named_sources(source, name):
    """(default, tool_use) of a single source or of several named ones."""
    if isinstance(source, str):
        return source, None
    if isinstance(source, list):
        source = {row.get("name"): row.get("template") for row in source if isinstance(row, Mapping)}
    texts = {key: text for key, text in source.items() if isinstance(text, str)} if isinstance(source, Mapping) else {}
    if "default" not in texts:
        raise UsageError(
            f"{name}: none of the {len(texts)} chat templates is named default. Set one with --chat-template FILE."
        )
    return texts["default"], texts.get("tool_use")


MEDIA_WORDS = ("image", "audio", "video", "vision")
SGLANG_MESSAGES = ("message", "msg", "m")


def wants_parts(environment: Environment, source: str, engine: str) -> bool:
    """Whether an engine gives this template lists of parts.

    >>> loop = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
    >>> wants_parts(Environment(), loop, "vllm"), wants_parts(Environment(), "{{ messages[0].content }}", "vllm")
    (True, False)
    """
    if engine == "sglang" and any(word in source for word in MEDIA_WORDS):
        return True
    tree = environment.parse(source)
    if engine == "sglang":
        loops = tree.find_all(nodes.For)
        return any(_reads(loop.iter, name, "content") for loop in loops for name in SGLANG_MESSAGES)
    first = next(_content_loops(tree), None)
    return first is not None and isinstance(first.target, nodes.Name)


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    """The loops over the content of a message, as vLLM finds them."""
    loops = list(_loops_over(tree, set(_aliases(tree, "messages"))))
    if not all(isinstance(loop.target, nodes.Name) for loop in loops):
        return  # vLLM gives up, and takes the template for one that wants text
    messages = {loop.target.name for loop in loops}  # type: ignore[attr-defined]
    in_macros: set[int] = set()
    contents: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if given:
                contents[id(loop)] = given
    for loop in tree.find_all(nodes.For):
        source = loop.iter
        name = source.name if isinstance(source, nodes.Name) else None
        if (
            any(_reads(source, message, "content") for message in messages)
            or (name is not None and name in contents.get(id(loop), ()))
            or (name == "content" and id(loop) not in in_macros)
        ):
            yield loop


def _loops_over(tree: nodes.Template, names: set[str]) -> Iterator[nodes.For]:
    """The loops over values of these names."""
    for loop in tree.find_all(nodes.For):
        if any(_reads(loop.iter, name) for name in names):
            yield loop


def _aliases(tree: nodes.Template, name: str) -> Iterator[str]:
    """The name, and all names that are assigned its value or a part of it, such as `ns.rest`."""
    seen, waiting = {name}, [name]
    yield name
    while waiting:
        related = waiting.pop(0)
        for assignment in tree.find_all(nodes.Assign):
            for alias in _assigned(assignment, related):
                if alias not in seen:
                    seen.add(alias)
                    waiting.append(alias)
                    yield alias


def _assigned(assignment: nodes.Assign, name: str) -> list[str]:
    """The names that an assignment gives the value of `name`."""
    target, value = assignment.target, assignment.node
    if isinstance(target, nodes.Name):
        if _reads(value, name):
            return [target.name]
        if isinstance(value, nodes.Call) and isinstance(value.node, nodes.Name) and value.node.name == "namespace":
            return [f"{target.name}.{argument.key}" for argument in value.kwargs if _reads(argument.value, name)]
        return []
    dotted = _dotted(target)
    return [dotted] if dotted is not None and _reads(value, name) else []


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: set[str]) -> set[str]:
    """The parameters of a macro that receive the content of a message."""
    names = [argument.name for argument in macro.args]
    given = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        arguments = [*zip(names, call.args, strict=False), *((word.key, word.value) for word in call.kwargs)]
        for parameter, value in arguments:
            if parameter in names and any(_reads(value, message, "content") for message in messages):
                given.add(parameter)
    return given


def _reads(node: nodes.Node, name: str, key: str | None = None) -> bool:
    """Whether an expression is the variable, or its attribute `key`, perhaps filtered, tested or sliced."""
    while (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)) or isinstance(
        node, nodes.Filter | nodes.Test
    ):
        if node.node is None:
            return False
        node = node.node
    if key is None:
        return _is_variable(node, name)
    if isinstance(node, nodes.Getitem):
        return _is_variable(node.node, name) and isinstance(node.arg, nodes.Const) and node.arg.value == key
    return isinstance(node, nodes.Getattr) and node.attr == key and _is_variable(node.node, name)


def _is_variable(node: nodes.Node, name: str) -> bool:
    if isinstance(node, nodes.Name):
        return node.ctx == "load" and node.name == name
    base, dot, attribute = name.rpartition(".")
    return bool(dot) and isinstance(node, nodes.Getattr) and node.attr == attribute and _is_variable(node.node, base)


def _dotted(target: nodes.Node) -> str | None:
    """The dotted name of an attribute that is assigned to: `ns.rest`."""
    if isinstance(target, nodes.NSRef):
        return f"{target.name}.{target.attr}"
    if isinstance(target, nodes.Getattr):
        base = target.node.name if isinstance(target.node, nodes.Name) else _dotted(target.node)
        return None if base is None else f"{base}.{target.attr}"
    return None


POSITION_ATTRIBUTES = {"first", "index", "index0"}  # attributes of `loop` that a body may read
PURE_FUNCTIONS = {"raise_exception", "namespace", "range", "dict"}  # functions that a template may call by name
IMPURE_FILTERS = {"random"}
FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Block, nodes.Extends, nodes.EnvironmentAttribute,
           nodes.ExtensionAttribute, nodes.ImportedName, nodes.InternalName, nodes.ContextReference,
           nodes.DerivedContextReference)  # fmt: skip


def loops_at_top(body: list[nodes.Node]) -> Iterator[nodes.For]:
    """The loops at the top level and in conditions, whose output goes directly into the text."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from loops_at_top([*node.body, *node.elif_, *node.else_])


def is_over_messages(site):
    return isinstance(site.iter, nodes.Name) and site.iter.name == "messages"


def is_pure(tree, names, loop_count, environment) -> bool:
    """Whether the template reads `messages` only in its loops, and calls only functions that always give the same."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return not (
        sum(name.name == "messages" for name in tree.find_all(nodes.Name)) != loop_count
        or names & ({*environment.globals, "strftime_now", "self", "caller", "varargs", "kwargs"} - PURE_FUNCTIONS)
        or stored & (PURE_FUNCTIONS | {"loop"})
        or any(node.name in IMPURE_FILTERS for node in tree.find_all(nodes.Filter))
        or any(True for _ in tree.find_all(FOREIGN))
    )


def is_state_machine(site) -> bool:
    """Whether the loop's body is a function of the message, its position and outer values."""
    return (
        isinstance(site.target, nodes.Name)
        and not (site.test or site.recursive or site.else_)
        and not any(True for _ in _within(site, (nodes.Macro, nodes.CallBlock)))
        and not any(isinstance(node, nodes.Break) for node in _own_level(site))
        and (attributes := loop_attributes(site)) is not None
        and attributes <= POSITION_ATTRIBUTES
    )


def _within(site, kind) -> Iterator[Any]:
    for node in site.body:
        if isinstance(node, kind):
            yield node
        yield from node.find_all(kind)


def _own_level(site) -> Iterator[nodes.Node]:
    """The nodes of the body for which `loop` and `break` refer to this loop, not to a nested one."""
    stack = list(site.body)
    while stack:
        node = stack.pop()
        yield node
        if isinstance(node, nodes.For):
            stack += [node.target, node.iter, *node.else_]
        else:
            stack += node.iter_child_nodes()


def own_loop_names(site) -> list[nodes.Name]:
    """The uses of the name `loop` that refer to this loop."""
    return [node for node in _own_level(site) if isinstance(node, nodes.Name) and node.name == "loop"]


def loop_attributes(site) -> set[str] | None:
    """The attributes of `loop` that the body reads; None if it uses `loop` in another way."""
    own = {id(name) for name in own_loop_names(site)}
    read = [node.attr for node in _own_level(site) if isinstance(node, nodes.Getattr) and id(node.node) in own]
    return set(read) if len(read) == len(own) else None


def outer_names(site) -> list[str]:
    """The names that the body reads, or whose namespace it sets, except the message, `loop` and pure functions.

    Local names of the body are included. That is harmless: the body does not see their outer values.
    """
    names = {name.name for name in _within(site, nodes.Name) if name.ctx == "load"}
    names |= {reference.name for reference in _within(site, nodes.NSRef)}
    return sorted(names - {site.target.name, "loop"} - PURE_FUNCTIONS)


def namespace_attributes(site, name) -> list[str] | None:
    """The attributes of a namespace that the body reads or sets; None if it uses the name in another way."""
    read = [
        node.attr
        for node in _within(site, nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == name
    ]
    if sum(use.name == name and use.ctx == "load" for use in _within(site, nodes.Name)) != len(read):
        return None
    return sorted({*read, *(node.attr for node in _within(site, nodes.NSRef) if node.name == name)})
