"""Sources cut into parts, which several processes may read: runs of whole records, in the order of the source."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

LEAST_BYTES = 8 << 20  # of a part: what is smaller is read sooner than it is handed out


@dataclass(frozen=True, slots=True)
class Span:
    """Whole records of a file, one after the other. start, stop: bytes of text, row groups of Parquet, record batches
    of Arrow; size: bytes; line, first: the numbers of its first line and of its first record
    """

    start: int
    stop: int
    size: int
    line: int = 1
    first: int = 0

    def with_next(self, span: Span) -> Span:
        return Span(self.start, span.stop, self.size + span.size, self.line, self.first)


@dataclass(frozen=True, slots=True)
class Portion:
    """What a part has of one file. file: its number in the source, of which held-out files are the last"""

    file: int
    span: Span


Part = tuple[Portion, ...]


def joined(spans: Iterable[Span], size: int) -> list[Span]:
    """Neighbours in one, until they have `size` bytes. There is one at least, if an empty one."""
    found: list[Span] = []
    for span in spans:
        if found and found[-1].size < size:
            span = found.pop().with_next(span)
        found.append(span)
    return found or [Span(0, 0, 0)]


def dealt_out(portions: Sequence[Portion], most: int) -> list[Part]:
    """`most` parts of about the same size, or fewer."""
    equal = sum(portion.span.size for portion in portions) / most
    parts: list[list[Portion]] = [[]]
    before = 0
    for portion in portions:
        if parts[-1] and before >= equal * len(parts):
            parts.append([])
        before += portion.span.size
        if parts[-1] and parts[-1][-1].file == portion.file:
            portion = Portion(portion.file, parts[-1].pop().span.with_next(portion.span))
        parts[-1].append(portion)
    return [tuple(part) for part in parts]
