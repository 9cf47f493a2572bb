"""How the text of a file is stored: its encoding, and the places of characters in its bytes.

Everything behind this module sees UTF-8. Places in a file stay those of its bytes, so that a part of a file can be
read by itself.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

from fedcore.errors import IngestError
from fedcore.population.choices import Encoding

MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8
BIG, LITTLE = b"\xfe\xff", b"\xff\xfe"  # of UTF-16
LONGEST_MARK = 3


def stored_as(head: bytes, encoding: Encoding) -> tuple[str, int]:
    """(Python's codec for all but the mark, bytes of the byte order mark). head: the first bytes of the file; UTF-16
    without a mark is little-endian
    """
    if encoding == "utf-8":
        return "utf-8", len(MARK) if head.startswith(MARK) else 0
    if encoding == "utf-16":
        return "utf-16-be" if head.startswith(BIG) else "utf-16-le", 2 if head.startswith((BIG, LITTLE)) else 0
    return encoding, 0


def as_utf8(pieces: Iterable[bytes], codec: str) -> Iterator[bytes]:
    """The same text in UTF-8; bytes that are UTF-8 already pass unseen. Raises UnicodeDecodeError."""
    if codec == "utf-8":
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder(codec)()
    for piece in pieces:
        if text := decoder.decode(piece):
            yield text.encode()
    decoder.decode(b"", final=True)


def stored_bytes(data: bytes, codec: str) -> int:
    """Bytes that this UTF-8 text has in a file of the codec."""
    if codec == "utf-8" or (data.isascii() and not codec.startswith("utf-16")):
        return len(data)
    text = data.decode()
    return len(text.encode(codec)) if codec.startswith("utf-16") else len(text)


def not_text(file: Path, line: int, codec: str) -> IngestError:
    """What to raise for bytes that are not of the encoding."""
    name = codec.removesuffix("-le").removesuffix("-be")
    return IngestError(
        f"{file}, line {line}: not {'UTF-8' if name == 'utf-8' else name} text.",
        f'Give its encoding, one of {", ".join(get_args(Encoding))}: encoding = "cp1252" in [table] of a schema, or '
        "--option encoding=cp1252. Or save the file as UTF-8.",
    )
