"""Releasing a vocabulary from a population of words, before any run: reserve, list, charge, draw, publish.

The release is a run of the population's account in the ledger, without a folder. The words are in the ledger, like
every published value, and `fedcore.population.encoding` makes counts of them. The same command resumes an interrupted
release, and a lost draw is charged again, as in training.

Sums of words exist only in the memory of the processes that compute them, that add them up, and of this process. They
are never written, and no message, refusal or plan depends on the number of words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from fedcore.errors import BudgetExceeded, ConfigError, FedcoreError, LedgerError, PrivacyError, WorkerFailed, WrongKind
from fedcore.population.cohorts import mask
from fedcore.population.store import Population
from fedcore.population.words import OTHER, WORD, joined_words
from fedcore.privacy import vocabulary
from fedcore.privacy.accounting import exact_sum, rounded_up
from fedcore.privacy.cohorts import Participants
from fedcore.privacy.grid import GRID_NORM
from fedcore.privacy.ledger.chain import OPEN, Balance, RunAccount
from fedcore.privacy.ledger.leases import Lease
from fedcore.privacy.mechanisms import NoiseSource, noise_of
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.statement import PrivacyStatement, private_statement
from fedcore.rounds.engine import Backend, InProcessBackend
from fedcore.rounds.statistics import Statistics, WordSums
from fedcore.storage.ranges import Ranges
from fedcore.training import cohorts
from fedcore.training.budget import CRUMB, epsilon_that_fits, required_budget, share_of_all
from fedcore.training.shared_ids import check_run
from fedcore.training.witness import remember_head

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

WORDS = "words"


@dataclass(frozen=True, slots=True)
class Planned:
    """Cost and properties of a release. nominal_clients: of those who take part; participants: None for all clients."""

    releases: tuple[PlannedRelease, ...]
    rho: float
    delta: float
    nominal_clients: int | None
    participants: Participants | None

    @property
    def in_words(self) -> str:
        return vocabulary.in_words(self.nominal_clients, self.rho)


@dataclass(frozen=True, slots=True)
class Released:
    """run_id: as the ledger names it. words: all that were released of the population so far, sorted by their bytes.
    new: how many of them by this run. given_up: whether later releases were skipped to make up for a lost one.
    """

    run_id: str
    words: tuple[str, ...]
    new: int
    given_up: bool
    statement: PrivacyStatement


# --- before -----------------------------------------------------------------------------------------------------------


def plan_vocabulary(
    population: Population, balance: Balance, epsilon: float | None = None, delta: float | None = None
) -> Planned:
    """A release within the budget, from the ledger's account and declared sizes alone; no data are open.

    epsilon: at the budget's delta; None: 0.3 of the rho that is left. delta: part of the budget's delta_extra; None:
    all that is left of it. Raises WrongKind, BudgetMissing, BudgetExceeded, PrivacyError with the numbers, ConfigError.
    """
    name, manifest = population.path.name, population.manifest
    if population.kind != "words":
        raise WrongKind(
            f"The population {name!r} holds {population.kind}, and a vocabulary is released from words.",
            "Ingest with --kind words, which keeps what clients wrote.",
        )
    required_budget(population, balance)
    balance = balance.of_share(None)  # of a divided budget, the undivided part is charged
    budget = balance.required_budget()
    if balance.unit != "client":
        raise PrivacyError(
            f"the budget of population {name!r} promises privacy for one {balance.unit}, and a vocabulary has an "
            "argument for clients only: what a threshold hides of one it does not hide of several. Nothing was "
            "released.",
            "Bring a public list.",
        )
    by_cohort = bool(manifest.cohorts)
    extra = budget.delta_extra if by_cohort else balance.delta_left
    delta = extra if delta is None else delta
    if extra <= 0 or not 0 < delta <= extra:
        raise PrivacyError(
            f"population {name!r} has {extra:.3g} left of its budget's delta for thresholding steps (delta_extra = "
            f"{budget.delta_extra:.3g}, spent or reserved {budget.delta_extra - extra:.3g}), and a private vocabulary "
            f"{'needs some' if extra <= 0 else f'asks for {delta:.3g}'}: words that one client only has must not show. "
            "Nothing was released.",
            f"Name a part of delta when the budget is set, as `budget set --delta-extra {0.1 * budget.delta:.3g}`; or "
            "bring a public list."
            if extra <= 0
            else f"Ask for more than 0 and at most {extra:.3g}.",
        )
    if by_cohort:
        rho = vocabulary.SHARE * budget.rho_max if epsilon is None else budget.rho_of(epsilon)
        chosen = cohorts.able(cohorts.cohort_accounts(manifest, balance), cohorts.Cost(Fraction(rho), Fraction(delta)))
        if not chosen:
            raise BudgetExceeded(
                f"no cohort of population {name!r} has rho = {rho:.6g} and delta = {delta:.3g} left. Nothing was "
                "released.",
                "Use a smaller epsilon, or wait for new clients.",
            )
        taking_part, nominal = cohorts.participants(manifest, chosen), cohorts.nominal_of(chosen)
    else:
        whole = share_of_all(None if epsilon is None else budget.rho_of(epsilon), population, balance, budget)
        rho = vocabulary.SHARE * whole if epsilon is None else whole
        taking_part, nominal = None, manifest.nominal_clients
    if rho <= CRUMB * budget.rho_max:
        raise ConfigError(
            f"rho = {rho:.3g} is too little to release a word.",
            f"At most epsilon = {epsilon_that_fits(balance):.4g} is left.",
        )
    relation = balance.relation or "add_or_remove_one"
    return Planned(vocabulary.planned_releases(rho, delta, nominal, relation), rho, delta, nominal, taking_part)


def released_words(ledger: Ledger, population_id: str) -> np.ndarray:
    """(V,) WORD, sorted: every word that was released of the population."""
    found = [np.empty(0, WORD)]
    for run_id, run in _runs(ledger, population_id):
        for planned in run.plan:
            value = ledger.published(run_id, planned["name"])
            if value is not None:
                found.append(vocabulary.words_of(value)[0])
    return np.unique(np.concatenate(found))


def released_in_words(ledger: Ledger, population_id: str) -> list[str]:
    """One line for each release of words, for a person."""
    lines = []
    for run_id, run in _runs(ledger, population_id):
        values = [ledger.published(run_id, planned["name"]) for planned in run.plan]
        words = sum(len(value) for value in values if value is not None)
        rho, delta = exact_sum(one.rho for one in run.spent()), exact_sum(one.delta for one in run.spent())
        price = f"rho = {rounded_up(rho):.4g} and delta = {rounded_up(delta):.3g}"
        lines.append(f"Vocabulary: {words} words were released by {run_id}, for {price} ({run.status}).")
    return lines


def runs_behind(population: Population, ledger: Ledger) -> tuple[str, ...]:
    """The runs of the account that released the population's columns, if these are, in their order, all words that had
    been released of it at some time, and one more for all others. Empty if its vocabulary is any other: a part of
    what was released, or another order, could have been chosen by looking at the data.
    """
    tokens = population.vocabulary() if population.kind == "counts" else None
    if tokens is None or tokens[-1] != OTHER or ledger.is_test:
        return ()
    found, behind = np.empty(0, WORD), list[str]()
    for run_id, run in _runs(ledger, population.id):
        if not run.secure:
            return ()
        for planned in run.plan:
            value = ledger.published(run_id, planned["name"])
            if value is None:
                continue
            found = np.union1d(found, vocabulary.words_of(value)[0])
            behind += [] if run_id in behind else [run_id]
            if as_text(found) == tokens[:-1]:
                return tuple(behind)
    return ()


def vocabulary_to_encode(population: Population, ledger: Ledger) -> tuple[str, ...]:
    """The words that were released. Raises PrivacyError if there are none."""
    words = as_text(released_words(ledger, population.id))
    if not words:
        raise PrivacyError(
            f"no word of population {population.path.name!r} was released.",
            "Release some with `fedcore population vocabulary POPULATION --private`, or name a public list.",
        )
    return words


def release_rows(plan: tuple[PlannedRelease, ...]) -> list[dict[str, Any]]:
    """A plan for a person. threshold: in clients who would list nothing but the word."""
    return [
        {
            "release": planned.name,
            "rho": planned.rho,
            "delta": planned.delta,
            "noise_multiplier": planned.noise_multiplier,
            "threshold": vocabulary.threshold(planned.scale, planned.delta) / GRID_NORM,
        }
        for planned in plan
    ]


def as_text(words: np.ndarray) -> tuple[str, ...]:
    return tuple(word.decode("utf-8") for word in words.tolist())


def _runs(ledger: Ledger, population_id: str) -> list[tuple[str, RunAccount]]:
    """Those of the account that release words, in their order."""
    return [
        (run_id, run)
        for run_id, run in ledger.account(population_id).runs.items()
        if run.plan[0]["argument"] == vocabulary.ARGUMENT
    ]


# --- the release ------------------------------------------------------------------------------------------------------


def release_vocabulary(
    population: Population,
    ledger: Ledger,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    test_noise: str | None = None,
    backend: Backend | None = None,
) -> Released:
    """Release words of a population, for the first time or again. An interrupted release is resumed as it was planned,
    on the version that it was planned for; epsilon and delta are then ignored.

    test_noise: key of noise for tests, on a test ledger: then there is no guarantee. Raises what `plan_vocabulary`
    and `check_run` raise, the ledger's errors (RunBusy if another process is at it), WorkerFailed, ChunkError.
    """
    before = _runs(ledger, population.id)
    going_on = next(((run_id, run) for run_id, run in before if run.status == OPEN), None)
    if going_on is None:
        check_run(population, ledger)
        made = plan_vocabulary(population, ledger.balance(population.id), epsilon, delta)
        run_id, plan, participants = f"vocabulary-{population.id}-{len(before) + 1}", made.releases, made.participants
    else:
        run_id, plan = going_on[0], tuple(map(PlannedRelease.from_json, going_on[1].plan))
        participants = ledger.participants_of(run_id)
        population = _as_reserved(population, ledger, run_id)
    balance = ledger.balance(population.id)
    ledger.reserve(
        population.id,
        run_id,
        plan,
        0,
        unit=balance.unit or "client",
        relation=balance.relation or "add_or_remove_one",
        secure=test_noise is None,
        bound={"manifest": population.checksum, "version": population.version, "run": None},
        cohorts=participants,
    )
    lease = ledger.acquire(run_id)
    try:
        remember_head(population, ledger)
        noise, asked = noise_of(test_noise), backend or InProcessBackend()
        values = _Releasing(population, ledger, run_id, lease, noise, participants, asked)
        new, whole = values.made(plan)
        ledger.finish(lease, "finished")
        remember_head(population, ledger)
    except BaseException:
        with suppress(LedgerError):
            ledger.release(lease)
        raise
    words = as_text(released_words(ledger, population.id))
    return Released(run_id, words, new, not whole, private_statement(ledger, population.id, run_id))


def _as_reserved(population: Population, ledger: Ledger, run_id: str) -> Population:
    """The version for which the run has reserved. Raises PrivacyError if it is another one by now."""
    bound: dict[str, Any] = (ledger.recorded(run_id, "reserve") or {}).get("bound") or {}
    version = bound.get("version")
    found = population if version == population.version else Population.open(population.path, version=version)
    if found.checksum != bound.get("manifest"):
        raise PrivacyError(
            f"version {version} of {population.path} is not the one for which ledger {ledger.id} has reserved run "
            f"{run_id!r}.",
            "Restore it from a backup.",
        )
    return found


@dataclass(frozen=True)
class _Releasing:
    population: Population
    ledger: Ledger
    run_id: str
    lease: Lease
    noise: NoiseSource
    participants: Participants | None
    backend: Backend

    def made(self, plan: tuple[PlannedRelease, ...]) -> tuple[int, bool]:
        """(words published by these releases, whether all were made). What is published already is not made again."""
        words = 0
        for planned in plan:
            value = self.ledger.published(self.run_id, planned.name)
            if value is None:
                value = self._release(planned)
            if value is None:
                return words, False
            words += len(value)
        return words, True

    def _release(self, planned: PlannedRelease) -> np.ndarray | None:
        """The published value; None if the release was given up. What may be refused is so before the charge."""
        vocabulary.threshold(planned.scale, planned.delta)
        self.noise.ready(replace(planned, shape=(0,)), np.empty(0, np.int64))
        known = released_words(self.ledger, self.population.id)
        with _withheld("the lists of words could not be added up"):
            words, totals = self._sums(known)
        self.ledger.renew(self.lease)
        charge = self.ledger.charge(self.lease, planned)
        if charge is None or charge.stored is not None:
            return None if charge is None else charge.stored
        with _withheld("the words could not be chosen"):
            noised = self.noise.draw(replace(planned, shape=totals.shape), self.run_id, totals)
            value = vocabulary.published(words, noised, planned)
        return self.ledger.publish(self.lease, charge, value)

    def _sums(self, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        population, ranges = self.population, None
        if self.participants is not None:
            ranges = population.participants(self.participants.ranges)
        lists = Lists(population, ranges)
        blocks = range(len(population.blocks))
        sizes = [population.decoded_bytes(index) for index in blocks]
        answered = self.backend.map_blocks(lists, Known(known), blocks, sizes)
        if not answered:
            return np.empty(0, WORD), np.empty(0, np.int64)
        words, totals = answered[WORDS].value()
        return words, totals


@contextmanager
def _withheld(what: str) -> Iterator[None]:
    """An error that is not one of ours is renamed without its text, which could show what must not be seen."""
    try:
        yield
    except FedcoreError:
        raise
    except Exception as error:
        raise WorkerFailed(
            f"{what} ({type(error).__name__}); details are withheld, because the release is private.",
            "Verify the population, then run the same command again.",
        ) from None


# --- the clients' side ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Known:
    """What the server says: (V,) WORD, sorted, the words that were released before."""

    words: np.ndarray


@dataclass(frozen=True)
class Lists:
    """The task of a worker for each of its blocks. ranges: clients who take part; None: all clients."""

    population: Population
    ranges: Ranges | None

    def __call__(self, message: Known, index: int) -> Statistics:
        with _withheld(f"block {index} failed"):
            block = self.population.words(index)
            if self.population.manifest.one_whole and self.population.blocks[index].heldout is not None:
                block = joined_words(block, self.population.words(index, heldout=True))
            chosen = None if self.ranges is None else mask(self.ranges, block.first, block.clients)
            return {WORDS: WordSums.of(*vocabulary.sums(block, message.words, chosen))}
