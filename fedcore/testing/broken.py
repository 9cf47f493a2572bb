"""The error of a failed conformance test."""

from __future__ import annotations

import traceback


class LawBroken(AssertionError):
    """A method fails a conformance test. The text is a sentence for its author."""


def require(holds: bool, sentence: str) -> None:
    """Raises LawBroken with this sentence unless it holds."""
    if not holds:
        raise LawBroken(sentence)


def in_words(error: BaseException) -> str:
    """One sentence about an error of a method, with the place in the author's own code if it is none of fedcore's."""
    if isinstance(error, LawBroken):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "fedcore/testing" not in frame.filename.replace("\\", "/")]
    last = (own or frames)[-1] if frames else None
    where = f" ({last.filename}, line {last.lineno}, in {last.name})" if last is not None else ""
    return f"{type(error).__name__}: {error}{where}"
