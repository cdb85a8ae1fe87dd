"""Choose the tokenizer of a run: the one that is named, else that of the log's models, else the default."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from .._base.errors import UsageError
from ..text.tokenizer_files import DEFAULT

AUTO = "auto"
SEVERAL = (
    "the log has requests to models with different tokenizers ({families}). Split it by model, or name one tokenizer "
    "for all: --tokenizer NAME."
)
OTHERS = (
    "{count:,} of {requests:,} requests are to models with another tokenizer than the first rows ({families}). Split "
    "the log by model, or name one tokenizer for all: --tokenizer NAME."
)


@dataclass(frozen=True)
class TokenizerChoice:
    """The tokenizer of a run, and what is known about it."""

    tokenizer: str | None  # None = the log has no text
    is_of_model: bool = False  # known to be the tokenizer and template of all the log's models
    families: tuple[str, ...] = ()  # of the models that it was chosen for; () = it was named, or is the default
    note: str | None = None  # for the user

    def is_other(self, model: str | None) -> bool:
        """Whether a model is known to have another tokenizer than the models that this one was chosen for."""
        if not self.families or model is None:
            return False
        from ..text.tokenizer_files import family_of

        family = family_of(model)
        return family is not None and family.name not in self.families

    def require_only(self, others: int, requests: int) -> None:
        """UsageError if some requests are to models with another tokenizer."""
        if others:
            names = ", ".join(self.families)
            raise UsageError(OTHERS.format(count=others, requests=requests, families=names))


NO_CHOICE = TokenizerChoice(None)


def choose(tokenizer: str | None, models: Collection[str]) -> TokenizerChoice:
    """The tokenizer for a log with these models; `auto` chooses among those that need no download.

    Raises:
        UsageError: the models have different tokenizers, and one of them is here.

    >>> choose("auto", ["deepseek-ai/DeepSeek-R1"]).is_of_model, choose("auto", []).tokenizer
    (True, 'deepseek-r1')
    >>> choose("auto", ["claude-sonnet-4"]).note
    "no tokenizer of the log's model (Claude) is on this machine: prompts are counted with deepseek-r1's. Name its \
folder: --tokenizer FOLDER."
    """
    if tokenizer != AUTO:
        return TokenizerChoice(tokenizer, tokenizer is not None and _is_of_all(tokenizer, models))
    if not models:
        return TokenizerChoice(DEFAULT)
    return _of_models(models)


def other_tokenizer(tokenizer: str | None, models: Collection[str]) -> str | None:
    """A warning, if a tokenizer that nobody named is not that of these models.

    >>> print(other_tokenizer("deepseek-r1", ["Qwen/Qwen3-8B"]))
    prompts are counted with deepseek-r1's tokenizer, but requests are to other models (Qwen3). Name theirs: \
--tokenizer NAME.
    """
    from ..text.tokenizer_files import family_of

    if tokenizer is None or not models or _is_of_all(tokenizer, models):
        return None
    names = sorted({family.name for model in models if (family := family_of(model)) is not None})
    of_families = f" ({', '.join(names)})" if names else ""
    return (
        f"prompts are counted with {tokenizer}'s tokenizer, but requests are to other models{of_families}. "
        "Name theirs: --tokenizer NAME."
    )


def _of_models(models: Collection[str]) -> TokenizerChoice:
    from ..text.tokenizer_files import family_of, local_tokenizer

    families = {model: family_of(model) for model in models}
    names = tuple(sorted({family.name for family in families.values() if family is not None}))
    local = {model: local_tokenizer(model) for model in sorted(models)}
    here = sorted({name for name in local.values() if name is not None})
    if not here:
        return TokenizerChoice(DEFAULT, note=_missing(names))
    if len(here) > 1 or len(names) > 1:
        raise UsageError(SEVERAL.format(families=", ".join(names) or "of no family that kvtrace knows"))
    (chosen,) = here
    if chosen == DEFAULT:
        return TokenizerChoice(chosen, _is_of_all(chosen, models), names)
    note = f"the tokenizer is that of the log's model{f' ({names[0]})' if names else ''}; --tokenizer names another"
    if any(family is not None and not family.is_exact for family in families.values()):
        note += ". Its chat template is not public: prompt lengths are approximate"
    return TokenizerChoice(chosen, _is_of_all(chosen, models), names, note)


def _missing(names: tuple[str, ...]) -> str:
    family = f" ({', '.join(names)})" if names else ", which is not one that kvtrace knows,"
    return (
        f"no tokenizer of the log's model{family} is on this machine: prompts are counted with {DEFAULT}'s. Name its "
        "folder: --tokenizer FOLDER."
    )


def _is_of_all(tokenizer: str, models: Collection[str]) -> bool:
    from ..text.tokenizer_files import is_of

    return bool(models) and all(is_of(tokenizer, model) for model in models)
