"""Numbers of a run by name, as dashboards get them: `metrics()`, Prometheus and OpenTelemetry share these."""

from collections.abc import Callable
from typing import NamedTuple, final

from loadax.loader.metrics.stats import STAGES, Stats


class Metric(NamedTuple):
    """One number of a run.

    Args:
        name: Name without a prefix; it ends in the unit, seconds or bytes, unless it is a count.
        text: Meaning, in a sentence.
        value: Function of the statistics.
    """

    name: str
    text: str
    value: Callable[[Stats], float]


# These grow from the start of the iterator on.
TOTALS = (
    Metric("steps", "Batches delivered.", lambda stats: stats.steps),
    Metric(
        "batch_rows",
        "Rows of the global batches delivered, without padding: the same on all hosts.",
        lambda stats: stats.batch_rows,
    ),
    Metric("rows", "Rows that this process read.", lambda stats: stats.rows),
    Metric(
        "masked_rows",
        "Rows that could not be read, and are masked.",
        lambda stats: stats.masked,
    ),
    Metric(
        "bytes",
        "Bytes of these rows, as placed on the devices.",
        lambda stats: stats.bytes,
    ),
    Metric(
        "refused_requests",
        "Requests that storage refused, since there were too many.",
        lambda stats: stats.refused,
    ),
    Metric(
        "wait_seconds",
        "Seconds that training waited for data.",
        lambda stats: stats.wait,
    ),
    Metric(
        "train_seconds",
        "Seconds of training steps, from the third step on.",
        lambda stats: stats.trained,
    ),
    Metric(
        "cpu_seconds",
        "CPU seconds of this process, including training.",
        lambda stats: stats.cpu,
    ),
)
# Values of now.
GAUGES = (
    Metric(
        "ready_batches",
        "Placed batches ready for training.",
        lambda stats: stats.ready,
    ),
    Metric(
        "requests_in_flight",
        "Requests to storage that have no answer yet.",
        lambda stats: stats.in_flight,
    ),
    Metric(
        "workers",
        "Threads or processes that read ahead.",
        lambda stats: stats.workers,
    ),
    Metric(
        "first_batch_seconds",
        "Seconds until the first batch.",
        lambda stats: stats.first,
    ),
    Metric(
        "longest_wait_seconds",
        "The longest wait from the third step on.",
        lambda stats: stats.longest,
    ),
)
STAGE_TEXT = "Seconds of work, summed over workers."
STEP_TEXT = "Index of the next step of the run."


@final
class Rates:
    """Rates between the batches that were the latest ones at two calls of `metrics()`."""

    def __init__(self) -> None:
        self._since = Stats()
        self._until = Stats()

    def at(self, stats: Stats) -> dict[str, float]:
        """The rates up to these statistics; the same as before if no batch was delivered since."""
        if stats.steps != self._until.steps:
            self._since = self._until
            self._until = stats
        steps = self._until.steps - self._since.steps
        seconds = self._until.active - self._since.active
        waited = self._until.wait - self._since.wait
        rows = self._until.batch_rows - self._since.batch_rows
        return {
            "step_seconds": seconds / max(steps, 1),
            "rows_per_second": rows / (seconds or 1.0),
            "waited_share": waited / (seconds or 1.0),
        }


def flat_metrics(stats: Stats, step: int, rates: Rates) -> dict[str, float]:
    """All numbers by names such as `loadax/wait_seconds`."""
    numbers: dict[str, float] = {"step": step}
    numbers.update(rates.at(stats))
    for metric in (*GAUGES, *TOTALS):
        numbers[metric.name] = metric.value(stats)
    for stage in STAGES:
        numbers[f"{stage}_seconds"] = getattr(stats, stage)
    return {f"loadax/{name}": float(number) for name, number in numbers.items()}
