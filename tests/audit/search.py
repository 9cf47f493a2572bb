"""A search for what must not be there: words and numbers, as text or as bytes, plain or packed."""

from __future__ import annotations

import base64
import binascii
import io
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numcodecs.zstd import Zstd

TEXT_LEAST, BYTES_LEAST = 2**24, 2**26  # smaller whole numbers occur by chance, in text and as 64 bits
TEXT_CLOSE, BYTES_CLOSE = 1e-10, 1e-12  # relative; text may have been rounded
NUMBER = re.compile(rb"(?<![\w.])\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?!\w)")
BASE64 = re.compile(rb"[A-Za-z0-9+/]{40,}={0,2}")
ZLIB, GZIP, ZSTD = re.compile(rb"\x78[\x01\x5e\x9c\xda]"), re.compile(rb"\x1f\x8b\x08"), b"\x28\xb5\x2f\xfd"
DEPTH, LARGEST = 4, 64 << 20


@dataclass
class Secrets:
    """What is looked for. words: literally. whole: exact sums. real: the same in other units, e.g. clients."""

    words: set[bytes] = field(default_factory=set)
    whole: set[int] = field(default_factory=set)
    real: set[float] = field(default_factory=set)

    def __post_init__(self):
        self.in_text = np.array(sorted({abs(n) for n in self.whole if abs(n) >= TEXT_LEAST}), np.float64)
        self.in_bytes = np.array(sorted(n for n in self.whole if abs(n) >= BYTES_LEAST), np.int64)
        self.units = np.array(sorted(self.real), np.float64)

    def found_in(self, data: bytes) -> set[str]:
        """How secrets show up in these bytes, unpacked ones included."""
        return {what for piece in pieces(data) for what in self.in_piece(piece, numbers_in(piece))}

    def in_piece(self, data: bytes, numbers: np.ndarray) -> Iterator[str]:
        """The same in these bytes as they are. numbers: `numbers_in(data)`."""
        for word in self.words:
            if word in data:
                yield f"word {word.decode()}"
        yield from _near("text", numbers, self.in_text, 0)
        yield from _near("text", numbers, self.units, TEXT_CLOSE)
        for offset in range(min(8, max(0, len(data) - 7))):
            count = (len(data) - offset) // 8
            for order in "<>":
                yield from _near("int64", np.frombuffer(data, f"{order}i8", count, offset), self.in_bytes, 0)
                real = np.frombuffer(data, f"{order}f8", count, offset)
                yield from _near("float64", real, self.in_bytes.astype(np.float64), 0)
                yield from _near("float64", real, self.units, BYTES_CLOSE)


def _near(how: str, values: np.ndarray, secrets: np.ndarray, close: float) -> Iterator[str]:
    """Values within `close` of a secret, relative. secrets: sorted."""
    if not (len(values) and len(secrets)):
        return
    edge = close * max(abs(secrets[0]), abs(secrets[-1]))
    with np.errstate(invalid="ignore"):
        values = values[(values >= secrets[0] - edge) & (values <= secrets[-1] + edge)]  # nearly none
    place = np.searchsorted(secrets, values)
    for side in (place - 1, place):
        nearest = secrets[np.clip(side, 0, len(secrets) - 1)]
        yield from (f"{how} {value}" for value in nearest[np.abs(values - nearest) <= close * np.abs(nearest)])


def numbers_in(data: bytes) -> np.ndarray:
    """(n,) float64: the numbers that are written as text."""
    return np.array([float(token) for token in NUMBER.findall(data) if len(token) <= 40])


def pieces(data: bytes, depth: int = DEPTH) -> Iterator[bytes]:
    """The data, and whatever can be unpacked from it: zip members, zlib, gzip and zstd streams, base64."""
    yield data
    if depth == 0:
        return
    for inner in _unpacked(data):
        if len(inner) >= 8:
            yield from pieces(inner, depth - 1)


def _unpacked(data: bytes) -> Iterator[bytes]:
    if b"PK\x03\x04" in data:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                yield from (archive.read(name) for name in archive.namelist())
        except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError):
            pass  # not a zip file, although it looks like one
    for pattern, bits in ((ZLIB, 15), (GZIP, 31)):
        for match in pattern.finditer(data):
            yield _inflated(data, match.start(), bits)
    start = data.find(ZSTD)
    while start >= 0:
        try:
            yield bytes(Zstd().decode(data[start:]))
        except RuntimeError:
            pass  # not a frame, although it looks like one
        start = data.find(ZSTD, start + 1)
    for match in BASE64.finditer(data):
        text = match.group()
        try:
            yield base64.b64decode(text[: len(text) // 4 * 4])
        except binascii.Error:
            pass


def _inflated(data: bytes, start: int, bits: int) -> bytes:
    """As much as can be unpacked from here; a stream may be cut."""
    stream, out = zlib.decompressobj(bits), b""
    try:
        for at in range(start, len(data), 4096):
            out += stream.decompress(data[at : at + 4096], LARGEST)
            if stream.eof or len(out) > LARGEST:
                break
    except zlib.error:
        pass
    return out


def search(
    folder: Path, secrets: Mapping[str, Secrets], without: tuple[str, ...] = ()
) -> dict[str, dict[str, set[str]]]:
    """For each of `secrets` {path below the folder: what is there}, for all files but those below the folders
    `without`. Every file is unpacked once.
    """
    found: dict[str, dict[str, set[str]]] = {one: {} for one in secrets}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if not path.is_file() or name.startswith(without):
            continue
        for piece in (*pieces(path.read_bytes()), *pieces(name.encode())):
            numbers = numbers_in(piece)
            for one, sought in secrets.items():
                if here := set(sought.in_piece(piece, numbers)):
                    found[one].setdefault(name, set()).update(here)
    return found
