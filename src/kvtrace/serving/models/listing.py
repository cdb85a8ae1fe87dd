"""The catalog as a table: what each model has, keeps and weighs, with its sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..._base.errors import InputError, UsageError
from ..._base.results import Described, DescribedResult, column, columns_in, columns_of, flat_row
from ..._base.tables import TextTable
from ...cache.layout import LayerKind
from .config import MODELS, CatalogEntry, catalog_entry, model_name, near_models
from .layers import growing_bytes, layer_kinds
from .shape import ModelShape, model_shape

SCHEMA = 1  # version of the keys of to_dict
PRECISIONS = {16: "bfloat16", 8: "fp8", 4: "fp4"}  # bits of a cached value -> dtype


def _count(parameters: int) -> str:
    """A number of parameters, such as 8.0 B.

    >>> _count(8_029_995_008), _count(600_000_000)
    ('8.0 B', '0.60 B')
    """
    billions = parameters / 1e9
    return f"{billions:.2f} B" if billions < 1 else f"{billions:,.1f} B" if billions < 100 else f"{billions:,.0f} B"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size else "-"


def _by_bits(sizes: dict[int, int]) -> dict[str, int]:
    return {f"bits_{bits}": size for bits, size in sizes.items()}


@dataclass(frozen=True)
class CatalogModel(Described):
    """A model of the catalog with what follows from its fields; layers are those with 16 bits a cached value."""

    entry: CatalogEntry = field(metadata=column(hidden=True))
    name: str = field(metadata=column("model", rank=0))
    parameters: int | None = field(metadata=column("params", _count, rank=0, none="-"))
    active_parameters: int | None = field(metadata=column("active", _count, none="-"))
    kv_bytes: dict[int, int] = field(  # bits of a cached value -> bytes of a token
        metadata=column(key="kv_bytes_per_token", value=_by_bits)
    )
    state_bytes: int = field(metadata=column("states", _megabytes, rank=2))  # of one request
    kinds: tuple[LayerKind, ...] = field(metadata=column(key="layers"))
    has_times: bool = field(metadata=column("use", lambda has: "times" if has else "KV only", rank=0))
    published_parameters: float | None
    published_active: float | None
    sources: tuple[str, ...]
    date: str
    checkpoints: tuple[str, ...]  # Hugging Face ids that are names, too
    kv_only: str | None  # the reason, for a model without times
    shape: ModelShape | None = field(  # None: its products are not modelled, or a field for them is not published
        metadata=column(hidden=True)
    )

    @property
    def layers(self) -> str:
        """Its layers in words, such as `18 full + 18 window 128`."""
        return " + ".join(map(_in_words, self.kinds))


@dataclass(frozen=True, repr=False)
class ModelList(DescribedResult):
    """Models of the catalog, by name."""

    _schema = SCHEMA

    models: tuple[CatalogModel, ...]

    def __len__(self) -> int:
        return len(self.models)

    def __iter__(self) -> Iterator[CatalogModel]:
        return iter(self.models)

    def _headline(self) -> str:
        return f"{len(self.models)} models, {sum(model.shape is not None for model in self.models)} with times"

    def _columns(self) -> dict[str, list[Any]]:
        return columns_of({"layers_in_words": model.layers} | model.to_dict() for model in self.models)

    def table(self) -> TextTable:
        """The table of `kvtrace models`: one row a model."""
        columns = columns_in(CatalogModel) | {
            f"kv_bytes_per_token_bits_{bits}": column(f"KV {bits} bit", ",", rank=0 if bits == 16 else 3)
            for bits in PRECISIONS
        } | {"words": column("layers", note=True, rank=0)}  # fmt: skip
        shown = [key for key, each in columns.items() if each.heading and key not in ("state_bytes", "words")]
        rows = [flat_row(model.to_dict()) | {"words": model.layers} for model in self.models]
        table = TextTable("Models", remedy="name a model, or use a wider terminal")
        table.caption = "KV: bytes of a token in all layers, by bits of a value; in a window, until it has passed."
        return table.add_results(columns, rows, (*shown, "state_bytes", "words"))

    def details(self) -> list[TextTable]:
        """The tables of `kvtrace models NAME`: one a model, with its sources."""
        return [_details(model) for model in self.models]


def list_models(matching: str | None = None) -> ModelList:
    """List the models of the catalog.

    Args:
        matching: A name or a Hugging Face id, or a part of one; by default all models.

    Returns:
        The models by name: that one alone if `matching` is a name.

    Raises:
        UsageError: No model matches.

    >>> list_models("gpt-oss")
    ModelList(2 models, 2 with times)
    >>> [model.layers for model in list_models("gpt-oss")]
    ['12 full + 12 window 128', '18 full + 18 window 128']
    """
    wanted, whole = "" if matching is None else matching.lower(), model_name(matching)
    names = [whole] if whole else [name for name, entry in MODELS.items() if _matches(wanted, entry)]
    if not names:
        near = near_models(wanted)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        raise UsageError(f"no model of the catalog matches {matching}. {meant}Run kvtrace models to list all.")
    return ModelList(tuple(map(_model, names)))


def _matches(wanted: str, entry: CatalogEntry) -> bool:
    return any(wanted in name.lower() for name in (entry.name, *entry.checkpoints))


def _model(name: str) -> CatalogModel:
    entry = catalog_entry(name)
    kinds = {bits: layer_kinds(name, dtype) for bits, dtype in PRECISIONS.items()}
    shape, reason = None, None
    try:
        shape = model_shape(name)
    except InputError as error:  # some fields of the catalog's own are not published, or not modelled
        reason = str(error).partition(": ")[2].partition(". ")[0].rstrip(".")
    states = sum(kind.layers * kind.state_bytes for kind in kinds[16])
    sizes = {bits: growing_bytes(of_bits) for bits, of_bits in kinds.items()}
    total, active = (shape.parameters, shape.active_parameters) if shape else (None, None)
    return CatalogModel(
        entry, name, total, active, sizes, states, kinds[16], shape is not None, entry.parameters, entry.active,
        tuple(entry.sources), entry.date, tuple(entry.checkpoints), reason, shape,
    )  # fmt: skip


def _in_words(kind: LayerKind) -> str:
    words = [f"{kind.layers}", "indexer" if kind.indexer else kind.kind]
    if kind.window:
        words.append(f"{kind.window:,}")
    return " ".join(words) + (f" 1/{kind.tokens_per_entry}" if kind.tokens_per_entry > 1 else "")


def _details(model: CatalogModel) -> TextTable:
    entry, shape = model.entry, model.shape
    table = TextTable(model.name, has_header=False)
    table.add_column()
    table.add_column(dim=True, rank=0)
    rows: list[tuple[str, Iterable[str]]] = [
        ("layers", map(_in_bytes, model.kinds)),
        (
            "KV a token",
            (f"{size:,} bytes with {bits} bits a value" for bits, size in model.kv_bytes.items()),
        ),
        ("states", [f"{model.state_bytes:,} bytes a request"] if model.state_bytes else []),
        ("KV only", [model.kv_only] if model.kv_only else []),
        ("parameters", [f"{shape.parameters:,}"] if shape else []),
        ("active", [f"{shape.active_parameters:,}"] if shape else []),
        ("published", [_published(entry)] if entry.parameters else []),
        ("weights", [f"{shape.weight_bytes:,} bytes"] if shape else []),
        ("also", (f"{name} ({own})" if own else name for name, own in entry.checkpoints.items())),
        ("sources", [*entry.sources, f"read on {entry.date}"]),
    ]
    for name, lines in rows:
        for number, line in enumerate(lines):
            table.add_row("" if number else name, line)
    return table


def _in_bytes(kind: LayerKind) -> str:
    """Layers of a kind, and what one of them keeps."""
    if kind.kind == "state":
        return f"{_in_words(kind)}: {kind.state_bytes:,} bytes a request"
    unit = "token" if kind.tokens_per_entry == 1 else f"{kind.tokens_per_entry} tokens"
    return f"{_in_words(kind)}: {kind.token_bytes:,} bytes per {unit}"


def _published(entry: CatalogEntry) -> str:
    active = f", active {_count(round(entry.active))}" if entry.active else ""
    return f"{_count(round(entry.parameters or 0))}{active}"
