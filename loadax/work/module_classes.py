"""Pickles classes of equinox by value: their metaclass needs the fields when it makes the class.

cloudpickle makes an empty class first and sets its attributes later, since these may refer to the class. The metaclass
would note an empty class then, of which no field can be set.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_FIELD = (
    "default",
    "default_factory",
    "init",
    "repr",
    "hash",
    "compare",
    "metadata",
    "kw_only",
)


def with_fields(kind: Any, reduced: Any) -> Any:
    """The reduction of an object, as cloudpickle says, with the fields of a class of equinox that goes by value."""
    is_module = isinstance(kind, type) and str(type(kind).__module__).startswith(
        "equinox."
    )
    if (
        not is_module
        or not dataclasses.is_dataclass(kind)
        or not isinstance(reduced, tuple)
    ):
        return reduced
    make, arguments, *rest = reduced
    own = vars(kind).get("__annotations__", {})
    fields = {
        field.name: _options(field)
        for field in dataclasses.fields(kind)
        if field.name in own
    }
    has_init = not vars(kind)["__dataclass_params__"].init
    return _make_class, (make, arguments, fields, has_init), *rest


def _options(field: "dataclasses.Field[Any]") -> dict[str, Any]:
    options = {name: getattr(field, name) for name in _FIELD}
    given = {
        name: value
        for name, value in options.items()
        if value is not dataclasses.MISSING
    }
    return {**given, "metadata": dict(field.metadata)}


def _make_class(
    make: Callable[..., type],
    arguments: Sequence[Any],
    fields: Mapping[str, Mapping[str, Any]],
    has_init: bool,
) -> type:
    metaclass, name, bases, namespace, *rest = arguments
    made = {field: dataclasses.field(**options) for field, options in fields.items()}
    if has_init:
        made["__init__"] = _unset
    return make(
        metaclass,
        name,
        bases,
        {**namespace, "__annotations__": dict.fromkeys(fields, Any), **made},
        *rest,
    )


def _unset(self: Any) -> None:
    """Stands for the `__init__` of a class until its attributes are set."""
