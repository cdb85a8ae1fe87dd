"""Which form of content an engine gives a chat template: text, or a list of parts. Engines read it off the template.

vLLM (renderers/hf.py) takes a template that loops over the content of a message for one that wants parts; it follows
the messages, and their contents, through assignments, namespaces and macros. SGLang (parser/jinja_template_utils.py)
looks at the names of loop variables, and takes each template that mentions an image, a sound or a video for one.
"""

from __future__ import annotations

from collections.abc import Iterator

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
