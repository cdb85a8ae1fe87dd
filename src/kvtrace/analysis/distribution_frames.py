"""Results with distributions, as data frames and as tables in a notebook."""

from __future__ import annotations

from collections.abc import Iterable

from .._base.tables import TextTable, html
from ..trace.frames import library, pandas, polars
from .distribution import Distribution


def distribution_frame(distributions: dict[str, Distribution]):
    """A pyarrow Table with one row for each distribution: name, count, the seven figures, and the quantiles.

    >>> import numpy as np
    >>> from kvtrace.analysis.distribution import Distribution
    >>> distribution_frame({"x": Distribution.of(np.array([1, 3]))}).select(["name", "count", "mean"]).to_pylist()
    [{'name': 'x', 'count': 2, 'mean': 2.0}]
    """
    rows = [{"name": name, **values.to_dict()} for name, values in distributions.items()]
    names = dict.fromkeys(name for row in rows for name in row)
    return library("pyarrow").table({name: [row.get(name) for row in rows] for name in names})


class DistributionFrames:
    """A result that exports its distributions as data frames, and shows its tables in a notebook."""

    def distributions(self) -> dict[str, Distribution]:
        """The distributions by name."""
        raise NotImplementedError

    def tables(self) -> Iterable[TextTable]:
        """The result as text tables."""
        raise NotImplementedError

    def to_pandas(self):
        """The distributions as a pandas DataFrame, one row each."""
        return pandas(distribution_frame(self.distributions()))

    def to_polars(self):
        """The distributions as a Polars DataFrame, one row each."""
        return polars(distribution_frame(self.distributions()))

    def __arrow_c_stream__(self, requested_schema=None):
        return distribution_frame(self.distributions()).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        return html(self.tables())
