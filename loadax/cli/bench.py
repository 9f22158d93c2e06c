"""`loadax bench`: measure the throughput of a dataset, and its bottleneck.

Reads a dataset as training would, and shows rows per second, the time to the first batch, how long a training step of a
given length would wait, memory, the bottleneck, and what to change.

examples:
  loadax bench train.zarr --batch-size 256 --shuffle 0 --block chunks
  loadax bench corpus.bin --seq-len 2047 --dtype uint16 --batch-size 64 --shuffle 0 --step 25
      also how long training would wait if a step took 25 ms
  loadax bench photos/ --size 224 --batch-size 128 --map mycode.data:augment --worker-type process
  loadax bench mycode.data:training --batch-size 512
      training() in mycode/data.py returns the loadax.Dataset to train on

{SOURCES}.
Batches are placed on all devices that JAX has here, rows over all of them.
"""

import argparse
import json
import resource
import sys
import time
from typing import Any, NamedTuple

from loadax.cli.functions import import_function
from loadax.cli.options import add_command, add_shuffle_options, add_value, positive, shuffled, spelling
from loadax.cli.source import add_source_options, open_dataset
from loadax.cli.terminal import show
from loadax.core.arguments import takes
from loadax.core.formatting import count_text, size_text
from loadax.dataset import Dataset
from loadax.errors import ArgumentError, ScheduleError
from loadax.redaction import redact

_BATCH_SIZE = 256
_MILLION = 1_000_000
_LIMITS = {
    "read": "reading the source",
    "transform": "the map",
    "assemble": "arranging rows for the devices",
    "place": "placing on the devices",
    "memory": "memory to read ahead",
}


class Throughput(NamedTuple):
    """Throughput for a consumer that only takes batches. Times in seconds."""

    first_batch: float
    seconds: float
    steps: int
    rows_per_second: float
    bytes_per_second: float
    cpu_seconds_per_million_rows: float


def add(commands: Any) -> None:
    """Adds `bench` to the commands."""
    command = add_command(commands, run)
    add_source_options(command)
    add_value(command, "--batch-size", "B", "rows of the global batch (default: 256, or all)")
    add_shuffle_options(command)
    add_value(command, "--map", "MODULE:FUNCTION", "map: a function of an example, and maybe a random generator", str)
    add_value(command, "--num-workers", "N", "workers that read ahead (default: autotuned)")
    command.add_argument(
        "--worker-type", choices=["thread", "process"], default="thread", help="kind of workers (default: thread)"
    )
    add_value(command, "--seconds", "S", "seconds of each measurement (default: 5)", positive, default=5.0)
    add_value(command, "--step", "MS", "milliseconds of a training step (default: 10)", positive, default=10.0)
    command.add_argument("--json", action="store_true", help="print JSON")


def run(options: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        LoadaxError: When an option is invalid, or there is no data.
    """
    import jax

    from loadax.loader.dataloader import Dataloader  # imports JAX, which other commands don't need
    from loadax.loader.reports.bottleneck import workers_text

    before = _peak_memory()
    dataset = shuffled(open_dataset(options), options)
    if options.map is not None:
        function = import_function(options.map, "--map")
        dataset = dataset.map(function, rng=takes(function, 1) is False and takes(function, 2) is True)
    batch_size = _batch_size(dataset, options.batch_size)
    loader = Dataloader(
        dataset, batch_size, num_epochs=None, num_workers=options.num_workers, worker_type=options.worker_type
    )
    throughput, limits = _feed(loader, batch_size, options.seconds, 0.0, options)
    _, stepping = _feed(loader, batch_size, options.seconds, options.step / 1000, options)
    stage: str | None = limits.bottleneck
    if stage is None and limits.waited is None and any(limits.shares.values()):  # too few steps for advice
        stage = max(limits.shares, key=limits.shares.__getitem__)
    results = {
        "source": redact(options.source),
        "batch_size": batch_size,
        **throughput._asdict(),
        "shares": limits.shares,
        "bottleneck": stage,
        "advice": limits.advice,
        "step_seconds": options.step / 1000,
        "waited": stepping.waited,
        "verdict": stepping.verdict,
        "peak_memory": _peak_memory(),
    }
    if options.json:
        show(json.dumps(results, indent=2))
        return 0
    advice = limits.advice or "there were too few steps for advice, so pass more --seconds"
    shares = sorted(limits.shares.items(), key=lambda stage: -stage[1])
    work = ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)
    devices = jax.devices()
    lines = {
        "data": f"{dataset!r}, on {count_text(len(devices), f'{devices[0].platform} device')}",
        "first batch": f"{throughput.first_batch * 1000:.0f} ms after iter(loader)",
        "throughput": f"{throughput.rows_per_second:,.0f} rows/s, {size_text(round(throughput.bytes_per_second))}/s, "
        f"{throughput.steps / throughput.seconds:,.0f} batches/s of {batch_size} rows, nothing between them",
        "processor": f"{throughput.cpu_seconds_per_million_rows:.2f} s a million rows",
        "memory": f"of this process {size_text(_peak_memory())} at its peak, "
        f"{size_text(before)} of it before the data was opened",
        "work": f"{work}, {workers_text(limits.stats)}",
        "what limits it": f"{_LIMITS[stage]}; {advice}" if stage else "nothing that was measured: see below",
        f"steps of {options.step:g} ms": stepping.verdict,
    }
    width = max(map(len, lines)) + 2
    show(*(f"{name:<{width}}{text}" for name, text in lines.items()))
    return 0


def _batch_size(dataset: Dataset, wanted: int | None) -> int:
    """The `wanted` batch size; else 256 rows, or fewer if the dataset is small."""
    import jax

    try:
        rows = len(dataset)
    except ScheduleError:  # the length depends on the batch size
        return wanted or _BATCH_SIZE
    if wanted is None:
        devices = len(jax.devices())
        return max(devices, min(_BATCH_SIZE, rows // devices * devices))
    if wanted > rows:
        raise ArgumentError(f"--batch-size {wanted}: there are only {rows} rows; pass a smaller one")
    return wanted


def _feed(loader: Any, batch_size: int, seconds: float, step: float, options: argparse.Namespace) -> Any:
    """Measures a consumer that sleeps for `step` seconds after each batch.

    Returns:
        Its throughput, and the loader's report with advice in terms of command-line options.
    """
    import jax

    from loadax.loader.reports.bottleneck import report

    _progress(f"steps of {step * 1000:g} ms for {seconds:g} s" if step else f"feeding for {seconds:g} s")
    began, cpu_began = time.perf_counter(), _processor_seconds()
    with iter(loader) as batches:
        jax.block_until_ready(next(batches))
        first = time.perf_counter() - began
        began = time.perf_counter()
        steps = 0
        while (took := time.perf_counter() - began) < seconds:
            jax.block_until_ready(next(batches))
            if step:
                time.sleep(step)
            steps += 1
        measured = batches.report()
    _progress("")
    rows = steps * batch_size
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(loader.spec))  # of a batch
    # The CPU time of worker processes is known only after they end, so it includes the first batch and the read-ahead.
    cpu = (_processor_seconds() - cpu_began) / max(1, measured.stats.rows) * _MILLION
    throughput = Throughput(first, took, steps, rows / took, steps / took * size, cpu)
    return throughput, report(measured.stats, measured.loader, spelling(options))


def _processor_seconds() -> float:
    """CPU time of this process and its ended children, in seconds."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _peak_memory() -> int:
    """Peak resident memory of this process, including shared memory, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _progress(text: str) -> None:
    """Shows a status line, if stderr is a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()
