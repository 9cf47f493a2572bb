"""Bits, one after the other: a writer and a reader, and the Elias gamma code (Elias 1975)."""

from __future__ import annotations

import numpy as np


def gamma_length(numbers: np.ndarray) -> np.ndarray:
    """int64, same shape: bits of the Elias gamma code of whole numbers >= 1, 2 floor(log2 v) + 1."""
    return 2 * np.frexp(np.asarray(numbers, np.float64))[1].astype(np.int64) - 1


class BitWriter:
    """Collects bits; `finish` gives the bytes, the last one filled with zeros, and the number of bits."""

    def __init__(self) -> None:
        self.parts: list[str] = []

    def bit(self, value: bool) -> None:
        self.parts.append("1" if value else "0")

    def fixed(self, value: int, width: int) -> None:
        self.parts.append(format(value, f"0{width}b"))

    def gamma(self, value: int) -> None:
        binary = format(value, "b")
        self.parts.append("0" * (len(binary) - 1) + binary)

    def finish(self) -> tuple[bytes, int]:
        text = "".join(self.parts)
        size = -(-len(text) // 8)
        return int(text.ljust(8 * size, "0") or "0", 2).to_bytes(size, "big"), len(text)


class BitReader:
    """Reads what a `BitWriter` wrote. Raises ValueError at the end of the message."""

    def __init__(self, message: bytes) -> None:
        self.text = "".join(format(byte, "08b") for byte in message)
        self.place = 0

    def _take(self, width: int) -> str:
        piece = self.text[self.place : self.place + width]
        if len(piece) < width:
            raise ValueError("the message ends too early")
        self.place += width
        return piece

    def bit(self) -> bool:
        return self._take(1) == "1"

    def fixed(self, width: int) -> int:
        return int(self._take(width), 2)

    def gamma(self) -> int:
        zeros = 0
        while not self.bit():
            zeros += 1
        return int("1" + self._take(zeros), 2) if zeros else 1
