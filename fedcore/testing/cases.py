"""Cases of conformance tests: a method with its settings, and a small population for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from fedcore.errors import ConfigError, FedcoreError
from fedcore.population.blocks import ClientBlock
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import TestNoise
from fedcore.privacy.plan import PlannedRelease, Relation, Unit
from fedcore.rounds.clients import checked_answer, redacted
from fedcore.rounds.method import Memory, Message, Method, PublicFacts, RoundInfo, State
from fedcore.rounds.statistics import IntegerSum, KeyedIntegerSum, Statistics, merge_all, values
from fedcore.testing.bits import copied
from fedcore.testing.broken import LawBroken, require
from fedcore.testing.populations import SmallPopulation, random_population
from fedcore.training.budget import fit_plan, rho_asked

EPSILON, DELTA = 60.0, 1e-6  # so large that noise does not drown few clients
NOISE_KEY = "conformance"
PATIENCE = 10  # times as many rounds as total_rounds says are made before a run counts as endless
RELATIONS: tuple[Relation, ...] = ("add_or_remove_one", "replace_one")
UNITS: tuple[Unit, ...] = ("client", "record")
Published = Callable[[PlannedRelease, np.ndarray], np.ndarray]  # what a private run publishes of grid values


@dataclass(frozen=True)
class Round:
    """One round as it was made in memory. Lists are by leaf.

    state, after: of the server, before and after the round
    memories, kept: what clients remember before and after it; None: nothing
    statistics: of each leaf; never merged themselves
    exact:     the grid values before noise, by name; empty if the method is not private
    result:    what the server got
    """

    number: int
    state: State
    message: Message
    memories: list[Memory] | None
    statistics: list[Statistics]
    kept: list[Memory] | None
    planned: tuple[PlannedRelease, ...]
    exact: Mapping[str, np.ndarray]
    result: Mapping[str, Any]
    after: State
    info: RoundInfo


@dataclass(frozen=True)
class History:
    """A run in memory. memories: of the clients after the last round, by leaf; None: they remember nothing."""

    rounds: tuple[Round, ...]
    state: State
    memories: list[Memory] | None


@dataclass(frozen=True)
class Case:
    """A method with its settings and what it is run on.

    warm_start: public arrays to start from. unit, relation: of the population's budget, if the method is private
    """

    name: str
    method: Method[Any, Any]
    population: SmallPopulation
    warm_start: Mapping[str, np.ndarray] | None = None
    unit: Unit = "client"
    relation: Relation = "add_or_remove_one"
    seed: int = 7

    @property
    def title(self) -> str:
        """The method's class and, if it is private, what is protected."""
        kind = f" ({self.unit}, {self.relation})" if self.method.private else ""
        return f"{type(self.method).__name__}{kind}"

    @cached_property
    def _budgeted(self) -> tuple[PublicFacts, tuple[PlannedRelease, ...]]:
        return _budgeted_facts(self)

    @property
    def public(self) -> PublicFacts:
        """What the method may know before the run."""
        return self._budgeted[0]

    @property
    def plan(self) -> tuple[PlannedRelease, ...]:
        """The releases of the run; none if it is not private."""
        return self._budgeted[1]

    @cached_property
    def history(self) -> History:
        """The run on this population, with test noise if it is private."""
        return self.run()

    def run(self, published: Published | None = None) -> History:
        """The run in memory. published: what a private run publishes, instead of sums with test noise.

        Raises LawBroken if it has no end, or if a function of the method returns something of the wrong form.
        """
        rounds = tuple(self.rounds(published))
        if rounds:
            return History(rounds, rounds[-1].after, rounds[-1].kept)
        return History((), _checked_state(self.method, self.method.init(self.public), "init"), None)

    def rounds(self, published: Published | None = None, of_nobody: bool = False) -> Iterator[Round]:
        """The rounds of `run`, one by one. of_nobody: no client answers, so that only what is published counts."""
        method, people = copied(self.method), self.population
        state, memories, number = _checked_state(method, method.init(self.public), "init"), None, 0
        most = method.total_rounds(state)
        while (message := method.message(state)) is not None:
            number += 1
            require(
                number <= PATIENCE * (most + 1),
                f"the run has no end: total_rounds says {most}, and message has more to say after {number - 1} rounds.",
            )
            leaves = people.leaves_for(method, message)
            if of_nobody:
                leaves = [leaves[0].slice(0, 0, leaves[0].leaf)]
            with redacted(method, 0) if of_nobody else nullcontext():
                statistics, kept = answers(method, message, leaves, memories)
            planned = tuple(release for release in self.plan if release.round == number)
            exact: Mapping[str, np.ndarray] = {}
            if method.private:
                exact = released(method, number, planned, message, statistics)
                result: Mapping[str, Any] = {
                    release.name: (published or _with_test_noise)(release, exact[release.name]) for release in planned
                }
            else:
                result = values(added(statistics))
            before, given = copied(state), copied(result)
            moved = method.server_update(state, result)
            fits = isinstance(moved, tuple) and len(moved) == 2 and isinstance(moved[1], RoundInfo)
            require(fits, f"server_update returns {_form(moved)}, not a pair of a state and a RoundInfo.")
            state = _checked_state(method, moved[0], "server_update")
            yield Round(number, before, message, memories, statistics, kept, planned, exact, given, state, moved[1])
            memories = kept


def _with_test_noise(planned: PlannedRelease, grid: np.ndarray) -> np.ndarray:
    return TestNoise(NOISE_KEY).draw(planned, "", grid)


def _form(value: Any) -> str:
    if isinstance(value, tuple):
        return f"a tuple of {', '.join(type(part).__name__ for part in value)}"
    return f"a {type(value).__name__}"


def _checked_state(method: Method[Any, Any], state: Any, function: str) -> State:
    wanted = method.State
    require(isinstance(state, wanted), f"{function} returns {_form(state)} as state, not a {wanted.__name__}.")
    return state


def answers(
    method: Method[Any, Any], message: Message, leaves: Sequence[ClientBlock], memories: Sequence[Memory] | None
) -> tuple[list[Statistics], list[Memory] | None]:
    """Of all leaves: statistics, and what their clients remember. Raises LawBroken or MethodError for answers of the
    wrong form.
    """
    statistics, kept = list[Statistics](), list[Memory]()
    for leaf in leaves[:1]:
        method.check_message(message, leaf.features)
    for number, leaf in enumerate(leaves):
        answer = method.client_update(message, leaf, None if memories is None else copied(memories[number]))
        found, remembered = checked_answer(method, answer)
        memory = remembered or {}
        for name, array in memory.items():
            fits = isinstance(array, np.ndarray) and array.shape[:1] == (leaf.clients,)
            shape = np.shape(array)
            require(fits, f"memory {name!r} of {leaf.clients} clients has shape {shape}: the first axis is clients.")
        statistics.append(found)
        kept.append({name: np.ascontiguousarray(array) for name, array in memory.items()})
    _require_same_names("statistics", statistics)
    _require_same_names("memories", kept)
    return statistics, kept if any(kept) else None


def _require_same_names(what: str, answers: Sequence[Mapping[str, Any]]) -> None:
    names = {tuple(sorted(answer)) for answer in answers}
    require(len(names) == 1, f"leaves answer with different {what}: {' and '.join(map(str, sorted(names)))}.")


def added(statistics: Sequence[Statistics]) -> Statistics:
    """The sum of the answers of several leaves, which stay as they are."""
    try:
        total = merge_all(copied(list(statistics)))
    except ValueError as error:
        raise LawBroken(f"the leaves' statistics cannot be added: {error}. Name block.leaf and block.first.") from error
    return {} if total is None else total


def released(
    method: Method[Any, Any],
    number: int,
    planned: Sequence[PlannedRelease],
    message: Message,
    statistics: Sequence[Statistics],
) -> dict[str, np.ndarray]:
    """The exact grid values of a private round, by name. Raises LawBroken unless they are what is planned for it."""
    merged = added(statistics)
    for name, statistic in merged.items():
        exact = isinstance(statistic, (IntegerSum, KeyedIntegerSum))
        require(exact, f"round {number}: {name!r} is {_form(statistic)}, and a private round uses exact integer sums.")
    found = method.release_values(message, merged)
    names = sorted(release.name for release in planned)
    require(sorted(found) == names, f"round {number} releases {sorted(found)}, and {names} are planned.")
    for release in planned:
        grid, shape = found[release.name], tuple(release.shape)
        fits = isinstance(grid, np.ndarray) and grid.dtype == np.int64 and grid.shape == shape
        require(fits, f"release {release.name!r} is not an int64 array of the planned shape {shape}.")
    return found


# --- cases of a method ------------------------------------------------------------------------------------------------


def cases_for(
    method: Method[Any, Any], population: SmallPopulation | None = None, warm_start: Mapping[str, Any] | None = None
) -> list[Case]:
    """The cases of a method with its settings: for a private one, each unit and relation it supports.

    population: by default a random one of the method's kind. warm_start: by default simulated ones, if the method has
    some and does not run without them. Raises ConfigError for settings with which there is no run.
    """
    people = population or random_population(method.kind)
    if not method.private:
        return [_possible(Case("", method, people, warm_start))]
    found, refused = [], None
    for unit in UNITS:
        if unit not in method.units:
            continue
        for relation in RELATIONS:
            case = Case(f"{unit}, {relation}", method, people, warm_start, unit, relation)
            try:
                found.append(_possible(case))
            except ConfigError as error:
                refused = refused or error
    if not found and refused is not None:
        raise refused
    return found


def _possible(case: Case) -> Case:
    """The case, if there is such a run; with stand-ins for a warm start if it needs one."""
    try:
        case.method.init(case.public)
        return case
    except ConfigError:
        if case.warm_start is not None or not case.method.accepts_warm_start:
            raise
        facts = PublicFacts(
            case.population.kind,
            case.population.features,
            case.population.leaf,
            case.method.nominal_clients or len(case.population.clients),
            None if case.method.private else len(case.population.clients),
            None,
            case.seed,
            case.relation,
            None,
            case.unit,
            image=case.population.image,
        )
        try:
            arrays = case.method.likely_warm_start(facts)
        except FedcoreError:
            arrays = None
        if arrays is None:
            raise
    warm = Case(case.name, case.method, case.population, arrays, case.unit, case.relation, case.seed)
    warm.method.init(warm.public)
    return warm


def _budgeted_facts(case: Case) -> tuple[PublicFacts, tuple[PlannedRelease, ...]]:
    """What the method may know before the run, and the releases that the case's budget allows.

    Raises ConfigError for settings with which there is no run.
    """
    method, people = case.method, case.population
    clients = len(people.clients)
    warm_start = case.warm_start
    if warm_start is not None:
        warm_start = method.checked_warm_start(warm_start, "the warm start", people.features)

    def facts(rho: float | None) -> PublicFacts:
        return PublicFacts(
            people.kind,
            people.features,
            people.leaf,
            method.nominal_clients or clients,
            None if method.private else clients,
            rho,
            case.seed,
            case.relation,
            warm_start,
            case.unit,
            halves=people.halves,
            one_whole=people.halves == "document",
            rows=None if method.private else people.n_rows,
            image=people.image,
        )

    if not method.private:
        return facts(None), ()
    budget = make_budget(EPSILON, DELTA)
    asked = rho_asked(method, budget)
    plan, public = fit_plan(method, facts, budget.rho_max if asked is None else asked)
    return public, plan
