"""The blocks of a version as a table: an array for each field, so that a million blocks take 150 MB and no loop.

A block is read from the table as a `BlockEntry`. A manifest stores the table as a list of objects or, where there are
many blocks, packed (docs/population-format.md).
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args, overload

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationInfo, model_validator
from pydantic_core import CoreSchema, core_schema

from fedcore.population.choices import Kind
from fedcore.storage.ranges import Ranges

StoredDtype = Literal["int32", "int64", "float32", "float64"]
DTYPES: Final[tuple[StoredDtype, ...]] = get_args(StoredDtype)
# one folder name, of at most 255 bytes: a manifest can never point outside its population, and the longest name is the
# width of all of them in a table
SLOT = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$"
DIGEST_BYTES: Final = 32
PACKED_ABOVE: Final = 1000  # blocks, of which a manifest stores the packed table
NONE: Final = -1  # in a column of numbers: there is none
PARTS: Final = ("train", "heldout")
OF_A_PART: Final = ("entries", "total", "dtype", "words")  # dtype: its place in DTYPES
NUMBERS: Final = ("clients", "id_bytes", "bytes", *(f"{part}.{name}" for part in PARTS for name in OF_A_PART))
OPTIONAL: Final = ("train.words", *(f"heldout.{name}" for name in OF_A_PART))
LARGEST: Final = 2**63 - 1


class PartEntry(BaseModel):
    """The arrays of one part (train or held-out) of a block.

    entries: length of the data arrays: stored non-zeros for counts, rows for rows
    total:   tokens for counts, rows for rows
    dtype:   of the counts, or of x
    words:   of a population of words: how many are in the dictionary of the part
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    entries: int = Field(ge=0)
    total: int = Field(ge=0)
    dtype: StoredDtype
    words: int | None = Field(default=None, ge=0)


class BlockEntry(BaseModel):
    """One block: whole clients first .. first + clients - 1.

    slot:    folder below blocks/; immutable
    bytes:   of all files in the slot
    digest:  of the list of the digests of all other files in the slot (`fedcore.population.slots`)
    id_bytes: length of the array of client ids
    heldout: None if no client of the block has a held-out part
    void:    all of its clients were forgotten: it has no slot, digest, data or ids
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    slot: str = Field(default="", pattern=SLOT)
    void: bool = False
    first: int = Field(ge=0)
    clients: int = Field(ge=1)
    train: PartEntry
    heldout: PartEntry | None = None
    id_bytes: int = Field(ge=0)
    bytes: int = Field(ge=0)
    digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")

    @model_validator(mode="after")
    def _one_digest(self) -> Self:
        if self.void:
            if self.slot or self.fingerprint or self.heldout or self.id_bytes or self.bytes or self.train.total:
                raise ValueError("it is void and holds something")
            return self
        if not self.slot:
            raise ValueError("it has no slot")
        if self.digest is None:
            raise ValueError("it has no digest")
        return self

    @property
    def parts(self) -> tuple[PartEntry, ...]:
        """Those that are stored."""
        return () if self.void else (self.train,) if self.heldout is None else (self.train, self.heldout)

    @property
    def fingerprint(self) -> str:
        """A string that distinguishes the slot from every other."""
        return self.digest or ""


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(Sequence[BlockEntry]):
    """The B blocks of a version, in the order of their clients.

    names:   (B,) bytes, the slots; empty for a void block
    digests: (B, 32) uint8; zeros for a void block
    first:   (B,) int64
    numbers: by a name in NUMBERS (B,) int64, NONE where there is none; object where a number needs more than 64 bits
    """

    names: np.ndarray
    digests: np.ndarray
    first: np.ndarray
    numbers: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, entries: Iterable[BlockEntry]) -> Blocks:
        """The table of these blocks, or the same table."""
        if isinstance(entries, Blocks):
            return entries
        held = tuple(entries)
        digests = bytes.fromhex("".join(one.digest or "0" * 2 * DIGEST_BYTES for one in held))
        numbers = {name: [getattr(one, name) for one in held] for name in ("clients", "id_bytes", "bytes")}
        for part in PARTS:
            for name in OF_A_PART:
                numbers[f"{part}.{name}"] = [_number(getattr(one, part), name) for one in held]
        return cls(
            np.array([one.slot.encode() for one in held], dtype=bytes),
            np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES),
            _column([one.first for one in held]),
            {name: _column(values) for name, values in numbers.items()},
        )

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> BlockEntry: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[BlockEntry, ...]: ...
    def __getitem__(self, index: int | slice) -> BlockEntry | tuple[BlockEntry, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        slot = self.names[index].decode()
        train = self._part("train", index)
        assert train is not None  # of every block
        return BlockEntry.model_construct(
            slot=slot,
            void=not slot,
            first=int(self.first[index]),
            train=train,
            heldout=self._part("heldout", index),
            digest=self.digests[index].tobytes().hex() if slot else None,
            clients=int(self.numbers["clients"][index]),
            id_bytes=int(self.numbers["id_bytes"][index]),
            bytes=int(self.numbers["bytes"][index]),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Blocks):
            return NotImplemented
        pairs = [(self.numbers[name], other.numbers[name]) for name in NUMBERS]
        pairs += [(self.names, other.names), (self.digests, other.digests), (self.first, other.first)]
        return all(np.array_equal(mine, theirs) for mine, theirs in pairs)

    @property
    def void(self) -> np.ndarray:
        """(B,) bool"""
        return self.names == b""

    @property
    def has_heldout(self) -> bool:
        return bool((self.numbers["heldout.entries"] != NONE).any())

    def sum_of(self, name: str) -> int:
        """The exact sum of a column of numbers over the blocks that have one."""
        return sum(value for value in self.numbers[name].tolist() if value != NONE)

    def slots(self) -> list[str]:
        """Of the blocks that are not void."""
        return [name.decode() for name in self.names.tolist() if name]

    def fingerprints(self, least_clients: int = 1) -> list[str]:
        """`BlockEntry.fingerprint` of the blocks that are not void and hold at least this many clients."""
        return _hexadecimal(self.digests[~self.void & (self.numbers["clients"] >= least_clients)])

    def starting_at(self, client: int) -> int | None:
        """The block whose first client has this index; None if there is none."""
        place = int(np.searchsorted(self.first, client))
        return place if place < len(self) and self.first[place] == client else None

    def changed(self, entries: Mapping[int, BlockEntry]) -> Blocks:
        """The table with other blocks at these places."""
        places, new = list(entries), Blocks.of(entries.values())

        def put(column: np.ndarray, values: np.ndarray) -> np.ndarray:
            made = column.astype(np.promote_types(column.dtype, values.dtype))
            made[places] = values
            return made

        numbers = {name: put(self.numbers[name], new.numbers[name]) for name in NUMBERS}
        return Blocks(put(self.names, new.names), put(self.digests, new.digests), put(self.first, new.first), numbers)

    def overlapping(self, ranges: Ranges) -> np.ndarray:
        """(B,) bool: which blocks hold a client of these index ranges [low, high)."""
        stops, found = self.first + self.numbers["clients"], np.zeros(len(self), bool)
        for low, high in ranges:
            start, stop = np.searchsorted(stops, low, side="right"), np.searchsorted(self.first, high)
            found[start:stop] = True
        return found

    def fault(self, n_clients: int, clients_per_leaf: int, kind: Kind) -> str | None:
        """What contradicts itself; None if nothing does."""
        if n_clients > LARGEST:
            return "it holds too many clients"
        clients = self.numbers["clients"]
        stops = np.cumsum(clients)
        wrong = np.flatnonzero(self.first != stops - clients)
        if len(wrong):
            at = int(wrong[0])
            return f"block {at} starts at client {self.first[at]}, not {stops[at] - clients[at]}"
        split = np.flatnonzero(clients[:-1] % min(clients_per_leaf, LARGEST))
        if len(split):
            return f"block {split[0]} does not hold whole leaves"
        if self.sum_of("clients") != n_clients:
            return f"the blocks hold {self.sum_of('clients')} clients, not {n_clients}"
        slots = self.slots()
        if len({*slots}) != len(slots):
            return "a slot is named twice"
        for part in PARTS:
            there = ~self.void & (self.numbers[f"{part}.entries"] != NONE)
            if ((self.numbers[f"{part}.words"][there] == NONE) == (kind == "words")).any():
                return "dictionaries go with kind 'words'"
        return None

    # ---- as JSON

    @property
    def packable(self) -> bool:
        """Whether there are many blocks, and no number needs more than 64 bits."""
        return len(self) > PACKED_ABOVE and all(column.dtype == np.int64 for column in self.numbers.values())

    def listed(self) -> list[dict[str, Any]]:
        """An object for each block."""
        made = [entry.model_dump(mode="json") for entry in self]
        for block in made:
            if block["void"]:
                del block["slot"], block["digest"]
            else:
                del block["void"]
            for part in (block["train"], block["heldout"]):
                if part is not None and part["words"] is None:
                    del part["words"]
        return made

    def packed(self) -> dict[str, str | int]:
        """The packed table."""
        names, digests = b"\n".join(self.names.tolist()).decode(), self.digests.tobytes().hex()
        return {"slots": names, "digests": digests, **{name: _packed(self.numbers[name]) for name in NUMBERS}}

    @classmethod
    def unpacked(cls, content: Any) -> Blocks:
        """The blocks of a packed table. Raises ValueError if it is none."""
        if not isinstance(content, Mapping) or content.keys() != {"slots", "digests", *NUMBERS}:
            raise ValueError("it does not have the columns of a packed table")
        if not isinstance(content["slots"], str) or not isinstance(content["digests"], str):
            raise ValueError("slots and digests are not text")
        slots = content["slots"].split("\n")
        if not all(map(re.compile(f"(?:{SLOT})?\\Z").match, slots)):
            raise ValueError("a slot is no name of a folder")
        digests = np.frombuffer(bytes.fromhex(content["digests"]), np.uint8)
        if len(digests) != len(slots) * DIGEST_BYTES:
            raise ValueError("there is not one digest for each block")
        numbers = {name: _unpacked(name, content[name], len(slots)) for name in NUMBERS}
        clients = numbers["clients"]
        if sum(clients.tolist()) > LARGEST:
            raise ValueError("it holds too many clients")
        first = np.cumsum(clients) - clients
        made = cls(np.array([slot.encode() for slot in slots]), digests.reshape(-1, DIGEST_BYTES), first, numbers)
        held = [made.digests.any(axis=1), numbers["heldout.entries"] != NONE]
        held += [numbers[name] != 0 for name in ("id_bytes", "bytes", "train.total")]
        if any((one & made.void).any() for one in held):
            raise ValueError("a block is void and holds something")
        entries, *others, words = (numbers[f"heldout.{name}"] == NONE for name in OF_A_PART)
        if any((entries != one).any() for one in others) or (entries & ~words).any():
            raise ValueError("a block has some numbers of a held-out part, and not the others")
        if made.packed() != content:  # the file's checksum is of the text, a version's of its blocks
            raise ValueError("the table is not packed as a version packs it")
        return made

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """A field takes a table as it is, or blocks that are checked one by one; from JSON also the packed table that
        the validation's context holds. What pydantic writes of it is `listed`."""
        listed = handler.generate_schema(tuple[BlockEntry, ...])
        return core_schema.json_or_python_schema(
            core_schema.with_info_after_validator_function(cls._read, listed),
            core_schema.no_info_wrap_validator_function(cls._given, listed),
            serialization=core_schema.plain_serializer_function_ser_schema(cls._written),
        )

    @classmethod
    def _read(cls, entries: tuple[BlockEntry, ...], info: ValidationInfo) -> Blocks:
        return cls.of(entries) if info.context is None else info.context

    @classmethod
    def _given(cls, value: Any, one_by_one: Callable[[Any], tuple[BlockEntry, ...]]) -> Blocks:
        return value if isinstance(value, Blocks) else cls.of(one_by_one(value))

    def _written(self) -> tuple[dict[str, Any], ...]:
        return tuple(self.listed())

    def _part(self, part: str, index: int) -> PartEntry | None:
        entries, total, dtype, words = (int(self.numbers[f"{part}.{name}"][index]) for name in OF_A_PART)
        if entries == NONE:
            return None
        return PartEntry.model_construct(
            entries=entries, total=total, dtype=DTYPES[dtype], words=None if words == NONE else words
        )


def total_of(blocks: Iterable[BlockEntry]) -> int:
    """Rows, or tokens of counts, of these blocks, held-out ones included."""
    table = Blocks.of(blocks)
    return sum(table.sum_of(f"{part}.total") for part in PARTS)


def _number(part: PartEntry | None, name: str) -> int:
    value = None if part is None else getattr(part, name)
    return NONE if value is None else DTYPES.index(value) if name == "dtype" else value


def _column(values: list[int]) -> np.ndarray:
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array(values, object)


def _packed(column: np.ndarray) -> str | int:
    """The one value of a column in which all are the same; else its int64, little-endian, in base 64."""
    if (column == column[0]).all():
        return int(column[0])
    return b64encode(column.astype("<i8").tobytes()).decode()


def _unpacked(name: str, value: Any, count: int) -> np.ndarray:
    if isinstance(value, str):
        column = np.frombuffer(b64decode(value, validate=True), "<i8").astype(np.int64)
    elif type(value) is int and abs(value) <= LARGEST:
        column = np.broadcast_to(np.int64(value), count)
    else:
        raise ValueError(f"the column {name} is neither text nor a number of 64 bits")
    least = NONE if name in OPTIONAL else 1 if name == "clients" else 0
    most = len(DTYPES) - 1 if name.endswith(".dtype") else LARGEST
    if len(column) != count or (column < least).any() or (column > most).any():
        raise ValueError(f"the column {name} does not hold {count} numbers from {least} to {most}")
    return column


def _hexadecimal(digests: np.ndarray) -> list[str]:
    text, width = digests.tobytes().hex(), 2 * digests.shape[1]
    return [text[at : at + width] for at in range(0, len(text), width)]
