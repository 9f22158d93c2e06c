"""Identity of the documents whose lengths an index on disk has."""

from typing import Any

from loadax.core.fingerprint import fingerprint
from loadax.packing.documents import Documents
from loadax.plan.fixed_part import describe_first_epoch
from loadax.writing.data_fingerprint import digest_of, identify, spread

_SAMPLE = 32  # documents whose contents are part of the identity of the data


def documents_identity(documents: Documents) -> dict[str, Any]:
    """The facts that identify documents, regardless of their location; see `loadax.writing.data_fingerprint`."""
    sample = zip(*documents.columns(spread(documents.size, _SAMPLE)), strict=True)
    return {
        "documents": documents.size,
        "order": describe_first_epoch(documents.order),
        "maps": documents.reader.describe(),
        "functions": [
            fingerprint(transform.function).digest
            for transform in documents.reader.maps
        ]
        if documents.key is None
        else ["key", documents.key],
        "leaves": [
            [path, str(dtype)]
            for path, dtype in zip(
                documents.form.paths, documents.form.dtypes, strict=True
            )
        ],
        **({"budgets": documents.options.leaves} if documents.options.leaves else {}),
        **({"shapes": documents.form.shapes} if any(documents.form.shapes) else {}),
        "contents of a sample": digest_of(
            leaf for leaves in sample for leaf in leaves
        ),
        **identify(documents.reader.source),
    }
