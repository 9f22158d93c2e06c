"""Grain's transforms as the functions of `map` and `filter`: an object's `.map`, `.random_map` or `.filter`."""

from collections.abc import Callable
from typing import Any

from loadax.errors import ArgumentError
from loadax.sources.library import comes_from

_CLASSES = ("Map", "RandomMap", "TfRandomMap", "Filter", "MapWithIndex", "Batch")
_REMEDIES = {
    "filter": "pass it to data.filter",
    "map": "pass it to data.map",
    "random_map": "pass it to data.map",
    "np_random_map": "pass it to data.map",
    "map_with_index": "pass a function of an example and its row: data.map(fn, with_index=True)",
    "flat_map": "apply it in Grain, to a dataset that loadax.from_grain opens",
    "batch_size": "the Dataloader batches: loadax.Dataloader(data, batch_size=8)",
}


def map_function(given: Any, rng: bool) -> tuple[Any, bool]:
    """The function that `map` applies, and whether it gets a generator: an object's `.random_map` always does.

    Raises:
        ArgumentError: when it is a transform of another kind; says what to write.
    """
    _refuse_class(given, "map", "map", "random_map", "np_random_map")
    if (random_map := _method(given, "random_map", "np_random_map")) is not None:
        return random_map, True
    if (plain := _method(given, "map")) is not None:
        return plain, rng
    refuse_transform(given, "map")
    return given, rng


def filter_function(given: Any) -> Any:
    """The question of `filter`.

    Raises:
        ArgumentError: when it is a transform of another kind; says what to write.
    """
    _refuse_class(given, "filter", "filter")
    method = _method(given, "filter")
    if method is None:
        refuse_transform(given, "filter")
    if method is None:
        return given
    return method


def _method(given: Any, *names: str) -> Callable[..., Any] | None:
    if not _is_transform(given):
        return None
    return next(
        (method for name in names if callable(method := getattr(given, name, None))),
        None,
    )


def _is_transform(given: Any) -> bool:
    """Whether an object is one of Grain's, or like them: neither a function nor data, which has such methods too."""
    return comes_from(given, "grain.transforms", *_CLASSES) or not (
        callable(given) or _is_data(given)
    )


def _is_data(given: Any) -> bool:
    return any(
        hasattr(given, name) for name in ("__len__", "__getitem__", "__iter__")
    )


def _refuse_class(given: Any, verb: str, *methods: str) -> None:
    """Refuses a class of transforms, which would be called in place of its method."""
    if (
        isinstance(given, type)
        and not _is_data(given)
        and any(hasattr(given, name) for name in methods)
    ):
        raise ArgumentError(
            f"fn={given.__name__} is a class with a method "
            f"{next(name for name in methods if hasattr(given, name))}; pass an "
            f"instance of it: {verb}({given.__name__}(…))"
        )


def refuse_transform(given: Any, verb: str) -> None:
    """Refuses a transform that a verb can't apply.

    Raises:
        ArgumentError: says what to write.
    """
    if _is_transform(given):
        for name, remedy in _REMEDIES.items():
            if hasattr(given, name):
                raise ArgumentError(
                    f"fn={given!r:.100} has {name}, and {verb}() can't apply that; "
                    f"{remedy}"
                )
