"""Packs the documents of a stream as they are read: the rows of each lane are those of its own documents."""

from itertools import islice

from loadax.errors import ArgumentError, SourceError
from loadax.packing.document_lane import DocumentLane
from loadax.packing.documents import refuse_batch_maps
from loadax.packing.form import find_form
from loadax.packing.pack import warn_of_shifted
from loadax.packing.packed_lanes import PackedLanes
from loadax.packing.packed_rows import Filling, PackedRows
from loadax.packing.planned_rows import Packing
from loadax.plan.next_row import NEXT_ROW_VERSION
from loadax.plan.pack import PackOptions
from loadax.plan.stream import LaneVerb
from loadax.reader import Reader
from loadax.sources.stream.source import StreamSource

_MOST_EMPTY = 512  # documents that are read to find the dtypes of all leaves


def pack_stream(
    reader: Reader, options: PackOptions, filling: Filling
) -> tuple[StreamSource, LaneVerb]:
    """The stream of packed rows, and the verb that makes them; see `Dataset.pack`.

    Args:
        reader: Reader of a stream of documents.
        options: How they are packed.
        filling: What is in rows beside them.

    Raises:
        ArgumentError: If its rows are not documents to pack, or an argument does not fit them.
        SourceError: If lane 0 has no documents.
    """
    stream = reader.source
    if not isinstance(stream, StreamSource):
        raise ArgumentError(
            "pack() after mix() of streams would break its proportions; pack each "
            "part, then mix them"
        )
    refuse_batch_maps(reader)
    stream = stream.of_rows()
    reader = reader.with_source(stream)
    documents = DocumentLane(reader, stream, 0, 0, stream.leading_rows())
    found = find_form(islice(iter(documents.read, None), _MOST_EMPTY), options)
    if found is None:
        raise SourceError(
            "pack() needs documents, but lane 0 of the stream has none; check what "
            "opens its lanes"
        )
    form, options, leaves = found
    if not (filling.given or options.shift or options.by_leaf):
        warn_of_shifted(form, lambda: [[leaf] for leaf in leaves])
    rows = PackedRows(form, options, filling)
    below = reader.traits._replace(num_maps=reader.traits.num_maps + 1)
    packing = Packing(form, options, rows)
    source = StreamSource(
        PackedLanes(reader, stream, packing),
        stream.lanes,
        rows.spec,
        stream.origin,
        below,
        fill=packing.fill,
    )
    described = [
        "pack",
        NEXT_ROW_VERSION,
        *options.described,
        *filling,
        *options.newer,
    ]
    return source, LaneVerb(
        f"pack({options.seq_len}, {_text(options, filling)})", described
    )


def _text(options: PackOptions, filling: Filling) -> str:
    """The arguments that decide the rows, as far as they are not the defaults."""
    chosen = [
        ("long", options.long, "error"),
        ("window", options.window, 0),
        ("align", options.align, 1),
        ("most_documents", options.most_documents, None),
        ("value", filling.value, 0),
        ("bos", filling.bos, None),
    ]
    more = [
        f"{name}={value!r}" for name, value, default in chosen if value != default
    ]
    return ", ".join([f"method={options.method!r}", *more])
