"""What the syntax tree of a chat template shows: the form of content it wants, and loops that are state machines.

Engines read off the template whether it gets text or a list of parts. vLLM (renderers/hf.py) takes a template that
loops over the content of a message for one that wants parts; it follows the messages, and their contents, through
assignments, namespaces and macros. SGLang (parser/jinja_template_utils.py) looks at the names of loop variables, and
takes each template that mentions an image, a sound or a video for one.

A template whose loops over the messages are state machines is rendered turn by turn (rendering.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, nodes

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
