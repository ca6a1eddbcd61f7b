"""The parts of an archive that another program can read."""

from __future__ import annotations

from warcio.archiveiterator import ArchiveIterator

from stillweb.collections.layout import Collection


def whole_records(collection: Collection) -> list[str]:
    """Return the types of the records that warcio reads to their end."""
    found = []
    for path in collection.warc_files():
        with path.open("rb") as file:
            for record in ArchiveIterator(file):
                record.content_stream().read()
                found.append(record.rec_type)
    return found
