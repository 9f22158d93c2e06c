"""JPEGs in tar files beside the same JPEGs in a folder: `python benchmarks/shards.py`.

Both are shuffled whole, decoded to 224x224 and placed by a `Dataloader` with its defaults. They take turns, an
epoch each; printed are images per second, and the ratio of each round.
"""

import argparse
import io
import statistics
import tarfile
import tempfile
import time
from pathlib import Path

import jax
from decoders import photographs

import loadax

BATCH, SHARDS = 64, 4


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=2048, help="number of images (default: 2048)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default: 9)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, options.images)
        readers = {
            "folder": loadax.from_images(folder / "images", 224),
            "tar": loadax.from_webdataset(folder / "shards", decode=True, size=224, progress=False),
        }
        speeds = [{name: run(data) for name, data in readers.items()} for _ in range(1 + options.rounds)][1:]
    for name in readers:
        print(f"{name:8}{statistics.median(speed[name] for speed in speeds):10.0f} images/s")
    ratios = sorted(speed["tar"] / speed["folder"] for speed in speeds)
    print(f"tar / folder: {ratios[0]:.2f} · {statistics.median(ratios):.2f} · {ratios[-1]:.2f} (least, median, most)")


def run(data: loadax.Dataset) -> float:
    """Images per second of an epoch, with the loader's start: what it prefetches must not be read in another's turn."""
    began = time.perf_counter()
    for batch in loadax.Dataloader(data.shuffle(seed=0), BATCH, num_epochs=1):
        jax.block_until_ready(batch)
    return len(data) / (time.perf_counter() - began)


def write(folder: Path, images: int) -> None:
    """Writes the images as files and as members of tar files."""
    contents = photographs()
    for index in range(images):
        path = folder / "images" / f"{index % 10}" / f"{index:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents[index % len(contents)])
    (folder / "shards").mkdir()
    for shard in range(SHARDS):
        with tarfile.open(folder / "shards" / f"{shard:05}.tar", "w") as tar:
            for index in range(shard, images, SHARDS):
                for ending, content in (("jpg", contents[index % len(contents)]), ("cls", b"%d" % (index % 10))):
                    member = tarfile.TarInfo(f"{index:06}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    main()
