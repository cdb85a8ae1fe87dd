"""Prove on a chat template's syntax tree that its loops over the messages are state machines (see rendering.py)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import nodes

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
