"""The codec `natural`: one step for all numbers of a message, in the model's own units.

A difference of statistics is taken to `NaturalUnits`, where an error of one size costs the same likelihood wherever it
is, and rounded to whole steps with subtractive dither:

    l = round(z / D + u),    decoded D (l - u),    u uniform on (-1/2, 1/2) from the client's named stream

The error is uniform on (-D/2, D/2) whatever z is, of variance D^2 / 12, and independent of that of other clients
(Schuchman 1964). A part of the statistic (the weights, a component's mean, a component's scatter) whose squared norm is
at most 1.5 times that of its own error is not sent, and decoded as 0; a bit says so.

Levels are coded one after the other with adaptive contexts (`fedcore.methods.federated_em.range_coder`): whether a
level is 0, then by one bit after the other whether its size goes on, which is the code of a geometric tail. Contexts
are told apart by the kind of the number and by the client's share of the component relative to the component's weight,
in four classes that the client names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em.codecs import check_finite
from fedcore.methods.federated_em.range_coder import UNIT, Context, RangeReader, RangeWriter, context_bits, whole_bytes
from fedcore.methods.mixture_models.natural_units import NaturalUnits
from fedcore.methods.mixture_models.packing import WEIGHT_FLOOR

SENT_ABOVE = 1.5  # squared norm of a part that is sent, relative to that of its rounding errors
CLASS_LIMITS = (0.02, 0.2, 1.0)  # of the client's share of a component over the component's weight
CLASSES = len(CLASS_LIMITS) + 1
UNARY = 24  # sizes from here on are coded by Elias gamma codes of what goes beyond
LARGEST_LEVEL = 2.0**40
MOST_ZEROS = 41  # at the head of a code of such a level


def share_classes(shares: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(C, G) int64 in 0 .. 3: the classes of clients' shares (C, G) of components with weights (G,)."""
    return np.digitize(shares / np.maximum(weights, WEIGHT_FLOOR), CLASS_LIMITS)


@dataclass(frozen=True, eq=False)
class Natural:
    """units: of theta, which both sides know. step: D > 0. everything: whether all parts are sent, and no bit says so.

    Raises ConfigError for a step that is not positive.
    """

    units: NaturalUnits
    step: float
    everything: bool = False

    # The error does not grow with the message, so memories follow messages at the rate 1 / (1 + omega) = 1.
    omega = 0.0

    def __post_init__(self) -> None:
        if not (self.step > 0 and np.isfinite(self.step)):
            raise ConfigError(f"a step of {self.step} cannot be coded.", "It has to be positive.")

    @property
    def q(self) -> int:
        return self.units.model.q

    @property
    def draws(self) -> int:
        return self.q

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return parts_of(self.units)

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None, classes: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """x: (C, q) float64; uniforms: (C, q) in (0, 1); clients: (C,) their numbers, for errors; classes: (C, G), see
        `share_classes`; None: all 0.

        Returns the decoded differences (C, q) float64 and the bits of each message (C,) int64, whole bytes. Raises
        WorkerFailed for a message that is not finite, or too large to be coded.
        """
        levels, sent = self.quantise(x, uniforms, clients)
        return self.decode(levels, sent, uniforms), self.bits(levels, sent, classes)

    def quantise(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """levels (C, q) int64, 0 in parts that are not sent, and which parts are sent (C, parts) bool."""
        check_finite(x, clients)
        with np.errstate(over="ignore", invalid="ignore"):
            z = self.units.forward(x)
            z /= self.step
        check_finite(z, clients, LARGEST_LEVEL)
        if self.everything:
            sent = np.ones((len(z), len(self.parts)), bool)
        else:
            sent = np.add.reduceat(z * z, self._starts, axis=1) > SENT_ABOVE * self._lengths / 12
        z += uniforms
        z -= 0.5
        np.rint(z, out=z)
        z *= np.repeat(sent, self._lengths, axis=1)
        return z.astype(np.int64), sent

    def decode(self, levels: np.ndarray, sent: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """(C, q) float64; the same operations on both sides, hence the same bits."""
        z = levels - (uniforms - 0.5)
        z *= self.step
        return self.units.backward(np.where(np.repeat(sent, self._lengths, axis=1), z, 0.0))

    def bits(self, levels: np.ndarray, sent: np.ndarray, classes: np.ndarray | None = None) -> np.ndarray:
        """(C,) int64: length of every message, whole bytes; that of `to_bits`, from the counts of its contexts."""
        classes, named = self._classes(sent, classes)
        units = np.zeros(len(levels), np.int64)
        if not self.everything:
            for kind in range(self._kinds):
                units += context_bits(_zeros_and_ones(sent[:, self._kind == kind]))
        units += context_bits(np.stack([(named & (classes == c)).sum(axis=1) for c in range(CLASSES)], axis=-1))
        counts, plain = self._counts(levels)
        counts[:, :, 0] += self._lengths * sent - counts[:, :, 1]  # levels of 0
        units += plain * int(1 / UNIT)
        by_part = np.where(self._component >= 0, classes[:, self._component], 0)
        for kind in range(self._kinds):
            own = self._kind == kind
            for c in range(CLASSES):
                chosen = own & (by_part == c)
                together = np.einsum("cpk,cp->ck", counts, chosen)
                units += context_bits(together[:, :2]) + context_bits(together[:, 2:])
        return 8 * whole_bytes(units)

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray, classes: np.ndarray | None = None) -> tuple[bytes, int]:
        """The message of one client, x (q,), uniforms (q,), classes (G,): bytes, of which all bits count."""
        levels, sent = self.quantise(x[None], uniforms[None])
        known = None if classes is None else classes[None]
        length = int(self.bits(levels, sent, known)[0]) // 8
        known, named = self._classes(sent, known)
        writer, contexts = RangeWriter(), _Contexts(self._kinds)
        if not self.everything:
            for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
                contexts.sent[part.kind].write(writer, int(is_sent))
        for class_ in known[0][named[0]].tolist():
            contexts.classes.write(writer, class_)
        for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
            if is_sent:
                of = contexts.levels[part.kind, int(known[0][part.component]) if part.component >= 0 else 0]
                for level in levels[0, part.start : part.start + part.length].tolist():
                    _write_level(writer, of, level)
        return writer.finish(length), 8 * length

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        """What the server decodes, (q,) float64. uniforms: the same, from the client's named stream. Raises ValueError
        for bytes that no client sends, where that shows."""
        reader, contexts = RangeReader(message), _Contexts(self._kinds)
        sent = np.ones((1, len(self.parts)), bool)
        if not self.everything:
            sent[0] = [contexts.sent[part.kind].read(reader) for part in self.parts]
        classes, named = self._classes(sent, None)
        classes[named] = [contexts.classes.read(reader) for _ in range(int(named.sum()))]
        levels = np.zeros((1, self.q), np.int64)
        for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
            if is_sent:
                of = contexts.levels[part.kind, int(classes[0, part.component]) if part.component >= 0 else 0]
                own = slice(part.start, part.start + part.length)
                levels[0, own] = [_read_level(reader, of) for _ in range(part.length)]
        return self.decode(levels, sent, uniforms[None])[0]

    # --- contexts -----------------------------------------------------------------------------------------------------

    def _classes(self, sent: np.ndarray, classes: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Classes (C, G), and which of them are named: those of components of which a part is sent."""
        shape = (len(sent), self.units.model.components)
        named = np.zeros(shape, bool)
        for at, part in enumerate(self.parts):
            if part.component >= 0:
                named[:, part.component] |= sent[:, at]
        return np.zeros(shape, np.int64) if classes is None else np.where(named, classes, 0), named

    def _counts(self, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(C, parts, 4) how often the contexts of a part's levels code a level of 0 (left at 0 here), another, the end
        of a size, and that it goes on; and (C,) the bits without a context."""
        size = np.abs(levels)
        nonzero = size > 0
        counts = np.zeros((len(levels), len(self.parts), 4), np.int64)
        counts[:, :, 1] = np.add.reduceat(nonzero, self._starts, axis=1, dtype=np.int64)
        plain = counts[:, :, 1].sum(axis=1)  # signs
        ends = counts[:, :, 1]
        if size.max(initial=0) >= UNARY:
            beyond = size >= UNARY
            ends = ends - np.add.reduceat(beyond, self._starts, axis=1, dtype=np.int64)
            lengths = 2 * np.frexp((np.where(beyond, size, UNARY) - UNARY + 1).astype(np.float64))[1] - 1
            plain += np.where(beyond, lengths, 0).sum(axis=1)
            size = np.minimum(size, UNARY)
        counts[:, :, 2] = ends
        counts[:, :, 3] = np.add.reduceat(size, self._starts, axis=1) - counts[:, :, 1]
        return counts, plain

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([part.start for part in self.parts])

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([part.length for part in self.parts])

    @cached_property
    def _kind(self) -> np.ndarray:
        return np.array([part.kind for part in self.parts])

    @cached_property
    def _component(self) -> np.ndarray:
        return np.array([part.component for part in self.parts])

    @property
    def _kinds(self) -> int:
        return self.parts[-1].kind + 1


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers that are sent together or not at all. component: whose they are; -1: no single one's."""

    start: int
    length: int
    kind: int
    component: int


def parts_of(units: NaturalUnits) -> tuple[Part, ...]:
    """The parts of the model's statistic, in its order; kinds of one number are one part of all components."""
    layout, parts, low = units.model.layout, [], 0
    for kind, size in enumerate(layout.kinds):
        if size == 1:
            parts.append(Part(low, layout.components, kind, -1))
        else:
            parts += [Part(low + g * size, size, kind, g) for g in range(layout.components)]
        low += size * layout.components
    if layout.shared:
        parts.append(Part(low, layout.shared, len(layout.kinds), -1))
    return tuple(parts)


class _Contexts:
    """One message's: of the bits that say what is sent, by kind; of classes; of levels, by kind and class, whether they
    are not 0 and whether their size goes on."""

    def __init__(self, kinds: int) -> None:
        self.sent = [Context() for _ in range(kinds)]
        self.classes = Context(CLASSES)
        self.levels = {(kind, c): (Context(), Context()) for kind in range(kinds) for c in range(CLASSES)}


def _zeros_and_ones(flags: np.ndarray) -> np.ndarray:
    """(C, 2) int64: how many of the flags (C, n) are false and true."""
    ones = flags.sum(axis=1)
    return np.stack([flags.shape[1] - ones, ones], axis=-1)


def _write_level(writer: RangeWriter, of: tuple[Context, Context], level: int) -> None:
    nonzero, more = of
    nonzero.write(writer, int(level != 0))
    if not level:
        return
    size = abs(level)
    for _ in range(min(size, UNARY) - 1):
        more.write(writer, 1)
    if size < UNARY:
        more.write(writer, 0)
    else:
        beyond = size - UNARY + 1
        writer.bits(beyond, 2 * beyond.bit_length() - 1)
    writer.bits(int(level < 0), 1)


def _read_level(reader: RangeReader, of: tuple[Context, Context]) -> int:
    nonzero, more = of
    if not nonzero.read(reader):
        return 0
    size = 1
    while size < UNARY and more.read(reader):
        size += 1
    if size == UNARY:
        zeros = 0
        while not reader.bits(1):
            zeros += 1
            if zeros > MOST_ZEROS:
                raise ValueError("the message was not written by this codec")
        size += (1 << zeros | reader.bits(zeros)) - 1
    return -size if reader.bits(1) else size
