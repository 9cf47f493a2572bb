"""The codec `natural`: one step for all numbers of a message, in the model's own units, or one for each component.

A difference of statistics is taken to `Units`, where an error of one size costs the same likelihood wherever it
is, and rounded to whole steps with subtractive dither:

    l = round(z / D + u),    decoded D (l - u),    u uniform on (-1/2, 1/2) from the client's named stream

The error is uniform on (-D/2, D/2) whatever z is, of variance D^2 / 12, and independent of that of other clients
(Schuchman 1964). A part of the statistic (the weights, a component's mean, a component's scatter) whose squared norm is
at most 1.5 times that of the error is not sent, and decoded as 0; a bit says so.

An error of one size costs the same likelihood in every component, but of a component of small weight pi_g it may be
more than there is: relative to its covariance, it grows as 1 / sqrt(pi_g). So the component's step is at most a share
of sqrt(pi_g). `fedcore.methods.federated_em.resolution` has the sizes of both.

Levels are coded one after the other with adaptive contexts (`fedcore.methods.federated_em.range_coder`): first
whether a level is 0, then bit by bit whether its size is larger still, which is the code of a geometric tail. Each kind
of number has a context. A part of at least 30 numbers has a separate one, since it soon learns how large its numbers
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from fedcore.errors import ConfigError
from fedcore.methods.federated_em.bits import gamma_length
from fedcore.methods.federated_em.codecs import check_finite
from fedcore.methods.federated_em.range_coder import UNIT, Context, RangeReader, RangeWriter, context_units, whole_bytes
from fedcore.methods.mixture_models.client_sums import uncopied_broadcasts
from fedcore.methods.mixture_models.natural_units import Units

SENT_ABOVE = 1.5  # squared norm of a part that is sent, relative to that of its rounding errors
OWN_CONTEXTS = 30  # numbers of a part that has its own contexts
UNARY = 24  # sizes from here on are coded by Elias gamma codes of what goes beyond
SMALLEST_WEIGHT = 1e-8  # of a component: its step becomes no finer below
LARGEST_LEVEL = 2.0**40
MOST_ZEROS = 41  # at the head of a code of such a level


@dataclass(frozen=True, eq=False)
class Natural:
    """units: of theta, which both sides know. step: D > 0. component_step: of a component of weight 1, infinite where D
    is for all. everything: whether all parts are sent, and no bit says so.

    Raises ConfigError for a step that is not positive.
    """

    units: Units
    step: float
    everything: bool = False
    component_step: float = np.inf

    # The error does not grow with the message, so memories follow messages at the rate 1 / (1 + omega) = 1.
    omega = 0.0
    dithers = True

    def __post_init__(self) -> None:
        if not (self.step > 0 and np.isfinite(self.step) and self.component_step > 0):
            raise ConfigError(f"a step of {self.step} cannot be coded.", "It has to be positive.")

    @property
    def q(self) -> int:
        return self.units.model.q

    @property
    def draws(self) -> int:
        return self.q

    @property
    def order(self) -> Literal["C", "F"]:
        return self.units.order

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        return parts_of(self.units)

    @cached_property
    def steps(self) -> np.ndarray:
        """(q,) the step of each number."""
        if np.isinf(self.component_step):
            return np.full(self.q, self.step)
        weights = np.maximum(self.units.theta["weights"], SMALLEST_WEIGHT)
        own = self.units.model.layout.of_components(np.sqrt(weights), 1.0)
        return np.minimum(self.step, self.component_step * own)

    def transmit(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `fedcore.methods.federated_em.codecs.Codec` says; x: differences of packed statistics. Messages are whole
        bytes."""
        with uncopied_broadcasts():
            levels, sent = self._rounded(x, uniforms, clients)
            bits = self.bits(levels, sent)
            return self._decoded(levels, sent, uniforms), bits

    def quantise(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """levels (C, q) int64, 0 in parts that are not sent, and which parts are sent (C, parts) bool."""
        levels, sent = self._rounded(x, uniforms, clients)
        return levels.astype(np.int64), sent

    def decode(self, levels: np.ndarray, sent: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """(C, q) float64; the same operations on both sides, hence the same bits."""
        return self._decoded(levels.astype(np.float64), sent, uniforms)

    def _rounded(
        self, x: np.ndarray, uniforms: np.ndarray, clients: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """As `quantise`, but levels are float64, in the memory layout of the units."""
        with np.errstate(over="ignore", invalid="ignore"):
            z = self.units.forward(x)
            z *= 1.0 / self.steps
            squares = None if self.everything else self._squares(z)
        if squares is None or not squares.max(initial=0.0) <= LARGEST_LEVEL**2:  # a NaN is no number below it
            check_finite(x, clients)
            check_finite(z, clients, LARGEST_LEVEL)
        if squares is None:
            sent = np.ones((len(z), len(self.parts)), bool)
        else:
            sent = squares > SENT_ABOVE * self._lengths / 12
        z += uniforms  # 1/2 more than the dither, hence rounded down
        np.floor(z, out=z)
        self._clear(z, sent)
        return z, sent

    def _decoded(self, levels: np.ndarray, sent: np.ndarray, uniforms: np.ndarray) -> np.ndarray:
        """levels: (C, q) float64, which are overwritten."""
        levels -= uniforms
        levels += 0.5
        levels *= self.steps
        self._clear(levels, sent)
        return self.units.backward(levels)

    def bits(self, levels: np.ndarray, sent: np.ndarray) -> np.ndarray:
        """(C,) int64: length of every message, whole bytes: those of `to_bits`, from the counts of its contexts.

        levels: whole numbers of any dtype
        """
        size, plain = np.abs(levels).astype(np.float64, copy=False), np.zeros(len(levels), np.int64)
        at_the_end: np.ndarray | int = 0
        if size.max(initial=0) >= UNARY:
            beyond = size >= UNARY
            at_the_end = self._count(beyond)
            long, at = np.nonzero(beyond)
            np.add.at(plain, long, gamma_length(size[long, at].astype(np.int64) - UNARY + 1))
            np.minimum(size, UNARY, out=size)
        sizes, nonzero = self._count(size), self._count(size != 0)
        plain += nonzero.sum(axis=0)  # signs
        of_sent = (self._of_parts @ sent.T).astype(np.int64)  # numbers of each pair of contexts, parts of each kind
        pairs, k = len(sizes), len(of_sent) - len(sizes)
        no, yes = np.zeros((2, 2 * pairs + k, len(levels)), np.int64)
        np.subtract(of_sent[:pairs], nonzero, out=no[:pairs])
        np.subtract(nonzero, at_the_end, out=no[pairs : 2 * pairs])
        yes[:pairs] = nonzero
        np.subtract(sizes, nonzero, out=yes[pairs : 2 * pairs])
        if not self.everything:
            np.subtract(self._kinds.sum(axis=0, dtype=np.int64)[:, None], of_sent[pairs:], out=no[2 * pairs :])
            yes[2 * pairs :] = of_sent[pairs:]
        plain *= int(1 / UNIT)
        plain += context_units(no, yes).sum(axis=0)
        return 8 * whole_bytes(plain)

    def _count(self, numbers: np.ndarray) -> np.ndarray:
        """(contexts, C) int64: sums of whole numbers (C, q) >= 0 over those that the contexts code; exact in any
        order."""
        if self.order == "C":
            return (numbers.astype(np.float64, copy=False) @ self._contexts).T.astype(np.int64)
        found = np.zeros((len(self._runs), len(numbers)), np.int64)
        for total, run in zip(found, self._runs, strict=True):
            own = numbers.T[run]
            if own.dtype == bool:  # bytes: a sum of 255 of them fits into one
                for low in range(0, len(own), 255):
                    total += np.add.reduce(own[low : low + 255].view(np.uint8), axis=0, dtype=np.uint8)
            else:
                total[:] = own.sum(axis=0)
        return found

    def to_bits(self, x: np.ndarray, uniforms: np.ndarray) -> tuple[bytes, int]:
        levels, sent = self.quantise(x[None], uniforms[None])
        length = int(self.bits(levels, sent)[0]) // 8
        writer, contexts = RangeWriter(), _Contexts(self.parts)
        if not self.everything:
            for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
                contexts.sent[part.kind].write(writer, int(is_sent))
        for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
            if is_sent:
                for level in levels[0, part.start : part.start + part.length].tolist():
                    _write_level(writer, contexts.levels[part.contexts], level)
        return writer.finish(length), 8 * length

    def from_bits(self, message: bytes, uniforms: np.ndarray) -> np.ndarray:
        """What the server decodes, (q,) float64. uniforms: the same, from the client's named stream. Raises ValueError
        for bytes that no client sends, where that shows."""
        reader, contexts = RangeReader(message), _Contexts(self.parts)
        sent, levels = np.ones((1, len(self.parts)), bool), np.zeros((1, self.q), np.int64)
        if not self.everything:
            sent[0] = [contexts.sent[part.kind].read(reader) for part in self.parts]
        for part, is_sent in zip(self.parts, sent[0].tolist(), strict=True):
            if is_sent:
                own = slice(part.start, part.start + part.length)
                levels[0, own] = [_read_level(reader, contexts.levels[part.contexts]) for _ in range(part.length)]
        return self.decode(levels, sent, uniforms[None])[0]

    def _squares(self, z: np.ndarray) -> np.ndarray:
        """(C, parts) squared norms. A client's bits do not depend on other clients."""
        if self.order == "C":  # the flags of a lone client say both
            return np.add.reduceat(z * z, self._starts, axis=1)
        if len(z) == 1:  # whose numbers would be added up in another order
            return self._squares(np.repeat(z.T, 2, axis=1).T)[:1]
        found = np.empty((len(self.parts), len(z)))
        for first, stop, numbers in self._alike:
            part = z.T[numbers].reshape(stop - first, self._lengths[first], len(z))
            np.einsum("pnc,pnc->pc", part, part, out=found[first:stop])
        return found.T

    def _clear(self, z: np.ndarray, sent: np.ndarray) -> None:
        """0, in place, in parts that are not sent."""
        if sent.all():
            return
        factors = sent.T.astype(np.float64, order="C")
        if self.order == "C":
            z *= np.repeat(factors.T, self._lengths, axis=1)
            return
        for first, stop, numbers in self._alike:
            part = z.T[numbers].reshape(stop - first, -1, len(z))
            part *= factors[first:stop, None]

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.array([part.start for part in self.parts])

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([part.length for part in self.parts])

    @cached_property
    def _alike(self) -> list[tuple[int, int, slice]]:
        """First and stop of consecutive parts of one length, and their numbers."""
        cuts = [0, *(np.flatnonzero(np.diff(self._lengths)) + 1).tolist(), len(self.parts)]
        ends = [*self._starts.tolist(), self.q]
        return [(first, stop, slice(ends[first], ends[stop])) for first, stop in zip(cuts[:-1], cuts[1:], strict=True)]

    @cached_property
    def _kinds(self) -> np.ndarray:
        """(parts, kinds) float64, 1 where a part is of the kind."""
        return np.eye(self.parts[-1].kind + 1)[[part.kind for part in self.parts]]

    @cached_property
    def _part_contexts(self) -> np.ndarray:
        """(parts, contexts) float64: how many numbers of a part the contexts code."""
        of = np.eye(self.parts[-1].contexts + 1)[[part.contexts for part in self.parts]]
        return of * self._lengths[:, None]

    @cached_property
    def _contexts(self) -> np.ndarray:
        """(q, contexts) float64, 1 where a number is coded by the contexts."""
        return np.repeat(np.sign(self._part_contexts), self._lengths, axis=0)

    @cached_property
    def _runs(self) -> list[slice]:
        """For each pair of contexts which numbers it codes: neighbours."""
        ends = np.concatenate([[0], np.cumsum(self._contexts.sum(axis=0).astype(np.int64))]).tolist()
        return [slice(low, high) for low, high in zip(ends[:-1], ends[1:], strict=True)]

    @cached_property
    def _of_parts(self) -> np.ndarray:
        """(contexts + kinds, parts) float64: how many numbers of a part the contexts code, and its kind."""
        return np.concatenate([self._part_contexts, self._kinds], axis=1).T.copy()


@dataclass(frozen=True, slots=True)
class Part:
    """Numbers that are sent together or not at all. kind: what they are; contexts: the number of the pair of contexts
    that codes them. Both rise from part to part."""

    start: int
    length: int
    kind: int
    contexts: int


def parts_of(units: Units) -> tuple[Part, ...]:
    """The parts of the model's statistic, in its order; kinds of one number are one part of all components."""
    layout, parts, low, contexts = units.model.layout, [], 0, 0
    sizes = [*layout.kinds, layout.shared] if layout.shared else list(layout.kinds)
    for kind, size in enumerate(sizes):
        together = size == 1 or kind == len(layout.kinds)
        length, count = (layout.components if size == 1 else size), (1 if together else layout.components)
        for _ in range(count):
            parts.append(Part(low, length, kind, contexts))
            low += length
            contexts += length >= OWN_CONTEXTS
        contexts += length < OWN_CONTEXTS
    return tuple(parts)


class _Contexts:
    """Contexts of one message: for the bits that mark sent parts, by kind; for levels, whether they are not 0 and
    whether their size is larger still, by the part's number."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.sent = [Context() for _ in range(parts[-1].kind + 1)]
        self.levels = [(Context(), Context()) for _ in range(parts[-1].contexts + 1)]


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
