"""Names that users of torch, Grain, tf.data and Hugging Face expect, each with what to write instead."""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from loadax.core.arguments import shown
from loadax.errors import ArgumentError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

DATALOADER = {
    "shuffle": "shuffle the dataset: Dataloader(data.shuffle(seed=0), …); each epoch gets another order",
    "drop_last": "remainder='drop' is the default, and remainder='pad' keeps the last rows",
    "collate_fn": "rows are stacked: make all of one shape in data.map(fn), data.map_batch(fn) or data.pad(lengths)",
    "sampler": "the dataset has it: data.shuffle(seed=0), data.sample(weights) or loadax.mix(datasets, weights)",
    "batch_sampler": "the order is the dataset's: data.shuffle(seed=0), or loadax.mix(datasets, weights)",
    "pin_memory": "leave it out: prefetch= batches are placed on the devices ahead of the training loop",
    "pin_memory_device": "leave it out: batches go to the devices of mesh=",
    "persistent_workers": "leave it out: workers stay for all epochs of num_epochs=",
    "prefetch_factor": "prefetch= is the number of placed batches that are kept ready",
    "timeout": "abort_after= is the time in seconds after which a batch that does not come is an error",
    "worker_init_fn": "leave it out: random numbers are each row's own in data.map(fn, rng=True)",
    "generator": "pass the seed to the dataset: data.shuffle(seed=0), data.map(fn, rng=True, seed=0)",
    "multiprocessing_context": "worker_type='process' starts fresh interpreters",
    "worker_count": "the number of workers is num_workers=",
    "read_options": "num_workers= and prefetch= say how much is read ahead",
    "seed": "pass the seed to the dataset: data.shuffle(seed=0), data.map(fn, rng=True, seed=0)",
    "sharding": "pass mesh= and partition=, which takes a NamedSharding",
}
_DATASET = {
    "batch": "the Dataloader makes batches: loadax.Dataloader(data, batch_size=8)",
    "padded_batch": "pad the rows, then make batches: loadax.Dataloader(data.pad({'tokens': 16}), batch_size=8)",
    "ragged_batch": "data.pack(16) puts several documents into a row, and data.pad({'tokens': 16}) pads each",
    "bucket_by_length bucket_by_sequence_length": "a loader makes buckets: "
    "loadax.Dataloader(data, batch_size=loadax.Buckets('tokens', {8: 8, 16: 4}))",
    "unbatch": "data.flat_map(lambda row: [{'tokens': part} for part in np.split(row['tokens'], 2)], fan_out=2)",
    "window": "data.windows(3) has 3 consecutive rows in each example",
    "take": "the first n rows are data[:n]",
    "skip": "all but the first n rows are data[n:]",
    "seed": "seeds are arguments: data.shuffle(seed=0), data.map(fn, rng=True, seed=0)",
    "random_map": "a random map is data.map(fn, rng=True)",
    "with_transform set_transform transform apply augment": "a map is called when rows are read: data.map(fn)",
    "rename_column rename_columns": "data.rename({'tokens': 'inputs'})",
    "select_columns": "data.keep('tokens')",
    "remove_columns drop_columns": "data.drop('label')",
    "cast cast_column": "convert leaves in a map: data.map(lambda row: {**row, 'label': np.float32(row['label'])})",
    "columns column_names": "the leaves are those of data.spec",
    "features element_spec schema": "the shapes and dtypes of an example are data.spec",
    "cardinality num_rows num_examples size": "the number of rows is len(data)",
    "enumerate": "the row number is an argument of data.map(fn, with_index=True)",
    "sort sort_by": "rows in the order of their keys are data.select(np.argsort(keys))",
    "balance oversample class_weights": "data.sample(weights) draws rows in proportion to their weights",
    "to_list to_numpy": "the examples of many positions are data.read(range(len(data)))",
    "as_numpy_iterator to_iter_dataset to_iterable_dataset": "loadax.Dataloader(data, batch_size=8), or iter(data)",
    "prefetch": "the Dataloader reads ahead: loadax.Dataloader(data, batch_size=8, prefetch=2)",
    "ignore_errors": "the Dataloader says what a bad row does: loadax.Dataloader(data, batch_size=8, on_error='mask')",
    "concat concatenate": "loadax.concat([data, other])",
    "mix interleave": "loadax.mix([data, other], [3, 1])",
    "shard": "the Dataloader gives each process its part of each batch: see mesh=, and shard_index= with shard_count=",
    "train_test_split random_split": "train, test = data.split(0.9), or exact counts: data.split([900, 100])",
    "with_format set_format": "examples are NumPy arrays, and the batches of a Dataloader jax.Arrays: leave it out",
    "save_to_disk save materialize persist": "loadax.write_zarr(data, 'train')",
    "state_dict get_state": "the state of a run is that of a loader's iterator: iter(loader).get_state()",
}
_LOADER = {
    "state_dict get_state": "the state is that of an iterator: batches = iter(loader), then batches.get_state()",
    "load_state_dict set_state restore": "loader.iterate(start=state) begins at a state",
    "next": "a loader has no position, an iterator has: batches = iter(loader), then next(batches)",
    "num_steps num_batches": "the number of steps is len(loader)",
    "certificate": "runs that read the same rows have equal loader.digest()",
    "report stats": "an iterator has it: batches = iter(loader), then batches.report() or batches.stats()",
    "headroom replay": "measure the step alone: call it again and again with batch = loader[0]",
    "set_epoch": "each epoch has another order: for epoch in loader.epochs(): for batch in epoch: …",
}
_ITERATOR = {"state_dict": "batches.get_state()", "load_state_dict": "batches.set_state(state)"}
_LEASE = {
    "state_dict": "lease.get_state()",
    "set_state load_state_dict": "loader.lease(state) goes on from a state",
}
_MODULE = {
    "Certificate": "runs that read the same rows have equal loader.digest()",
    "Headroom Replay": "measure the step alone: call it again and again with batch = loader[0]",
    "plots": "plot loader.rows(step), see the guide to orders",
    "DataLoader": "it is spelt loadax.Dataloader",
    "from_json": "loadax.from_jsonl(path); of one list of objects loadax.from_source(json.load(open(path)))",
    "from_generator": "loadax.from_stream(open_lane, lanes=16); for random access loadax.from_source(list(examples))",
    "from_pandas from_polars from_dataframe": "loadax.as_dataset(frame)",
    "from_hdf5 from_h5py": "loadax.as_dataset(h5py.File(path))",
    "from_torch from_pytorch": "loadax.as_dataset(dataset)",
    "from_image_folder from_folder": "loadax.from_images(path)",
    "from_dict from_tensor_slices from_numpy from_array": "loadax.from_arrays({'x': x})",
    "from_bin": "loadax.from_tokens(path, seq_len=1024)",
    "load_dataset from_hub": "loadax.from_huggingface(datasets.load_dataset(name, split='train'))",
    "make_mesh Mesh": "jax.make_mesh((8,), ('data',)), or a preset such as loadax.sharding.data_parallel()",
    "from_list": "loadax.from_source([{'x': 1}, {'x': 2}])",
    "concatenate": "loadax.concat([data, other])",
    "interleave mixture interleave_datasets": "loadax.mix([data, other], [3, 1])",
}
_ARGUMENTS = {
    "buffer_size": "all rows are shuffled, without a buffer: data.shuffle(seed=0)",
    "batched": "a function of many rows is data.map_batch(fn)",
    "stratify": "split each class: parts = [data.filter(lambda row, k=k: row['label'] == k).split(0.5) "
    "for k in range(2)], then train = loadax.concat([part[0] for part in parts])",
}


def _by_name(hints: Mapping[str, str]) -> dict[str, str]:
    """Hints by single names, from hints by names that are separated by spaces."""
    return {name: hint for names, hint in hints.items() for name in names.split()}


_ATTRIBUTES = {
    "Dataset": _by_name(_DATASET),
    "Dataloader": _by_name(_LOADER),
    "LoaderChain": _by_name(_LOADER),
    "DataIterator": _ITERATOR,
    "Lease": _by_name(_LEASE),
    "module": _by_name(_MODULE),
}


def explain_arguments(verb: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorates a verb that users of other loaders expect to have other arguments.

    Raises:
        ArgumentError: For such an argument; says what to write instead.
    """

    @wraps(verb)
    def explained(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        for name in named.keys() & _ARGUMENTS.keys():
            value = shown(named[name])
            raise ArgumentError(f"{name}={value}: {verb.__name__}() has no such argument; {_ARGUMENTS[name]}")
        return verb(*given, **named)

    return explained


def missing_attribute(owner: Any, name: str) -> Any:
    """The `__getattr__` of classes that users of other loaders expect to have other names, and of the package.

    Raises:
        AttributeError: For a name that the owner does not have; says what to write instead.
    """
    if hasattr(type(owner), name):  # a property, in which a user's function raised an AttributeError
        return object.__getattribute__(owner, name)
    kind = type(owner).__name__
    hint = _ATTRIBUTES[kind].get(name)
    subject = f"module {owner.__name__!r}" if kind == "module" else f"{kind!r} object"
    text = f"{subject} has no attribute {name!r}" + (f": {hint}" if hint else "")
    raise AttributeError(text, name=name, obj=owner)
