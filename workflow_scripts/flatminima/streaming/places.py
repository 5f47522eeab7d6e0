"""Where the weights of a checkpoint lie in its files."""

import json
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from flatminima.checkpoints import weight_files
from flatminima.files import check_digest

AHEAD = 2**18  # bytes; of a longer stretch Linux reads the beginning only


@dataclass(frozen=True)
class Place:
    """File, first and last byte, dtype as safetensors calls it, and shape of a weight."""

    file: Path
    first: int
    last: int
    dtype: str
    shape: tuple[int, ...]


def find_places(weights: Path) -> dict[str, Place]:
    """The place of each tensor of a safetensors file or of the shards of an index."""
    places = {}
    for file in weight_files(weights):
        check_digest(file)
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                first, last = (8 + length + at for at in entry["data_offsets"])
                places[name] = Place(file, first, last, entry["dtype"], tuple(entry["shape"]))
    return places


def read_ahead(places: Iterable[Place]) -> None:
    """Ask the system to have these bytes in its cache."""
    for place in places:
        descriptor = os.open(place.file, os.O_RDONLY)
        try:
            for start in range(place.first, place.last, AHEAD):
                size = min(AHEAD, place.last - start)
                os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_WILLNEED)
        finally:
            os.close(descriptor)
