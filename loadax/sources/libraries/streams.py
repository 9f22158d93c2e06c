"""Opens what other libraries can only iterate over as streams: Hugging Face, Grain, torch, and generator functions."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from loadax.core.arguments import flag, function, integer, takes
from loadax.core.formatting import name_of
from loadax.sources.libraries.batched_streams import batching_verb
from loadax.sources.library import comes_from
from loadax.sources.stream.lane import rows_are_batches
from loadax.sources.stream.source import Origin, StreamSource

_LANES = 128


def open_stream(
    open_lane: Any, lanes: int, spec: Any, batched: bool = False
) -> StreamSource:
    """The stream of a user's function.

    Raises:
        ArgumentError: If it is not a function of a lane and the number of lanes.
    """
    remedy = (
        "a function of a lane and the number of lanes that returns an iterable of "
        "rows"
    )
    lanes = integer("lanes", lanes, 1)
    if isinstance(open_lane, Iterator) or takes(open_lane, 0) is True:
        remedy += (
            "; a function without arguments that yields all rows is one lane: "
            "loadax.as_dataset(function), and not what it returns"
        )
    if takes(open_lane, 3) is True and takes(open_lane, 2) is not True:
        remedy += (
            "; give its third argument a default, or call it epoch: open_lane(lane, "
            "lanes, epoch)"
        )
    with_epoch = "epoch" in _parameters(open_lane)
    if with_epoch and takes(open_lane, 2) is False:
        needed = ["epoch"]
    else:
        needed = []
    opened = function("open_lane", open_lane, remedy, "lane", "lanes", *needed)

    def open_epoch(lane: int, count: int, epoch: int) -> Any:
        if with_epoch:
            return opened(lane, count, epoch=epoch)
        return opened(lane, count)

    origin = Origin(name_of(opened), "loadax.from_stream(open_lane, lanes=…)")
    return StreamSource(
        open_epoch, lanes, spec, origin, batched=flag("batched", batched)
    )


def recognise_stream(data: Any) -> StreamSource | None:
    """The stream of a dataset of another library, or of a generator function. None for anything else.

    Raises:
        ArgumentError: If its rows are batches, as far as the library tells.
    """
    if comes_from(data, "datasets", "IterableDataset"):
        from loadax.sources.tables.huggingface.iterable_datasets import (
            open_huggingface_stream,
        )

        return open_huggingface_stream(data)
    if comes_from(data, "grain", "IterDataset"):
        return _one_lane(data, "a Grain IterDataset")
    if any(
        kind.__name__ == "IterableDataset"
        and str(kind.__module__).startswith("torch.")
        for kind in type(data).__mro__
    ):
        return _one_lane(data, f"a torch {type(data).__name__}")
    if inspect.isgeneratorfunction(data):
        if takes(data, 0) and not takes(data, 2):
            return StreamSource(
                lambda lane, lanes, epoch: data(),  # noqa: ARG005
                1,
                None,
                Origin(name_of(data)),
            )
        return open_stream(data, _LANES, None)
    return None


def _parameters(opened: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(opened).parameters)
    except (TypeError, ValueError):  # a C function without a signature
        return []


def _one_lane(data: Any, name: str) -> StreamSource:
    """The stream of an object that gives its rows again each time that it is iterated over."""
    verb = batching_verb(data)
    if verb:
        raise rows_are_batches(verb)
    return StreamSource(lambda lane, lanes, epoch: iter(data), 1, None, Origin(name))  # noqa: ARG005
