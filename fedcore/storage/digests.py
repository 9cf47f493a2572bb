"""Digests that bind files to each other: SHA-256 of documents, which any tool can check, and BLAKE3 of data, which
hashes several times as fast. Both as lower-case hexadecimal digits. They have no key: see docs/population-format.md.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blake3 import blake3

if TYPE_CHECKING:
    from typing_extensions import Buffer


Hasher = blake3  # of data that come in pieces


def canonical(value: Any) -> bytes:
    """The one way to write a value as JSON of which a digest is taken."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def of_document(content: Buffer) -> str:
    """SHA-256."""
    return hashlib.sha256(content).hexdigest()


def of_data(*content: Buffer) -> str:
    """BLAKE3, 256 bits, of pieces one after another."""
    hasher = blake3()
    for piece in content:
        hasher.update(piece)
    return hasher.hexdigest()


def of_file(path: Path) -> str:
    """BLAKE3 of a local file, which is not held in memory. Raises OSError."""
    return blake3().update_mmap(path).hexdigest()


def of_files(digests: Mapping[str, str]) -> str:
    """BLAKE3 of the list of files: {name: digest}."""
    return of_data(listed(digests))


def listed(digests: Mapping[str, str]) -> bytes:
    """The list of files as it is hashed: pairs of name and digest, in the order of the names."""
    return canonical(sorted(digests.items()))
