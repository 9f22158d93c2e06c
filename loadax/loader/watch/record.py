"""What decides a run, as a record that every host publishes, and the text of how the records differ."""

import hashlib
import json
import sys
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.batch_spec import BatchSpec
from loadax.loader.pipeline import Pipeline
from loadax.loader.state import OrderHash
from loadax.sharding.mesh import PlannedMesh, axis_sizes

Record = Mapping[str, Any]
"""JSON by field, in the order in which fields are compared: causes before their effects."""

_CONTENTS = "contents"
_SHOWN = 8  # processes in a message


def run_record(pipeline: Pipeline, order: OrderHash, shard: HostShard, start: int) -> dict[str, Any]:
    """The record of a run, without contents.

    Args:
        pipeline: Pipeline of the loader.
        order: Hash of its order.
        shard: This process's shard of the first batch.
        start: Step at which the run starts.
    """
    plan, options = pipeline.plan, pipeline.options
    dataset = pipeline.whole.dataset
    mesh = shard.mesh
    devices = [] if isinstance(mesh, PlannedMesh) else [int(device.id) for device in mesh.devices.flat]
    return {
        # Of a module that is loaded, whatever the layers.
        "version of loadax": sys.modules["loadax"].__version__,
        "version of numpy": np.__version__,
        "version of jax": jax.__version__,
        "number of rows": dataset.reader.num_rows,
        "dataset": [*order.texts(0, 0), _hash(dataset.describe())],
        "quarantine": f"{len(options.quarantine)} rows ({_hash(options.quarantine.tolist())})",
        "batch_size": [f"{size}{_from(step)}" for step, size in plan.schedule],
        "leaves of a batch": [f"{_leaves(form.host_batch)}{_from(step)}" for step, form in pipeline.forms],
        "partition": [
            f"{leaf.path or 'the only leaf'}: {spec}"
            for leaf, spec in zip(shard.batch.leaves, shard.specs, strict=shard.specs != ())
        ],
        "mesh": [str(axis_sizes(mesh)), f"devices {_hash(devices)}"] if shard.specs else [],
        "microbatches": options.microbatches,
        "key_seed": options.key_seed,
        "number of steps": plan.num_steps,
        "skipped steps": str(plan.skips.ranges),
        "first step": start,
    }


def with_contents(record: Record, contents: Mapping[str, list[str]]) -> Record:
    """The record with digests of rows."""
    return {**record, _CONTENTS: contents}


def difference(records: Mapping[int, Record]) -> str | None:
    """How the records of some processes differ: who, in which field, with all values and what to do; None if equal.

    Whoever is in the minority is named; of two, both. Rows that only some of them have read are not compared.

    Args:
        records: Records by process.
    """
    fields = {
        field: values
        for field, values in _by_field(records).items()
        if len({_key(field, value) for value in values.values()}) > 1
    }
    if not fields:
        return None
    field, values = next(iter(fields.items()))
    by_value: dict[str, list[int]] = {}
    for process, value in sorted(values.items()):
        by_value.setdefault(_key(field, value), []).append(process)
    groups = sorted(by_value.values(), key=len)
    *minority, majority = groups
    if len(minority[-1]) == len(majority):
        who = f"{processes_text(sorted(values))} differ"
    else:
        culprits = sorted(process for group in minority for process in group)
        who = f"{processes_text(culprits)} {'differs' if len(culprits) == 1 else 'differ'} from {_others(majority)}"
    if field.startswith(_CONTENTS):
        texts = [" of ".join(values[group[0]]) for group in groups]  # digest, and file if there is one
    else:
        texts = _differing([values[group[0]] for group in groups])
    shown = "; ".join(f"{text} on {processes_text(group)}" for text, group in zip(texts, groups, strict=True))
    also = f" (also in: {', '.join(list(fields)[1:])})" if len(fields) > 1 else ""
    return f"{who} in {field}: {shown}{also}; {_remedy(field)}"


def processes_text(processes: list[int]) -> str:
    """`process 1`, `processes 0, 2 and 3`."""
    *first, last = processes
    if not first:
        return f"process {last}"
    if len(first) < _SHOWN:
        return f"processes {', '.join(map(str, first))} and {last}"
    return f"processes {', '.join(map(str, first[:_SHOWN]))} and {len(processes) - _SHOWN} more"


def _others(processes: list[int]) -> str:
    return f"process {processes[0]}" if len(processes) == 1 else f"the other {len(processes)}"


def _by_field(records: Mapping[int, Record]) -> dict[str, dict[int, Any]]:
    """The values of each field, by process; each row is a field of its own."""
    fields: dict[str, dict[int, Any]] = {}
    for process, record in records.items():
        rows = {f"contents of row {row}": value for row, value in record.get(_CONTENTS, {}).items()}
        for field, value in {**record, **rows}.items():
            if field != _CONTENTS:
                fields.setdefault(field, {})[process] = value
    return fields


def _key(field: str, value: Any) -> str:
    """What is compared of a value: of a row the digest, since each host may have its files elsewhere."""
    return json.dumps(value[0] if field.startswith(_CONTENTS) else value)


def _differing(values: list[Any]) -> list[str]:
    """The values as text; of lists, the first entry that is not the same everywhere."""
    if not isinstance(values[0], list):
        return list(map(str, values))
    return next(list(map(str, entries)) for entries in zip_longest(*values, fillvalue="none") if len(set(entries)) > 1)


def _remedy(field: str) -> str:
    if field.startswith("version of"):
        return f"install the same {field} on all hosts"
    if field.startswith(_CONTENTS):
        return "make the files the same on all hosts, or read them from storage that all share"
    if field == "first step":
        return "start all processes from the same state; to look at a batch on one process alone, use loader[step]"
    return "make the Dataset and the Dataloader with the same arguments and data on all processes"


def _from(step: int) -> str:
    return f" from step {step} on" if step else ""


def _leaves(batch: BatchSpec) -> str:
    return ", ".join(f"{leaf.path or 'batch'} {leaf.dtype}{list(leaf.spec.shape)}" for leaf in batch.leaves)


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
