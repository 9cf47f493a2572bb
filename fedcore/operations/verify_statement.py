"""A privacy statement compared with itself, with its ledger and with its run; docs/privacy/statements.md says how."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fedcore.errors import ConfigError, FedcoreError, LedgerMissing, PopulationError, Unreachable
from fedcore.evaluation.privacy_page import FIRST_PAGE, privacy_page, statement_in
from fedcore.methods.registry import method_of_run
from fedcore.operations.verify import is_run, verify_run
from fedcore.population.store import Population
from fedcore.privacy.ledger.chain import ChainHead
from fedcore.privacy.statement import PrivacyStatement, private_statement
from fedcore.privacy.statement_check import differences, own_contradictions, read_statement
from fedcore.runs.store import Run
from fedcore.storage import files
from fedcore.storage.files import Place
from fedcore.training.budget import ledger_of
from fedcore.training.session import statement_of
from fedcore.training.spec import vocabulary_of

if TYPE_CHECKING:
    from fedcore.privacy.ledger.ledger import Ledger

LARGEST = 1 << 28  # bytes of a statement or report


@dataclass(slots=True)
class StatementReport:
    """What `verify_statement` found, in sentences. checked: what was compared and agrees; problems: what does not;
    not_checked: what could not be compared, and why; since: what has happened in the ledger since.
    """

    claims: str
    run: str = ""
    population_id: str = ""
    checked: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    since: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.problems:
            return "wrong"
        return "not all checked" if self.not_checked else "right"

    @contextmanager
    def comparing(self, agrees: str) -> Iterator[None]:
        """Inside, what does not agree is noted; if nothing is, that it agrees."""
        before = len(self.problems)
        try:
            yield
        except Unreachable:
            raise
        except FedcoreError as error:
            self.problems.append(error.message)
        if len(self.problems) == before:
            self.checked.append(agrees)


@dataclass(frozen=True, slots=True)
class _At:
    """Where the run, its population and its ledger are; None: not at hand."""

    run: Run | None
    population: Population | None
    ledger: Ledger | None


def verify_statement(
    file: str | Place, run: str | Place | None = None, ledger_url: str | None = None
) -> StatementReport:
    """Compare a statement (a run, its statement.json, or the one in its report.html) with itself, with the ledger and
    with the run.

    run: its folder; by default the folder of the file, if that is a run's. ledger_url: where the ledger is; by default
    as the population states, else FEDCORE_LEDGER or the user's ledger. Raises ConfigError for a file that is no
    statement, Unreachable. Disagreements are reported, not raised.
    """
    path = files.place(file)
    if files.is_file(path / "run.json"):
        path = path / "statement.json"
    content, page = _content(path), None
    if content.lstrip()[:1] == b"<":
        page = content.decode(errors="replace")
        embedded = statement_in(page)
        if embedded is None:
            raise ConfigError(
                f"{str(path)!r} is a page without a privacy statement.",
                "Its run may not have ended. `fedcore report RUN` writes it again.",
            )
        content = embedded.encode()
    try:
        said, value = read_statement(content)
    except ConfigError as error:
        raise ConfigError(f"{str(path)!r} is no privacy statement: {error.message}", error.remedy) from None
    report = StatementReport(str(value.get("text", "")).split("\n", 1)[0], said.run, said.population_id)
    with report.comparing("Its numbers follow from its releases and its budget, and its text says them."):
        report.problems += own_contradictions(said, value)
    at = _found(report, said, path, run, ledger_url)
    if at.run is not None:
        report.run = report.run or at.run.id
        _compare_run(report, said, at.run, ledger_url)
        if page is not None:
            _compare_page(report, page, at)
    elif page is not None:
        report.not_checked.append("The words of the page around the statement: its run is not at hand.")
    if not said.private:
        report.checked.append("It promises nothing: there is nothing that a ledger could contradict.")
    elif at.ledger is not None:
        _compare_ledger(report, said, at, at.ledger)
    return report


def _content(path: Place) -> bytes:
    try:
        if not files.is_remote(path):
            files.check_regular(path)
        content = files.read_bytes(path)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror or error}.") from None
    if len(content) > LARGEST:
        raise ConfigError(f"{str(path)!r} is too large for a privacy statement.")
    return content


# --- where things are -------------------------------------------------------------------------------------------------


def _found(
    report: StatementReport, said: PrivacyStatement, path: Place, run: str | Place | None, url: str | None
) -> _At:
    folder = files.place(run) if run is not None else path.parent
    opened = population = None
    if run is not None or is_run(folder):
        with report.comparing("run.json and head.json of the run belong together."):
            opened = Run.open(folder)
    else:
        report.not_checked.append("The run: the statement is in no run's folder. Pass its run with --run.")
    if opened is not None:
        where: dict[str, Any] = opened.info.get("population") or {}
        try:
            population = Population.open(where["path"], version=where["version"])
        except (KeyError, PopulationError):
            pass
    return _At(opened, population, _ledger(report, said, population, url) if said.private else None)


def _ledger(
    report: StatementReport, said: PrivacyStatement, population: Population | None, url: str | None
) -> Ledger | None:
    from fedcore.privacy.ledger.ledger import default_ledger_url, open_ledger

    missing = "The ledger, and so whether these charges are all: "
    try:
        if population is not None:
            return ledger_of(population, url)
        return open_ledger(
            url or default_ledger_url(), expected_id="" if said.ledger is None else str(said.ledger.ledger_id)
        )
    except LedgerMissing as error:
        report.not_checked.append(f"{missing}{error.message}")
    except Unreachable:
        raise
    except FedcoreError as error:  # one that went back, or cannot be used
        report.problems.append(error.message)
    return None


# --- the run ----------------------------------------------------------------------------------------------------------


def _compare_run(report: StatementReport, said: PrivacyStatement, run: Run, url: str | None) -> None:
    if said.run and said.run != run.id:
        report.problems.append(f"It is the statement of run {said.run!r}, and this is run {run.id!r}.")
    own = (run.info.get("population") or {}).get("id")
    if said.population_id and said.population_id != own:
        report.problems.append(f"It is about population {said.population_id!r}, and the run read population {own!r}.")
    if said.private and (run.info.get("private") is not True or run.info.get("test_noise") is not None):
        report.problems.append("It promises privacy, and run.json says that the run has none.")
    with report.comparing("The files of the run are those that its head names: settings, plan, state, releases."):
        found = verify_run(run.path, url)
        report.problems += [problem for problem in found.problems if problem not in report.problems]
        report.not_checked += [remark for remark in found.remarks if not remark.startswith("The ledger")]


def _compare_page(report: StatementReport, page: str, at: _At) -> None:
    if at.run is None or at.population is None:
        report.not_checked.append("The words of the page around the statement: the population is not at hand.")
        return
    with report.comparing("The first page of the report says what the statement and run.json say."):
        found = FIRST_PAGE.search(page)
        if found is None or found.group() != str(privacy_page(at.run, vocabulary_of(at.run))):
            report.problems.append(
                "The first page of the report is not what this version of fedcore makes of the run's statement: it was "
                "changed, another version wrote it, or statement.json was changed. `fedcore report` writes it again."
            )


# --- the ledger -------------------------------------------------------------------------------------------------------


def _compare_ledger(report: StatementReport, said: PrivacyStatement, at: _At, ledger: Ledger) -> None:
    population_id = said.population_id or (at.population.id if at.population is not None else "")
    run_id = said.run or report.run
    problems = len(report.problems)
    with report.comparing("The ledger's chain is whole: every hash, every balance and every published array."):
        ledger.verify(population_id)
    with report.comparing("The ledger holds the record that was the newest when the statement was made."):
        _check_head(report, said, population_id, ledger)
    if len(report.problems) > problems:
        return  # such a ledger proves nothing
    with report.comparing("The ledger's records give these charges, costs, totals and conversions, and no others."):
        through = None if said.ledger is None else said.ledger.seq
        found = _again(said, at, ledger, population_id, run_id, through).in_version(said.text_version)
        report.problems += differences(said, found).values()
    _since(report, said, population_id, ledger)


def _check_head(report: StatementReport, said: PrivacyStatement, population_id: str, ledger: Ledger) -> None:
    named = said.ledger
    if named is None or named.ledger_id != ledger.id:
        made_from = None if named is None else named.ledger_id
        report.problems.append(f"The statement was made from ledger {made_from!r}, and this is {ledger.id!r}.")
    elif type(named.seq) is not int or not ledger.contains(
        population_id, ChainHead(ledger.id, named.seq, str(named.hash))
    ):
        report.problems.append(
            f"Ledger {ledger.id} has no record {named.seq} of population {population_id!r} with that hash: the "
            "statement was changed, or an older or another ledger was put in the ledger's place."
        )


def _again(
    said: PrivacyStatement, at: _At, ledger: Ledger, population_id: str, run_id: str, through: int | None
) -> PrivacyStatement:
    """The statement, made once more; what no ledger says is taken from the run, or else from the statement."""
    if at.run is not None and at.population is not None and at.run.id == run_id:
        with suppress(ConfigError):  # of a method of another installation
            method = method_of_run(at.run.info)
            return statement_of(at.run, method, ledger, at.population, through)
    first = None if said.periods is None else said.periods.first
    return private_statement(
        ledger,
        population_id,
        run_id,
        start=said.start,
        vouched=said.vouched,
        first_period=first,
        started_from=None if said.together is None else str(said.together.run),
        through=through,
    )


def _since(report: StatementReport, said: PrivacyStatement, population_id: str, ledger: Ledger) -> None:
    """What a reader of an old statement should know of the population now."""
    balance, head = ledger.balance(population_id), ledger.head(population_id)
    budget, then = balance.budget, said.population
    if budget is None or then is None or said.ledger is None or head.seq == said.ledger.seq:
        return
    report.since.append(f"The ledger has {head.seq - said.ledger.seq} more records of this population by now.")
    if balance.rho_spent > then.rho_spent:
        report.since.append(
            f"All runs together have spent epsilon = {balance.epsilon_spent:.4g} by now; the statement says "
            f"{then.epsilon_spent:.4g}, which was so when it was made."
        )
    if (budget.epsilon, budget.delta) != (then.epsilon, then.delta):
        report.since.append(
            f"The budget was raised: epsilon = {budget.epsilon:g}, delta = {budget.delta:g} by now; the statement says "
            f"epsilon = {then.epsilon:g}, delta = {then.delta:g}."
        )
    if balance.loss is not None and len(said.losses) == 0:
        report.since.append("The ledger lost records since, and the loss was acknowledged: more may have been spent.")
