"""Checks how the streams of a dataset can be read."""

from dataclasses import replace
from typing import get_args

from loadax.core.arguments import choice
from loadax.core.formatting import count_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, UnsupportedError
from loadax.loader.options import LoaderOptions, StreamOptions
from loadax.plan.batches import Remainder
from loadax.plan.mix import Mixed
from loadax.plan.order import depth_first
from loadax.plan.stream import StreamOrder
from loadax.sources.stream.source import streams_in


def with_streams(
    options: LoaderOptions,
    dataset: Dataset,
    num_epochs: int | None,
    remainder: Remainder,
    smallest: int,
) -> LoaderOptions:
    """Adds how the streams of a dataset are read, in batches of at least `smallest` rows.

    Raises:
        ArgumentError: If a batch does not show whether all lanes have ended, and the remainder depends on it.
        UnsupportedError: If an option needs random access.
    """
    if options.worker_type == "process" and options.num_workers:
        raise UnsupportedError(
            "worker_type='process': the lanes of a stream are open in this process, "
            "and no other one can read them; leave it out, and do slow work in maps "
            "that release the GIL, or in processes that open_lane starts"
        )
    if options.remote is not None:
        raise UnsupportedError(
            "remote=: the lanes of a stream are open in this process, and workers "
            "elsewhere can't read them; leave it out, and do slow work in processes "
            "that open_lane starts"
        )
    if options.keep_on_device:
        raise UnsupportedError(
            "keep_on_device: a stream has no fixed number of rows; leave it out"
        )
    choice("remainder", remainder, get_args(Remainder))
    if num_epochs is not None and num_epochs < 1:
        raise ArgumentError(
            f"num_epochs={num_epochs}: pass 1 or more, or None for endless epochs"
        )
    endless = num_epochs is None or any(
        isinstance(order, Mixed) and order.stop == "never"
        for order in depth_first(dataset.order)
    )
    if isinstance(dataset.order, StreamOrder):
        lanes = dataset.order.lanes
    else:
        lanes = 0
    if not endless and remainder != "drop" and lanes > smallest:
        call = next(
            stream.origin.call for _, stream in streams_in(dataset.source)
        ).replace("…", str(smallest))
        raise ArgumentError(
            f"remainder={remainder!r}: a batch of {count_text(smallest, 'row')} has "
            f"none of some of the {count_text(lanes, 'lane')}, so it does not tell "
            "whether all lanes have ended; pass remainder='drop', a batch_size of "
            f"at least the number of lanes, or fewer lanes: {call}"
        )
    return replace(
        options, streams=StreamOptions(None if endless else num_epochs, remainder)
    )
