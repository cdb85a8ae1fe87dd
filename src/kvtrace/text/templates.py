"""Chat templates: render messages to the text of the prompt, as the serving engine does.

A chat template is Jinja source that comes with a tokenizer. Engines run it with Hugging Face's transformers, which take
most of a second to import. This module renders the same bytes without transformers. Its environment, in
template_syntax.py, differs in one point: `strftime_now` returns the time of the request, not of the run. Otherwise a
prompt that contains the date would lose its prefix overnight.

Templates accept different forms of messages (see messages.py). The accepted forms are detected by rendering a few
words, once, when a message needs it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._base.errors import InputError, KvtraceError, RowError
from . import encodings, template_syntax, tokenizer_files, trial
from .messages import AcceptedContent, reshape
from .template_syntax import FILENAME, named_sources, without_addresses

if TYPE_CHECKING:
    from .rendering import Renderer

CHECK_INTERVAL = 256  # one of this many prompts rendered from memory is rendered in full and compared
PUBLIC_NAMES = (tokenizer_files.TEMPLATE, tokenizer_files.SETTINGS, encodings.TEMPLATE.name)
TRIAL_SECONDS, TRIAL_MEMORY = 10, 1 << 30  # for a template to render probes
MAX_PROBE_TEXT = 1 << 22  # characters that it may write for one word
TOO_LONG = 1  # an exit status of the child
ROLES = ("system", "user", "assistant", "tool")
# sources, special tokens and generation prompt of the templates that passed their trial last
_PASSED: deque[tuple[Any, ...]] = deque(maxlen=16)


def load(
    name: str | None, *, chat_template: str | Path | None = None, generation_prompt: str | None = None
) -> ChatTemplate | None:
    """The chat template of a file, or of a tokenizer; None if the tokenizer has none.

    chat_template.jinja takes precedence over the template in tokenizer_config.json, as in transformers.

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
    template = ChatTemplate(source, **special_tokens, generation_prompt=generation_prompt, name=origin)
    if chat_template is not None or (
        files is not None and files.sha256 is None
    ):  # not one that comes with a known tokenizer
        template.require_bounded()
    else:
        template.is_kept = True
    return template


class ChatTemplate:
    """A chat template. It is compiled when it is first used.

    Args:
        source: Jinja text, or several named texts as in tokenizer_config.json: `default`, and `tool_use` for requests
            with tools.
        special_tokens: variables of the template, such as bos_token and eos_token.
        generation_prompt: replaces the template's own generation prompt. The two characters \\n mean a newline.

    >>> ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", name="toy").render(
    ...     [{"role": "user", "content": "Boats?"}])
    '<user>Boats?'
    """

    source: str
    special_tokens: dict[str, str]
    generation_prompt: str | None
    is_kept = False  # True: what was compiled is left in the cache folder

    def __init__(
        self, source: str | Mapping[str, Any] | list[Any], *, generation_prompt: str | None = None,
        name: str = "chat template", **special_tokens: str | None,
    ):  # fmt: skip
        self.source, tool_use = named_sources(source, name)
        self.name = name
        self.special_tokens = {key: token for key, token in special_tokens.items() if token is not None}
        self.generation_prompt = None if generation_prompt is None else generation_prompt.replace("\\n", "\n")
        self._tool_use: ChatTemplate | None = None
        if tool_use is not None:
            self._tool_use = ChatTemplate(
                tool_use, generation_prompt=generation_prompt, name=f"{name} (tool_use)", **special_tokens
            )
        self._accepted: dict[str, AcceptedContent] = {}  # role -> accepted forms
        self._probe_results: dict[str, str | None] = {}  # probe as JSON -> rendered text, None = it raised
        self._wants_parts: dict[str, bool] = {}  # engine -> whether it gives this template lists of parts
        self._media_texts: dict[str, str] = {}  # kind of a medium -> what the template writes for it
        self._memory: Renderer | None = None  # set inside `remembering`
        self._remembered = 0  # prompts rendered from memory

    def __reduce__(self) -> tuple[Any, ...]:  # compiled templates cannot be pickled
        return _reopen, (self.source, self._tool_use, self.generation_prompt, self.name, self.special_tokens)

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r})"

    @property
    def sha256(self) -> str:
        """The digest of the source, without the generation prompt."""
        sources = [self.source] + ([self._tool_use.source] if self._tool_use else [])
        return hashlib.sha256("\0".join(sources).encode("utf-8")).hexdigest()

    @cached_property
    def wants(self) -> str:
        """The forms of messages that this template accepts, in words."""
        return template_syntax.wants_of(self.source, self.special_tokens, self._wants, is_kept=self.is_kept)

    def _wants(self) -> str:
        parts = [role for role in ROLES if self.accepted_by(role).parts]
        nulls = [role for role in ROLES if self.accepted_by(role).null]
        return (
            f"tool-call arguments as {self.arguments}; "
            f"lists of content parts {'by the template: ' + ', '.join(parts) if parts else 'joined to text'}; "
            f"null contents {'kept: ' + ', '.join(nulls) if nulls else 'as empty text'}"
        )

    def describe(self) -> dict[str, str]:
        """The template as the sidecar records it.

        A name that is not a usual one is the user's own and left out. A generation prompt of the user's own is never
        stated; the digest is then that of the template with the prompt.
        """
        named = {"name": self.name} if self.name in PUBLIC_NAMES else {}
        digest = self.sha256
        if self.generation_prompt is not None:
            digest = hashlib.sha256(f"{digest}\0{self.generation_prompt}".encode()).hexdigest()
        return named | {"sha256": digest, "wants": self.wants}

    def render(
        self,
        messages: list[dict[str, Any]],
        tools: list[Any] | None = None,
        *,
        time: float | datetime | None = None,
        **variables: Any,
    ) -> str:
        """Render the prompt of one request: messages, tools, and the generation prompt.

        Args:
            time: of the request, in seconds since 1970 or as a datetime.
            variables: of the template itself, such as enable_thinking=False.

        Raises:
            RowError: a message is malformed, or the template raised; with the template's line, without content.
        """
        if tools is not None and self._tool_use is not None:
            return self._tool_use.render(messages, tools, time=time, **variables)
        if not isinstance(messages, list) or not messages:
            raise RowError("the list of messages is empty.", field="messages")
        shaped = reshape(messages, self.accepted_by, lambda: self.arguments)
        return self.render_conversation(shaped, tools, variables, time=time)

    def render_conversation(
        self,
        conversation: list[dict[str, Any]],
        tools: list[Any] | None,
        variables: Mapping[str, Any],
        *,
        time: float | datetime | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """Render messages that already have the form that the template gets (engine_forms.py); RowError.

        >>> toy = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}")
        >>> toy.render_conversation([{"role": "user", "content": "Boats?"}], None, {"mood": "!"})
        '<user>Boats?!'
        """
        if self.generation_prompt is None or not add_generation_prompt:
            return self._render(conversation, tools, add_generation_prompt, time, variables)
        prompt = self._render(conversation, tools, False, time, variables)
        return prompt + self.generation_prompt if self._appends_after(conversation[-1]["role"]) else prompt

    def for_tools(self, tools: list[Any] | None) -> ChatTemplate:
        """The template of requests with these tools: some tokenizers have one of its own for tools."""
        return self if tools is None or self._tool_use is None else self._tool_use

    @contextmanager
    def remembering(self) -> Iterator[None]:
        """Inside the `with` block, reuse rendered turns if that provably gives the same text (see rendering.py)."""
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

    def _render(self, messages, tools, add_generation_prompt, time, variables):
        context = {
            **self.special_tokens, "documents": None, "tools": tools,
            "strftime_now": partial(template_syntax.strftime, time), **variables,
            "messages": messages, "add_generation_prompt": add_generation_prompt,
        }  # fmt: skip
        text = None if self._memory is None else self._memory.render(context)
        if text is None:
            return without_addresses(self._render_in_full(context), messages, tools)
        self._remembered += 1
        if self._remembered % CHECK_INTERVAL == 0 and text != self._render_in_full(context):
            raise KvtraceError(
                f"{self.name}: a prompt rendered from memory differs from the full rendering. Please report this bug."
            )
        return without_addresses(text, messages, tools)

    def _render_in_full(self, context):
        compiled = self._compiled
        try:
            return compiled.render(context)
        except (RowError, MemoryError):
            raise
        except Exception as error:
            reason = self._reason(error)
        raise RowError(reason)  # raised outside the handler: the template's error may quote content

    @cached_property
    def _renderer(self):
        from jinja2 import TemplateSyntaxError

        from .rendering import Renderer

        try:
            return Renderer.of(template_syntax.environment(), self.source, FILENAME)
        except (TemplateSyntaxError, SyntaxError, RecursionError):
            return None  # `_compiled` reports the error

    @cached_property
    def _compiled(self):
        import jinja2

        environment = template_syntax.environment()
        try:
            code = template_syntax.code_of(self.source, is_kept=self.is_kept)
        except jinja2.TemplateSyntaxError as error:
            message = f"{self.name}:{error.lineno}: the chat template is not valid Jinja: {error.message}"
        except Exception as error:  # jinja2 checks less than Python's compiler
            message = f"{self.name}: the chat template cannot be compiled ({type(error).__name__})"
        else:
            return environment.template_class.from_code(environment, code, environment.make_globals(None))
        raise InputError(f"{message}. Try another --chat-template.")

    def require_bounded(self) -> None:
        """InputError if the template takes too much time or memory for a few words, or writes too much.

        It is rendered in a child process first, since a template can run for ever or take all memory. A template that
        passed is not tried again soon in this process.
        """
        tool_use = self._tool_use and self._tool_use.source
        key = (self.source, tool_use, repr(self.special_tokens), self.generation_prompt)
        if key in (*_PASSED,):  # a copy, as another thread may append
            return
        status = trial.in_child(self._try, seconds=TRIAL_SECONDS, memory=TRIAL_MEMORY)
        fault = trial.why(status, TRIAL_SECONDS)
        if status in (TOO_LONG, trial.FAILED):
            fault = f"writes more than {MAX_PROBE_TEXT:,} characters or takes more than {TRIAL_MEMORY >> 30} GiB"
        if fault:
            raise InputError(f"{self.name}: this chat template cannot be used: for a message of one word, it {fault}.")
        _PASSED.append(key)

    def _try(self) -> int:
        try:
            for template in [self, *([self._tool_use] if self._tool_use else [])]:
                _ = template.wants  # renders all kinds of messages
                if any(len(text or "") > MAX_PROBE_TEXT for text in template._probe_results.values()):
                    return TOO_LONG
        except InputError:
            pass  # the template is not valid: its first use raises
        return 0

    # -- why it raised ---------------------------------------------------------------------------------------------

    def _reason(self, error):
        """The exception, the template's line, and the exception's text if it is a literal of the template."""
        line, frame = None, error.__traceback__
        while frame is not None:
            if frame.tb_frame.f_code.co_filename == FILENAME:  # jinja2 maps its frames back to template lines
                line = frame.tb_lineno
            frame = frame.tb_next
        message = getattr(error, "message", None)
        return (
            f"the chat template raised {type(error).__name__}"
            f"{'' if line is None else f' at its line {line}'}"
            f"{f': {message}' if type(message) is str and message in self._literal_messages else '.'}"
        )

    @cached_property
    def _literal_messages(self):
        """The string literals that the template passes to raise_exception."""
        from jinja2 import nodes

        messages = set()
        for call in template_syntax.environment().parse(self.source).find_all(nodes.Call):
            if isinstance(call.node, nodes.Name) and call.node.name == "raise_exception" and call.args:
                argument = call.args[0]
                if isinstance(argument, nodes.Const) and isinstance(argument.value, str):
                    messages.add(argument.value)
        return messages

    # -- accepted forms --------------------------------------------------------------------------------------------

    def accepted_by(self, role: str) -> AcceptedContent:
        """The forms of content that the template accepts in messages of a role. Unknown roles count as user."""
        role = "system" if role == "developer" else role if role in ROLES else "user"
        if role not in self._accepted:
            self._accepted[role] = self._detect_accepted(role)
        return self._accepted[role]

    @cached_property
    def arguments(self) -> str:
        """The form of tool-call arguments that the template accepts: "objects", or "strings" of JSON."""
        for form, arguments in (("objects", {"probe": 1}), ("strings", '{"probe": 1}')):
            if self._probe([USER, _call(arguments), TOOL_RESULT]) is not None:
                return form
        return "objects"  # the template rejects tool calls, or these

    def _detect_accepted(self, role):
        two_parts = [{"type": "text", "text": "probe1"}, {"type": "text", "text": "probe2"}]
        text = self._probe(self._conversation_with(role, "probe1probe2"))
        parts = self._probe(self._conversation_with(role, two_parts))
        empty = self._probe(self._conversation_with(role, ""))
        null = self._probe(self._conversation_with(role, None))
        return AcceptedContent(
            text=text is not None and "probe1probe2" in text,
            # both texts are rendered, and not as the list's Python repr
            parts=parts is not None and "probe1" in parts and "probe2" in parts
            and parts.count("type") == (text or "").count("type"),
            null=null is not None and null.count("None") == (empty or "").count("None"),
        )  # fmt: skip

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and does not define: other arguments of a request have no effect."""
        from jinja2 import meta

        try:
            return frozenset(meta.find_undeclared_variables(template_syntax.environment().parse(self.source)))
        except Exception:  # `_compiled` reports that the template is not valid
            return frozenset()

    @cached_property
    def names_developer(self) -> bool:
        """Whether the template names the role `developer`; otherwise vLLM makes such messages system messages."""
        return '"developer"' in self.source or "'developer'" in self.source

    @cached_property
    def is_harmony(self) -> bool:
        """Whether the template is that of a model that vLLM serves in Harmony (harmony.py)."""
        return "<|start|>" in self.source and "<|channel|>" in self.source

    def wants_parts(self, engine: str) -> bool:
        """Whether an engine gives this template lists of parts as contents, rather than texts."""
        if engine not in self._wants_parts:
            from jinja2 import TemplateSyntaxError

            try:
                self._wants_parts[engine] = template_syntax.wants_parts_of(self.source, engine, is_kept=self.is_kept)
            except (TemplateSyntaxError, SyntaxError, RecursionError):
                self._wants_parts[engine] = False  # `_compiled` reports the error
        return self._wants_parts[engine]

    def takes_parts(self, role: str) -> bool:
        """Whether the template renders a list of parts as the content of a message of a role, without an error."""
        role = "system" if role == "developer" else role if role in ROLES else "user"
        parts = [{"type": "text", "text": "probe"}]
        return self._probe(self._conversation_with(role, parts)) is not None

    @cached_property
    def renders_tools(self) -> bool:
        """Whether the template writes the tools of a request: one request is rendered with a tool and without."""
        conversations = [USER], [{"role": "system", "content": "probe"}, USER]
        return any(PROBE_TOOL_NAME in (self._probe(messages, tools=PROBE_TOOLS) or "") for messages in conversations)

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template writes a system message."""
        return "probe1" in (self._probe([{"role": "system", "content": "probe1"}, USER]) or "")

    @cached_property
    def takes_inline_system(self) -> bool:
        """Whether the template takes a system message after the user's, without an error."""
        return self._late_system is not None

    @cached_property
    def writes_inline_system(self) -> bool:
        """Whether the template writes a system message after the user's."""
        return "probe2" in (self._late_system or "")

    @cached_property
    def _late_system(self):
        first, late = ({"role": "system", "content": f"probe{number}"} for number in (1, 2))
        return self._probe([first, USER, late, USER])

    def media_text(self, kind: str) -> str:
        """What the template writes for an image, a sound or a video, such as `<image>`; "" for nothing.

        >>> parts = "{% for part in m.content %}{{ part.text or '<' ~ part.type ~ '>' }}{% endfor %}"
        >>> ChatTemplate(f"{{% for m in messages %}}{parts}{{% endfor %}}").media_text("image")
        '<image>'
        """
        if kind not in self._media_texts:
            parts = [{"type": "text", "text": "probe1"}, {"type": kind}, {"type": "text", "text": "probe2"}]
            text = self._probe([{"role": "user", "content": parts}]) or ""
            start, stop = text.find("probe1") + len("probe1"), text.rfind("probe2")
            written = text[start:stop] if start >= len("probe1") and stop >= start else ""
            self._media_texts[kind] = "" if "{" in written or kind in written.split() else written.strip("\n")
        return self._media_texts[kind]

    def _conversation_with(self, role, content):
        """A conversation that contains one message of that role with that content."""
        if role == "tool":
            return [USER, self._tool_call, {**TOOL_RESULT, "content": content}]
        if role == "assistant" and not content and self._probe([USER, self._tool_call, TOOL_RESULT]) is not None:
            return [USER, {**self._tool_call, "content": content}, TOOL_RESULT]  # null contents occur beside tool calls
        message = {"role": role, "content": content}
        return {"system": [message, USER], "user": [message], "assistant": [USER, message, USER]}[role]

    @cached_property
    def _tool_call(self):
        return _call({"probe": 1} if self.arguments == "objects" else '{"probe": 1}')

    def _appends_after(self, role):
        """False if the template appends a generation prompt after user messages but not after this role's."""
        after = {"user": [USER], "tool": [USER, self._tool_call, TOOL_RESULT]}
        if role not in after or role == "user":
            return True
        return not self._appends(after["user"]) or self._appends(after[role])

    def _appends(self, messages):
        return self._probe(messages) != self._probe(messages, add_generation_prompt=True)

    def _probe(self, messages, add_generation_prompt=False, tools=None):
        """Render a probe; None if the template raises."""
        key = json.dumps([messages, add_generation_prompt, tools])
        if key not in self._probe_results:
            try:
                self._probe_results[key] = self._render(messages, tools, add_generation_prompt, 0, {})
            except RowError:
                self._probe_results[key] = None
        return self._probe_results[key]


USER = {"role": "user", "content": "probe"}
PROBE_TOOL_NAME = "probe_tool"
PROBE_TOOLS = [
    {"type": "function", "function": {
        "name": PROBE_TOOL_NAME, "description": "probe",
        "parameters": {"type": "object", "properties": {"probe": {"type": "string", "description": "probe"}}},
    }}
]  # fmt: skip
TOOL_RESULT = {"role": "tool", "content": "probe", "name": "probe", "tool_call_id": "probe0000"}


def _call(arguments):
    # some templates require call ids of nine letters and digits
    function = {"name": "probe", "arguments": arguments}
    calls = [{"id": "probe0000", "type": "function", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _reopen(source, tool_use, generation_prompt, name, special_tokens):
    template = ChatTemplate(source, name=name, **special_tokens)
    template.generation_prompt, template._tool_use = generation_prompt, tool_use
    return template
