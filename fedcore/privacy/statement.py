"""The privacy statement of a run: its guarantee, the privacy unit, the cost, and what is not covered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from fractions import Fraction
from typing import TYPE_CHECKING

from fedcore.population.periods import PeriodUnit, labels_in_words
from fedcore.privacy.accounting import Budget, exact_sum, rounded_up
from fedcore.privacy.among_sites import NOT_COVERED_AMONG_SITES, TRUST_AMONG_SITES, AmongSites, among_sites
from fedcore.privacy.gdp import mu_of
from fedcore.privacy.ledger.balances import Loss, SpentBefore
from fedcore.privacy.ledger.chain import OPEN, SPENT, Account, Balance, ChainHead, RunAccount, Segment
from fedcore.privacy.mechanisms import SecureNoise, TestNoise
from fedcore.privacy.noise_shares import ShareNoise
from fedcore.privacy.periods import Lifetime
from fedcore.privacy.plan import PlannedRelease
from fedcore.privacy.statement_texts import CURRENT, FIRST, in_version, sentence, template
from fedcore.storage.parsing import JsonObject
from fedcore.storage.plain import LATER, entries, made_of
from fedcore.storage.ranges import Ranges, in_words

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

RELATIONS = {
    ("client", "add_or_remove_one"): "the presence or absence of one client, with everything that client holds",
    ("client", "replace_one"): "everything that one client holds, against anything else that it might hold",
    ("record", "add_or_remove_one"): "the presence or absence of one record",
    ("record", "replace_one"): "one record, against any other in its place",
    ("client_period", "add_or_remove_one"): "the presence or absence of one client's data of one calendar period",
    ("client_period", "replace_one"): "one client's data of one calendar period, against any other in their place",
}
TRUST_MODEL, FIRST_TRUST_MODEL = (template("trust", version) for version in (CURRENT, FIRST))
NAMES_NOT_COVERED = ("exact numbers", "personalised", "side channels", "ingested again", "several units", "operator")
NOT_COVERED, FIRST_NOT_COVERED = (
    tuple(template(name, version) for name in NAMES_NOT_COVERED) for version in (CURRENT, FIRST)
)
NOT_COVERED_BY_COHORT = tuple(template(name) for name in ("time of joining", "entered again", "forgotten"))
NOT_COVERED_BY_PERIOD = tuple(template(name) for name in ("several periods", "several ids"))
SCHEMA = "columns, bounds, vocabulary and thresholds"
BESIDE_RELEASED_WORDS = "bounds and thresholds"  # of them, where the columns are words that were released
MAY_BE_NULL = ("epsilon", "delta", "rho", "mu", "given_up")  # any other entry without a value is an empty object
NOT_PRIVATE = ("Everything: nothing in this run protects the people in the data.",)


@dataclass(frozen=True, slots=True)
class ChargedRelease:
    """A release that was charged `attempts` times. rho: of all attempts, rounded up; noise: names of its
    distributions."""

    planned: PlannedRelease
    attempts: int
    rho: float
    noise: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        return {**self.planned.to_json(), "attempts": self.attempts, "rho": self.rho, "noise": list(self.noise)}

    @classmethod
    def from_json(cls, value: JsonObject) -> ChargedRelease:
        planned = PlannedRelease.from_json({name: value[name] for name in value.keys() - {"attempts", "noise"}})
        if type(planned.round) is not int or not isinstance(planned.name, str):
            raise TypeError("a release without a round or a name")
        return cls(planned, value["attempts"], value["rho"], tuple(value["noise"]))


@dataclass(frozen=True, slots=True)
class SpentOfBudget(Budget):
    """The budget of a population, and what all runs together have spent of it."""

    rho_spent: float
    epsilon_spent: float

    @classmethod
    def from_json(cls, value: JsonObject) -> SpentOfBudget:
        return cls(**{one.name: value[one.name] for one in fields(cls)})


@dataclass(frozen=True, slots=True)
class Cost:
    """What several runs of an account cost together, at the delta of its budget."""

    epsilon: float
    delta: float
    rho: float
    mu: float


@dataclass(frozen=True, slots=True)
class CostWithStart(Cost):
    """Of a run, and of the `run` of the same account that released what it started from."""

    run: str


@dataclass(frozen=True, slots=True)
class ReleasedWords:
    """`runs` that released the words that are columns, and rho and delta of what they charged (delta: of their
    thresholding steps alone). together: of them and the run.
    """

    runs: tuple[str, ...]
    rho: float
    delta: float
    together: Cost


@dataclass(frozen=True, slots=True)
class PaidByCohorts:
    """ranges of the cohorts that took part and were charged. named: whether the run named them, or was made before
    there were any. known: how many there are. most: the segment that has spent most; most_of_them: of those that took
    part.
    """

    ranges: Ranges
    named: bool
    known: int
    most: Segment
    most_of_them: Segment


@dataclass(frozen=True, slots=True)
class PromisedByPeriod:
    """A guarantee per client and calendar period. lifetime: largest privacy loss of a client over several periods, the
    last over all so far. first: label of the first period, if it is known.
    """

    unit: PeriodUnit
    window: int
    lifetime: tuple[Lifetime, ...]
    first: str | None = field(default=None, metadata=LATER)


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """private: whether there is a guarantee; reason: why not, if not.

    unit, relation: what is hidden. epsilon, delta, rho: what the run's charged releases cost, forfeited ones included,
    at the delta of the population's budget; mu: sqrt(2 rho). releases: one entry for each charged release. given_up:
    first round whose releases were skipped to make up for lost ones; None: none were. population: None only if
    there is no guarantee. ended: whether the run may still spend more. start: what the run started from, treated as
    public; empty if from nothing. `vouched`: what was declared public, and not verified. The guarantee holds only if
    all of it is public, so it is part of the headline. public_schema: why columns, bounds, vocabulary and thresholds
    are public; empty if not declared. shared_ids: declarations of the budget owner on ids that are also in other
    populations, oldest first. sites: of a run over several sites. cohorts: for a budget by cohort. periods: of a
    guarantee per client and calendar period. vocabulary: if the columns are words that the same account released from
    the same population before; None: the vocabulary is taken as public. share: name of the sub-budget that was charged;
    else empty. together: of a run that started from what a run of the same account released.
    ledger: its newest record. text_version: of its sentences (`fedcore.privacy.statement_texts`).
    """

    private: bool
    reason: str = ""
    unit: str = ""
    relation: str = ""
    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None
    mu: float | None = None
    given_up: int | None = None
    releases: tuple[ChargedRelease, ...] = ()
    mechanism: str = ""
    population: SpentOfBudget | None = None
    ended: bool = True
    start: str = ""
    vouched: tuple[str, ...] = ()
    public_schema: str = ""
    shared_ids: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    cohorts: PaidByCohorts | None = None
    periods: PromisedByPeriod | None = None
    vocabulary: ReleasedWords | None = None
    share: str = ""
    together: CostWithStart | None = None
    spent_before: SpentBefore | None = None
    run: str = ""
    population_id: str = ""
    ledger: ChainHead | None = None
    trust_model: str = FIRST_TRUST_MODEL
    not_covered: tuple[str, ...] = FIRST_NOT_COVERED
    sites: AmongSites | None = field(default=None, metadata=LATER)
    text_version: int = field(default=FIRST, metadata=LATER)

    def to_json(self) -> dict[str, object]:
        """As statement.json has it."""
        return {**self.entries(), "privacy": "differential privacy" if self.private else "none", "text": self.text()}

    def entries(self) -> dict[str, object]:
        """The same without what follows from the rest. What there is not is an empty object, except for numbers."""
        value = entries(self)
        if self.ledger is not None:
            value["ledger"] = {"id": self.ledger.ledger_id, "seq": self.ledger.seq, "hash": self.ledger.hash}
        return {name: {} if item is None and name not in MAY_BE_NULL else item for name, item in value.items()}

    @classmethod
    def from_json(cls, value: JsonObject) -> PrivacyStatement:
        """Raises one of `BROKEN` unless `entries` could have made it; absent entries take their defaults."""
        said = {name: None if item == {} else item for name, item in value.items()}
        if head := said.get("ledger"):
            said["ledger"] = {"ledger_id": head["id"], "seq": head["seq"], "hash": head["hash"]}
        return made_of(cls, said, others=True)

    def text(self) -> str:
        """For a person: a few paragraphs."""
        if not self.private:
            return f"privacy: none\nReason: {self.reason}."
        of_whom = f"client and {self.periods.unit}" if self.periods else self.unit
        lines = [
            f"privacy: ({self.epsilon:.4g}, {self.delta:.3g})-differential privacy per {of_whom}"
            f"{self._against()}{self._with_its_words()}{self._on_a_word()}",
            f"Hidden: {RELATIONS[self.unit, self.relation]} ({self.relation}).",
            *self._prices(),
            *([self.sites.text(self.delta)] if self.sites and self.delta is not None else []),
            *self._spent_before(),
            *([self._says("share", share=self.share)] if self.share else []),
            *self._vocabulary(),
            *self._lifetime(),
            *([self._says("skipped", round=self.given_up)] if self.given_up is not None else []),
            f"Noise: {self.mechanism}.",
            *schema_in_words(self.public_schema, released_words=bool(self.vocabulary), version=self.text_version),
            *(self._says("shared ids", reason=reason.rstrip(".")) for reason in self.shared_ids),
            *(loss_in_words(loss.at, loss.reason, self.text_version) for loss in self.losses),
            *([self._says("start", start=self.start)] if self.start else []),
            *self._with_its_start(),
            f"Trust: {self.trust_model}",
            f"Releases ({len(self.releases)}):" if self.releases else "Releases: none yet.",
            *(_line(entry) for entry in self.releases),
            "Not covered:",
            *(f"  - {item}" for item in self.not_covered),
            *self._source(),
        ]
        return "\n".join(lines)

    @property
    def all_runs(self) -> SpentOfBudget:
        """The population's budget and what is spent of it. Raises ValueError if the statement has none."""
        if self.population is None:
            raise ValueError("a promise without a budget")
        return self.population

    def in_version(self, version: int) -> PrivacyStatement:
        """The same statement with the sentences of a version, which mean the same."""
        trust, others = in_version(self.trust_model, version), [in_version(item, version) for item in self.not_covered]
        return replace(self, text_version=version, trust_model=trust, not_covered=tuple(others))

    def _says(self, name: str, **values: object) -> str:
        return sentence(name, self.text_version, **values)

    def _against(self) -> str:
        """The headline's attacker, where there are several sites."""
        return f" against up to {self.sites.collusion} of {self.sites.sites} sites" if self.sites else ""

    def _with_its_words(self) -> str:
        """The headline's promise about this run and its vocabulary."""
        if not self.vocabulary:
            return ""
        both = self.vocabulary.together
        return f", ({both.epsilon:.4g}, {both.delta:.3g}) together with the release of its vocabulary"

    def _with_its_start(self) -> list[str]:
        """What this run and the one that it started from cost."""
        if not self.together:
            return []
        both = self.together
        cost = f"mu = {both.mu:.6g} (rho = {both.rho:.6g}) of Gaussian differential privacy"
        implied = f"({both.epsilon:.4g}, {both.delta:.3g})"
        return [self._says("with its start", run=both.run, unit=self.unit, cost=cost, implied=implied)]

    def _vocabulary(self) -> list[str]:
        """Which release the columns come from, what it cost, and that both add up."""
        if not self.vocabulary:
            return []
        found, both = self.vocabulary, self.vocabulary.together
        names = f"run{'' if len(found.runs) == 1 else 's'} {' and '.join(found.runs)}"
        values = {
            "cost": f"mu = {mu_of(found.rho):.6g} (rho = {found.rho:.6g})",
            "delta": f"{found.delta:.3g}",
            "both": f"mu = {both.mu:.6g} (rho = {both.rho:.6g}) of Gaussian",
            "implied": f"({both.epsilon:.4g}, {both.delta:.3g})",
        }
        return [self._says("vocabulary", names=names, **values)]

    def _source(self) -> list[str]:
        if not self.ledger:
            return []
        return [
            f"Made from: run {self.run} of population {self.population_id} in ledger {self.ledger.ledger_id}, whose "
            f"newest record of that population was {self.ledger.seq} ({self.ledger.hash}). `fedcore verify-statement` "
            "compares a statement with its ledger."
        ]

    def _lifetime(self) -> list[str]:
        """What a guarantee per client and calendar period means for a client that has data in several of them."""
        if self.periods is None:
            return []
        unit, so_far = self.periods.unit, self.periods.lifetime[-1]
        delta = f"delta = {self.all_runs.delta:g}"
        bounds = "; ".join(
            f"active for {one.periods} {unit}s: at most epsilon = {one.epsilon:.4g}"
            for one in self.periods.lifetime[:-1]
        )
        return [
            self._says("lifetime", bounds=bounds, delta=delta, window=self.periods.window),
            self._says("lost so far", unit=unit, epsilon=f"{so_far.epsilon:.4g}", delta=delta),
        ]

    def _prices(self) -> list[str]:
        """What this run costs, and what all runs together may."""
        budget = self.all_runs
        who = "" if not self.cohorts else self._says("to cohorts")
        if self.periods:
            who = f" to a client for its data of one {self.periods.unit}"
        price = self._says("cost", so_far="" if self.ended else " so far", to=who)
        lost = "Releases that were charged and lost are included."
        thresholds = ", its thresholding steps included" if self.delta != budget.delta_conv else ""
        cost = (
            f"{price}: mu = {self.mu:.6g} of Gaussian differential privacy (rho = mu^2 / 2 = {self.rho:.6g}), "
            f"which implies ({self.epsilon:.4g}, {self.delta:.3g})-differential privacy{thresholds}. {lost}"
        )
        largest = f"{mu_of(budget.rho_max):.6g}"
        promised = f"mu = {largest}, which implies epsilon = {budget.epsilon:g}, delta = {budget.delta:g} over all runs"
        spent = f"mu = {mu_of(budget.rho_spent):.6g}{f' of {largest}' if self.cohorts else ''}"
        spent = f"{spent} (epsilon = {budget.epsilon_spent:.4g})"
        if self.cohorts is not None:
            return [cost, *self._by_cohort(self.cohorts, promised, spent)]
        return [cost, self._says("all runs", promised=promised, spent=spent)]

    def _by_cohort(self, cohorts: PaidByCohorts, promised: str, spent: str) -> list[str]:
        """promised: to each client; spent: by the cohort that has spent most."""
        used, most = cohorts.ranges, cohorts.most
        paid = (
            f"This run used {_numbered('cohort', used, in_words(used))}; others were not used, and it costs them "
            "nothing."
            if cohorts.named
            else self._says("before cohorts")
        )
        if self.periods is not None:
            unit, one = self.periods.unit, most.first == most.last
            these, highest = _dated(self.periods, used), _dated(self.periods, ((most.first, most.last),))
            read = f"This run used {_numbered(unit, used, these)}; others were not used, and it costs them nothing."
            return [
                self._says("each period", unit=unit, promised=promised),
                self._says("accounts of periods", unit=unit, used=read),
                f"The {unit}{' that has' if one else 's that have'} spent most: {highest}, {spent}.",
            ]
        having = "cohort that has" if most.first == most.last else "cohorts that have"
        return [
            self._says("each client", promised=promised),
            self._says("accounts of cohorts", used=paid),
            f"The {having} spent most: {most}, {spent}.",
        ]

    def _spent_before(self) -> list[str]:
        before = self.spent_before
        return [] if before is None else [spent_before_in_words(before.rho, before.reason, self.text_version)]

    def _on_a_word(self) -> str:
        """The end of the headline: what the guarantee assumes besides what was charged."""
        schema = _schema(bool(self.vocabulary))
        assumed = [self._says("other assumed", assumption=one) for one in self.vouched]
        if self.public_schema:
            assumed.insert(0, self._says("schema assumed", schema=schema, reason=self.public_schema.rstrip(".")))
        said = self._says("assuming", assumptions=self._says("and").join(assumed)) if assumed else ""
        return said if self.public_schema else self._says("no reason", schema=schema) + said


def _schema(released_words: bool) -> str:
    return BESIDE_RELEASED_WORDS if released_words else SCHEMA


def schema_in_words(reason: str | None, *, released_words: bool = False, version: int = CURRENT) -> list[str]:
    """What the guarantee takes as public besides what was released, and who declared that. released_words: whether the
    columns are words that were released from the same budget."""
    schema = _schema(released_words)
    if reason:
        return [sentence("public", version, schema=schema, reason=reason.rstrip("."))]
    return [sentence("not declared public", version, schema=schema)]


def spent_before_in_words(rho: float, reason: str, version: int = CURRENT) -> str:
    """A starting charge."""
    return sentence("spent before", version, rho=f"{rho:.6g}", reason=reason.rstrip("."))


def loss_in_words(at: float, reason: str, version: int = CURRENT) -> str:
    """An accepted loss. at: seconds since 1970."""
    when = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")
    return sentence("loss", version, when=when, reason=reason.rstrip("."))


def _dated(periods: PromisedByPeriod, ranges: Ranges) -> str:
    """Periods by their labels, if the calendar is known, else by their numbers in it."""
    first = periods.first
    return in_words(ranges) if first is None else labels_in_words(periods.unit, first, ranges)


def _numbered(what: str, ranges: Ranges, called: str) -> str:
    one = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
    return f"{what}{'' if one else 's'} {called}"


def _line(entry: ChargedRelease) -> str:
    attempts, planned = "" if entry.attempts == 1 else f", drawn {entry.attempts} times", entry.planned
    return (
        f"  - round {planned.round}, {planned.name}: sensitivity {planned.sensitivity} grid units, noise "
        f"multiplier {planned.noise_multiplier:.6g}, rho = {entry.rho:.6g}{attempts}; {planned.composition} "
        f"({planned.argument})"
    )


def no_privacy(reason: str) -> PrivacyStatement:
    """Statement of a run without a privacy guarantee, and why it has none."""
    return PrivacyStatement(False, reason, not_covered=NOT_PRIVATE, trust_model="")


def private_statement(
    ledger: Ledger,
    population_id: str,
    run_id: str,
    *,
    start: str = "",
    vouched: Sequence[str] = (),
    first_period: str | None = None,
    vocabulary: Sequence[str] = (),
    started_from: str | None = None,
    through: int | None = None,
) -> PrivacyStatement:
    """What this run may claim according to the ledger's chain. start: what it started from; started_from: the run of
    the same population that released that, if one did; `vouched`: what was declared public and not verified, each in a
    clause; first_period: label of the first period of the population's calendar, None where it has none; vocabulary:
    the runs of the account that released the words that are the population's columns, empty where its vocabulary came
    from elsewhere; through: number of the last record that counts, None for all. Raises the ledger's errors.
    """
    account = ledger.account(population_id, through=through)
    if run_id not in account.runs:
        return no_privacy("the ledger knows nothing of this run")
    statement = statement_of_account(account, account.runs[run_id], test_ledger=ledger.is_test)
    if not statement.private:
        return statement
    if vocabulary:
        statement = replace(statement, vocabulary=_with_vocabulary(account, run_id, vocabulary))
    if started_from is not None and started_from in account.runs and statement.periods is None:
        both = CostWithStart(**entries(_together(account, [started_from, run_id])), run=started_from)
        statement = replace(statement, together=both)
    periods = statement.periods
    return replace(
        statement,
        start=start,
        vouched=tuple(vouched),
        periods=periods if periods is None else replace(periods, first=first_period),
        run=run_id,
        population_id=population_id,
        ledger=ChainHead(ledger.id, account.seq, account.hash),
    )


def statement_of_account(account: Account, run: RunAccount, *, test_ledger: bool = False) -> PrivacyStatement:
    """The statement of one run of an account; `none` if its noise, or its ledger, was for tests."""
    if not run.secure:
        return no_privacy(TestNoise.label)
    if test_ledger:
        return no_privacy("its ledger is a test ledger, which bounds nothing")
    releases = []
    for planned in map(PlannedRelease.from_json, run.plan):
        attempts = [
            attempt
            for (round, name, _), attempt in run.attempts.items()
            if (round, name) == (planned.round, planned.name) and attempt.state in SPENT
        ]
        if attempts:
            cost = rounded_up(exact_sum(attempt.rho for attempt in attempts))
            releases.append(ChargedRelease(planned, len(attempts), cost, (run.noise,)))
    budget, balance, before = account.required_budget(), account.balance(), account.spent_before
    rho, delta = _price([run], budget.delta_conv)
    sites = among_sites(PlannedRelease.from_json(run.plan[0]), rho, budget)
    return PrivacyStatement(
        private=True,
        unit=account.unit or "",
        relation=account.relation or "",
        epsilon=budget.epsilon_of(rho),
        delta=delta,
        rho=rho,
        mu=mu_of(rho),
        given_up=run.given_up,
        releases=tuple(releases),
        mechanism=SecureNoise.label if sites is None else ShareNoise.label,
        population=SpentOfBudget(**budget.numbers(), rho_spent=balance.rho_spent, epsilon_spent=balance.epsilon_spent),
        ended=run.status != OPEN,
        public_schema=account.public_schema[-1] if account.public_schema else "",
        shared_ids=tuple(account.shared_ids),
        losses=tuple(account.losses),
        spent_before=None if before is None else SpentBefore(before.rho, before.reason),
        cohorts=_cohorts_of(account, run, balance),
        periods=_periods_of(balance),
        share=run.share or "",
        not_covered=_not_covered(account) + (() if sites is None else NOT_COVERED_AMONG_SITES),
        trust_model=TRUST_MODEL if sites is None else TRUST_AMONG_SITES,
        sites=sites,
        text_version=CURRENT,
    )


def _with_vocabulary(account: Account, run_id: str, runs: Sequence[str]) -> ReleasedWords:
    named = [account.runs[name] for name in runs]
    return ReleasedWords(tuple(runs), *_price(named, 0.0), _together(account, [*runs, run_id]))


def _together(account: Account, names: Sequence[str]) -> Cost:
    """What these runs cost."""
    runs, budget = [account.runs[name] for name in names], account.required_budget()
    rho, delta = _price(runs, budget.delta_conv)
    return Cost(budget.epsilon_of(rho), delta, rho, mu_of(rho))


def _periods_of(balance: Balance) -> PromisedByPeriod | None:
    terms = balance.periods
    return None if terms is None else PromisedByPeriod(terms.unit, terms.window, balance.lifetime)


def _not_covered(account: Account) -> tuple[str, ...]:
    if account.periods is not None:
        return NOT_COVERED + NOT_COVERED_BY_PERIOD
    return NOT_COVERED if account.founders is None else NOT_COVERED + NOT_COVERED_BY_COHORT


def _cohorts_of(account: Account, run: RunAccount, balance: Balance) -> PaidByCohorts | None:
    if not balance.segments:
        return None
    mine = [
        segment
        for segment in balance.segments
        if any(first <= segment.last and segment.first <= last for first, last in run.payers)
    ]
    most, most_of_them = (
        max(some, key=lambda segment: segment.rho_spent) for some in (balance.segments, mine or balance.segments)
    )
    return PaidByCohorts(run.payers, run.cohorts is not None, len(account.tokens), most, most_of_them)


def _price(runs: Sequence[RunAccount], delta_conv: float) -> tuple[float, float]:
    """(rho, delta) of all that these runs have charged, rounded up."""
    spent = [attempt for run in runs for attempt in run.spent()]
    delta = exact_sum(attempt.delta for attempt in spent) + Fraction(delta_conv)
    return rounded_up(exact_sum(attempt.rho for attempt in spent)), rounded_up(delta)
