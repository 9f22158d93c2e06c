"""Process of one contestant: reads a command per line from stdin, and replies with a line of JSON on stdout.

Started by turns.py, with the names of the contestant and of the workload, its folder, and "quick" or "full".
"""

import gc
import hashlib
import itertools
import json
import logging
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO, final

_FEWEST = 3  # minimum number of batches in a lead-in and in a timed window
_LONGEST = 8.0  # maximum number of seconds for first batches


@final
class Measured:
    """Implementation of the commands, which wait for every batch."""

    def __init__(self, workload: Any, folder: Path, opener: Callable[..., Iterator[Any]]):
        import jax  # not above: worker processes of some peers import this file, and need no JAX

        self._wait: Callable[[Any], Any] = jax.block_until_ready
        self._workload, self._folder, self._open = workload, folder, opener
        self._batches: Any = None

    def ready(self) -> str:
        """Replies once the process is ready."""
        return str(self._workload.name)

    def first(self, times: int) -> dict[str, Any]:
        """Seconds to the first batch of a new iterator: the first time in the process, and the median of later ones."""
        seconds: list[float] = []
        while len(seconds) < 2 or (len(seconds) <= times and sum(seconds) < _LONGEST):
            seconds.append(self._seconds_to_first())
        return {"cold": seconds[0], "warm": statistics.median(seconds[1:])}

    def resume(self, step: int, times: int) -> dict[str, float]:
        """Median seconds to the first batch from step `step` and from step 0, and of their difference."""
        far, near = [], []
        for _ in range(times):
            far.append(self._seconds_to_first(step))
            near.append(self._seconds_to_first(0))
        differences = [one - other for one, other in zip(far, near, strict=True)]
        return {
            name: statistics.median(seconds) for name, seconds in (("far", far), ("near", near), ("more", differences))
        }

    def check(self, batches: int) -> dict[str, Any]:
        """Compares the first batches with the rows that their contents name.

        Raises:
            ValueError: When a row differs from the source, or is repeated.
        """
        import jax
        import numpy as np

        data, served = self._workload.data(self._folder), []
        figures: dict[str, float] = {}
        stream = self._open()
        for _ in range(min(batches, self._workload.rows // self._workload.batch_size)):
            batch = jax.tree.map(np.asarray, self._wait(next(stream)))
            rows = self._workload.rows_of(batch)
            for name, value in self._workload.compare(batch, data.batch(rows)).items():
                figures[name] = min(value, figures.get(name, value))
            served.append(rows)
        _end(stream)
        rows = np.sort(np.concatenate(served))
        if (np.diff(rows) == 0).any():
            raise ValueError("the first epoch served a row twice")
        return {"rows": len(rows), "digest": hashlib.sha256(rows.tobytes()).hexdigest()[:16], **figures}

    def round(self, seconds: float, lead: float, whole: int = 1) -> dict[str, float]:
        """Takes batches for `lead` seconds, until the queues are steady, and then measures for `seconds`.

        Args:
            seconds: Minimum length of the measurement.
            lead: Seconds of the lead-in.
            whole: Number of batches of which a multiple is timed.
        """
        if self._batches is None:
            self._batches = self._open()
        self._take(lead)
        busy, cpu, trainer = _busy_seconds(), _cpu_seconds(), time.process_time()
        count, elapsed = self._take(seconds, whole)
        trainer, cpu, busy = time.process_time() - trainer, _cpu_seconds() - cpu, _busy_seconds() - busy
        others = min(1.0, max(0.0, busy - cpu) / (elapsed * (os.cpu_count() or 1)))
        rows = count * self._workload.batch_size
        spent = {"seconds": elapsed, "cpu_seconds": cpu, "trainer_seconds": trainer}
        return {"rows": rows, **spent, "memory": _memory(), "others": others}

    def sleep(self, steps: int, seconds: float) -> dict[str, Any]:
        """Measures how long a training step that only sleeps waits for its batch, until it is on the devices.

        Args:
            steps: Number of steps.
            seconds: Seconds that a step sleeps.

        Returns:
            "share" of the time spent waiting, "median" and "most" seconds of a wait; and the same under "floor" for an
            iterator that does nothing: the overhead of the measurement.
        """
        batches = self._open()
        waits = self._waits(batches, steps, seconds)
        batch = next(batches)
        _end(batches)
        return {**waits, "floor": self._waits(itertools.repeat(batch), max(1, steps // 3), seconds)}

    def hour(self, steps: int, seconds: float) -> dict[str, float]:
        """Peak memory in the first sixtieth of `steps` sleeping steps, and in all of them.

        Both include child processes, and exclude memory-mapped files.
        """
        self.end()
        batches, minute = self._open(), max(1, steps // 60)
        peaks = [0, 0]
        for step in range(steps):
            self._wait(next(batches))
            time.sleep(seconds)
            if step % max(1, minute // 50) == 0:
                memory = _memory()
                peaks[1] = max(peaks[1], memory)
                if step < minute:
                    peaks[0] = max(peaks[0], memory)
        _end(batches)
        return {"steps": steps, "minute": peaks[0], "hour": peaks[1]}

    def _seconds_to_first(self, *step: int) -> float:
        began = time.perf_counter()
        batches: Any = self._open(*step)
        self._wait(next(batches))
        seconds = time.perf_counter() - began
        _end(batches)
        del batches
        gc.collect()
        time.sleep(0.05)  # until the threads of the previous iterator end
        return seconds

    def _waits(self, batches: Iterator[Any], steps: int, seconds: float) -> dict[str, float]:
        import jax
        import numpy as np

        loss = self._wait(jax.device_put(np.zeros(1)))
        waits, began = [], 0.0
        for step in range(_FEWEST + steps):
            if step == _FEWEST:
                began = time.perf_counter()
            asked = time.perf_counter()
            batch = self._wait(next(batches))
            if step >= _FEWEST:
                waits.append(time.perf_counter() - asked)
            del batch  # the time to free it is not a wait
            time.sleep(seconds)
            # Waking up takes up to 0.1 ms, and a real training step includes it.
            self._wait(loss)
        share = sum(waits) / (time.perf_counter() - began)
        return {"share": share, "median": statistics.median(waits), "most": max(waits)}

    def _take(self, seconds: float, whole: int = 1) -> tuple[int, float]:
        count, elapsed, began = 0, 0.0, time.perf_counter()
        while elapsed < seconds or count < _FEWEST or count % whole:
            self._wait(next(self._batches))
            count += 1
            elapsed = time.perf_counter() - began
        return count, elapsed

    def end(self) -> None:
        """Closes the open iterator."""
        if self._batches is not None:
            _end(self._batches)
            self._batches = None


def _end(batches: Any) -> None:
    if hasattr(batches, "close"):
        batches.close()


def _family() -> list[Any]:
    import psutil

    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _cpu_seconds() -> float:
    """CPU seconds of this process and its children, including ended ones."""
    ended = os.times()
    children = [times.cpu_times() for times in _family()[1:]]
    return (
        time.process_time()
        + ended.children_user
        + ended.children_system
        + sum(times.user + times.system for times in children)
    )


def _busy_seconds() -> float:
    """CPU seconds of all processes of this machine."""
    user, nice, system, _, _, irq, soft, stolen = map(int, Path("/proc/stat").read_text().split(maxsplit=9)[1:9])
    return (user + nice + system + irq + soft + stolen) / os.sysconf("SC_CLK_TCK")


def _memory() -> int:
    """Bytes of anonymous and shared memory of this process and its children; shared memory counts once."""
    total = 0
    for process in _family():
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue  # the process has ended
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total << 10


def quieted() -> TextIO:
    """Real stdout, for replies; what libraries print goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # loadax would warn about slow reads, since the process is stopped between its turns
    logging.getLogger("loadax").setLevel(logging.ERROR)
    # torch forks by default, and its children leave JAX alone
    warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
    return answers


def serve(answers: TextIO, answer: Callable[..., Any]) -> None:
    """Answers commands from stdin until it ends."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), file=answers, flush=True)


def main() -> None:
    """Executes commands until stdin ends."""
    answers = quieted()
    import jax
    import numpy as np
    from contestants import CONTESTANTS
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from workloads import find

    name, kind, folder, size = sys.argv[1:]
    workload, sharding = (
        find(kind, size == "quick"),
        NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")),
    )
    measured = Measured(workload, Path(folder), CONTESTANTS[kind][name].prepare(workload, Path(folder), sharding))
    serve(answers, lambda do, **arguments: getattr(measured, do)(**arguments))
    measured.end()


if __name__ == "__main__":
    main()
