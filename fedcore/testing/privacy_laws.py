"""Conformance tests of private methods: what is released, by how much one client can change it, and its noise.

Differences are computed in Python's integers, which neither round nor wrap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy.stats import chi2, norm

from fedcore.errors import FedcoreError
from fedcore.planning import stand_ins as planned_with
from fedcore.planning.stand_ins import Shape
from fedcore.planning.trial_rounds import of_stand_ins, scheduled_phases
from fedcore.population.blocks import ClientBlock
from fedcore.privacy.mechanisms import NoiseSource, SecureNoise
from fedcore.privacy.plan import PlannedRelease
from fedcore.randomness import stream
from fedcore.rounds.clients import redacted
from fedcore.rounds.messages import numbers_of
from fedcore.rounds.method import Memory
from fedcore.rounds.statistics import Statistics, merge_all, values
from fedcore.testing import hostile
from fedcore.testing.bits import copied, difference
from fedcore.testing.broken import LawBroken, in_words, require
from fedcore.testing.cases import Case, Published, Round, added, answers, released
from fedcore.testing.laws import law
from fedcore.testing.populations import odd_client

NEIGHBOURS = 12  # random pairs of populations for each round
FEWER_NEIGHBOURS = 2  # for each round of a run whose totals or start may be anything
DRAWS = 4000  # of noise, at least, for each release
LEVEL = 1e-6  # of the test of the variance: a right release fails it that often
STAND_INS = 16  # clients and rows of the test of that name
TOGETHER = 100  # messages with several such fields, of each phase


# --- the plan ---------------------------------------------------------------------------------------------------------


@law("plan")
def plan(case: Case) -> None:
    """The plan follows from settings and public facts; each round releases what is planned for it, as int64 sums."""
    method = case.method
    if not method.private:
        require(not list(method.plan(case.public)), "a method that is not private plans releases.")
        return
    first, second = list(method.plan(case.public)), list(copied(method).plan(copied(case.public)))
    different = difference(first, second, "the plan")
    require(not different, f"plan gives another plan when it is called again: {different}.")
    require(bool(first), "a private method plans no release.")
    for planned in first:
        require(isinstance(planned, PlannedRelease), f"plan holds a {type(planned).__name__}, not a PlannedRelease.")
        require(planned.round >= 1, f"release {planned.name!r} is planned for round {planned.round}; the first is 1.")
        require(bool(planned.argument), f"release {planned.name!r} names no argument for its sensitivity.")
    names = [planned.name for planned in first]
    require(len(names) == len(set(names)), f"two planned releases share a name: {sorted(names)}.")
    require(bool(case.history.rounds), "a private run makes no round.")  # what each releases was checked as it was made


@law("stand-ins")
def stand_ins(case: Case) -> None:
    """`fedcore plan` can time a private run with clients that follow from settings and public facts (`likely_rows`)."""
    method, people = case.method, case.population
    if not method.private:
        return
    if people.kind == "rows":
        found = [method.likely_rows(case.public, STAND_INS, stream(case.seed, "law")) for _ in range(2)]
        fits = isinstance(found[0], np.ndarray) and found[0].shape == (STAND_INS, people.features)
        require(fits, f"likely_rows returns {np.shape(found[0])}, not ({STAND_INS}, {people.features}) numbers.")
        different = difference(found[0], found[1], "the rows")
        require(not different, f"likely_rows draws other rows when it is asked again: {different}.")
    phases = scheduled_phases(case.plan, method.total_rounds(method.init(case.public)))
    nominal = case.public.nominal_clients or STAND_INS
    shape = Shape(nominal, 4.0, 4, STAND_INS, people.features, people.dtype)
    answering = planned_with.stand_ins(method, case.public, shape, STAND_INS)
    try:
        made = of_stand_ins(method, case.public, case.plan, phases, nominal).run([answering], 0.0, len(phases))
    except FedcoreError as error:
        raise LawBroken(f"clients that stand in for others cannot be asked: {error}") from error
    require(made.made > 0, "clients that stand in for others are asked nothing.")


# --- the sensitivity --------------------------------------------------------------------------------------------------


@law("sensitivity")
def sensitivity(case: Case) -> None:
    """No release moves by more than its planned sensitivity when one unit is added (or replaced, where that is the
    relation), whatever its data are, whatever was published before, and whatever the run started from. A run that
    cannot continue ends with an error of fedcore's, which no client's data decide.
    """
    if not case.method.private:
        return
    generator = np.random.Generator(np.random.Philox(case.seed))
    for made in case.history.rounds:
        for _ in range(NEIGHBOURS):
            _check_neighbours(case, made, generator)
    for what, published in hostile.published(case, generator):
        _check_totals(case, published, what, generator)
    for what, started in hostile.starts(case, generator):
        for totals in (None, partial(hostile.any_total, generator)):
            _check_totals(started, totals, f"a run starts from arrays of which {what}", generator)


def _check_totals(case: Case, published: Published | None, what: str, generator: np.random.Generator) -> None:
    """The rounds of a run that publishes this, up to its end or its error."""
    rounds = case.rounds(published, of_nobody=True)
    while True:
        try:
            with np.errstate(all="ignore"):
                made = next(rounds, None)
        except FedcoreError:
            return
        except LawBroken:
            raise
        except Exception as error:
            raise LawBroken(
                f"where {what}, the run ends with an error that is not fedcore's: {in_words(error)}."
            ) from error
        if made is None:
            return
        for _ in range(FEWER_NEIGHBOURS):
            try:
                _check_neighbours(case, made, generator)
            except LawBroken as error:
                raise LawBroken(f"where {what}, {error}") from None
            except Exception as error:
                raise LawBroken(
                    f"where {what}, round {made.number}: some rows make the clients fail, and others do not: "
                    f"{in_words(error)}."
                ) from error


@law("messages")
def messages(case: Case) -> None:
    """Whatever numbers a message holds, clients refuse it, or no unit adds more than the planned sensitivity."""
    if not case.method.private:
        return
    generator, seen = np.random.Generator(np.random.Philox(case.seed)), set()
    for made in case.history.rounds:
        phase = case.method.phase(made.state, made.message)
        if phase in seen:
            continue
        seen.add(phase)
        fields = list(numbers_of(made.message))
        for name, value, allowed in fields:
            for number in dict.fromkeys((*hostile.NUMBERS, *allowed)):
                wrong = with_number(made.message, name.split("."), value, number, generator)
                _check_alone(case, replace(made, message=wrong), f"a message whose {name!r} is {number}", generator)
        for _ in range(TOGETHER):  # some bounds break only where several fields are wrong
            wrong, chosen = made.message, generator.permutation(len(fields))[: generator.integers(2, 5)]
            for name, value, allowed in (fields[at] for at in chosen):
                number = generator.choice([*hostile.NUMBERS[3:], *allowed])
                wrong = with_number(wrong, name.split("."), value, number, generator)
            named = ", ".join(repr(fields[at][0]) for at in chosen)
            _check_alone(case, replace(made, message=wrong), f"other numbers in {named} of the message", generator)


def with_number(message: Any, path: Sequence[str], old: Any, number: float, generator: np.random.Generator) -> Any:
    """The message with the number in the field at the end of the path, in the place of `old`: of an array in one place,
    or everywhere. A whole number takes the nearest that its type holds; of NaN, 0."""
    if not path:
        whole = isinstance(old, int | np.integer) or (isinstance(old, np.ndarray) and old.dtype.kind in "iu")
        new: Any = number
        if whole:
            limits = np.iinfo(getattr(old, "dtype", np.int64))
            new = int(np.clip(np.nan_to_num(number), limits.min, limits.max - 1024))
        if not isinstance(old, np.ndarray):
            return new
        changed, one = old.copy(), int(generator.integers(max(old.size, 1)))
        place = slice(one, one + 1) if generator.random() < 0.5 else slice(None)
        with np.errstate(over="ignore"):
            changed.flat[place] = new
        return changed
    inner = partial(with_number, path=path[1:], old=old, number=number, generator=generator)
    if is_dataclass(message) and not isinstance(message, type):
        return replace(message, **{path[0]: inner(getattr(message, path[0]))})
    if isinstance(message, Mapping):
        return {key: inner(value) if key == path[0] else value for key, value in message.items()}
    return tuple(inner(value) if str(at) == path[0] else value for at, value in enumerate(message))


def _check_alone(case: Case, made: Round, what: str, generator: np.random.Generator) -> None:
    """What one unit adds, or by how much it differs from another, unless the clients refuse to answer."""
    people, grids, replaced = case.population, list[dict[str, np.ndarray]](), case.relation == "replace_one"
    for chosen in generator.choice(len(people.clients), 1 + replaced):
        one = people.clients[chosen] if generator.random() < 0.5 else odd_client(people, generator)
        if case.unit == "record":
            one = _records(people, one, one, one, generator)[0]
        alone = _People([one], [one], None if made.memories is None else _together(made.memories))
        try:
            with redacted(case.method, 0):
                found = case.method.release_values(made.message, added(_answered(case, made, alone, 1)))
        except FedcoreError:
            return
        shapes = {planned.name: tuple(planned.shape) for planned in made.planned}
        if {name: grid.shape for name, grid in found.items()} != shapes:
            return  # the engine refuses it
        grids.append(found)
    for planned in made.planned:
        one, other = grids[0][planned.name], grids[1][planned.name] if replaced else np.zeros(planned.shape, np.int64)
        require(
            squared_distance(one, other) <= planned.sensitivity**2,
            f"round {made.number}: with {what}, one {case.unit} moves release {planned.name!r} by more than its "
            f"sensitivity {planned.sensitivity}. Declare the range of the field (fedcore.rounds.messages.between).",
        )


_Client = tuple[np.ndarray, np.ndarray]  # and what is held out of it


@dataclass(frozen=True)
class _People:
    """Clients with what is held out of each, and what they remember, one array row for each client; None: nothing."""

    clients: list[np.ndarray]
    heldout: list[np.ndarray]
    memory: Memory | None


def _check_neighbours(case: Case, made: Round, generator: np.random.Generator) -> None:
    with_one, without, what = _neighbours(case, made, generator)
    after = _released(case, made, with_one, int(generator.integers(1, 8)))
    before = _released(case, made, without, int(generator.integers(1, 8)))
    for planned in made.planned:
        moved, bound = squared_distance(after[planned.name], before[planned.name]), planned.sensitivity
        if moved > bound**2:
            steps = math.isqrt(moved - 1) + 1
            raise LawBroken(
                f"round {made.number}: {what} moves release {planned.name!r} by {steps} grid steps, and its "
                f"sensitivity is {bound}."
            )


def _neighbours(case: Case, made: Round, generator: np.random.Generator) -> tuple[_People, _People, str]:
    """Two neighbouring populations, and how they differ."""
    people = case.population
    whole = None if made.memories is None else _together(made.memories)
    size = int(generator.integers(2, 8))
    chosen = generator.choice(len(people.clients), size)

    def somebody() -> _Client:
        """With what is held out of it."""
        if generator.random() >= 0.6:
            usual = generator.integers(len(people.clients))
            return people.clients[usual], people.heldout[usual]
        odd = odd_client(people, generator)
        return odd, odd_client(people, generator) if people.halves else odd

    others = [
        somebody() if generator.random() < 0.2 else (people.clients[i], people.heldout[i]) for i in chosen.tolist()
    ]
    place = int(generator.integers(0, size))
    one, instead, replaced = somebody(), somebody(), case.relation == "replace_one"
    if case.unit == "record":
        whose, heldout = others[place]
        record, another, rest = _records(people, one[0], instead[0], whose, generator)
        joined = [*others[:place], (np.concatenate([rest, record]), heldout), *others[place + 1 :]]
        left = np.concatenate([rest, another]) if replaced else rest
        parted = [*others[:place], (left, heldout), *others[place + 1 :]]
        mine = theirs = chosen
    else:
        joined, mine = [*others[:place], one, *others[place:]], np.insert(chosen, place, chosen[0])
        parted, theirs = others, chosen
        if replaced:
            parted, theirs = [*others[:place], instead, *others[place:]], mine
    what = f"one {case.unit} {'in place of another' if replaced else 'more'}"

    def remembering(clients: list[_Client], of: np.ndarray) -> _People:
        memory = None if whole is None else {name: array[of] for name, array in whole.items()}
        return _People([own for own, _ in clients], [other for _, other in clients], memory)

    return remembering(joined, mine), remembering(parted, theirs), what


def _records(people, one, instead, rest, generator):
    """Single rows of `one` and `instead`, or usual rows if they have none, and the rest of the client's rows."""
    usual = np.concatenate([own for own in people.clients if len(own)])

    def single(rows: np.ndarray) -> np.ndarray:
        return rows[:1] if len(rows) else usual[generator.integers(len(usual))][None]

    return single(one), single(instead), rest


def _together(memories: list[Memory]) -> Memory:
    return {name: np.concatenate([memory[name] for memory in memories]) for name in memories[0]}


def _released(case: Case, made: Round, people: _People, leaf: int) -> dict[str, np.ndarray]:
    """The exact values of a round for these people. Raises LawBroken unless they have the planned form."""
    return released(case.method, made.number, made.planned, made.message, _answered(case, made, people, leaf))


def _answered(case: Case, made: Round, people: _People, leaf: int) -> list[Statistics]:
    heldout = people.heldout if case.method.reads_heldout(made.message) else None
    blocks: list[ClientBlock] = case.population.leaves(people.clients, leaf, heldout)
    memories = None
    if people.memory is not None:
        firsts = range(0, len(people.clients), leaf)
        memories = [{name: array[at : at + leaf] for name, array in people.memory.items()} for at in firsts]
    return answers(case.method, made.message, blocks, memories)[0]


def squared_distance(one: np.ndarray, other: np.ndarray) -> int:
    """The squared L2 distance of two int64 arrays of one shape, in Python's integers."""
    return sum((int(a) - int(b)) ** 2 for a, b in zip(one.ravel(), other.ravel(), strict=True))


# --- participants -----------------------------------------------------------------------------------------------------


@law("participants")
def participants(case: Case) -> None:
    """The exact sums of a private round are those of the clients who take part, wherever other clients cut leaves: the
    sums of two groups add up to those of all clients, and those of no clients are zero.
    """
    if not case.method.private:
        return
    generator = np.random.Generator(np.random.Philox(case.seed))
    for made in case.history.rounds:
        leaves = case.population.leaves_for(case.method, made.message)
        cuts = [(leaf, int(generator.integers(0, leaf.clients + 1))) for leaf in leaves]
        some: list[ClientBlock] = [leaf.slice(0, at, leaf.leaf) for leaf, at in cuts]
        others: list[ClientBlock] = [leaf.slice(at, leaf.clients, leaf.leaf) for leaf, at in cuts]
        everybody, one, other, nobody = (
            _sums(case, made, parts) for parts in (leaves, some, others, [leaves[0].slice(0, 0, leaves[0].leaf)])
        )
        require(nobody.keys() == everybody.keys(), f"no clients have {sorted(nobody)}, not {sorted(everybody)}.")
        for name, whole in everybody.items():
            require(not nobody[name].any(), f"{name!r} of no clients is not zero.")
            require(one[name].shape == whole.shape, f"{name!r} of some clients has another shape than of all.")
            require((one[name] + other[name] == whole).all(), f"{name!r} depends on how leaves are cut.")


def _sums(case: Case, made: Round, parts: list[ClientBlock]) -> dict[str, np.ndarray]:
    """The exact sums of a round by name; of a sum for each key the one of all keys."""
    statistics, _ = answers(case.method, made.message, parts, None)
    found = values(merge_all(statistics) or {})
    return {
        name: np.asarray(sum(value.values())) if isinstance(value, dict) else value for name, value in found.items()
    }


# --- the noise --------------------------------------------------------------------------------------------------------


@law("noise")
def noise(case: Case) -> None:
    """What is published less the exact sum has the planned variance, for every release: a chi-square test."""
    noise_from(case, SecureNoise())


def noise_from(case: Case, source: NoiseSource) -> None:
    """The test of the noise for another source than the one that protects people."""
    for made in case.history.rounds:
        for planned in made.planned:
            exact = made.exact[planned.name]
            draws = -(-DRAWS // max(planned.cells, 1))
            errors = np.array([source.draw(planned, "", exact) - exact for _ in range(draws)], np.float64)
            ratio = float(np.sum(errors**2)) / variance_of(planned.scale)
            low, high = chi2.ppf(LEVEL / 2, errors.size), chi2.isf(LEVEL / 2, errors.size)
            require(
                low <= ratio <= high,
                f"the noise of release {planned.name!r} has {ratio / errors.size:.4g} times the planned variance; "
                f"{low / errors.size:.4g} to {high / errors.size:.4g} would be by chance.",
            )


def variance_of(scale: float) -> float:
    """Of the rounded Gaussian with this scale: rounding adds a twelfth, unless the scale is less than a step."""
    if scale > 1:
        return scale**2 + 1 / 12
    steps = np.arange(-40, 41)
    return float((steps**2 * np.diff(norm.cdf(np.arange(-40.5, 41) / scale))).sum())
