"""The record of all that decides a run, which every host publishes, and the text of how the records differ."""

import json
from collections.abc import Mapping
from itertools import zip_longest
from typing import Any

import jax
import numpy as np

from loadax import seeds
from loadax.core import version
from loadax.core.fingerprint import fingerprint
from loadax.core.formatting import count_text, some
from loadax.core.tree import flatten
from loadax.loader.assembly.host_shard import HostShard
from loadax.loader.batch_spec import BatchSpec
from loadax.loader.options import without
from loadax.loader.order_hash import OrderHash, hash_of
from loadax.loader.other_order import texts_of
from loadax.loader.pipeline import BatchPipeline
from loadax.plan.steps import Steps
from loadax.protocols import Integers, Visits
from loadax.reader import Reader
from loadax.redaction import redact
from loadax.sharding.mesh import PlannedMesh, axis_sizes
from loadax.transforms import Examples

# JSON by field, in the order in which fields are compared: causes before their effects.
Record = Mapping[str, Any]

# Beginning of the field of each row.
FIELD = "contents of row "

_PLAIN = (str, bytes, bool, int, float, type(None))
_SHOWN = 8  # processes in a message
_ENDLESS = 1000  # steps of an endless run among which one is compared
_REMEDY = "start all processes with the same versions, files, arguments and state"


def run_record(
    pipeline: BatchPipeline, order: OrderHash, shard: HostShard, start: int
) -> dict[str, Any]:
    """The record of a run, without contents.

    Args:
        pipeline: Pipeline of the loader.
        order: Hash of its order.
        shard: This process's shard of the first batch.
        start: Step at which the run starts.
    """
    plan = pipeline.plan
    options = pipeline.options
    dataset = pipeline.whole.dataset
    mesh = shard.mesh
    left_out = count_text(len(options.quarantine), "row")
    if isinstance(mesh, PlannedMesh):
        devices = []
    else:
        devices = [int(device.id) for device in mesh.devices.flat]
    return {
        "version of loadax": version.__version__,
        "version of numpy": np.__version__,
        "version of jax": jax.__version__,
        "number of rows": dataset.reader.num_rows,
        "weights that were set": [
            f"{':'.join(map(str, weights))} from position {start:,} on"
            for start, *weights in order.weights
        ],
        "dataset": [*texts_of(order, 0, 0), hash_of(dataset.order_facts)],
        "quarantine": f"{left_out} ({hash_of(options.quarantine.tolist())})",
        "batch_size": [f"{size}{_from(step)}" for step, size in plan.schedule],
        "leaves of a batch": [
            f"{_leaves(form.host_batch)}{_from(step)}"
            for step, form in pipeline.forms
        ],
        "partition": [
            f"{leaf.path or 'the only leaf'}: {spec}"
            for leaf, spec in zip(
                shard.batch.leaves, shard.specs, strict=shard.specs != ()
            )
        ],
        "device_map": []
        if pipeline.device_map is None
        else pipeline.device_map.on(shard).described,
        "mesh": [str(axis_sizes(mesh)), f"devices {hash_of(devices)}"]
        if shard.specs
        else [],
        "microbatches": options.microbatches,
        "key_seed": options.key_seed,
        "number of steps": plan.num_steps,
        "skipped steps": str(plan.skips.ranges),
        "first step": start,
    }


def sampled_rows(num_rows: int) -> list[int]:
    """The last row, since a short copy lacks that, and one or two others."""
    others = np.asarray(
        seeds.derive(0, "contents", 0, np.arange(1, 3)), np.uint64
    ) % np.uint64(num_rows)
    return sorted({*others.tolist(), num_rows - 1})


def contents(reader: Reader, quarantine: Integers) -> dict[str, list[str]]:
    """Digest and file of each sampled row, as the source has it, by field.

    Maps are left out: their results may depend on the machine. So are rows that can't be read, now or ever.

    Args:
        reader: Reader of the rows.
        quarantine: Rows that are never read: sorted int64[n].
    """
    digests = {}
    for row in sampled_rows(reader.num_rows):
        if row in quarantine:
            continue
        try:
            read = reader.read_source(Visits(np.array([row]), np.array([0])))
            files = [location.file for location in reader.source.locate(row)[:1]]
        except Exception:  # noqa: BLE001, S112 - whoever trains on this row will hear of it
            continue
        digests[f"{FIELD}{row}"] = [
            _digest(read.items[0] if isinstance(read, Examples) else read),
            *map(redact, files),
        ]
    return digests


def rows_of_steps(plan: Steps, quarantine: Integers, start: int) -> dict[str, str]:
    """First rows and digest of two steps, by field: so costs of balance=, functions and sidecar files are compared.

    Args:
        plan: Plan of a run of rows, not of streams.
        quarantine: Rows that are never read: sorted int64[n].
        start: Step at which the run starts.
    """
    rows: dict[str, str] = {}
    for step in sampled_steps(start, plan.num_steps):
        try:
            visits = without(plan.visits(step), quarantine)
        except Exception:  # noqa: BLE001, S112 - such as of a cost function: whoever reads the step will hear of it
            continue
        if plan.of(step).costs is None:
            arranged = ""
        else:
            arranged = ", which balance= arranges"
        compared: Any = [*visits]
        rows[f"rows of step {step}{arranged}"] = (
            f"{some(visits.rows, 4)} ({fingerprint(compared).digest})"
        )
    return rows


def sampled_steps(start: int, num_steps: int | None) -> list[int]:
    """The first step of a run, and a later one."""
    if num_steps is None:
        end = start + _ENDLESS
    else:
        end = num_steps
    later = start + seeds.derive(0, "steps", start) % max(1, end - start)
    return sorted({step for step in (start, max(later, start + 1)) if step < end})


def _digest(tree: Any) -> str:
    leaves, structure = flatten(tree)
    values: Any = [*structure.paths]
    for array in map(np.asarray, leaves):
        # Of other objects the type: their text may have their address, or a folder of this host.
        plain = (
            value if isinstance(value, _PLAIN) else type(value).__name__
            for value in array.flat
        )
        values.append(list(plain) if array.dtype.hasobject else array)
    return fingerprint(values).digest


def difference(records: Mapping[int, Record]) -> str | None:
    """How the records of some processes differ: in which field, with all values and what to do; None if equal.

    The minority comes first. Rows that only some of them have read are not compared.

    Args:
        records: Records by process.
    """
    # groups of processes with equal values, by field
    differing: dict[str, list[list[int]]] = {}
    for field in dict.fromkeys(
        field for record in records.values() for field in record
    ):
        groups: dict[str, list[int]] = {}
        for process, record in sorted(records.items()):
            # of a row the digest, since each host may have its files elsewhere
            if field in record:
                if field.startswith(FIELD):
                    compared = record[field][0]
                else:
                    compared = record[field]
                groups.setdefault(json.dumps(compared), []).append(process)
        if len(groups) > 1:
            differing[field] = sorted(groups.values(), key=len)
    if not differing:
        return None
    (field, present), *others = differing.items()
    values = [records[processes[0]][field] for processes in present]
    texts = (
        map(" of ".join, values) if field.startswith(FIELD) else _differing(values)
    )
    shown = "; ".join(
        f"{text} on {processes_text(group)}"
        for text, group in zip(texts, present, strict=True)
    )
    if others:
        also = f" (also in: {', '.join(name for name, _ in others)})"
    else:
        also = ""
    return f"hosts differ in {field}: {shown}{also}; {_REMEDY}"


def processes_text(processes: list[int]) -> str:
    """`process 1`, `processes 0, 2 and 3`."""
    *first, last = processes
    if not first:
        return f"process {last}"
    if len(first) < _SHOWN:
        return f"processes {', '.join(map(str, first))} and {last}"
    return (
        f"processes {', '.join(map(str, first[:_SHOWN]))} and "
        f"{len(processes) - _SHOWN} more"
    )


def _differing(values: list[Any]) -> list[str]:
    """The values as text; of lists, the first entry that is not the same everywhere."""
    if not isinstance(values[0], list):
        return list(map(str, values))
    return next(
        list(map(str, entries))
        for entries in zip_longest(*values, fillvalue="none")
        if len(set(entries)) > 1
    )


def _from(step: int) -> str:
    if step:
        return f" from step {step} on"
    return ""


def _leaves(batch: BatchSpec) -> str:
    return ", ".join(
        f"{leaf.path or 'batch'} {leaf.dtype}{list(leaf.spec.shape)}"
        for leaf in batch.leaves
    )
