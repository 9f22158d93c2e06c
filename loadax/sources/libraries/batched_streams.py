"""Recognises streams of other libraries whose rows are batches."""

from typing import Any

from loadax.sources.library import comes_from

# Stages of webdataset that make batches or lists of rows, and those that take them apart.
_MAKE = ("_batched", "_listed")
_UNMAKE = ("_unbatched", "_unlisted")


def batching_verb(data: Any) -> str:
    """The verb that makes batches of the rows of a stream, as far as the library tells; empty: none does."""
    if comes_from(data, "grain", "IterDataset"):
        if _grain_makes_batches(data):
            return ".batch(…)"
        return ""
    if comes_from(data, "webdataset", "DataPipeline"):
        return _verb_of_pipeline(data.pipeline)
    if _pipe_makes_batches(data):
        return ".batch(…)"
    return ""


def _grain_makes_batches(data: Any) -> bool:
    kind = type(data)
    if str(kind.__module__).startswith("grain."):
        name = kind.__name__
    else:
        name = ""
    if name.startswith("FlatMap"):  # which may take batches apart
        return False
    return name.startswith("Batch") or any(map(_grain_makes_batches, data.parents))


def _verb_of_pipeline(stages: list[Any]) -> str:
    for stage in reversed(stages):
        name = getattr(getattr(stage, "f", None), "__name__", "")
        if name in _UNMAKE:
            return ""
        if name in _MAKE:
            return f".{name[1:]}(…)"
        if type(stage).__name__ == "DataLoader" and stage.batch_size is not None:
            return "WebLoader(…, batch_size=…)"
    return ""


def _pipe_makes_batches(data: Any) -> bool:
    """Whether a pipe of `torch.utils.data.datapipes` makes batches."""
    while data is not None and str(type(data).__module__).startswith(
        "torch.utils.data.datapipes."
    ):
        name = type(data).__name__
        if name in ("BatcherIterDataPipe", "UnBatcherIterDataPipe"):
            return name.startswith("Batcher")
        data = getattr(data, "datapipe", None)
    return False
