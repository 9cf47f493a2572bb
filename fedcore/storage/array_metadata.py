"""Metadata of Zarr v3 arrays, byte by byte as Zarr writes them (Zarr core specification v3, "array metadata")."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np


def array_metadata(
    shape: tuple[int, ...], chunk: tuple[int, ...], dtype: np.dtype, fill: Any, compressed: Sequence[dict] = ()
) -> bytes:
    """Content of `zarr.json` of an array of numbers in chunks of this shape, with a CRC32C behind each.

    fill: value of what is not stored, as JSON; compressed: codecs between bytes and checksum
    """
    order = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    described = {
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "bytes", **order}, *compressed, {"name": "crc32c"}],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    return json.dumps(described, indent=2).encode()
