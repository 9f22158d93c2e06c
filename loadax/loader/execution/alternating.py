"""AlternatingProducer: batches of several shapes in turn, as with buckets."""

from collections.abc import Callable, Mapping
from typing import final

from loadax.loader.execution.producer import BatchProducer


@final
class AlternatingProducer:
    """Reads steps of several shapes: each by the producer of its shape, which share an executor.

    Args:
        producers: Producer of each shape.
        shape_of: Function of a step: its shape.
    """

    most_steps = 1

    def __init__(
        self, producers: Mapping[int, BatchProducer], shape_of: Callable[[int], int]
    ):
        self._producers = producers
        self._shape_of = shape_of
        self._used = used = [*producers.values()]
        self.executor = used[0].executor
        self.end = used[0].end
        self.to_accelerator = used[0].to_accelerator
        self.places = used[0].places
        self.batch_rows = used[0].batch_rows
        self.probed = max(producer.probed for producer in used)
        self.rows_per_step = max(producer.rows_per_step for producer in used)
        self.bytes_per_step = max(producer.bytes_per_step for producer in used)

    def of(self, step: int) -> BatchProducer:
        """The producer of a step."""
        return self._producers[self._shape_of(step)]

    def prepare(self, threads: int) -> None:
        for producer in self._used:
            producer.prepare(threads)

    def close(self) -> None:
        for producer in self._used:
            producer.close()
