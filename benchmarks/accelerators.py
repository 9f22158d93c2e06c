"""How many accelerators a loader keeps busy, after MLPerf Storage's form: `python benchmarks/accelerators.py`.

An emulated accelerator takes a batch, waits until all of its bytes are there, and sleeps for the time that a step on it
takes. Its utilisation is the time that it slept, divided by all of its time; MLPerf Storage asks for 90 %.
Several accelerators share this machine, each with a loader of its own over its share of the files, as on a host with
several. Models, as in MLPerf Storage: ResNet-50, records of 114,660 bytes, and 3D U-Net, files of 146,600,628 bytes, of
which this measures a 32nd, at an eighth of the rate. All on CPU, from the page cache: bytes are read and stacked, not
decoded, and no accelerator is used. Compute times are those of an A100, for a batch that is as much smaller. loadax,
Grain and torch take turns, each in a process of its own; those that are not installed are left out.
"""

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

import numpy as np
from contestant import quieted, serve
from report import aligned
from turns import environment, machine, started

ENOUGH = 0.9  # utilisation
_LEAD = 3  # steps, not counted


@final
@dataclass(frozen=True)
class Model:
    """A model to feed.

    Args:
        sample: Bytes of an example.
        batch: Examples of a batch.
        seconds: Time of a step.
        files: Number of files.
        examples: Examples of each.
        text: What differs from MLPerf Storage.
    """

    sample: int
    batch: int
    seconds: float
    files: int
    examples: int
    text: str


# An A100 takes 0.435 s for 400 records of ResNet-50, and 0.636 s for 7 files of 3D U-Net.
MODELS = {
    "resnet50": Model(114_660, 50, 0.435 / 8, 4, 400, "batches of 50, an A100's rate"),
    "unet3d": Model(146_600_628 // 32, 7, 0.636 / 4, 112, 1, "files of a 32nd, an eighth of an A100's rate"),
}
_QUICK = {
    "resnet50": Model(4096, 4, 0.004, 2, 16, "small"),
    "unet3d": Model(65_536, 2, 0.004, 8, 1, "small"),
}

Open = Callable[[list[Path], int], Iterator[Any]]


def write(model: Model, kind: str, folder: Path) -> None:
    """Writes noise: ArrayRecord files, or a `.npy` file an example."""
    random = np.random.default_rng(0)
    for number in range(model.files):
        if kind == "unet3d":
            np.save(folder / f"{number:04}.npy", random.integers(0, 256, model.sample, np.uint8))
            continue
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(folder / f"{number:04}.array_record"), "group_size:1,uncompressed")
        for _ in range(model.examples):
            writer.write(random.bytes(model.sample))
        writer.close()


@final
class Examples:
    """The examples of some files, for peers: an object with `__len__` and `__getitem__`."""

    def __init__(self, paths: list[Path], model: Model):
        self._paths, self._model = paths, model
        self._readers: dict[Path, Any] = {}

    def __len__(self) -> int:
        return len(self._paths) * self._model.examples

    def __getitem__(self, index: Any) -> Any:
        file, record = divmod(int(index), self._model.examples)
        path = self._paths[file]
        if path.suffix == ".npy":
            # What np.load reads. It parses Python in the header, which threads of Python 3.11 now and then disturb.
            return np.fromfile(path, np.uint8, offset=path.stat().st_size - self._model.sample)
        if path not in self._readers:
            from array_record.python.array_record_module import ArrayRecordReader

            self._readers[path] = ArrayRecordReader(str(path), "readahead_buffer_size:0,max_parallelism:0")
        return np.frombuffer(self._readers[path].read([record])[0], np.uint8)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Examples, (self._paths, self._model))


def loadax_batches(model: Model) -> Open:
    """Loadax with its defaults; each accelerator is a loader on one device."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    import loadax

    def batches(paths: list[Path], accelerator: int) -> Iterator[Any]:
        if paths[0].suffix == ".npy":
            data = loadax.from_source(Examples(paths, model))
        else:
            data = loadax.from_array_record([str(path) for path in paths], dtype=np.uint8)
        mesh = Mesh(np.array(jax.devices()[accelerator % 8 :][:1]), ("data",))
        sharding = NamedSharding(mesh, PartitionSpec("data"))
        return loadax.Dataloader(data.shuffle(accelerator), model.batch, partition=sharding, num_epochs=None).iterate()

    return batches


def grain_batches(model: Model) -> Open:
    """Grain with its default threads."""
    import grain
    import jax

    def batches(paths: list[Path], accelerator: int) -> Iterator[Any]:
        source: Any = Examples(paths, model)
        rows = grain.MapDataset.source(source).shuffle(seed=accelerator).repeat()
        device = jax.devices()[accelerator % 8]
        for batch in rows.to_iter_dataset().batch(model.batch, drop_remainder=True):
            yield jax.device_put(batch, device)

    return batches


def torch_batches(model: Model) -> Open:
    """Torch with a worker process for each accelerator."""
    import jax
    from torch.utils.data import DataLoader

    def batches(paths: list[Path], accelerator: int) -> Iterator[Any]:
        source: Any = Examples(paths, model)
        loader: Any = DataLoader(
            source,
            model.batch,
            shuffle=True,
            drop_last=True,
            num_workers=1,
            persistent_workers=True,
            collate_fn=np.stack,
        )
        device = jax.devices()[accelerator % 8]
        while True:
            for batch in loader:
                yield jax.device_put(batch, device)

    return batches


LOADERS: dict[str, Callable[[Model], Open]] = {"loadax": loadax_batches, "grain": grain_batches, "torch": torch_batches}


def utilisation(opened: Open, model: Model, folder: Path, accelerators: int, seconds: float) -> dict[str, float]:
    """Share of their time that emulated accelerators compute, and examples a second of all of them.

    Args:
        opened: Function that opens the batches of one accelerator.
        model: What they compute.
        folder: Folder of its files.
        accelerators: Number of accelerators, which are threads that sleep.
        seconds: Time that is measured.
    """
    import jax

    paths = sorted(folder.iterdir())
    shares = [paths[number % len(paths) :: accelerators] or paths for number in range(accelerators)]
    streams = [opened(share, number) for number, share in enumerate(shares)]
    begin, busy, steps = threading.Barrier(accelerators), [0.0] * accelerators, [0] * accelerators
    failed: list[Exception] = []

    def accelerator(number: int) -> None:
        try:
            for _ in range(_LEAD):
                jax.block_until_ready(next(streams[number]))
            begin.wait()
            began = time.perf_counter()
            while (elapsed := time.perf_counter() - began) < seconds:
                jax.block_until_ready(next(streams[number]))
                time.sleep(model.seconds)
                steps[number] += 1
            elapsed = time.perf_counter() - began
            busy[number] = steps[number] * model.seconds / elapsed
        except Exception as error:  # noqa: BLE001  # raised by the main thread
            failed.append(error)
            begin.abort()

    threads = [threading.Thread(target=accelerator, args=(number,)) for number in range(accelerators)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for stream in streams:
        stream.close()  # type: ignore[attr-defined]  # of generators and of loadax
    if failed:
        raise failed[0]
    rate = sum(steps) * model.batch / seconds
    return {"utilisation": round(statistics.fmean(busy), 4), "least": round(min(busy), 4), "examples_s": round(rate, 1)}


def most(measured: dict[str, Any]) -> int:
    """The highest number of accelerators of which every one is busy enough; 0: not even one is."""
    return max((int(count) for count, figures in measured.items() if figures["utilisation"] >= ENOUGH), default=0)


def _serve(name: str, quick: bool) -> None:
    answers = quieted()
    models = _QUICK if quick else MODELS

    def answer(do: str, **arguments: Any) -> Any:
        if do == "ready":
            import jax

            jax.devices()
            return name
        model = models[arguments["model"]]
        return utilisation(
            LOADERS[name](model), model, Path(arguments["folder"]), arguments["accelerators"], arguments["seconds"]
        )

    serve(answers, answer)


def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerators", type=int, nargs="+", help="numbers of accelerators (default: 1 2 4 8 16)")
    parser.add_argument("--seconds", type=float, help="seconds of each measurement (default 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to")
    parser.add_argument("--quick", action="store_true", help="smoke test with little data; ignore its figures")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _serve(options.serve, options.quick)
        return
    models, names = _QUICK if options.quick else MODELS, [name for name in LOADERS if find_spec(name)]
    counts = options.accelerators or ([1, 2] if options.quick else [1, 2, 4, 8, 16])
    seconds = options.seconds or (0.1 if options.quick else 3.0)
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="loadax-benchmark-") as temporary, ExitStack() as stack:
        children = {}
        for name in names:
            command = [sys.executable, __file__, "--serve", name, *(["--quick"] if options.quick else [])]
            children[name] = stack.enter_context(started(name, command, environment()))
            children[name].ask("ready")
        for kind, model in models.items():
            folder = Path(temporary) / kind
            folder.mkdir()
            write(model, kind, folder)
            figures: dict[str, dict[str, Any]] = {name: {} for name in names}
            for count in counts:
                for name in names:
                    # Two in a row were not enough: more accelerators would not be either.
                    if len(figures[name]) > 1 and all(
                        each["utilisation"] < ENOUGH for each in list(figures[name].values())[-2:]
                    ):
                        continue
                    figures[name][str(count)] = children[name].ask(
                        "measure", model=kind, folder=str(folder), accelerators=count, seconds=seconds
                    )
                    print(f"{kind}, {count} accelerators, {name}: {figures[name][str(count)]}", flush=True)
            found[kind] = {
                "text": model.text,
                "loaders": {name: {"measured": figures[name], "most": most(figures[name])} for name in names},
            }
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(), "accelerators": found}, indent=1) + "\n")
    rows = [
        (
            kind,
            name,
            str(loader["most"]),
            *(
                f"{loader['measured'][str(count)]['utilisation']:.0%}" if str(count) in loader["measured"] else ""
                for count in counts
            ),
        )
        for kind, entry in found.items()
        for name, loader in entry["loaders"].items()
    ]
    print(aligned([("model", "loader", "at 90 %", *map(str, counts)), *rows]))


if __name__ == "__main__":
    main()
