"""Every error that a user can meet: named, with what happened, to what, and what to do.

The command line prints one of these as a single message and exits with code 2. None of them ever carries a
raw statistic of a private run.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

EXTRAS = {  # of pyproject.toml, with the name of the package, by the name that code imports
    "prefect": ("Prefect", "platform"),
    "dask": ("Dask", "platform"),
    "distributed": ("Dask", "platform"),
    "matplotlib": ("Matplotlib", "plots"),
    "pyarrow": ("PyArrow", "tables"),
    "duckdb": ("DuckDB", "sql"),
    "av": ("PyAV", "video"),
    "upath": ("universal-pathlib", "object-storage"),
    "opentelemetry": ("OpenTelemetry", "telemetry"),
    "psycopg": ("a driver of its database", "postgresql"),
}
LAST_READER = "6fae4f3"  # commit that still reads the formats of before the first release


def retired(what: str, form: str) -> tuple[str, str]:
    """(message, remedy) for something that only unreleased versions of fedcore 0.1 wrote. form: what it is."""
    return (
        f"{what} is {form}. An unreleased version of fedcore 0.1 wrote it, and commit {LAST_READER} is the last one "
        "that can read it.",
        "Use that commit of fedcore to read it.",
    )


class FedcoreError(Exception):
    """Base of all errors that a user's data, settings or environment can cause.

    message: what happened, and to what.
    remedy: what to do about it; empty when the message already says it.
    """

    def __init__(self, message: str, remedy: str = ""):
        super().__init__(message, remedy)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()


class ConfigError(FedcoreError):
    """A setting is unknown, of the wrong type, or out of range."""


class ExtraMissing(ConfigError):
    """A package that one of fedcore's extras installs is not installed or broken. Names the extra."""


@contextmanager
def needs(what: str, package: str = "", otherwise: str = "") -> Iterator[None]:
    """Imports in the body need packages of an extra; one that is not installed is an ExtraMissing.

    what: the subject of the message, such as "SQL queries"
    package: a key of EXTRAS; every ImportError is then an ExtraMissing. Without it, all errors pass except those about
        a package of EXTRAS that is not installed.
    otherwise: what to do instead, in a sentence
    """
    try:
        yield
    except ImportError as error:
        missing = str(error.name) if isinstance(error, ModuleNotFoundError) else ""
        if (package or missing) not in EXTRAS:
            raise
        name, extra = EXTRAS[package or missing]
        state = "is not installed" if missing == (package or missing) else f"cannot be imported ({error})"
        raise ExtraMissing(
            f"{what} needs {name}, which {state}.",
            f'Install it in a clone: pip install -e ".[{extra}]". {otherwise}'.rstrip(),
        ) from error


class NotWorthIt(ConfigError):
    """The budget is too small for a useful result, and the override `anyway` is not set; nothing was spent."""


class NothingLeft(ConfigError):
    """A run that a later one should start from has found nothing to start from."""


class MethodError(FedcoreError):
    """A method breaks the contract of methods: a mistake of its author, not of its user."""


class PopulationError(FedcoreError):
    """A population cannot be used as it is."""


class PopulationNotFound(PopulationError):
    """There is no population, or no such version of it, at this place."""


class ManifestError(PopulationError):
    """A manifest is unreadable, of an unknown schema version, or contradicts itself."""


class ChunkError(PopulationError):
    """Stored data of a block are missing, truncated, or do not match their checksum. Names the block."""


class WrongKind(PopulationError):
    """The method needs another kind of population."""


class IngestError(PopulationError):
    """The source cannot be turned into a population: unreadable file, missing column, bad rows.

    without_values: the same for places that show nothing of what the source holds, such as the records of pipelines.
        Names of columns count: they are the first row of a file that has lost its header.
    """

    def __init__(
        self,
        message: str,
        remedy: str = "",
        *,
        without_values: str | None = None,
        remedy_without_values: str | None = None,
    ):
        super().__init__(message, remedy)
        self._without = (without_values, remedy_without_values)

    @property
    def without_values(self) -> IngestError:
        message, remedy = self._without
        return IngestError(self.message if message is None else message, self.remedy if remedy is None else remedy)


class SourceChanged(IngestError):
    """Files of the source were changed while it was read. files: their paths, as the source has them"""

    def __init__(self, files: list[str]):
        listed = ", ".join(files[:5]) + (", ..." if len(files) > 5 else "")
        some = "A file was" if len(files) == 1 else f"{len(files)} files were"
        super().__init__(
            f"Changed while it was read: {listed}. Nothing was stored.",
            "Ingest the source again once it is complete.",
            without_values=f"{some} changed while the source was read. Nothing was stored.",
        )
        self.files = tuple(files)


class PrivacyError(FedcoreError):
    """A privacy rule would be broken; nothing was released."""


class UnplannedRelease(PrivacyError):
    """A method asked to release something that its plan does not contain."""


class SensitivityError(PrivacyError):
    """A planned release is not of the declared shape, integer type, or sensitivity."""


class BudgetMissing(PrivacyError):
    """A private run needs a budget, and the population has none."""


class BudgetExceeded(PrivacyError):
    """The plan does not fit into the remaining budget, or no budget is left to repeat a lost release."""


class Waiting(BudgetExceeded):
    """Too few clients are in cohorts with enough budget for the run; the next appends open cohorts with full
    budgets."""


class PopulationBranched(PrivacyError):
    """Two copies of one population were appended to separately: their cohorts are not the same people."""


class BudgetExists(PrivacyError):
    """The budget of a population is set once."""


class SharedIds(PrivacyError):
    """Many ids of a population are also in another one with a budget, and the budget owner has not declared why.

    Its text never says how many: that is for the operator's terminal only.
    """


class LedgerError(PrivacyError):
    """The ledger cannot be used.

    of_database: whether its database failed, which may pass, rather than that something in it is wrong.
    """

    of_database = False


class LedgerMissing(LedgerError):
    """The ledger that the population names is not where it should be, or is another one."""


class LedgerRetired(LedgerError):
    """The ledger, or an account in it, is of a format that only unreleased versions of fedcore wrote."""


class LedgerTampered(LedgerError):
    """The hash chain of the ledger does not verify."""


class LedgerRolledBack(LedgerError):
    """The ledger does not contain a record that was seen before: an old copy was restored."""


class LeaseLost(PrivacyError):
    """Another process took over this run; this one may not charge or publish any more."""


class RunError(FedcoreError):
    """A run cannot be opened, resumed or read."""


class RunNotFound(RunError):
    """There is no run at this place."""


class RunBusy(RunError):
    """Another live process is working on this run."""


class Unreachable(PopulationError, RunError):
    """Object storage cannot be reached, or refuses: what is there of a population or a run is not known."""


class SiteError(FedcoreError):
    """A site, a study or a mailbox cannot be used as it is. Nothing was released for it."""


class IdentityError(SiteError):
    """The identity of a site is missing, damaged, or open to other users."""


class StudyError(SiteError):
    """A study cannot be read or trusted, or this site cannot take part in it."""


class MailboxError(SiteError):
    """The mailbox of a study cannot be used."""


class MailboxConflict(MailboxError):
    """The mailbox has other content under a name that this site writes. It is never replaced."""


class FileRefused(MailboxError):
    """A file in a mailbox is not what its name states. Nothing was taken from it."""


class PatienceOver(MailboxError):
    """Other sites have not posted their files in the time that was given. missing: names of these sites"""

    def __init__(self, message: str, remedy: str, missing: tuple[str, ...]):
        super().__init__(message, remedy)
        self.missing = missing


class SiteLeft(MailboxError):
    """Another site has ended the run of a study for all sites. sites: the names of those that did"""

    def __init__(self, message: str, remedy: str, sites: tuple[str, ...]):
        super().__init__(message, remedy)
        self.sites = sites


class RunLeft(SiteError):
    """A run of a study ends at this site before its last round. What was published stays usable."""


class StepsFailed(FedcoreError):
    """Steps of a pipeline were refused or failed; the others were made."""


class NotReady(ConfigError):
    """Deployments or pipelines of a file could not run as they are: populations, columns, budgets."""


class WorkerFailed(FedcoreError):
    """A block could not be computed. Names the block and the kind of error, never a value."""
