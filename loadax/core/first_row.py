"""Whether the source and the maps give the same values when the first row is read a second time.

A row that differs comes from random numbers of the user's own, from the time, or from state that a function keeps.
Then batches are not a function of the dataset and the step.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, final

import numpy as np

from loadax.core.spec import leaf_arrays
from loadax.core.user_object import UserObject
from loadax.core.warn import warn_user
from loadax.protocols import Array, Tree

_Result = TypeVar("_Result")

MOST_SECONDS = 5e-3  # of the first reading, for which there is a second one

_PLAIN = (str, bytes, bool, int, float, complex, type(None), np.generic)
_SEEDS = (
    "torch takes a seed by torch.Generator().manual_seed(int(rng.integers(2**63))), "
    "albumentations by transform.set_random_seed(int(rng.integers(2**32))); see "
    "'Random numbers in maps' in docs/guides/random.md"
)


class Stage(NamedTuple):
    """The maker of a value of the row: the source, or a map.

    Args:
        name: Name for messages.
        remedy: Advice to a user whose code gives other values each time.
        objects: The user's objects and functions that are called.
    """

    name: str
    remedy: str
    objects: Sequence[UserObject]


@final
class RowReading:
    """Copies of the values that the source and the maps gave in one reading of a row, and the time it took."""

    def __init__(self) -> None:
        self._seconds = 0.0
        # For each stage, the leaves; None: they can't be compared.
        self.values: list[list[Any] | None] = []

    @property
    def quick(self) -> bool:
        """Whether the row may be read a second time."""
        return self._seconds <= MOST_SECONDS

    def call(
        self,
        objects: Sequence[UserObject],
        function: Callable[..., _Result],
        *arguments: Any,
    ) -> _Result:
        """Calls what reads or maps the row.

        Args:
            objects: The user's objects that are called, whose time counts. Empty: all of the time counts.
            function: The function.
            arguments: Its arguments.
        """
        began = perf_counter()
        before = _seconds(objects)
        result = function(*arguments)
        # A first call imports and looks up much that a second one does not.
        self._seconds += (
            _seconds(objects) - before if objects else perf_counter() - began
        )
        return result

    def note(self, value: Tree) -> None:
        """Notes the value of the next stage, unless the reading takes long."""
        if self.quick:
            leaves = [_comparable(array) for array in leaf_arrays(value)]
            self.values.append(
                None if any(leaf is None for leaf in leaves) else leaves
            )


def _seconds(objects: Sequence[UserObject]) -> float:
    return sum(each.seconds for each in objects)


def compare(
    first: RowReading,
    again: Callable[[RowReading], object],
    stages: Callable[[], Sequence[Stage]],
    row: int,
) -> None:
    """Reads the row a second time, if the first reading was quick, and warns once if a stage gives other values.

    Args:
        first: The first reading.
        again: Function that reads the row and notes the values.
        stages: Function that lists the stages of the reading, which takes some time.
        row: The row, for the message.
    """
    if not first.quick or not first.values:
        return
    second = RowReading()
    did = "gave other values"
    try:
        again(second)
    except Exception as error:  # noqa: BLE001 - of the user's code, which did not raise it in the first reading
        did = f"raised {type(error).__name__}: {error}"
    is_whole = (
        len(second.values) == len(first.values) and first.values[-1] is not None
    )
    if is_whole and _same(first.values[-1], second.values[-1]):
        return  # what differs is in leaves that the maps leave out
    pairs = enumerate(zip(first.values, second.values, strict=False))
    differing = next(
        (index for index, (one, other) in pairs if not _same(one, other)), None
    )
    if differing is None and len(second.values) < len(first.values) and second.quick:
        differing = len(second.values)
    if differing is not None:
        _warn(_blamed(first.values, stages(), differing), did, row)


def _blamed(
    values: Sequence[list[Any] | None], stages: Sequence[Stage], index: int
) -> Sequence[Stage]:
    """The stage of an index, and those before it whose values could not be compared."""
    begin = index
    while begin and values[begin - 1] is None:
        begin -= 1
    return stages[begin : index + 1]


def _warn(stages: Sequence[Stage], did: str, row: int) -> None:
    objects = [each for stage in stages for each in stage.objects]
    if any(each.told for each in objects):
        return
    for each in objects:
        each.told = True
    names = " or ".join(dict.fromkeys(stage.name for stage in stages))
    warn_user(
        f"{names} {did} when row {row} was read a second time, so another run, a "
        "resume and loader[step] have other values than this run; "
        f"{stages[-1].remedy}; {_SEEDS}"
    )


def _comparable(array: Array) -> Any:
    """A copy of a leaf, to compare with that of another reading. None: objects that can't be compared."""
    if not array.dtype.hasobject:
        return array.copy()
    values = [_value(value) for value in array.reshape(-1).tolist()]
    if any(value is _UNKNOWN for value in values):
        return None
    return (array.shape, values)


_UNKNOWN = object()


def _value(value: Any) -> Any:
    """A value of an object array as it is now: that of a plain one, the bytes of an image. Else `_UNKNOWN`."""
    if isinstance(value, _PLAIN):
        return value
    try:
        return type(value), getattr(value, "size", None), value.tobytes()
    except Exception:  # noqa: BLE001 - any object of the user's
        return _UNKNOWN


def _same(one: Any, other: Any) -> bool:
    """Whether two values are equal, NaN being equal to NaN. Values that can't be compared are taken for equal."""
    if one is None or other is None:
        return True
    if isinstance(one, list | tuple):
        return (
            type(one) is type(other)
            and len(one) == len(other)
            and all(map(_same, one, other))
        )
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and _same_entries(one, other)
        )
    return bool(one == other or (one != one and other != other))  # noqa: PLR0124 - NaN


def _same_entries(one: Array, other: Array) -> bool:
    if one.dtype.names:  # bytes between fields have no value
        return all(_same(one[name], other[name]) for name in one.dtype.names)
    if one.dtype.kind in "fc":
        return np.array_equal(one, other, equal_nan=True)
    return one.tobytes() == other.tobytes()
