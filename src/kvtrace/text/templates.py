"""Chat templates: messages -> the prompt's text, as the engine that served them rendered it.

A chat template is Jinja source that comes with a tokenizer. Engines run it in the sandbox of Hugging Face's
transformers; this file gives the same bytes without transformers, which takes most of a second to import: jinja2's
immutable sandbox, blocks trimmed, `break` and `continue`, a `tojson` that escapes nothing, `raise_exception`,
`strftime_now`, and the tag `{% generation %}`. The one difference: `strftime_now` tells the request's time, not that
of the run, or a prompt that holds the date would lose its prefix overnight.

What form of a message a template can take is found out by rendering a few words with it (messages.py says which forms
there are), once, when a message asks for it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import InputError, KvtraceError, RowError, UsageError
from . import tokenizer_files
from .messages import Wants, reshape

if TYPE_CHECKING:
    from .rendering import Renderer

CHECKED = 256  # one in so many prompts that were rendered from memory is rendered anew and compared
ROLES = ("system", "user", "assistant", "tool")


def load(
    name: str | None, *, chat_template: str | Path | None = None, generation_prompt: str | None = None
) -> ChatTemplate | None:
    """The chat template of a tokenizer, or of a file in its place; None if the tokenizer has none.

    chat_template.jinja goes before the template in tokenizer_config.json, as in transformers.

    >>> load("deepseek-r1", generation_prompt="<go>").render([{"role": "user", "content": "Boats?"}])
    '<｜begin▁of▁sentence｜><｜User｜>Boats?<go>'
    """
    files = None if name is None else tokenizer_files.find(name)
    path = Path(os.path.expanduser(chat_template)) if chat_template is not None else files.template if files else None
    source: Any = None
    if path is not None:
        source, origin = tokenizer_files.read_text(path), path.name
    elif files is not None:
        source, origin = files.settings.get("chat_template"), tokenizer_files.SETTINGS
    if not source:
        return None
    special_tokens = files.special_tokens if files else {}
    return ChatTemplate(source, **special_tokens, generation_prompt=generation_prompt, name=origin)


class ChatTemplate:
    """One chat template, compiled when it is first used.

    `source` is Jinja text, or named texts as tokenizer_config.json may hold them: `default`, and `tool_use` for
    requests with tools. `special_tokens` (bos_token=..., eos_token=...) are variables of the template.
    `generation_prompt` replaces what the template appends for the model to go on from; in it, the two characters \\n
    mean a newline.

    >>> ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", name="toy").render(
    ...     [{"role": "user", "content": "Boats?"}])
    '<user>Boats?'
    """

    def __init__(
        self, source: str | Mapping | list, *, generation_prompt: str | None = None, name: str = "chat template",
        **special_tokens: str | None,
    ):  # fmt: skip
        self.source, tool_use = _named(source, name)
        self.name = name
        self.special_tokens = {key: token for key, token in special_tokens.items() if token is not None}
        self.generation_prompt = None if generation_prompt is None else generation_prompt.replace("\\n", "\n")
        self._tool_use: ChatTemplate | None = None
        if tool_use is not None:
            self._tool_use = ChatTemplate(
                tool_use, generation_prompt=generation_prompt, name=f"{name} (tool_use)", **special_tokens
            )
        self._wants: dict[str, Wants] = {}  # role -> what it may hold
        self._tried: dict[str, str | None] = {}  # a probe as JSON -> what came of it
        self._memory: Renderer | None = None  # while `remembering`
        self._remembered = 0  # prompts rendered with it

    def __reduce__(self):  # compiled templates can't be pickled
        return _reopen, (self.source, self._tool_use, self.generation_prompt, self.name, self.special_tokens)

    def __repr__(self):
        return f"ChatTemplate({self.name!r})"

    @property
    def sha256(self) -> str:
        """The digest of the source; the generation prompt is not part of it."""
        sources = [self.source] + ([self._tool_use.source] if self._tool_use else [])
        return hashlib.sha256("\0".join(sources).encode("utf-8")).hexdigest()

    @cached_property
    def wants(self) -> str:
        """In words, the forms of a message that this template was found to take."""
        parts = [role for role in ROLES if self.wants_of(role).parts]
        nulls = [role for role in ROLES if self.wants_of(role).null]
        return (
            f"tool-call arguments as {self.arguments}; "
            f"lists of content parts {'by the template: ' + ', '.join(parts) if parts else 'joined to text'}; "
            f"null contents {'kept: ' + ', '.join(nulls) if nulls else 'as empty text'}"
        )

    def describe(self) -> dict[str, str | None]:
        """What a run records of its template."""
        return {
            "name": self.name, "sha256": self.sha256, "generation_prompt": self.generation_prompt, "wants": self.wants
        }  # fmt: skip

    def render(
        self, messages: list[dict], tools: list | None = None, *, time: float | datetime | None = None, **variables: Any
    ) -> str:
        """The prompt of one request: its messages and tools, and what asks the model to go on.

        `time` is the request's (seconds since 1970, or a datetime), `variables` are the template's own switches, such
        as enable_thinking=False. RowError says which message has no such form, or at which line the template raised
        what; it holds no content.
        """
        if tools is not None and self._tool_use is not None:
            return self._tool_use.render(messages, tools, time=time, **variables)
        if not isinstance(messages, list) or not messages:
            raise RowError("there are no messages.", field="messages")
        shaped = reshape(messages, self.wants_of, lambda: self.arguments)
        if self.generation_prompt is None:
            return self._render(shaped, tools, True, time, **variables)
        prompt = self._render(shaped, tools, False, time, **variables)
        return prompt + self.generation_prompt if self._appends_after(shaped[-1]["role"]) else prompt

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Within, turns that were rendered once are not rendered again where that is proved to give the same text."""
        if self._tool_use is not None:
            with self._tool_use.remembering():
                yield from self._remembering()
        else:
            yield from self._remembering()

    def _remembering(self):
        self._memory = self._renderer
        try:
            yield
        finally:
            if self._memory is not None:
                self._memory.forget()
            self._memory = None

    def _render(self, messages, tools, add_generation_prompt, time, **variables):
        given = dict(
            self.special_tokens, messages=messages, tools=tools, documents=None,
            add_generation_prompt=add_generation_prompt, strftime_now=partial(_strftime, time), **variables,
        )  # fmt: skip
        text = None if self._memory is None else self._memory.render(given)
        if text is None:
            return self._whole(given)
        self._remembered += 1
        if self._remembered % CHECKED == 0 and text != self._whole(given):
            raise KvtraceError(f"{self.name}: rendered from memory a prompt came out differently. Please report it.")
        return text

    def _whole(self, given):
        compiled = self._compiled
        try:
            return compiled.render(given)
        except (RowError, MemoryError):
            raise
        except Exception as error:
            reason = self._reason(error)
        raise RowError(reason)  # outside of the except: nothing that quotes content hangs on to it

    @cached_property
    def _renderer(self):
        from jinja2 import TemplateSyntaxError

        from .rendering import Renderer

        try:
            return Renderer.of(_environment(), self.source, FILENAME)
        except (TemplateSyntaxError, SyntaxError, RecursionError):
            return None  # `_compiled` says what is wrong

    @cached_property
    def _compiled(self):
        import jinja2

        environment = _environment()
        try:
            code = environment.compile(self.source, filename=FILENAME)
        except jinja2.TemplateSyntaxError as error:
            said = f"{self.name}:{error.lineno}: the chat template is not valid Jinja: {error.message}"
        except Exception as error:  # jinja2 checks less than Python's compiler does
            said = f"{self.name}: the chat template can't be compiled ({type(error).__name__})"
        else:
            return environment.template_class.from_code(environment, code, environment.make_globals(None))
        raise InputError(f"{said}. Try another --chat-template.")

    # -- why it raised ---------------------------------------------------------------------------------------------

    def _reason(self, error):
        """Exception, line, and what the template says of it, if these are words of the template and not of the log."""
        line, frame = None, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == FILENAME:  # jinja2 maps its frames back to template lines
                line = frame.tb_lineno
            frame = frame.tb_next
        said = getattr(error, "message", None)
        return (
            f"the chat template raised {type(error).__name__}"
            f"{'' if line is None else f' at its line {line}'}"
            f"{f': {said}' if type(said) is str and said in self._own_words else '.'}"
        )

    @cached_property
    def _own_words(self):
        """What the template passes to raise_exception as plain text."""
        from jinja2 import nodes

        found = set()
        for call in _environment().parse(self.source).find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "raise_exception" and call.args:
                words = call.args[0]
                if isinstance(words, nodes.Const) and isinstance(words.value, str):
                    found.add(words.value)
        return found

    # -- what it can take ------------------------------------------------------------------------------------------

    def wants_of(self, role: str) -> Wants:
        """What contents the template takes in messages of a role; an unknown role is taken for a user."""
        role = "system" if role == "developer" else role if role in ROLES else "user"
        if role not in self._wants:
            self._wants[role] = self._ask(role)
        return self._wants[role]

    @cached_property
    def arguments(self) -> str:
        """Whether tool-call arguments are to be "objects", or else "strings" of JSON."""
        for form, arguments in (("objects", {"probe": 1}), ("strings", '{"probe": 1}')):
            if self._try([QUESTION, _call(arguments), ANSWER]) is not None:
                return form
        return "objects"  # it takes no calls, or not these

    def _ask(self, role):
        text = self._try(self._around(role, "probe1probe2"))
        parts = self._try(self._around(role, [{"type": "text", "text": "probe1"}, {"type": "text", "text": "probe2"}]))
        empty, null = self._try(self._around(role, "")), self._try(self._around(role, None))
        return Wants(
            text=text is not None and "probe1probe2" in text,
            # both texts came out, and not as the list's own spelling
            parts=parts is not None and "probe1" in parts and "probe2" in parts
            and parts.count("type") == (text or "").count("type"),
            null=null is not None and null.count("None") == (empty or "").count("None"),
        )  # fmt: skip

    def _around(self, role, content):
        """A conversation that holds one message of that role with that content."""
        if role == "tool":
            return [QUESTION, self._own_call, {**ANSWER, "content": content}]
        if role == "assistant" and not content and self._try([QUESTION, self._own_call, ANSWER]) is not None:
            return [QUESTION, {**self._own_call, "content": content}, ANSWER]  # where nulls are found
        message = {"role": role, "content": content}
        return {"system": [message, QUESTION], "user": [message], "assistant": [QUESTION, message, QUESTION]}[role]

    @cached_property
    def _own_call(self):
        return _call({"probe": 1} if self.arguments == "objects" else '{"probe": 1}')

    def _appends_after(self, role):
        """False if the template appends nothing after this role's messages, though it does after a user's."""
        after = {"user": [QUESTION], "tool": [QUESTION, self._own_call, ANSWER]}
        if role not in after or role == "user":
            return True
        return not self._appends(after["user"]) or self._appends(after[role])

    def _appends(self, messages):
        return self._try(messages) != self._try(messages, add_generation_prompt=True)

    def _try(self, messages, add_generation_prompt=False):
        """What the template makes of a probe, None if it raises."""
        question = json.dumps([messages, add_generation_prompt])
        if question not in self._tried:
            try:
                self._tried[question] = self._render(messages, None, add_generation_prompt, time=0)
            except RowError:
                self._tried[question] = None
        return self._tried[question]


FILENAME = "<chat template>"
QUESTION = {"role": "user", "content": "probe"}
ANSWER = {"role": "tool", "content": "probe", "name": "probe", "tool_call_id": "probe0000"}


def _call(arguments):
    # some templates insist on call ids of nine letters and digits
    function = {"name": "probe", "arguments": arguments}
    calls = [{"id": "probe0000", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _reopen(source, tool_use, generation_prompt, name, special_tokens):
    template = ChatTemplate(source, name=name, **special_tokens)
    template.generation_prompt, template._tool_use = generation_prompt, tool_use
    return template


def _named(source, name):
    """(default, tool_use) of one source, or of several with names."""
    if isinstance(source, str):
        return source, None
    if isinstance(source, list):
        source = {row.get("name"): row.get("template") for row in source if isinstance(row, Mapping)}
    texts = {key: text for key, text in source.items() if isinstance(text, str)} if isinstance(source, Mapping) else {}
    if "default" not in texts:
        raise UsageError(f"{name}: no chat template named default among its {len(texts)}. Try --chat-template FILE.")
    return texts["default"], texts.get("tool_use")


@lru_cache(maxsize=1)
def _environment():
    from jinja2 import TemplateError, ext, nodes
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(ext.Extension):
        """`{% generation %} ... {% endgeneration %}` marks what the model wrote, for training: here it is its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser):
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message):
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, ext.loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    return environment


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    """JSON as it is, where jinja2's own filter escapes for HTML and sorts keys."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime(time, format):
    if time is None:
        raise RowError("the chat template prints the date, and the request has no time.")
    if not isinstance(time, datetime):
        time = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=time)
    return (time if time.tzinfo is None else time.astimezone(UTC)).strftime(format)
