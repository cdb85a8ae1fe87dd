"""Release a trace: apply the steps of a profile in order, k-sharing among them, and measure what each costs in hits.

k-sharing splits each block that fewer than k contributors share, so that a guess does not reveal other senders. A block
never has more contributors than its parent, so split blocks lie below shared ones and every hit stays a prefix.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._base.errors import UsageError
from .._base.options import record_of
from .._base.results import PlottedResult, drawing
from ..trace.columns import TAILS, Columns, measured_of
from ..trace.domains import in_domains
from ..trace.meta import merge, shares_prefixes, without_stale
from ..trace.trace import Trace
from .account import TAIL_STEPS, Account, Numbered, ReleasedTrace, ReleaseStep
from .allowed_values import MAX_TURN
from .contributors import WORDS, Contributors, Users, contributors
from .profiles import LARGEST, STRONG, keeps_domains, kept_measured
from .release_options import Profile
from .steps import blocks_in_powers, coarsened, round_lengths
from .trace_draft import TraceDraft


@dataclass(repr=False)
class Released(PlottedResult, Account):
    """A released trace, and the record of its release."""

    trace: ReleasedTrace = field(kw_only=True)

    # what a notebook keeps is the released trace alone: the hits after each step are printed and never written

    def _headline(self) -> str:
        return f"{self.profile.name}, {self.trace!r}"

    def _repr_html_(self) -> str:
        return self.trace._repr_html_()

    def to_arrow(self) -> Any:
        """The released requests as a pyarrow Table; needs the `frames` extra."""
        return self.trace.to_arrow()

    def plot(self) -> Any:
        """A plotly Figure of the released trace; needs the `report` extra."""
        return drawing["figure"](self.trace)


@dataclass(frozen=True, eq=False)
class ReleaseScope:
    """What a release takes of a trace, beside its profile; `release` describes the fields."""

    users: Users | np.ndarray | None = None
    session_share: float = 1.0
    isolate: bool = False
    rng: np.random.Generator | None = None
    keep_domains: bool | None = None


WHOLE = ReleaseScope()  # all requests, of unknown users


def release(
    trace: Trace,
    profile: Profile,
    *,
    users: Users | np.ndarray | None = None,
    session_share: float = 1.0,
    isolate: bool = False,
    rng: np.random.Generator | None = None,
    keep_domains: bool | None = None,
) -> Released:
    """Coarsen a trace by a release profile.

    Args:
        trace: The trace.
        profile: A profile, from `profile(name)` or PROFILES.
        users: Request -> number of its user or tenant, -1 = unknown; k counts users where they are given.
        session_share: Share of the sessions (or users, or inferred conversations) to release: above 0, at most 1.
        isolate: Users share no block; needs `users`.
        rng: Randomness of the draw; the default is fresh.
        keep_domains: Keep the column of isolation domains. Without it, the blocks of domains get ids of their own. The
            default is the profile's: "exact" keeps it, others do not.

    Returns:
        The released trace, its steps, and the hits after each.

    Raises:
        UsageError: The share is out of range, no request is left, or `isolate` is given without `users`.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.privacy.profiles import PROFILES
    >>> released = release(toy("0 1", "0 1", "0 2"), PROFILES["standard"], users=np.array([0, 1, 2]))
    >>> released.trace.hash_ids, [step.step.value for step in released.steps]
    (array([0, 1, 0, 2, 0, 3]), ['original', 'tails_unique', 'k_sharing'])
    """
    draft, account = released_draft(trace, profile, record_of(ReleaseScope, locals()))
    settings: dict[str, Any] = {"block_size": draft.block_size, "tail": draft.tail, "meta": draft.meta}
    released = ReleasedTrace.from_columns(draft.columns(), **settings)
    released.account = account
    return Released(**vars(account), trace=released)


def release_in_pieces(trace: Trace, profile: Profile, scope: ReleaseScope = WHOLE) -> Numbered:
    """As `release`, but the released rows come in pieces, so that memory holds no second array of all ids.

    >>> from kvtrace.trace.building import toy
    >>> from kvtrace.privacy.profiles import PROFILES
    >>> scope = ReleaseScope(users=np.array([0, 1, 2]))
    >>> released = release_in_pieces(toy("0 1", "0 1", "0 2"), PROFILES["standard"], scope)
    >>> [columns.hash_ids.tolist() for columns in released.columns()]
    [[0, 1, 0, 2, 0, 3]]
    """
    draft, account = released_draft(trace, profile, scope)
    settings: dict[str, Any] = {"block_size": draft.block_size, "tail": draft.tail, "meta": draft.meta}
    counted, figures = account.contributors, draft.figures()
    return Numbered(figures=figures, account=account, columns=draft.pieces, contributors=lambda: counted, **settings)


def released_draft(
    trace: Trace,
    profile: Profile,
    scope: ReleaseScope = WHOLE,
    add_dependencies: Callable[[TraceDraft], None] | None = None,
) -> tuple[TraceDraft, Account]:
    """The released draft of a trace, with the values of its sidecar, and its account; as `release_draft`."""
    if not keeps_domains(profile, scope.keep_domains):
        trace = in_domains(trace if trace.domain is None else trace.chained())
    account, draft = Account(profile), TraceDraft.of(trace)
    base = trace.chained() if profile.coarsens else trace
    if base is not trace:
        account.record(ReleaseStep.ORIGINAL, draft)
        draft = TraceDraft.of(base)
        account.record(ReleaseStep.CHAINED, draft)
    infer = None if base.is_chained else lambda: TraceDraft.of(base.chained()).conversations()
    release_draft(draft, account, scope, infer=infer, add_dependencies=add_dependencies)
    if not shares_prefixes(trace.meta):
        account.drop_costs()
    draft.meta = merge(without_stale(trace.meta), account.meta)
    if draft.rows.service_ms is None:
        draft.meta.pop("service_times", None)
    return draft, account


def release_draft(
    draft: TraceDraft,
    account: Account,
    scope: ReleaseScope,
    *,
    infer: Callable[[], np.ndarray] | None = None,
    add_dependencies: Callable[[TraceDraft], None] | None = None,
) -> None:
    """Coarsen a draft in place by a profile, and record each step.

    `infer` gives the conversations to draw, if they are not the draft's own. `add_dependencies` adds them to the rows
    of a log, when blocks are as the release states them and times exact.
    """
    profile, users = account.profile, scope.users
    if not account.steps:
        account.record(ReleaseStep.ORIGINAL, draft)
    if scope.session_share != 1:
        rows = np.flatnonzero(drawn(draft.rows, scope, infer or draft.conversations))
        users = None if users is None else users[rows]
        draft.select(rows)
        account.sampled = True
        account.record(ReleaseStep.SAMPLED, draft)
    if profile.alike > 1:
        rows = _alike(draft, profile, contributors(draft.rows, users, infer=draft.conversations))
        users = None if users is None else users[rows]
        draft.select(rows)
        account.record(ReleaseStep.ALIKE, draft)
    if draft.set_tail(profile.tail):
        account.record(TAIL_STEPS[draft.tail], draft)

    def find(infer: Callable[[], np.ndarray], counts: str = "auto") -> Contributors:
        return contributors(draft.rows, users, counts, infer=infer)

    if scope.isolate:
        if users is None:
            raise UsageError("--isolate-tenants needs --users FILE, one user a line for each row.")
        account.isolated, account.contributors = True, share_by_k(draft, LARGEST, find)  # splits all shared blocks
        account.record(ReleaseStep.TENANTS_ISOLATED, draft)
    if profile.resample:
        _resample(draft, account, find(draft.conversations, profile.k_counts), scope.rng or np.random.default_rng())
    elif profile.k > 1:
        account.contributors = share_by_k(draft, profile.k, lambda infer: find(infer, profile.k_counts))
        account.record(ReleaseStep.K_SHARING, draft)
    if add_dependencies is not None and not profile.resample:
        add_dependencies(draft)
    _coarsen(draft, account)
    unknown = 0 if account.contributors is None else account.contributors.unknown_requests
    account.note_contributors(unknown, len(draft))


def _alike(draft: TraceDraft, profile: Profile, who: Contributors) -> np.ndarray:
    """The rows whose rounded lengths enough contributors have."""
    tail = max(profile.tail, draft.tail, key=TAILS.index)
    rounding = profile.round_input, profile.round_output
    rows = round_lengths(draft.rows, *rounding, block_size=draft.block_size, tail=tail)
    pair = np.unique(np.stack([rows.input_length, rows.output_length]), axis=1, return_inverse=True)[1].reshape(-1)
    known = who.contributor != who.unknown
    of_contributor = np.unique(np.stack([pair[known], who.contributor[known]]), axis=1)[0]
    kept = np.flatnonzero(np.bincount(of_contributor, minlength=int(pair.max()) + 1)[pair] >= profile.alike)
    if not len(kept):
        raise UsageError(
            f"no lengths are common to {profile.alike:,} {WORDS[who.kind]}, so no request is left. Use a lower "
            "--alike, or round lengths more (--round-input pow2 --round-output pow2)."
        )
    return kept


def _resample(draft: TraceDraft, account: Account, who: Contributors, rng: np.random.Generator) -> None:
    """Replace the rows of a draft by new ones. Only accounts share prefixes: one sender can have several sessions."""
    if who.kind not in DRAWN:
        raise UsageError(
            f"{account.profile.name} draws rows of each contributor, but the log has no accounts and no sessions. Name "
            "their field to kvtrace anonymize (--map account=PATH, --map session=PATH, --tenant-field PATH), or the "
            "account of each row to kvtrace release (--users FILE)."
        )
    from .resampling import resample

    draft.blocks.drop_outputs()
    contributor = np.where(who.contributor == who.unknown, -1, who.contributor)
    drawn = resample(draft, contributor, account.profile.k, rng, share_prefixes=who.kind in STRONG)
    draft.rows, draft.blocks = drawn.rows, drawn.blocks
    account.contributors, account.resampled = None, who.kind
    account.record(ReleaseStep.RESAMPLED, draft)
    account.notes.append(
        f"the {len(draft):,} requests are new, and none is one of the log's; a contributor is drawn once on average."
    )


DRAWN = ("accounts", "users", "client_users", "sessions")  # kinds of contributors whose rows can be drawn


def _coarsen(draft: TraceDraft, account: Account) -> None:
    """Apply the steps that cost no hits: lengths, times, links, fields."""
    profile = account.profile
    if draft.blocks.has_outputs and (profile.round_input, profile.round_output) != ("exact", "exact"):
        account.notes.append("blocks of outputs were left out: they would reveal the exact lengths.")
        draft.blocks.drop_outputs()
    if profile.round_input == "pow2":
        blocks = draft.blocks.prompt_blocks().astype(np.int64)
        draft.blocks.pad(blocks_in_powers(blocks) - blocks)
    has_sessions = draft.rows.session is not None and bool((draft.rows.session >= 0).any())
    linked = has_sessions or "turn" in draft.rows.extra
    account.notes += measured_notes(measured_of(draft.rows), profile)
    draft.rows, left = coarsened(draft.rows, profile, draft.block_size, draft.tail)
    account.notes += left_out(left)
    account.note_dropped_links(linked)


NO_TURNS = (
    f"all values of `turn` were left out, because not every row has one that is a whole number from 0 to {MAX_TURN:,}."
)


def left_out(columns: Sequence[str]) -> list[str]:
    """Notes on the extra columns that a release leaves out, if there are any; only `turn` is named.

    >>> left_out(["note", "prompt_text"]), left_out([])
    (['2 extra columns were left out.'], [])
    """
    others = len([name for name in columns if name != "turn"])
    notes = [f"{others} extra {'columns were' if others > 1 else 'column was'} left out."] if others else []
    return notes if others == len(columns) else [*notes, NO_TURNS]


def measured_notes(present: Collection[str], profile: Profile) -> list[str]:
    """Notes on the measured columns that a release leaves out, and on those asked for that the trace does not have.

    >>> from .profiles import PROFILES, profile
    >>> measured_notes(["cached_tokens", "ttft_ms"], PROFILES["standard"])
    ['2 measured columns were left out. --keep-measured cached_tokens,ttft_ms keeps them.']
    >>> measured_notes([], profile("standard", keep_measured=["e2e_ms"]))
    ['the trace does not have e2e_ms, which --keep-measured names.']
    """
    dropped = [name for name in present if name not in kept_measured(profile)]
    missing = [name for name in profile.keep_measured or () if name not in present]
    notes = []
    if dropped:
        were = "column was" if len(dropped) == 1 else "columns were"
        keeps = f"--keep-measured {','.join(dropped)} keeps {'it' if len(dropped) == 1 else 'them'}."
        notes.append(f"{len(dropped)} measured {were} left out. {keeps}")
    if missing:
        notes.append(f"the trace does not have {', '.join(missing)}, which --keep-measured names.")
    return notes


def drawn(rows: Columns, scope: ReleaseScope, infer: Callable[[], np.ndarray]) -> np.ndarray:
    """Whether each request is in a sample of whole sessions, else of whole users, else of inferred conversations.

    UsageError for an invalid share or an empty sample.
    """
    users, share = scope.users, scope.session_share
    if not 0 < share <= 1:
        raise UsageError(f"--sample-sessions must be above 0 and at most 1, not {share:g}.")
    if rows.session is not None and (rows.session >= 0).any():
        users = None  # whole sessions, even if users are known
    unit = contributors(rows, users, infer=infer).units
    rng = scope.rng or np.random.default_rng()
    taken = (rng.random(int(unit.max(initial=-1)) + 1) < share)[unit]
    if not taken.any():
        raise UsageError(f"the sample contains none of the {len(rows):,} requests. Use a larger share.")
    return taken


Find = Callable[[Callable[[], np.ndarray]], Contributors]  # from a function that infers conversations


def share_by_k(draft: TraceDraft, k: int, find: Find) -> Contributors:
    """Split each block that fewer than k known contributors share, one for each; returns the contributors of `find`.

    The blocks of one contributor are split among its members by the same rule (see contributors.py). `find` calls its
    argument if there is nothing to count but inferred conversations.

    >>> from kvtrace.trace.building import toy
    >>> draft = TraceDraft.of(toy("0 1", "0 1", "0"))
    >>> share_by_k(draft, 3, lambda infer: Contributors(np.arange(3), "users")).kind, draft.trace().hash_ids
    ('users', array([0, 1, 0, 2, 0]))
    """
    who = find(lambda: _split_conversations(draft, k))
    if who.kind != "inferred":
        draft.blocks.split(who.contributor, k, who.member, unknown=who.unknown, unnamed=who.unnamed)
    return who


def _split_conversations(draft: TraceDraft, k: int) -> np.ndarray:
    """Split each block of 2 to k - 1 inferred conversations; returns the conversation of each row.

    Splitting changes the conversations that can be inferred. Inferring and splitting therefore repeat until no block
    has 2 to k - 1 of them; in a chained trace of prompts, only where the last splits may have changed something.
    """
    if draft.blocks.lengths is not None:
        draft.blocks.split_conversations(k, tails=draft.tail != "dropped")
        return draft.conversations()
    while draft.blocks.split(conversation := draft.conversations(), k):
        pass
    return conversation
