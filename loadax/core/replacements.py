"""Names that users of torch, Grain and Hugging Face expect, each with what to write instead."""

_DATALOADER = {
    "shuffle": "shuffle the dataset: Dataloader(data.shuffle(seed=0), …); each epoch gets another order",
    "drop_last": "remainder='drop' is the default, and remainder='pad' keeps the last rows",
    "collate_fn": "rows are stacked leaf by leaf: make all of one shape in data.map(fn) or data.pad(lengths), "
    "or change many at once in data.map_batch(fn)",
    "sampler": "the order belongs to the dataset: data.shuffle(seed=0), data.select(rows), "
    "data.sample(weights), or loadax.mix(datasets, weights)",
    "batch_sampler": "batches are batch_size rows of the dataset's order: data.shuffle(seed=0), or "
    "loadax.mix(datasets, weights)",
    "pin_memory": "leave it out: batches are placed on the devices ahead of the training loop, "
    "as many as prefetch= says",
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
    "take": "the first n rows are data[:n]",
    "skip": "all but the first n rows are data[n:]",
    "seed": "seeds are arguments: data.shuffle(seed=0), data.map(fn, rng=True, seed=0)",
    "random_map": "a random map is data.map(fn, rng=True)",
    "to_iter_dataset": "the Dataloader reads ahead and iterates: loadax.Dataloader(data, batch_size=8)",
    "prefetch": "the Dataloader reads ahead: loadax.Dataloader(data, batch_size=8, prefetch=2)",
    "concatenate": "loadax.concat([data, other])",
    "shard": "the Dataloader gives each process its part of each batch: see mesh=, and shard_index= with shard_count=",
    "train_test_split": "train, test = data.split(0.9), or exact counts: data.split([900, 100])",
    "random_split": "train, test = data.split(0.9), or exact counts: data.split([900, 100])",
    "features": "the shapes and dtypes of an example are data.spec",
    "element_spec": "the shapes and dtypes of an example are data.spec",
    "with_format": "examples are NumPy arrays, and the batches of a Dataloader jax.Arrays: leave it out",
    "set_format": "examples are NumPy arrays, and the batches of a Dataloader jax.Arrays: leave it out",
}
_MODULE = {
    "DataLoader": "it is spelt loadax.Dataloader",
    "from_json": "files of JSON lines are opened by loadax.from_jsonl(path); a file with one list of objects by "
    "loadax.from_source(json.load(open(path)))",
    "from_generator": "a generator function is read as a stream: loadax.from_stream(open_lane, lanes=16); for random "
    "access pass a list of its examples to loadax.from_source",
}


def for_dataloader(name: str) -> str | None:
    """What to write in place of an argument of a data loader; None when nobody calls one so."""
    return _DATALOADER.get(name)


def for_dataset(name: str) -> str | None:
    """What to write in place of a method of a dataset."""
    return _DATASET.get(name)


def for_module(name: str) -> str | None:
    """What to write in place of a name of the package."""
    return _MODULE.get(name)
