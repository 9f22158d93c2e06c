"""Writes fields of a simulated atmosphere to zarr, and learns to forecast them, with latitude sharded over devices.

    python examples/fields.py

A tracer such as smoke drifts in a wind over a map of 64 latitudes x 64 longitudes; the model sees tracer and wind, and
predicts the tracer a little later. The samples are written to a zarr 3 store in a temporary folder. On a mesh of 2 x 4
devices, `P("data", "space")` shards a batch by rows over "data" and by bands of latitude over "space". On a cluster, a
host reads only the bands of its own devices, from the chunks that contain them.

It ends like this, after about 12 seconds on two cores; an error of 1 is that of forecasting no change:

    epoch 8: error 0.0506
    error 0.0378 on 64 held-out samples
    training waited 0.004 s of 7.0 s for data (0.1%)

By default it uses virtual CPU devices. For accelerators: `JAX_PLATFORMS=cuda python examples/fields.py`.
"""

import os

# Before JAX is imported, which reads them once. What the user has set stays.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")

import argparse
import math
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tensorstore as ts
from flax import nnx
from jax.sharding import AxisType, PartitionSpec as P
from numpy.typing import NDArray
from tqdm import tqdm

import loadax

SIZE = 64  # latitudes, and longitudes
BAND = 16  # latitudes of a chunk
SHARD = 64  # samples of a shard, which is one file
HELD_OUT = 64  # samples to evaluate on
GOOD_ENOUGH = 0.2  # error relative to forecasting no change, above which this script fails

Fields = NDArray[np.float32]


def make_samples(count: int, rng: np.random.Generator) -> dict[str, Fields]:
    """Tracers in winds along a channel: walls in the north and south, periodic from west to east.

    Returns:
        `field`, (count, latitude, longitude, 3): tracer, and how far the wind blows to the east and north until the
        forecast; `later`, (count, latitude, longitude, 1): the tracer then.
    """
    y = (np.arange(SIZE, dtype=np.float32)[:, None] + 0.5) * np.pi / SIZE
    x = np.arange(SIZE, dtype=np.float32)[None, :] * 2 * np.pi / SIZE
    east, north, now, later = np.zeros((4, count, SIZE, SIZE), np.float32)

    def draw(scale: float) -> tuple[Fields, Fields]:
        """Amplitudes and phases of one wave, one for each sample."""
        amplitude = rng.normal(0, scale, (count, 1, 1)).astype(np.float32)
        return amplitude, rng.uniform(0, 2 * np.pi, (count, 1, 1)).astype(np.float32)

    # The wind follows a stream function, a sum of waves that vanish at the walls: so it blows along walls, and never
    # into them.
    for k, m in [(0, 1), (1, 1), (2, 1), (1, 2)]:
        amplitude, phase = draw(0.04)
        east -= amplitude * m * np.cos(m * y) * np.cos(k * x + phase)
        north -= amplitude * k * np.sin(m * y) * np.sin(k * x + phase)
    # The later tracer at a point is the current tracer upwind of it.
    for k, m in [(1, 1), (2, 3), (3, 2), (4, 4), (5, 1), (2, 6)]:
        amplitude, phase = draw(1 / np.hypot(k, m))
        now += amplitude * np.cos(m * y) * np.cos(k * x + phase)
        later += amplitude * np.cos(m * (y - north)) * np.cos(k * (x - east) + phase)
    return {"field": np.stack([now, east, north], axis=-1), "later": later[..., None]}


def write_store(folder: Path, samples: dict[str, Fields]) -> None:
    """Writes each array as zarr 3.

    Shards of many samples, in which each band of latitudes is a chunk that can be read alone.
    """
    folder.mkdir()
    # TensorStore writes arrays, but no groups
    (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    for name, values in samples.items():
        layout = ts.ChunkLayout(
            write_chunk_shape=[SHARD, *values.shape[1:]], read_chunk_shape=[1, BAND, SIZE, values.shape[-1]]
        )
        spec = {"driver": "zarr3", "kvstore": (folder / name).as_uri()}
        store = ts.open(spec, create=True, dtype=values.dtype, shape=values.shape, chunk_layout=layout).result()
        store.write(values).result()


class Forecaster(nnx.Module):
    """Adds to the tracer products of what two convolutions see: advection is wind times slope."""

    def __init__(self, rngs: nnx.Rngs, width: int = 16):
        self.look = nnx.Conv(3, 2 * width, (5, 5), padding="VALID", rngs=rngs)
        self.combine = nnx.Conv(width, 1, (1, 1), kernel_init=nnx.initializers.zeros, rngs=rngs)

    def __call__(self, field: jax.Array) -> jax.Array:
        """(B, latitude, longitude, 3) -> (B, latitude, longitude, 1)."""
        seen = self.look(around(field * jnp.array([1.0, 10.0, 10.0]), reach=2))
        left, right = jnp.split(seen, 2, axis=-1)
        return field[..., :1] + self.combine(left * right)


def around(field: jax.Array, reach: int) -> jax.Array:
    """Pads a field by `reach` points: periodic from west to east, and mirrored at the walls.

    Latitude is sharded over devices; XLA lets neighbours exchange the edges of their bands.
    """
    field = jnp.pad(field, ((0, 0), (0, 0), (reach, reach), (0, 0)), mode="wrap")
    return jnp.pad(field, ((0, 0), (reach, reach), (0, 0), (0, 0)), mode="symmetric")


def forecast_error(model: Forecaster, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean squared error of the forecast, relative to that of forecasting no change."""
    missed = jnp.mean((model(batch["field"]) - batch["later"]) ** 2)
    return missed / jnp.mean((batch["field"][..., :1] - batch["later"]) ** 2)


@nnx.jit
def train_step(model: Forecaster, optimizer: nnx.Optimizer[Forecaster], batch: dict[str, jax.Array]) -> jax.Array:
    """One step on one global batch; returns its error."""
    error, gradients = nnx.value_and_grad(forecast_error)(model, batch)
    optimizer.update(model, gradients)
    return error


evaluate = nnx.jit(forecast_error)


def show_bands(field: jax.Array) -> None:
    """Prints which part of a batch each device holds."""
    print(
        f"a batch of fields is {field.shape}, {field.nbytes >> 10} KiB; "
        "each device holds its rows and its band of latitudes"
    )
    for shard in field.addressable_shards:
        cuts = [cut.indices(size) for cut, size in zip(shard.index, field.shape, strict=True)]
        (row, end_row, _), (south, north, _) = cuts[:2]
        print(
            f"  {shard.device}: rows {row:2} to {end_row:2}, latitudes {south:2} to {north:2}, "
            f"{shard.data.nbytes >> 10} KiB"
        )


def train(store: Path, options: argparse.Namespace) -> float:
    """Trains on the current mesh; returns the error on held-out samples."""
    data = loadax.from_zarr(store)
    train_data, held_out = data[:-HELD_OUT], data[-HELD_OUT:]
    bands = P("data", "space")
    loader = loadax.Dataloader(
        train_data.shuffle(options.seed),
        batch_size=16,
        partition={"field": bands, "later": bands},
        num_epochs=options.epochs,
    )
    model = Forecaster(nnx.Rngs(options.seed))
    optimizer = nnx.Optimizer(model, optax.adam(optax.cosine_decay_schedule(3e-3, len(loader))), wrt=nnx.Param)
    show_bands(loader[0]["field"])

    waited = elapsed = 0.0
    for epoch in loader.epochs():
        bar = tqdm(epoch, desc=f"epoch {epoch.number + 1}", unit="step", mininterval=0.5, leave=False)
        error = float(np.mean([float(train_step(model, optimizer, batch)) for batch in bar]))
        print(f"epoch {epoch.number + 1}: error {error:.4f}")
        waited, elapsed = epoch.stats().wait, epoch.stats().elapsed

    evaluation = loadax.Dataloader(held_out, batch_size=16, partition={"field": bands, "later": bands})
    error = float(np.mean([float(evaluate(model, batch)) for batch in evaluation]))
    print(f"error {error:.4f} on {len(held_out)} held-out samples")
    print(f"training waited {waited:.3f} s of {elapsed:.1f} s for data ({waited / elapsed:.1%})")
    return error


def main() -> int:
    """Runs what the command line asks for; returns the exit status."""
    summary, _, story = (__doc__ or "").partition("\n\n")
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=summary, epilog=story, formatter_class=form)
    parser.add_argument("--epochs", type=int, default=8, help="how often every sample is seen (default 8)")
    parser.add_argument("--samples", type=int, default=512, help="how many are made (default 512, 29 MB)")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the samples, the order and the first weights (default 0)"
    )
    options = parser.parse_args()
    if options.epochs < 1 or options.samples < 2 * HELD_OUT:
        parser.error(f"--epochs {options.epochs} --samples {options.samples}: pass at least 1 and {2 * HELD_OUT}")

    devices = jax.device_count()
    space = math.gcd(devices, 4)  # 2 x 4 on 8 devices
    mesh = jax.make_mesh((devices // space, space), ("data", "space"), axis_types=(AxisType.Auto,) * 2)
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        store = Path(folder, "atmosphere.zarr")
        write_store(store, make_samples(options.samples, np.random.default_rng(options.seed)))
        error = train(store, options)
    return 0 if error <= GOOD_ENOUGH else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        sys.exit(130)
