"""Forgotten clients, as keyed hashes. An id that comes back gets its old cohort again, with the budget it has spent.

    <path>/forgotten/key              32 random bytes as hexadecimal digits, mode 0600
    <path>/forgotten/<sha256>.txt     a line for the key, then one for each client: hash and cohort, sorted

The hash is BLAKE2b-128 with the key. A process that can read the folder has both, and can check whether a known id is
in the list. The list alone reveals no id.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedcore.errors import PopulationError
from fedcore.population import layout
from fedcore.storage import digests, files
from fedcore.storage.files import Place

LINE: Final = np.dtype([("hash", "S32"), ("space", "S1"), ("cohort", "S10"), ("end", "S1")])
KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Suppression:
    """key: of the hashes; hashes: (n,) S32, sorted; cohorts: (n,) int64, from 1"""

    key: bytes
    hashes: np.ndarray
    cohorts: np.ndarray

    @classmethod
    def read(cls, path: Place, sha256: str | None) -> Suppression:
        """The list of this name; an empty one with a new key without a name. Raises PopulationError if list or key is
        lost or damaged.
        """
        if sha256 is None:
            return cls(secrets.token_bytes(KEY_BYTES), np.zeros(0, "S32"), np.zeros(0, np.int64))
        remedy = "Restore it from a backup: without it people who come back would get a new budget."
        key, content = (layout.read_beside(path, _name(name)) for name in (layout.KEY, f"{sha256}.txt"))
        if key is None or content is None:
            lost = layout.KEY if key is None else f"{sha256}.txt"
            raise PopulationError(f"{path / layout.FORGOTTEN / lost} is lost.", remedy)
        if digests.of_document(content) != sha256:
            raise PopulationError(f"{path / layout.FORGOTTEN / sha256}.txt does not match its checksum.", remedy)
        try:
            found = cls(bytes.fromhex(key.decode("ascii").strip()), *_decoded(content))
        except ValueError as error:
            raise PopulationError(f"{path / layout.FORGOTTEN / layout.KEY} is not a key.", remedy) from error
        if len(found.key) != KEY_BYTES or content[: LINE.itemsize] != found._head():
            raise PopulationError(f"{path / layout.FORGOTTEN / layout.KEY} is not the key of the list.", remedy)
        return found

    def cohorts_of(self, ids: Sequence[str]) -> np.ndarray:
        """(C,) int64, the cohort of each id that was forgotten; 0 of the others."""
        wanted = self._hashed(ids)
        place = np.minimum(np.searchsorted(self.hashes, wanted), max(len(self.hashes) - 1, 0))
        if not len(self.hashes):
            return np.zeros(len(wanted), np.int64)
        return np.where(self.hashes[place] == wanted, self.cohorts[place], 0)

    def changed(self, ids: Sequence[str], cohorts: np.ndarray, without_trace: bool = False) -> Suppression:
        """The list with these ids, whose cohorts are as given; without_trace: without them instead."""
        new = self._hashed(ids)
        kept = ~np.isin(self.hashes, new)
        hashes, of_each = self.hashes[kept], self.cohorts[kept]
        if not without_trace:
            hashes, of_each = np.concatenate([hashes, new]), np.concatenate([of_each, cohorts])
        order = np.argsort(hashes, kind="stable")
        return Suppression(self.key, hashes[order], of_each[order])

    def write(self, path: Place) -> str | None:
        """Write the list, and the key if it is not there, whole and durable. Returns the name of the list, None if it
        is empty. Raises OSError.
        """
        if not len(self.hashes):
            return None
        content = self._encoded()
        sha256 = digests.of_document(content)
        if not files.is_remote(path):
            files.make_folder(files.below(path, layout.FORGOTTEN), private=True, durable=True)
        for name, data in ((layout.KEY, f"{self.key.hex()}\n".encode()), (f"{sha256}.txt", content)):
            if layout.read_beside(path, _name(name)) != data:
                files.write_whole(path / layout.FORGOTTEN / name, data, private=True)
        return sha256

    def _hashed(self, ids: Sequence[str]) -> np.ndarray:
        return np.array([self._hash(one) for one in ids], "S32")

    def _hash(self, one: str) -> bytes:
        return hashlib.blake2b(one.encode("utf-8"), digest_size=16, key=self.key).hexdigest().encode()

    def _head(self) -> bytes:
        """The first line: of no client, whose id is never empty."""
        return b"%s %010d\n" % (self._hash(""), 0)

    def _encoded(self) -> bytes:
        lines = np.zeros(len(self.hashes), LINE)
        lines["hash"], lines["space"], lines["end"] = self.hashes, b" ", b"\n"
        lines["cohort"] = np.char.zfill(self.cohorts.astype("S10"), 10)
        return self._head() + lines.tobytes()


def copy(source: Place, dest: Place, sha256: str) -> None:
    """Brings list and key to another place. Raises PopulationError if they are damaged, or OSError."""
    Suppression.read(source, sha256).write(dest)


def _name(name: str) -> str:
    return f"{layout.FORGOTTEN}/{name}"


def _decoded(content: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Of a list whose digest is right, so that a writer made it."""
    lines = np.frombuffer(content, LINE)[1:]
    return lines["hash"].copy(), lines["cohort"].astype(np.int64)
