"""Render a chat template as a state machine, so that each turn of a conversation is rendered once.

A chat log holds each conversation many times, each time one turn longer, and most templates loop over the messages. If
the body of such a loop depends only on the message and a few outer values, the loop is a state machine:
(state, message) -> (text, next state). The text between two loops depends only on the request's other variables and on
the final states of the earlier loops. All of these results are cached. A missing result is computed by a run of the
template that is suspended in its loop, or by a new run.

template_syntax.py proves on the syntax tree that a template qualifies:

* It reads `messages` only in loops over all of them.
* The loops' bodies read only the position from `loop` (`first`, `index`, `index0`), so they do not depend on later
  messages. They do not break, filter or recurse, and they define, include and extend nothing.
* Every outer name that a body reads is part of the state. Strings, whole numbers, booleans, None and undefined values
  are allowed. A namespace (the only value that outlives an iteration) contributes the attributes that the body uses.
* It calls nothing whose result can change, such as the time or a random number.

The types of values are checked when a loop starts. Other templates, requests with other types of values, and requests
that raise are rendered in full by jinja2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.utils import Namespace

from .template_syntax import (  # fmt: skip
    PURE_FUNCTIONS,
    is_over_messages,
    is_pure,
    is_state_machine,
    loop_attributes,
    loops_at_top,
    namespace_attributes,
    outer_names,
    own_loop_names,
)

ATOMS = (str, int, bool, type(None))  # not floats: 0.0 equals -0.0 and prints otherwise
# of a value outside of a loop: a namespace's attributes and the names of those that count, or the atom of another value
Outer = tuple[dict[str, Any] | None, Sequence[str], Any]
PLAIN = ("role", "content")  # the keys of nearly all messages
NAME_PREFIX = "kvtrace_"  # of the names that this module adds to a template
MARKER = "".join(("<", "mark", ">"))  # compared by identity, so that an equal text is not a marker
MIN_RUNS = 32  # runs that are allowed before the renderer gives up


class Renderer:
    """A template that caches the turns it has rendered, until `forget` is called.

    >>> renderer = Renderer.of(Environment(), "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> renderer.render({"messages": [{"role": "user", "content": "Boats?"}]})
    '<user>Boats?'
    >>> Renderer.of(Environment(), "{{ messages[-1].content }}") is None
    True
    """

    def __init__(self, template: Template, loops: list[MessageLoop], names: set[str]):
        self._template, self._loops = template, loops
        self._names = sorted(names)  # variables that the template may read
        self._starts: dict[
            tuple[Any, ...], TemplateRun
        ] = {}  # values of these variables -> the run that starts with them
        self._given_up, self._requests, self._runs = False, 0, 0

    @classmethod
    def of(cls, environment: Environment, source: str, filename: str | None = None) -> Renderer | None:
        """The renderer of a template, or None if it is not provably a state machine."""
        tree = environment.parse(source)
        sites = [site for site in loops_at_top(tree.body) if is_over_messages(site)]
        names = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
        if NAME_PREFIX in source or not sites or not is_pure(tree, names, len(sites), environment):
            return None
        if not all(is_state_machine(site) for site in sites):
            return None
        loops = [MessageLoop(site, number, environment) for number, site in enumerate(sites)]
        code = environment.compile(tree, filename=filename)
        template = Template.from_code(environment, code, environment.make_globals(None))
        return cls(template, loops, names - {"messages", "loop"} - PURE_FUNCTIONS)

    def render(self, variables: dict[str, Any]) -> str | None:
        """The text of one request; None if jinja2 must render it in full, or report its error."""
        if self._given_up:
            return None
        self._requests += 1
        self._given_up = self._runs > MIN_RUNS + self._requests // 4  # the cache does not help if few turns repeat
        try:
            return self._text(variables)
        except MemoryError:
            raise
        except Unprovable:
            self._given_up = True  # other requests probably have such values, too
        except Exception:
            self._starts.clear()  # a run that has raised cannot continue
        return None

    def forget(self) -> None:
        """Clear the cache, so that no text stays in memory."""
        self._given_up, self._requests, self._runs = False, 0, 0
        self._starts.clear()
        for loop in self._loops:
            loop.states.clear()

    def _text(self, variables):
        messages = variables["messages"]
        keys = [  # role and content of nearly all messages; else the repr, in which 1 differs from True
            (message["role"], message["content"])
            if type(message) is dict
            and tuple(message) == PLAIN
            and str is type(message["role"]) is type(message["content"])
            else _message_key(message)
            for message in messages
        ]
        start = tuple([_variable_key(variables[name]) if name in variables else None for name in self._names])
        if (run := self._starts.get(start)) is None:
            run = self._starts[start] = self._run(variables, [])
        pieces = [run.text]
        while (state := run.state) is not None:
            for position, key in enumerate(keys):
                step = state.steps.get(key)
                if step is None:
                    step = state.steps[key] = run.feed(state, messages[position], position)
                text, state = step
                pieces.append(text)
            if (after := run.after.get(state)) is None:
                after = run.after[state] = self._run(variables, [*run.ends, state])
            run = after
            pieces.append(run.text)
        return "".join(pieces)

    def _run(self, variables, ends) -> TemplateRun:
        self._runs += 1
        return TemplateRun(self._template, self._loops, variables, ends)


class TemplateRun:
    """A run of the template, suspended in its next loop over the messages, or finished.

    `ends` are the final states of the earlier loops, `text` is the output since the last of them, and `state` is the
    initial state of the next loop (None = finished).
    """

    text: str

    def __init__(self, template: Template, loops: list[MessageLoop], variables: dict[str, Any], ends: list[LoopState]):
        self.ends = ends
        self.after: dict[LoopState, TemplateRun] = {}  # final state of this loop -> the run that continues from it
        self.state: LoopState | None = None
        self._skipped_loops = iter(ends)
        self._loop: Any = None
        self._outer: tuple[Outer, ...] = ()
        self._current: LoopState | None = None  # current values of the namespaces
        self._batch: list[Any] = []
        self._written: list[str] = []
        entries = {loop.name: self._entry(loop) for loop in loops}
        context = template.new_context({**variables, **entries, "messages": None, f"{NAME_PREFIX}mark": MARKER})
        self._pieces = template.root_render_func(context)
        self.text = self._advance()

    def feed(self, state: LoopState, message: Any, position: int) -> tuple[str, LoopState]:
        """Run the loop's body on one message in a state. Returns its text and the next state."""
        if state is not self._current:
            self._loop.restore(self._outer, state)
        self._batch = [(message, _place(position))] if self._loop.positions else [message]
        text = self._advance()
        self._batch = []
        self._current = self._loop.state(self._outer, position + 1)
        return text, self._current

    def _advance(self) -> str:
        """Run the template to the next marker, or to its end. Returns its output."""
        self._written.clear()
        for piece in self._pieces:
            if piece is MARKER:
                break
            self._written.append(piece)
        return "".join(self._written)

    def _entry(self, loop):
        """The loop of the rewritten template: generates batches of messages, with a marker each."""

        def enter(_, *outer) -> Iterator[list[Any]]:
            outer = loop.opened(outer)
            if (end := next(self._skipped_loops, None)) is not None:
                loop.restore(outer, end)
                self._written.clear()
                return
            self._loop, self._outer = loop, outer
            self.state = self._current = loop.state(outer, 0)
            yield []
            while True:
                yield self._batch

        return enter


class Unprovable(Exception):
    """A value cannot be part of a state. The template is rendered in full."""


class LoopState:
    """The outer values that a loop's body can see, and its cached results by message."""

    values: tuple[Any, ...]

    __slots__ = ("steps", "values")

    def __init__(self, values: tuple[Any, ...]):
        self.values = values
        self.steps: dict[Any, tuple[str, LoopState]] = {}  # message key -> (text, next state)


class MessageLoop:
    """One loop over the messages, and all of its states so far."""

    name: str
    positions: set[str]

    def __init__(self, site: nodes.For, number: int, environment: Environment):
        self.name = f"{NAME_PREFIX}loop_{number}"
        self.states: dict[tuple[Any, ...], LoopState] = {}
        self.positions = loop_attributes(site) or set()
        self._undefined = environment.undefined
        self._names = outer_names(site)
        self._attributes = [namespace_attributes(site, name) for name in self._names]
        self._rewrite(site)

    def _rewrite(self, site):
        """`for m in messages: ...` becomes `for batch in enter(messages, ns, ...): for m in batch: ...; mark`."""
        place, batch, mark = f"{NAME_PREFIX}place", f"{NAME_PREFIX}batch", f"{NAME_PREFIX}mark"
        for name in own_loop_names(site):
            name.name = place
        target = nodes.Tuple([site.target, nodes.Name(place, "store")], "store") if self.positions else site.target
        inner = nodes.For(target, nodes.Name(batch, "load"), site.body, [], None, False)
        outer = [nodes.Name(name, "load") for name in self._names]
        site.target = nodes.Name(batch, "store")
        site.iter = nodes.Call(nodes.Name(self.name, "load"), [site.iter, *outer], [], None, None)
        site.body = [inner, nodes.Output([nodes.Name(mark, "load")])]
        site.set_lineno(site.lineno)

    def opened(self, outer: tuple[Any, ...]) -> tuple[Outer, ...]:
        """The outer values as what `state` reads of them, once for a run; Unprovable."""
        opened: list[Outer] = []
        for value, attributes in zip(outer, self._attributes, strict=True):
            if type(value) is not Namespace:
                opened.append((None, (), self._atom(value)))
            elif attributes is None or sum(value is another for another in outer) > 1:
                raise Unprovable
            else:
                opened.append((object.__getattribute__(value, "_Namespace__attrs"), attributes, None))
        return tuple(opened)

    def state(self, outer: tuple[Outer, ...], position: int) -> LoopState:
        """The state of these outer values."""
        values: list[Any] = []
        for namespace, attributes, atom in outer:
            if namespace is None:
                values.append(atom)
            else:
                values += [self._atom(namespace[name]) if name in namespace else None for name in attributes]
        if self.positions:
            values.append(min(position, 1) if self.positions == {"first"} else position)
        key = tuple(values)
        if (state := self.states.get(key)) is None:
            state = self.states[key] = LoopState(key)
        return state

    def restore(self, outer: tuple[Outer, ...], state: LoopState) -> None:
        """Set the namespaces to their values in that state."""
        values = iter(state.values)
        for namespace, attributes, _ in outer:
            if namespace is None:
                next(values)
                continue
            for name in attributes:
                if (atom := next(values)) is None:
                    namespace.pop(name, None)
                elif atom[0] is self._undefined:
                    raise Unprovable
                else:
                    namespace[name] = atom[1]

    def _atom(self, value):
        """The type and the value: the type distinguishes True from 1."""
        kind = type(value)
        if kind in ATOMS:
            return kind, value
        if kind is self._undefined:
            return kind, value._undefined_exception  # a different one if the sandbox denied access
        raise Unprovable


def _message_key(message):
    """A hashable key of a message that is not plain."""
    if type(message) is not dict:
        raise Unprovable
    return repr(message)


def _variable_key(value):
    """A hashable key of the value of a request's variable."""
    kind = type(value)
    if kind in ATOMS:
        return kind, value
    if kind in (list, dict, float):
        return kind, repr(value)
    raise Unprovable


def _place(position):
    return {"first": position == 0, "index": position + 1, "index0": position}
