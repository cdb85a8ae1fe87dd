"""Options that are the fields of a frozen record, which is passed whole.

A command makes its options from the fields (`cli/options.py`), so that name, default, help and unit stand in one place.
A public function spells them in its signature; `tests/house/test_options.py` holds it against the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any, TypeVar

from . import units
from .errors import UsageError

Record = TypeVar("Record")


def option(
    default: Any,
    help: str,
    *,
    group: str,
    name: str | None = None,
    metavar: str | None = None,
    choices: Sequence[str] = (),
    minimum: int | None = None,
    many: bool = False,
    parse: Callable[[Any], Any] | None = None,
    shown: Any = None,
    aliases: Sequence[str] = (),
) -> Any:
    """A field of a record that is an option of a command.

    Args:
        default: The default of the field, and of the option.
        help: What the option does, as `--help` prints it.
        group: The group of the option in `--help`.
        name: The name of the option; the default is that of the field. `--no-NAME` is a flag that unsets the field.
        metavar: What stands for the value in `--help`.
        choices: The values that the option takes, if these are few.
        minimum: The smallest value of a number.
        many: Whether the option can be repeated.
        parse: The field's value, from the option's.
        shown: The default of the option, if the field has another form of it.
        aliases: Other names of the option, such as --tp.
    """
    about = {
        "help": help, "group": group, "name": name, "metavar": metavar, "choices": choices, "minimum": minimum,
        "many": many, "parse": parse, "shown": shown, "aliases": aliases,
    }  # fmt: skip
    return field(default=default, metadata=about)


def record_of(record: type[Record], values: Mapping[str, Any]) -> Record:
    """The record whose fields are among these values; a public function passes its arguments, `locals()`.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sample:
    ...     share: float = option(1.0, "Share of the rows.", group="Selection")
    >>> record_of(Sample, {"path": "log.jsonl", "share": 0.5})
    Sample(share=0.5)
    """
    return record(**{name: values[name] for name in names_of(record) if name in values})


def split_options(options: Mapping[str, Any], *records: Any) -> list[Any]:
    """The records with options by name in place of their own; a class is its defaults. TypeError for another name."""
    names = {name for record in records for name in names_of(record)}
    if unknown := sorted(options.keys() - names):
        raise TypeError(f"{unknown[0]!r} is not an option. Choose from {', '.join(sorted(names))}.")
    return [
        record_of(record, options) if isinstance(record, type)
        else replace(record, **{name: options[name] for name in names_of(record) if name in options})
        for record in records
    ]  # fmt: skip


def names_of(record: Any) -> list[str]:
    """The names of a record's fields, or of those of its class."""
    return [part.name for part in fields(record)]


SWITCH = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


def stated_options(record: Any) -> dict[str, Any]:
    """The options of a record that a text can state, with their values."""
    values = {part.name: getattr(record, part.name) for part in fields(record)}
    return {name: value for name, value in values.items() if value is None or isinstance(value, (int, float, str))}


def changed_by_text(record: Record, text: str, whose: str) -> Record:
    """The record with the options of a text: NAME=VALUE pairs, separated by commas. Switches are on or off.

    Args:
        record: The record with the values of all other options.
        text: The text.
        whose: What the options are of, in errors.

    Raises:
        UsageError: A name or a value is not one of the record's.
    """
    options = stated_options(record)
    chosen: dict[str, Any] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        if name not in options or not value:
            raise UsageError(
                f"{pair.strip()!r} is not an option of {whose}. Write NAME=VALUE with one of {', '.join(options)}."
            )
        chosen[name] = _value(name, value, options[name])
    return replace(record, **chosen)  # type: ignore[type-var]


def _value(name: str, text: str, default: Any) -> Any:
    """The value of an option, of the type of its default. The scheduler checks its range."""
    if isinstance(default, bool):
        if text.lower() not in SWITCH:
            raise UsageError(f"{name} is on or off, not {text!r}.")
        return SWITCH[text.lower()]
    if default is None or isinstance(default, int):  # None: a number that is chosen elsewhere
        return units.count(text)
    if isinstance(default, float):
        return units.share(text) if "%" in text else units.decimal(text)
    return text
