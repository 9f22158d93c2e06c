"""Report: whether the loader is the bottleneck, in a sentence, from measured statistics."""

import math
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from jax.sharding import Mesh

from loadax.core.formatting import count_text, percent_text, short_name, size_text
from loadax.loader.batch_spec import BatchSpec
from loadax.loader.metrics.stats import STAGES, Stats
from loadax.reader import Reader

if TYPE_CHECKING:
    from loadax.loader.reports.run_record import Snapshot

# share of the time that training may wait before the loader counts as a bottleneck
_NOTHING = 0.02
# fewer steps in less time are too noisy
_FEWEST_STEPS = 10
_LEAST_SECONDS = 1.0
_MOST_OF_IT = 0.5
_NARROW = 2  # bytes per element
# Share of reading that waits for storage. Others may wait for a chunk that one thread requests.
_STORAGE = 0.25
_SATURATED = 0.9  # of the cores
_CROWDED = 1.5  # load per core
_WAITS = 0.5  # a stage mostly waits if its CPU time is below this share of its time
_SLEEPS = 0.1  # below this share, it could not use more CPU even on an idle machine
# busy cores of threads that hold the GIL in turn
_ONE = 0.4
_NOT_TWO = 1.25
# cores: from here on, Python code on threads slows down the training step
_SLOWS = 0.1
_ALONE = "measure the step alone: reuse one batch"
_WORK = {
    "read": "reading the source",
    "assemble": "laying rows out for the devices",
    "place": "placing on the devices",
}


class LoaderInfo(NamedTuple):
    """Properties of a loader that the advice of a report depends on.

    Args:
        maps: Names of the user's functions.
        python_source: Whether the user's Python code reads rows, which may hold the GIL.
        wide: Whether most bytes that are copied to the devices have dtypes that could be narrower.
    """

    maps: tuple[str, ...] = ()
    python_source: bool = False
    wide: bool = False


def loader_info(
    reader: Reader,
    batch: BatchSpec,
    mesh: Mesh | None,
    cached: bool,
) -> LoaderInfo:
    """The properties of a loader; `cached`: all rows are in device memory; `mesh` None: batches are not placed."""
    copied = (
        not cached
        and mesh is not None
        and any(device.platform != "cpu" for device in mesh.local_devices)
    )
    maps = tuple(short_name(row_map.function) for row_map in reader.maps)
    return LoaderInfo(maps, reader.source.traits.runs_python, copied and wide(batch))


def wide(batch: BatchSpec) -> bool:
    """Whether most bytes of a batch are in elements of more than two bytes."""
    sizes = [
        (leaf.dtype.itemsize, leaf.dtype.itemsize * math.prod(leaf.spec.shape))
        for leaf in batch.leaves
    ]
    return sum(size for item, size in sizes if item > _NARROW) > _MOST_OF_IT * sum(
        size for _, size in sizes
    )


@final
@dataclass(frozen=True, repr=False)
class Report:
    """Whether training waits for data, what the loader is busy with, and what to do. `str()` is one sentence.

    Attributes:
        verdict: The sentence.
        waited: Share of its time that training waited, from the third step on; None if there are too few steps.
        bottleneck: Stage with most of the loader's time, "read", "transform", "assemble" or "place"; or "memory", if
            `prefetch_bytes` limits reading ahead. None if the loader is not the bottleneck, or it is unknown.
        advice: What to try; None if nothing can be gained.
        shares: Shares of the loader's work, by stage, from the third step on.
        step_seconds: Seconds per step, waiting and training.
        stats: Measurements.
        look: Where to see more, appended by `str()`.
        hosts: Which host waits longest for data, if that was asked for; also appended.
        snapshot: Events of the run for `save`; None if the report was not made by an iterator.
    """

    verdict: str
    waited: float | None
    bottleneck: str | None
    advice: str | None
    shares: dict[str, float]
    step_seconds: float
    stats: Stats
    look: str | None = None
    hosts: str | None = None
    snapshot: "Snapshot | None" = field(default=None, compare=False)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Saves the run as a page or as data.

        The page is one file that needs no network: the sentence of the report, waits, throughput, ready batches and
        memory over the whole run, a timeline of all threads and workers that zooms, and the slowest reads with their
        rows and files. `loadax report run.json` makes the page of saved data, and one page of several hosts.

        Args:
            path: Name of a local `.html` or `.json` file.

        Raises:
            ArgumentError: If the name has another suffix, the file can't be written, or the report was not made by an
                iterator.
            UnsupportedError: If vl-convert-python is not installed, which a page needs.

        Examples:
            >>> import numpy as np
            >>> from loadax import Dataloader
            >>> batches = iter(Dataloader(np.arange(64), batch_size=8))
            >>> for batch in batches:
            ...     pass
            >>> batches.report().save("run.html")
        """
        from loadax.loader.reports.saving import save_report

        save_report(self, path)

    def _repr_html_(self) -> str | None:
        """The page in a notebook; None where vl-convert-python is not installed: the sentence alone."""
        from loadax.loader.reports.saving import framed_report

        return framed_report(self)

    def __str__(self) -> str:
        masked = (
            f"{self.stats.masked:,} of {count_text(self.stats.rows, 'row')} can't "
            "be read and are masked"
        )
        notes = masked if self.stats.masked else None, self.stats.remote_text
        parts = self.verdict, *notes, self.look, self.hosts
        return "; ".join(part for part in parts if part is not None)

    __repr__ = __str__


def report(stats: Stats, loader: LoaderInfo | None = None) -> Report:
    """Reports on a run.

    Args:
        stats: Measurements of an iterator.
        loader: Properties of the loader. None: unknown.

    Examples:
        >>> from loadax import Stats
        >>> from loadax.loader.reports.bottleneck import report
        >>> fast = Stats(steps=102, measured=100, waited=0.004, trained=0.996)
        >>> print(report(fast))
        training waited 0.4% of the time: the loader is not the bottleneck
    """
    loader = loader or LoaderInfo()
    work = stats.settled()
    seconds = {stage: getattr(work, stage) for stage in STAGES}
    gil_bound = (work.transform > 0 or loader.python_source) and _one_at_a_time(work)
    if gil_bound:
        weights = _running(work, seconds)
    else:
        weights = seconds
    shares = {
        stage: weight / (sum(weights.values()) or 1.0)
        for stage, weight in weights.items()
    }

    def verdict(
        sentence: str,
        share: float | None,
        stage: str | None = None,
        advice: str | None = None,
        look: str | None = None,
    ) -> Report:
        return Report(
            sentence, share, stage, advice, shares, stats.step_seconds, stats, look
        )

    if (
        stats.measured < _FEWEST_STEPS
        and stats.waited + stats.trained < _LEAST_SECONDS
    ):
        if stats.steps:
            first = f"; the first batch took {stats.first:.2f} s"
        else:
            first = ""
        return verdict(f"too few steps to tell ({stats.steps}{first})", None)
    share = stats.waited_share
    waited = f"training waited {percent_text(share)} of the time"
    if share < _NOTHING:
        slowing = _slowing(work, loader)
        if slowing is None:
            return verdict(
                f"{waited}: the loader is not the bottleneck{_first(stats)}", share
            )
        stage, cores = slowing
        advice = f"try worker_type='process', or {_ALONE}"
        busy = (
            f"{_what(stage, loader)} {_verb('keep', stage, loader)} "
            f"{percent_text(cores)} of a core busy on threads"
        )
        slows = f"{busy}: if it is Python code, it slows the step itself"
        return verdict(
            f"{waited}, but {slows}; {advice}{_first(stats)}", share, stage, advice
        )
    # Threads that compete for the GIL finish their pieces all at once, which is not a pause.
    if (
        stats.measured >= _FEWEST_STEPS
        and stats.longest > _MOST_OF_IT * stats.waited
        and not gil_bound
    ):
        once = (
            f"{percent_text(stats.longest / stats.waited)} of that once, at step "
            f"{stats.longest_step}"
        )
        pause = f"{once} ({stats.longest:.2f} s): a pause, not the loader's speed"
        return verdict(
            f"{waited}, {pause}",
            share,
            look="look at what ran then with it.timeline('run.json')",
        )
    if work.no_room > _MOST_OF_IT * work.wait:
        advice = f"pass prefetch_bytes of more than {size_text(stats.prefetch_bytes)}"
        idle = "workers are idle, because there is no room to read ahead"
        return verdict(f"{waited}: {idle}; {advice}", share, "memory", advice)
    stage = max(shares, key=lambda stage: shares[stage])
    finding, advice = _advice(work, stage, seconds[stage], loader)
    takes = (
        f"{_what(stage, loader)} {_verb('take', stage, loader)} "
        f"{percent_text(shares[stage])} of the work"
    )
    return verdict(
        f"{waited}: {takes} {_workers_text(stats)}{finding}; {advice}{_first(stats)}",
        share,
        stage,
        advice,
    )


def _first(stats: Stats) -> str:
    """Remark on a first batch that took longer than all measured steps."""
    if stats.first < max(0.1, stats.waited + stats.trained):
        return ""
    return (
        f" (but the first batch took {stats.first:.2f} s, longer than all other "
        "steps together)"
    )


def _what(stage: str, loader: LoaderInfo) -> str:
    maps = loader.maps
    if stage != "transform":
        return _WORK[stage]
    if not maps:
        return "the maps' work"
    if len(maps) == 1:
        return f"map {maps[0]}"
    return f"the maps {', '.join(maps)}"


def _verb(
    verb: str,
    stage: str,
    loader: LoaderInfo,
) -> str:
    if stage == "transform" and len(loader.maps) > 1:
        return verb
    return f"{verb}s"


def _workers_text(stats: Stats) -> str:
    """Text such as `on 2 threads`."""
    if stats.workers == 0:
        return "on the training thread"
    kinds = {
        "process": ("process", "processes"),
        "remote": ("remote worker at most", "remote workers at most"),
    }
    one, more = kinds.get(stats.worker_type, ("thread", "threads"))
    return f"on {stats.workers} {one if stats.workers == 1 else more}"


def _advice(
    stats: Stats,
    stage: str,
    seconds: float,
    loader: LoaderInfo,
) -> tuple[str, str]:
    """Finding about a stage, to follow "takes 81% of the work", and advice."""
    workers = stats.workers
    at_work = stats.at_work
    cores = stats.cores
    running = {"read": stats.read_cpu, "transform": stats.transform_cpu}.get(
        stage, seconds
    ) / (seconds or 1.0)
    if stats.worker_type == "process":
        in_children = _at_work(stats)
    else:
        in_children = 0.0
    if stats.elapsed:
        busy = (stats.cpu + in_children) / stats.elapsed
    else:
        busy = 0.0
    # The load average includes processes that wait for a disk, such as the loader's own workers.
    load = stats.load - (at_work if stage == "read" else 0)
    less = {
        "transform": f"make {_what(stage, loader)} faster, or keep its results: "
        "data.map(fn).cache(path) before shuffle()",
        "read": "write the data to a store that reads faster",
    }.get(stage, "keep the data in the dtypes that batches have")
    # Condition, finding, advice: the first rule whose condition is true applies.
    rules = (
        (
            workers == 0,
            "",
            "leave num_workers out, so that it is done while training goes on",
        ),
        (
            stage == "place" and stats.prefetch == 0,
            ", when it is asked for",
            "leave prefetch out, so that batches are placed ahead",
        ),
        (
            stage == "place" and loader.wide,
            "",
            (
                "give the devices fewer bytes: rows as uint8 or uint16, made floats by "
                "the training step"
            ),
        ),
        (stage == "place", "", _ALONE),
        (
            stats.worker_type == "remote",
            "",
            "start more workers, and raise num_workers if you pass it",
        ),
        (
            busy > _SATURATED * cores,
            f"; {_all_cores(cores)} busy",
            less,
        ),
        (
            stage in _python_stages(loader) and _one_at_a_time(stats),
            ", of which one at a time runs, as code that holds the GIL does",
            "try worker_type='process'",
        ),
        (
            stage == "read"
            and running < _WAITS
            and stats.storage > _STORAGE * seconds,
            _storage_text(stats, seconds),
            _storage_advice(stats),
        ),
        (
            at_work < stats.tried,
            f" ({at_work} used: {stats.tried} were less than 10% faster)",
            less,
        ),
        # A stage with hardly any CPU time does not wait for a core.
        (
            _SLEEPS < running < _WAITS and load > _CROWDED * cores,
            f"; {_all_cores(cores)} busy with other work too",
            "give the loader its own cores",
        ),
        (
            at_work < workers,
            f" ({at_work} used so far)",
            f"try num_workers={workers}",
        ),
        (
            running < _WAITS,
            f" and mostly waits ({percent_text(running)} of that is processor time)",
            f"try num_workers={2 * workers}",
        ),
        (
            workers < cores,
            f", and the machine has {count_text(cores, 'core')}",
            f"try num_workers={cores}",
        ),
        (True, "", less),
    )
    return next((finding, advice) for holds, finding, advice in rules if holds)


def _all_cores(cores: int) -> str:
    if cores == 1:
        return "the only core is"
    return f"all {count_text(cores, 'core')} are"


def _storage_text(stats: Stats, seconds: float) -> str:
    share = percent_text(stats.storage / (seconds or 1.0))
    if stats.refused:
        refused = f", {count_text(stats.refused, 'request')} refused"
    else:
        refused = ""
    return (
        f", {share} of it waiting for requests to storage ({stats.in_flight} in flight "
        f"now{refused})"
    )


def _storage_advice(stats: Stats) -> str:
    if stats.refused:
        return (
            "ask who runs the storage for more requests a second, or read more bytes by "
            "each: loader.explain() counts them"
        )
    return (
        "keep the data in storage that is nearer, or on a local disk; loader.explain() "
        "counts requests and bytes"
    )


def _python_stages(loader: LoaderInfo) -> tuple[str, ...]:
    """Stages whose code may hold the GIL."""
    if loader.python_source:
        return ("read", "transform")
    return ("transform",)


def _slowing(stats: Stats, loader: LoaderInfo) -> tuple[str, float] | None:
    """The stage that may slow down the training step itself by holding the GIL, and its CPU time in cores.

    Training does not wait for a loader that is far enough ahead. But while a thread of the loader runs Python code, the
    training thread can't.
    """
    if (
        stats.worker_type != "thread"
        or stats.workers == 0
        or not stats.active
        or not _has_gil()
    ):
        return None
    cores = {
        stage: getattr(stats, f"{stage}_cpu") / stats.active
        for stage in _python_stages(loader)
    }
    stage = max(cores, key=lambda stage: cores[stage])
    # Code that holds the GIL keeps at most one core busy.
    if cores[stage] > _SLOWS and sum(cores.values()) < _NOT_TWO:
        return (stage, min(1.0, cores[stage]))
    return None


def _one_at_a_time(stats: Stats) -> bool:
    """Whether all threads together keep about one core busy, as code that holds the GIL does."""
    if stats.active:
        together = _at_work(stats) / stats.active
    else:
        together = 0.0
    return (
        stats.worker_type == "thread"
        and stats.workers > 1
        and _has_gil()
        and _ONE < together < _NOT_TWO
    )


def _running(stats: Stats, seconds: dict[str, float]) -> dict[str, float]:
    """Seconds of the stages without waiting for the GIL, which may occur in any stage."""
    took = stats.read + stats.transform
    ran = stats.read_cpu + stats.transform_cpu
    if took:
        part = min(1.0, ran / took)
    else:
        part = 1.0
    others = {stage: seconds[stage] * part for stage in ("assemble", "place")}
    return {"read": stats.read_cpu, "transform": stats.transform_cpu, **others}


def _at_work(stats: Stats) -> float:
    """CPU seconds of all workers."""
    return stats.read_cpu + stats.transform_cpu + stats.assemble


def _has_gil() -> bool:
    # there since Python 3.13
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
