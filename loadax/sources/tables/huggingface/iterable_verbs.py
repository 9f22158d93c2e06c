"""Verbs of an IterableDataset: those that count rows of the whole, those without an exact state, and batches.

Hugging Face has no public name for what a dataset was made of: objects of `datasets.iterable_dataset`, one a verb, each
around those before it. What is not listed here counts as the worst: its rows are read in one lane, without states.
"""

from collections.abc import Iterator
from inspect import iscoroutinefunction
from typing import Any

# What gives the same rows of each shard alone as of all shards one after another.
_OF_SHARDS = {
    "ExamplesIterable": "from_generator()",
    "ShuffledDataSourcesExamplesIterable": "shuffle()",
    "ArrowExamplesIterable": "load_dataset()",
    "ShuffledDataSourcesArrowExamplesIterable": "shuffle()",
    "RebatchedArrowExamplesIterable": "with_format()",
    "SelectColumnsIterable": "select_columns()",
    "TypedExamplesIterable": "cast()",
    "FormattedExamplesIterable": "with_format()",
    "MappedExamplesIterable": "map()",
    "FilteredExamplesIterable": "filter()",
    "BufferShuffledExamplesIterable": "shuffle()",
    "InterleavedShardsExamplesIterable": "shuffle()",
    "RepeatExamplesIterable": "repeat()",
    "VerticallyConcatenatedMultiSourcesExamplesIterable": "concatenate_datasets()",
}
# What gives other rows, or other mixtures, of each shard alone.
_OF_WHOLE = {
    "TakeExamplesIterable": "take()",
    "SkipExamplesIterable": "skip()",
    "StepExamplesIterable": "split_dataset_by_node()",
    "CyclingMultiSourcesExamplesIterable": "interleave_datasets()",
    "RandomlyCyclingMultiSourcesExamplesIterable": "interleave_datasets()",
    "HorizontallyConcatenatedMultiSourcesExamplesIterable": "concatenate_datasets(axis=1)",
}
_NAMES = _OF_SHARDS | _OF_WHOLE
# What goes on exactly where its state was taken; `tests/sources/tables/test_huggingface_states.py` tries them.
_EXACT = _NAMES.keys() - {"BufferShuffledExamplesIterable"}
_EXACT_SINCE = (5, 1)  # the extra `huggingface` of pyproject.toml asks for it
_BATCHES = ("_batch_fn", "_batch_arrow_table")  # the functions that batch() maps
_MAPS = ("MappedExamplesIterable", "FilteredExamplesIterable")


def verb_of_whole(data: Any) -> str:
    """The first verb that counts or mixes rows of the whole stream, so that shards give others; empty: none does."""
    if getattr(data, "_distributed", None) is not None:
        return "split_dataset_by_node()"
    return next((verb for node in _nodes(data) if (verb := _counted(node))), "")


def verb_without_state(data: Any) -> str:
    """The first verb whose state does not say where it is; empty: all do."""
    return next((_name(node) for node in _nodes(data) if not _is_exact(node)), "")


def has_exact_states(version: str) -> bool:
    """Whether streams of this version of datasets go on where their state was taken; older ones give other rows."""
    major, minor, *_ = version.split(".")
    return (int(major), int(minor)) >= _EXACT_SINCE


def has_batches(data: Any) -> bool:
    """Whether rows are batches of `batch()`, as far as no later map made something else of them."""
    for node in _nodes(data):
        if _kind(node) == "MappedExamplesIterable":
            return getattr(node.function, "__name__", "") in _BATCHES
    return False


def _nodes(data: Any) -> Iterator[Any]:
    """The verbs that made the dataset, the last verb first, and of several parts the first part first."""
    left: list[Any] = [getattr(data, "_ex_iterable", None)]
    while left:
        node = left.pop(0)
        yield node
        if hasattr(node, "ex_iterable"):
            below = [node.ex_iterable]
        else:
            below = list(getattr(node, "ex_iterables", ()))
        left = below + left


def _kind(node: Any) -> str:
    kind = type(node)
    if kind.__module__ == "datasets.iterable_dataset":
        return kind.__name__
    return f"{kind.__module__}.{kind.__name__}"


def _name(node: Any) -> str:
    return _NAMES.get(_kind(node), _kind(node))


def _counted(node: Any) -> str:
    """The verb, if it counts or mixes rows of the whole stream."""
    kind = _kind(node)
    if kind == "RebatchedArrowExamplesIterable" and node.drop_last_batch:
        return "batch(drop_last_batch=True)"
    if kind in _MAPS:
        argument = _counting_argument(node)
        if argument:
            return _name(node).replace("()", f"({argument})")
        return ""
    if kind in _OF_SHARDS:
        return ""
    return _name(node)


def _counting_argument(node: Any) -> str:
    """The argument of a map that makes it count rows, or take together rows up to the last one."""
    if getattr(node, "is_batch_accumulate_arrow_table_function", False):
        return "by_column=…"
    if node.with_indices:
        return "with_indices=True"
    if node.batched and node.drop_last_batch:
        return "drop_last_batch=True"
    if node.batched and not (node.batch_size or 0) > 0:
        return "batch_size=None"
    return ""


def _is_exact(node: Any) -> bool:
    kind = _kind(node)
    if kind not in _EXACT:
        return False
    if kind not in _MAPS:
        return True
    # Hugging Face warns of the one; of the other, several rows are under way at a time.
    of_tables = (
        node.batched and node.formatting is not None and node.formatting.is_table
    )
    function = getattr(node, "mask_function", node.function)
    return not of_tables and not iscoroutinefunction(function)
