"""Results with distributions: as data frames, and as tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable

from .._base.tables import TextTable, html
from ..trace.frames import library, pandas, polars
from .distribution import Distribution


def distributions(found: dict[str, Distribution]):
    """A pyarrow Table of distributions, a row each: name, count, the seven figures, and the quantiles.

    >>> import numpy as np
    >>> from kvtrace.analysis.distribution import Distribution
    >>> distributions({"x": Distribution.of(np.array([1, 3]))}).select(["name", "count", "mean"]).to_pylist()
    [{'name': 'x', 'count': 2, 'mean': 2.0}]
    """
    rows = [{"name": name, **values.to_dict()} for name, values in found.items()]
    names = dict.fromkeys(name for row in rows for name in row)
    return library("pyarrow").table({name: [row.get(name) for row in rows] for name in names})


class Framed:
    """Results with distributions: as frames, and as tables in a notebook."""

    def distributions(self) -> dict[str, Distribution]:
        """The distributions by name."""
        raise NotImplementedError

    def tables(self) -> Iterable[TextTable]:
        """What it has to show, as tables of text."""
        raise NotImplementedError

    def to_pandas(self):
        """The distributions as a pandas DataFrame, a row each."""
        return pandas(distributions(self.distributions()))

    def to_polars(self):
        """The distributions as a Polars DataFrame, a row each."""
        return polars(distributions(self.distributions()))

    def __arrow_c_stream__(self, requested_schema=None):
        return distributions(self.distributions()).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return html(self.tables())
