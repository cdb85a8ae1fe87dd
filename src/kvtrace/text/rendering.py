"""A chat template as an automaton, so that the turns of a conversation are not rendered again with each request.

A log of chats holds each conversation many times, one turn longer each time, and most templates are loops over the
messages. Where the body of such a loop is a function of the message and of a few outer values alone, the loop is an
automaton: (state, message) -> (text, next state); and what stands between loops is a function of the request's other
variables and of the states in which the loops before it ended. All that is remembered. What is not known yet is asked
of a run of the template that was left standing in its loop, or of a new one.

That a template is of this kind is proved on its syntax tree, never guessed:

* it reads `messages` in loops over all of them, and nowhere else;
* their bodies ask `loop` for nothing but the position (`first`, `index`, `index0`), so that what is still to come is
  not looked at; they do not break off, filter or recurse; they define, include and extend nothing;
* every outer name that a body reads is passed in and is part of the state. Text, whole numbers, truth values, None and
  what is not defined can be; of a namespace (the one thing that outlives an iteration) the attributes that it names;
* nothing in it could give something else next time: no time of day, no chance.

All but the kinds of values is seen in the tree; those are seen when a loop begins. Other templates, requests with other
values, and whatever raises are rendered as a whole, by jinja2 alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jinja2 import Environment, Template, nodes
from jinja2.utils import Namespace

POSITION = {"first", "index", "index0"}  # what a body may ask of its loop
PURE = {"raise_exception", "namespace", "range", "dict"}  # functions that a template may call by name
IMPURE = {"random"}  # filters
ATOMS = (str, int, bool, type(None))  # not floats: 0.0 equals -0.0 and prints otherwise
PREFIX = "kvtrace_"  # of the names that we put into a template
MARK = "".join(("<", "mark", ">"))  # told from an equal text by being this very object
FEW = 32  # runs and faults that are no reason to give up


class Renderer:
    """A template that remembers the turns it has rendered, until it is told to forget them.

    >>> renderer = Renderer.of(Environment(), "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    >>> renderer.render({"messages": [{"role": "user", "content": "Boats?"}]})
    '<user>Boats?'
    >>> Renderer.of(Environment(), "{{ messages[-1].content }}") is None
    True
    """

    def __init__(self, template: Template, loops: list[Loop], names: set[str]):
        self._template, self._loops = template, loops
        self._names = sorted(names)  # what the template may read of a request
        self._starts: dict[tuple, Run] = {}  # those variables of a request -> the run that begins with them
        self._given_up, self._requests, self._runs = False, 0, 0

    @classmethod
    def of(cls, environment: Environment, source: str, filename: str | None = None) -> Renderer | None:
        """The renderer of a template, or None if it is not proved to be an automaton."""
        tree = environment.parse(source)
        sites = [site for site in _sites(tree.body) if _is_over_messages(site)]
        names = {name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"}
        if PREFIX in source or not sites or not _is_pure(tree, names, len(sites), environment):
            return None
        if not all(_is_function(site) for site in sites):
            return None
        loops = [Loop(site, number, environment) for number, site in enumerate(sites)]
        code = environment.compile(tree, filename=filename)
        template = Template.from_code(environment, code, environment.make_globals(None))
        return cls(template, loops, names - {"messages", "loop"} - PURE)

    def render(self, variables: dict[str, Any]) -> str | None:
        """The text of one request; None where the whole template must say it, or say what is wrong."""
        if self._given_up:
            return None
        self._requests += 1
        self._given_up = self._runs > FEW + self._requests // 4  # when little comes again, memory is no help
        try:
            return self._text(variables)
        except MemoryError:
            raise
        except Unprovable:
            self._given_up = True  # what one request has the others are likely to have
        except Exception:
            self._starts.clear()  # a run that has raised is over
        return None

    def forget(self) -> None:
        """Let go of all text."""
        self._given_up, self._requests, self._runs = False, 0, 0
        self._starts.clear()
        for loop in self._loops:
            loop.states.clear()

    def _text(self, variables):
        messages = variables["messages"]
        spelled = [_spelling(message) for message in messages]
        start = tuple([_sign(variables[name]) if name in variables else None for name in self._names])
        if (run := self._starts.get(start)) is None:
            run = self._starts[start] = self._run(variables, [])
        pieces = [run.text]
        while (state := run.state) is not None:
            for position, spelling in enumerate(spelled):
                if (step := state.steps.get(spelling)) is None:
                    step = state.steps[spelling] = run.feed(state, messages[position], position)
                pieces.append(step[0])
                state = step[1]
            if (after := run.after.get(state)) is None:
                after = run.after[state] = self._run(variables, [*run.ends, state])
            run = after
            pieces.append(run.text)
        return "".join(pieces)

    def _run(self, variables, ends) -> Run:
        self._runs += 1
        return Run(self._template, self._loops, variables, ends)


class Run:
    """A run of the template, left standing in the loop that comes when so many loops have ended, or at its end.

    `text` is what it wrote since the last of those loops, `state` what the body of this loop can see (None at the end).
    """

    def __init__(self, template: Template, loops: list[Loop], variables: dict, ends: list[State]):
        self.ends = ends
        self.after: dict[State, Run] = {}  # where this loop ended -> the run that goes on from there
        self.state: State | None = None
        self._to_pass = iter(ends)
        self._loop: Any = None
        self._outer: tuple = ()
        self._now: State | None = None  # what the namespaces hold
        self._batch: list = []
        self._written: list[str] = []
        entries = {loop.name: self._entry(loop) for loop in loops}
        context = template.new_context({**variables, **entries, "messages": None, f"{PREFIX}mark": MARK})
        self._pieces = template.root_render_func(context)
        self.text = self._advance()

    def feed(self, state: State, message: Any, position: int) -> tuple[str, State]:
        """What the loop's body writes of a message in a state, and the state that it leaves."""
        if state is not self._now:
            self._loop.restore(self._outer, state)
        self._batch = [(message, _place(position))] if self._loop.positions else [message]
        text = self._advance()
        self._batch = []
        self._now = self._loop.state(self._outer, position + 1)
        return text, self._now

    def _advance(self) -> str:
        """Let the template go on to the next mark, or to its end; what it wrote."""
        self._written.clear()
        for piece in self._pieces:
            if piece is MARK:
                break
            self._written.append(piece)
        return "".join(self._written)

    def _entry(self, loop):
        """What the template calls when it comes to a loop: outer values -> messages, in batches that end in a mark."""

        def enter(_, *outer) -> Iterator[list]:
            if (end := next(self._to_pass, None)) is not None:
                loop.restore(outer, end)
                self._written.clear()
                return
            self._loop, self._outer = loop, outer
            self.state = self._now = loop.state(outer, 0)
            yield []
            while True:
                yield self._batch

        return enter


class Unprovable(Exception):
    """A value that can't be part of a state; the whole template is rendered."""


class State:
    """What a loop's body can see beside the message, and what it made of the messages so far."""

    __slots__ = ("steps", "values")

    def __init__(self, values: tuple):
        self.values = values
        self.steps: dict[Any, tuple[str, State]] = {}  # message, as it is spelled -> (text, next state)


class Loop:
    """One loop over the messages, and the states that it has been in."""

    def __init__(self, site: nodes.For, number: int, environment: Environment):
        self.name = f"{PREFIX}loop_{number}"
        self.states: dict[tuple, State] = {}
        self.positions = _asked_of_loop(site) or set()
        self._undefined = environment.undefined
        self._names = _outer_names(site)
        self._attributes = [_attributes(site, name) for name in self._names]
        self._rewrite(site)

    def _rewrite(self, site):
        """`for m in messages: ...` becomes `for batch in enter(messages, ns, ...): for m in batch: ...; mark`."""
        place, batch, mark = f"{PREFIX}place", f"{PREFIX}batch", f"{PREFIX}mark"
        for name in _own_loop_names(site):
            name.name = place
        target = nodes.Tuple([site.target, nodes.Name(place, "store")], "store") if self.positions else site.target
        inner = nodes.For(target, nodes.Name(batch, "load"), site.body, [], None, False)
        outer = [nodes.Name(name, "load") for name in self._names]
        site.target = nodes.Name(batch, "store")
        site.iter = nodes.Call(nodes.Name(self.name, "load"), [site.iter, *outer], [], None, None)
        site.body = [inner, nodes.Output([nodes.Name(mark, "load")])]
        site.set_lineno(site.lineno)

    def state(self, outer: tuple, position: int) -> State:
        """The state that the outer values are."""
        seen: list = []
        for value, attributes in zip(outer, self._attributes, strict=True):
            if type(value) is not Namespace:
                seen.append(self._atom(value))
            elif attributes is None or sum(value is other for other in outer) > 1:
                raise Unprovable
            else:
                held = value._Namespace__attrs  # type: ignore[attr-defined]
                seen += [self._atom(held[name]) if name in held else None for name in attributes]
        if self.positions:
            seen.append(min(position, 1) if self.positions == {"first"} else position)
        values = tuple(seen)
        if (state := self.states.get(values)) is None:
            state = self.states[values] = State(values)
        return state

    def restore(self, outer: tuple, state: State) -> None:
        """Set the namespaces to what they were in that state."""
        values = iter(state.values)
        for value, attributes in zip(outer, self._attributes, strict=True):
            if type(value) is not Namespace or attributes is None:
                next(values)
                continue
            held = value._Namespace__attrs  # type: ignore[attr-defined]
            for name in attributes:
                if (atom := next(values)) is None:
                    held.pop(name, None)
                elif atom[0] is self._undefined:
                    raise Unprovable
                else:
                    held[name] = atom[1]

    def _atom(self, value):
        """A value and its type, since True equals 1."""
        kind = type(value)
        if kind in ATOMS:
            return kind, value
        if kind is self._undefined:
            return kind, value._undefined_exception  # which is another one where the sandbox said no
        raise Unprovable


def _spelling(message):
    """What tells messages apart: as Python spells them (1 is not True); role and content where there is no more."""
    if type(message) is not dict:
        raise Unprovable
    if len(message) == 2:
        (first, role), (second, content) = message.items()
        if first == "role" and second == "content" and type(role) is str and type(content) is str:
            return role, content
    return repr(message)


def _sign(value):
    """What tells one variable of a request from another of that name."""
    kind = type(value)
    if kind in ATOMS:
        return kind, value
    if kind in (list, dict, float):
        return kind, repr(value)
    raise Unprovable


def _place(position):
    return {"first": position == 0, "index": position + 1, "index0": position}


# -- the proof -----------------------------------------------------------------------------------------------------

FOREIGN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Block, nodes.Extends, nodes.EnvironmentAttribute,
           nodes.ExtensionAttribute, nodes.ImportedName, nodes.InternalName, nodes.ContextReference,
           nodes.DerivedContextReference)  # fmt: skip


def _sites(body: list[nodes.Node]) -> Iterator[nodes.For]:
    """Loops at the top or in conditions: what they write goes straight to the text."""
    for node in body:
        if isinstance(node, nodes.For):
            yield node
        elif isinstance(node, nodes.If):
            yield from _sites([*node.body, *node.elif_, *node.else_])


def _is_over_messages(site):
    return isinstance(site.iter, nodes.Name) and site.iter.name == "messages"


def _is_pure(tree, names, sites, environment) -> bool:
    """Whether the template reads messages in its loops alone, and calls nothing that could give something else."""
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    return not (
        sum(name.name == "messages" for name in tree.find_all(nodes.Name)) != sites
        or names & ({*environment.globals, "strftime_now", "self", "caller", "varargs", "kwargs"} - PURE)
        or stored & (PURE | {"loop"})
        or any(node.name in IMPURE for node in tree.find_all(nodes.Filter))
        or any(True for _ in tree.find_all(FOREIGN))
    )


def _is_function(site) -> bool:
    """Whether the loop's body is a function of message, position and outer values."""
    return (
        isinstance(site.target, nodes.Name)
        and not (site.test or site.recursive or site.else_)
        and not any(True for _ in _within(site, (nodes.Macro, nodes.CallBlock)))
        and not any(isinstance(node, nodes.Break) for node in _own_level(site))
        and (asked := _asked_of_loop(site)) is not None
        and asked <= POSITION
    )


def _within(site, kind) -> Iterator[Any]:
    for node in site.body:
        if isinstance(node, kind):
            yield node
        yield from node.find_all(kind)


def _own_level(site) -> Iterator[nodes.Node]:
    """Nodes of the body for which `loop` and `break` mean this loop and not one inside it."""
    waiting = list(site.body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, nodes.For):
            waiting += [node.target, node.iter, *node.else_]
        else:
            waiting += node.iter_child_nodes()


def _own_loop_names(site) -> list[nodes.Name]:
    return [node for node in _own_level(site) if isinstance(node, nodes.Name) and node.name == "loop"]


def _asked_of_loop(site) -> set[str] | None:
    """The attributes of `loop` that the body reads; None where it does something else with it."""
    own = {id(name) for name in _own_loop_names(site)}
    read = [node.attr for node in _own_level(site) if isinstance(node, nodes.Getattr) and id(node.node) in own]
    return set(read) if len(read) == len(own) else None


def _outer_names(site) -> list[str]:
    """All names that the body reads or whose namespace it sets, but the message, the loop and pure functions.

    A name of the body's own is among them as well; what it is outside, the body does not see: no harm.
    """
    names = {name.name for name in _within(site, nodes.Name) if name.ctx == "load"}
    names |= {reference.name for reference in _within(site, nodes.NSRef)}
    return sorted(names - {site.target.name, "loop"} - PURE)


def _attributes(site, name) -> list[str] | None:
    """The attributes of a namespace that the body reads and sets; None where it uses the name in another way."""
    read = [
        node.attr
        for node in _within(site, nodes.Getattr)
        if isinstance(node.node, nodes.Name) and node.node.name == name
    ]
    if sum(found.name == name and found.ctx == "load" for found in _within(site, nodes.Name)) != len(read):
        return None
    return sorted({*read, *(node.attr for node in _within(site, nodes.NSRef) if node.name == name)})
