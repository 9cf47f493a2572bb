"""Sets of whole numbers as ranges (first, last), both included: how participants of a run are written down."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same numbers as ascending ranges with gaps between them. Raises ValueError for one that runs backwards."""
    made: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if last < first:
            raise ValueError(f"the range {first}-{last} runs backwards")
        if made and first <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], last))
        else:
            made.append((first, last))
    return tuple(made)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """The ranges that hold exactly these numbers."""
    return merged((number, number) for number in numbers)


def numbers_in(ranges: Ranges) -> list[int]:
    """Every number, ascending."""
    return [number for first, last in ranges for number in range(first, last + 1)]


def holds(ranges: Ranges, number: int) -> bool:
    """Whether the number is in one of them."""
    return any(first <= number <= last for first, last in ranges)


def in_words(ranges: Ranges) -> str:
    """As "1-27, 30"; "none" if there is none."""
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges) or "none"


def parsed(text: str) -> Ranges:
    """The ranges of "1-27,30". Raises ValueError if it is none."""
    made = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        made.append((int(first), int(last or first)))
    if any(first < 0 for first, _ in made):
        raise ValueError("numbers are not negative")
    return merged(made)
