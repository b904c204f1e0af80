"""Options that several commands share, written once as the fields of a dataclass.

A parameter of a command whose type is a dataclass stands for one option a field: `with_groups` gives Typer
the fields as parameters of their own, and the command the dataclass.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import wraps
from typing import Any, get_type_hints


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command as Typer takes it: every parameter that is a dataclass spread into its fields."""
    own = inspect.signature(command, eval_str=True).parameters
    types: dict[str, Any] = {name: parameter.annotation for name, parameter in own.items()}
    groups: dict[str, Any] = {name: type_ for name, type_ in types.items() if is_dataclass(type_)}
    parameters = [parameter for name, parameter in own.items() if name not in groups]
    for group in groups.values():
        parameters += _parameters_of(group)

    @wraps(command)
    def spread(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    spread.__signature__ = inspect.Signature(keyword_only)  # type: ignore[attr-defined]
    spread.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return spread


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            annotation=hints[field.name],
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
        )
        for field in fields(group)
    ]
