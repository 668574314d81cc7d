"""Groups of options that several commands share: a dataclass in place of a repeated list.

A command takes one parameter whose annotation is a dataclass of `Annotated` options, and
`with_groups` shows typer its fields as options of their own. Knows nothing about what they mean.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, TypeGuard, get_type_hints

import typer

_BARE = inspect.Parameter.empty


def panel_option(
    panel: str, *names: str, help: str, metavar: str | None = None, envvar: str | None = None
) -> Any:
    """Return an option that `--help` lists in `panel`."""
    return typer.Option(*names, help=help, metavar=metavar, envvar=envvar, rich_help_panel=panel)


def with_groups(**defaults: object) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that spreads a command's groups; `defaults` replace those of fields."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        given = inspect.signature(command, eval_str=True).parameters
        groups: dict[str, type[Any]] = {
            name: p.annotation for name, p in given.items() if _is_group(p.annotation)
        }

        @functools.wraps(command)
        def run(**options: Any) -> None:
            for name, group in groups.items():
                options[name] = group(**{f.name: options.pop(f.name) for f in fields(group)})
            command(**options)

        flat = [
            each
            for name, p in given.items()
            for each in (_spread(groups[name], defaults) if name in groups else [p])
        ]
        # The parameters go by name, so that one without a default may follow one with.
        flat = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in flat]
        del run.__wrapped__
        run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in flat}
        return run

    return decorate


def _is_group(annotation: object) -> TypeGuard[type[Any]]:
    return isinstance(annotation, type) and is_dataclass(annotation)


def _spread(group: type[Any], defaults: dict[str, object]) -> list[inspect.Parameter]:
    """Return the fields of a group as parameters."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(field.name, _BARE if field.default is MISSING else field.default),
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
