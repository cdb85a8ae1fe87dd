"""The log's own counts of prompt tokens as a check of ours: how much they differ, and the likely cause.

A log may state `usage.prompt_tokens` of a request. Sums over requests with the same features (tools, template
arguments, media) are enough to name the cause, so that no row is kept: they add up over batches, tasks and windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from .._base.errors import MismatchError, wrong_word
from .._base.row_counts import rounded
from ..trace.meta import Meta, UsageSection
from .encoding_options import OnMismatch

if TYPE_CHECKING:
    from .logs.record import Record

ON_MISMATCH = get_args(OnMismatch)
LIMIT = 0.02  # difference of the totals that stops a run
MIN_REQUESTS = 10  # that must state a count, so that a few odd rows stop no run
FEW_TIMES = 4  # requests with a feature differ this many times as much as the others: the feature is the cause
TOOLS, MEDIA, ARGUMENTS = 1, 2, 4
TEMPLATE_ARGUMENTS = {"chat_template_kwargs", "reasoning_effort", "documents"}


class Cause(NamedTuple):
    """A likely cause of a difference, and what to do about it."""

    text: str
    remedy: str


BY_FEATURE = {
    TOOLS: Cause(
        "tools, which the chat template does not write as the engine does",
        "Name the model's own tokenizer and template: --tokenizer NAME, --chat-template FILE.",
    ),
    MEDIA: Cause("images, sounds or files, whose tokens are not counted", "Expect less reuse of them than measured."),
    ARGUMENTS: Cause(
        "template arguments (chat_template_kwargs, reasoning_effort)",
        "Name the model's own chat template: --chat-template FILE.",
    ),
}
TEMPLATE = "Name the engine's chat template: --chat-template FILE, or its end: --generation-prompt TEXT."
START = Cause("the start token (BOS), which one of the two adds", "Check the template: --chat-template FILE.")
TOKENIZER = Cause("another tokenizer or chat template", "Name the model's own: --tokenizer NAME, --chat-template FILE.")


@dataclass
class Sums:
    """Sums over requests; a difference is our count minus the log's."""

    requests: int = 0
    equal: int = 0
    ours: int = 0  # tokens
    logged: int = 0  # tokens
    distance: int = 0  # sum of |difference|
    messages: int = 0
    messages_squared: int = 0
    squared: int = 0  # of differences
    product: int = 0  # of differences and messages
    with_output: int = 0  # requests whose logged count is ours and the answer's
    without_cached: int = 0  # requests whose logged count is ours less the cached tokens
    least: int = 0  # difference
    most: int = 0  # difference
    least_ours: int = 0
    most_ours: int = 0
    least_logged: int = 0
    most_logged: int = 0

    @classmethod
    def of(
        cls, ours: np.ndarray, logged: np.ndarray, messages: np.ndarray, extra: np.ndarray, cached: np.ndarray
    ) -> Sums:
        """The sums over some requests, at least one."""
        difference = ours - logged
        d, m = difference.astype(float), messages.astype(float)  # a logged count may be anything: no overflow
        return cls(
            len(ours), int((difference == 0).sum()), int(ours.sum()), sum(logged.tolist()),
            sum(np.abs(difference).tolist()), int(messages.sum()), int(m @ m), int(d @ d), int(d @ m),
            int(((extra > 1) & (difference == -extra)).sum()), int(((cached > 0) & (difference == cached)).sum()),
            *(int(bound()) for values in (difference, ours, logged) for bound in (values.min, values.max)),
        )  # fmt: skip

    def __add__(self, other: Sums) -> Sums:
        if not self.requests or not other.requests:
            return self if self.requests else other
        bounds = {"least": min, "most": max}
        names = [column.name for column in fields(self)]
        combined = [
            bounds.get(name.partition("_")[0], int.__add__)(getattr(self, name), getattr(other, name)) for name in names
        ]
        return Sums(*combined)

    @property
    def mean(self) -> float:
        """The mean of |difference|."""
        return self.distance / self.requests if self.requests else 0.0

    @property
    def is_per_message(self) -> bool:
        """Whether the difference is a number of tokens a message, and a constant."""
        n = self.requests
        of_messages = n * self.messages_squared - self.messages**2
        of_both = n * self.product - (self.ours - self.logged) * self.messages
        of_difference = n * self.squared - (self.ours - self.logged) ** 2
        return of_messages > 0 and of_difference > 0 and of_both**2 == of_messages * of_difference


@dataclass
class UsageCheck:
    """Our counts of prompt tokens beside the log's.

    >>> requests = [{"ours": 30, "logged": 40, "features": TOOLS}, {"ours": 20, "logged": 20}]
    >>> check = UsageCheck.of(requests)
    >>> print(check.sentence)
    our 50 prompt tokens are 16.7 % fewer than the 60 that the log states: 1 of 2 requests differs, by 10 tokens. \
Likely cause: tools, which the chat template does not write as the engine does. Name the model's own tokenizer and \
template: --tokenizer NAME, --chat-template FILE.
    """

    groups: dict[int, Sums] = field(default_factory=dict)  # features -> sums over the requests that have these
    zeros: int = 0  # requests whose logged count is 0, which no prompt has

    @classmethod
    def of(cls, requests: list[dict[str, int]]) -> UsageCheck:
        """The check of requests: ours, logged, and features, messages, output and cached, which are 0 by default."""
        names = ("ours", "logged", "features", "messages", "output", "cached")
        table = np.array([[request.get(name, 0) for name in names] for request in requests], dtype=np.int64)
        table = table.reshape(-1, len(names))
        check = cls(zeros=int((table[:, 1] == 0).sum()))
        table = table[table[:, 1] > 0]
        for features in np.unique(table[:, 2]).tolist():
            ours, logged, _, messages, output, cached = table[table[:, 2] == features].T
            check.groups[features] = Sums.of(ours, logged, messages, output, cached)
        return check

    def __add__(self, other: UsageCheck) -> UsageCheck:
        names = sorted({*self.groups, *other.groups})
        groups = {name: self.groups.get(name, Sums()) + other.groups.get(name, Sums()) for name in names}
        return UsageCheck(groups, self.zeros + other.zeros)

    def to_list(self) -> list[list[int]]:
        """The check as JSON values."""
        rows = [[features, *(getattr(sums, column.name) for column in fields(sums))]
                for features, sums in self.groups.items()]  # fmt: skip
        return [[self.zeros], *rows]

    @classmethod
    def from_list(cls, values: list[list[int]]) -> UsageCheck:
        """The check that `to_list` made JSON values of.

        >>> check = UsageCheck.of([{"ours": 3, "logged": 4}])
        >>> UsageCheck.from_list(check.to_list()) == check
        True
        """
        (zeros,), *rows = values
        return cls({features: Sums(*sums) for features, *sums in rows}, zeros)

    # -- what it says ----------------------------------------------------------------------------------------------

    @property
    def whole(self) -> Sums:
        """The sums over all requests with a count."""
        return sum(self.groups.values(), Sums())

    @property
    def share(self) -> float:
        """The difference of the totals, as a share of the log's."""
        whole = self.whole
        return (whole.ours - whole.logged) / whole.logged if whole.logged else 0.0

    @property
    def other_thing(self) -> str | None:
        """What the log counts instead of prompt tokens, or None."""
        whole = self.whole
        if not whole.requests:
            return "are all 0" if self.zeros else None
        threshold = max(2, 0.9 * (whole.requests - whole.equal))
        is_constant = whole.least_logged == whole.most_logged and whole.least_ours < whole.most_ours
        if is_constant and 2 * whole.equal < whole.requests >= MIN_REQUESTS:
            return "are the same for all requests"
        if whole.with_output >= threshold:
            return "include the tokens of the answers"
        if whole.without_cached >= threshold:
            return "leave out cached tokens"
        return None

    @property
    def cause(self) -> Cause | None:
        """The likely cause of the difference; None if all counts are equal."""
        whole = self.whole
        if not whole.distance:
            return None
        if (feature := self._feature(alone=False)) is not None:
            return BY_FEATURE[feature]
        if whole.least == whole.most and abs(whole.least) == 1:
            return START
        if whole.ours < whole.logged and (feature := self._feature(alone=True)) is not None:
            return BY_FEATURE[feature]
        if whole.least == whole.most and whole.requests > 1:
            tokens = f"{abs(whole.least):,} tokens {'more' if whole.least > 0 else 'fewer'}"
            return Cause(f"the start or the end of the chat template ({tokens} in each request)", TEMPLATE)
        return Cause("another chat template (a constant a message)", TEMPLATE) if whole.is_per_message else TOKENIZER

    def _feature(self, *, alone: bool) -> int | None:
        """The feature whose requests differ while the others agree; `alone`: that all requests have."""
        means = {}
        for feature in BY_FEATURE:
            having = sum((sums for features, sums in self.groups.items() if features & feature), Sums())
            lacking = sum((sums for features, sums in self.groups.items() if not features & feature), Sums())
            if having.distance and bool(lacking.requests) != alone and having.mean > FEW_TIMES * lacking.mean:
                means[feature] = having.mean
        return max(means, key=means.__getitem__, default=None)

    @property
    def difference(self) -> str | None:
        """How the counts differ, and the likely cause; None if they are equal or cannot be compared."""
        cause = None if self.other_thing is not None else self.cause
        return None if cause is None else f"{self._totals()} Likely cause: {cause.text}."

    @property
    def sentence(self) -> str | None:
        """How the counts differ, the likely cause, and what to do; None if they are equal or cannot be compared."""
        if (other := self.other_thing) is not None:
            return f"the log's counts of prompt tokens {other}: they are not compared with ours."
        cause = self.cause
        return None if cause is None else f"{self.difference} {cause.remedy}"

    def _totals(self) -> str:
        whole, share = self.whole, 100 * self.share
        differing, largest = whole.requests - whole.equal, max(whole.most, -whole.least)
        side = "fewer than" if share < 0 else "more than" if share > 0 else "as many as"
        percent = f"{abs(share):.1f} % {side}" if share else side
        by = f"{largest:,} token{'' if largest == 1 else 's'}"
        how = f"differs, by {by}" if differing == 1 else f"differ, the largest by {by}"
        return (
            f"our {whole.ours:,} prompt tokens are {percent} the {whole.logged:,} that the log states: "
            f"{differing:,} of {whole.requests:,} requests {how}."
        )

    @property
    def is_mismatch(self) -> bool:
        """Whether the totals differ by more than the limit, over enough requests that differ."""
        whole = self.whole
        enough = whole.requests >= MIN_REQUESTS and whole.requests - whole.equal > 1
        return enough and self.other_thing is None and abs(whole.ours - whole.logged) > LIMIT * whole.logged

    def decide(self, *, is_of_model: bool, on_mismatch: str) -> str | None:
        """A warning, if the counts differ by more than the limit or cannot be compared.

        Args:
            is_of_model: The tokenizer is known to be that of the log's model.
            on_mismatch: "stop" or "warn".

        Raises:
            MismatchError: They differ by more than the limit, though the tokenizer is the model's.
        """
        if self.is_mismatch and is_of_model and on_mismatch == "stop":
            raise MismatchError(f"{self.sentence} To go on: --on-mismatch warn.")
        return self.sentence if self.is_mismatch or self.other_thing else None

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """The lines of a summary: name, number, note."""
        whole = self.whole
        if (other := self.other_thing) is not None:
            yield "log's tokens", "-", f"the log's counts of prompt tokens {other}: they are not compared"
        elif whole.requests:
            difference = f"we count {whole.ours:,} ({100 * self.share:+.1f} %)"
            yield "log's tokens", f"{whole.logged:,}", f"in the prompts of {whole.requests:,} requests; {difference}"
        if other is None and (cause := self.cause) is not None:
            largest = max(whole.most, -whole.least)
            note = f"requests differ, the largest by {largest:,} tokens; likely cause: {cause.text}"
            yield "", f"{whole.requests - whole.equal:,}", note

    def section(self) -> Meta:
        """The section of a sidecar: rounded, since it describes requests that may not be released."""
        whole = self.whole
        if not whole.requests or self.other_thing is not None:
            return {}
        usage: UsageSection = {"requests": rounded(whole.requests), "difference": round(self.share, 3) + 0.0}
        return {"usage": usage}


def require_choice(on_mismatch: str) -> None:
    """UsageError unless the value is one of ON_MISMATCH."""
    if on_mismatch not in ON_MISMATCH:
        raise wrong_word(on_mismatch, "a value of --on-mismatch", ON_MISMATCH)


def features_of(record: Record) -> int:
    """Which of TOOLS, MEDIA and ARGUMENTS a rendered request has, before its messages are dropped."""
    arguments = bool((record.shaping or {}).keys() & TEMPLATE_ARGUMENTS)
    return TOOLS * bool(record.tools) | MEDIA * bool(record.media or record.placed) | ARGUMENTS * arguments


def usage_of(records: list[Record], ours: np.ndarray, outputs: np.ndarray) -> UsageCheck | None:
    """The check of the requests whose prompts we counted and whose log states a count; None if there are none."""
    compared: list[dict[str, Any]] = [
        {
            "ours": count, "logged": record.prompt_tokens, "features": record.features, "messages": record.turns,
            "output": output, "cached": record.cached_tokens or 0,
        }
        for record, count, output in zip(records, ours.tolist(), outputs.tolist(), strict=True)
        if record.prompt_tokens is not None and record.hashes is None and record.input_length is None
    ]  # fmt: skip
    return UsageCheck.of(compared) if compared else None
