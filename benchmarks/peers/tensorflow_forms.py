"""TensorFlow's `tf.data`, with its own operations if it has them, else NumPy through `numpy_function`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax.sharding import NamedSharding
from workloads.base import Workload
from workloads.jpegs import SIZE, Jpegs, label


def gathered(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Arrays that fit into memory, gathered by TensorFlow."""
    data = workload.data(folder)
    arrays = jax.tree.map(tf.constant, data.batch(np.arange(workload.rows)))
    return _placed(
        _batched(workload).map(
            lambda rows: jax.tree.map(lambda array: tf.gather(array, rows), arrays), tf.data.AUTOTUNE
        ),
        sharding,
    )


def batches(workload: Workload, folder: Path, sharding: NamedSharding) -> Any:
    """Whole batches by NumPy."""
    data = workload.data(folder)
    leaves, tree = jax.tree.flatten(data.batch(np.arange(1)))
    read: Callable[[Any], Any] = lambda rows: jax.tree.leaves(data.batch(rows))  # noqa: E731
    dtypes = [leaf.dtype for leaf in leaves]
    dataset = _batched(workload).map(
        lambda rows: jax.tree.unflatten(tree, tf.numpy_function(read, [rows], dtypes, stateful=False)), tf.data.AUTOTUNE
    )
    return _placed(dataset, sharding)


def jpegs(workload: Jpegs, folder: Path, sharding: NamedSharding) -> Any:
    """TensorFlow's own decoder and its antialiased resizing, of the same square in the middle."""
    paths = workload.paths(folder)
    names, labels = tf.constant(paths), tf.constant([label(path) for path in paths], tf.int32)

    def decoded(row: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(names[row]), channels=3)
        height, width = tf.shape(image)[0], tf.shape(image)[1]
        side = tf.minimum(height, width)
        square = tf.image.crop_to_bounding_box(image, (height - side) // 2, (width - side) // 2, side, side)
        resized = tf.image.resize(square, (SIZE, SIZE), antialias=True)
        return {"image": tf.cast(tf.round(resized), tf.uint8), "label": labels[row]}

    rows = tf.data.Dataset.range(workload.rows).shuffle(workload.rows, seed=0).map(decoded, tf.data.AUTOTUNE)
    return _placed(rows.batch(workload.batch_size, drop_remainder=True), sharding)


def _batched(workload: Workload) -> Any:
    return (
        tf.data.Dataset.range(workload.rows)
        .shuffle(workload.rows, seed=0)
        .batch(workload.batch_size, drop_remainder=True)
    )


def _placed(dataset: Any, sharding: NamedSharding) -> Any:
    ahead = dataset.repeat().prefetch(tf.data.AUTOTUNE)  # each epoch is shuffled differently

    def batches() -> Iterator[Any]:
        for batch in ahead.as_numpy_iterator():
            yield jax.device_put(batch, sharding)

    return batches
