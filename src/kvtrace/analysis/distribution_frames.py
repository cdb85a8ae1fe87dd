"""Results with distributions, which are the rows of their data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._base.results import PlottedResult, columns_of, headed
from .._base.tables import TextTable, html
from .distribution import Distribution


class DistributionFrames(PlottedResult):
    """A result that exports its distributions as data frames, and shows its tables in a notebook."""

    def distributions(self) -> dict[str, Distribution]:
        """The distributions by name."""
        raise NotImplementedError

    def tables(self) -> Iterable[TextTable]:
        """The result as text tables."""
        raise NotImplementedError

    def _columns(self) -> dict[str, list[Any]]:
        """One row for each distribution: name, count, the seven figures, and the quantiles."""
        return columns_of({"name": name, **values.to_dict()} for name, values in self.distributions().items())

    def _repr_html_(self) -> str:
        return headed(self, html(self.tables()))
