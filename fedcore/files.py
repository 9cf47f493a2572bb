"""Small files that must be whole or absent: written to a temporary name, flushed, renamed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Make renames inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Replace a file by new content, atomically and durably."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with open(partial, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def sync_tree(folder: Path) -> None:
    """Flush every file and folder below `folder`, so that a later rename of it publishes whole content."""
    for root, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        sync_folder(Path(root))
