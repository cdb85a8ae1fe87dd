"""Tables whose rows are loaded when they are first used, so that nothing waits for rows that it does not use."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterable
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

Row = TypeVar("Row")


class LazyTable(UserDict[str, Row]):
    """A table of rows by name.

    Args:
        names: The names of the rows, in order.
        load: The row of a name; called once, when the row is first used.

    >>> table = LazyTable(["json", "csv"], import_module)
    >>> list(table), table["csv"].__name__
    (['json', 'csv'], 'csv')
    """

    def __init__(self, names: Iterable[str], load: Callable[[str], Row]) -> None:
        super().__init__()
        self.data: dict[str, Any] = dict.fromkeys(names)
        self._load = load

    def __getitem__(self, name: str) -> Row:
        if self.data[name] is None:
            self.data[name] = self._load(name)
        row: Row = self.data[name]
        return row


def modules(package: str, names: Iterable[str]) -> LazyTable[ModuleType]:
    """A table of the modules of a package; the row `dynamo-agentic` is the module `dynamo_agentic`."""
    return LazyTable(names, lambda name: import_module(f"{package}.{name.replace('-', '_')}"))
