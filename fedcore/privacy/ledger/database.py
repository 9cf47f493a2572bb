"""The database of a ledger: connections, transactions, and what the database's errors mean to a person.

SQLite by default (write-ahead log, full synchronisation, one writer at a time), or any SQLAlchemy URL. Writers lock the
population's row in `accounts`, so that runs on one population are serialised by the ledger itself.

A server may be far away, so its connection is kept from one transaction to the next. Statements that return nothing
travel with the next one that does, or with the commit (PostgreSQL's pipeline mode).
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DisconnectionError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from fedcore.errors import LedgerError, LedgerMissing, needs

BUSY_SECONDS = 30.0
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0  # seconds between attempts at what must not be lost
HIDDEN = "***"
HIDING: dict[str, Any] = {"hide_parameters": True}  # values do not appear in errors, nor in what a pool logs
T = TypeVar("T")
_log = logging.getLogger(__name__)
FILE = "fedcore_file"  # option of an engine: the path of its file
BATCHES = "fedcore_batches"  # option of an engine: whether its statements can be sent without waiting
PIPELINE = "fedcore_pipeline"  # entry of a connection's info: the pipeline that it is in
IDLE_SECONDS = 1.0  # after which a kept connection is tried before it is used: the server may have closed it
SILENT_SECONDS = 30  # after which a server that acknowledges nothing counts as lost
LIBPQ = ("psycopg", "psycopg2")  # drivers that take its parameters


class Conflict(LedgerError):
    """Two processes inserted the same key; one of them lost."""


class NotAllowed(LedgerError):
    """The user of the database may not do this."""


def parse_url(url: str) -> URL:
    """Raises LedgerError for anything that is not the URL of a database that outlives the process."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise LedgerError(
            f"{url!r} is not the URL of a ledger.",
            "Write sqlite:////path/to/ledger.sqlite or postgresql+psycopg://user@host/name.",
        ) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LedgerError(
            "a ledger in memory would forget what was spent.", "Name a file: sqlite:////path/ledger.sqlite"
        )
    if parsed.password == HIDDEN:
        raise LedgerError(
            f"the address {url!r} of the ledger lacks its password, which is never stored.",
            "Give the whole URL in FEDCORE_LEDGER.",
        )
    return parsed


def connect(url: URL, *, create: bool) -> Engine:
    """An engine that is safe to use after a fork. It keeps one connection to a server and none to a file, so that a
    deleted file is noticed at once.

    create: whether a missing SQLite file may be made; with False, LedgerMissing.
    """
    if url.get_backend_name() != "sqlite":
        try:
            with needs(f"The ledger at {url.render_as_string()}"):
                return _server(url)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise LedgerError(
                f"no driver for {url.render_as_string()} is installed ({error}).",
                'Write postgresql+psycopg://... and install its driver in a clone: pip install -e ".[postgresql]".',
            ) from None
    path = Path(url.database or "").expanduser().absolute()
    if create:
        _make_file(path)
    elif not path.is_file():
        raise LedgerMissing(
            f"there is no ledger at {str(path)!r}.", "Restore it from a backup, or set FEDCORE_LEDGER to its place."
        )
    address = f"{path.as_uri()}?mode=rw"  # never makes a file

    def open_file() -> sqlite3.Connection:
        connection = sqlite3.connect(address, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        connection.execute("PRAGMA synchronous = FULL")  # a commit is on the disk before anything depends on it
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    engine = create_engine("sqlite://", creator=open_file, poolclass=NullPool, execution_options={FILE: path}, **HIDING)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Take the write lock at once: a reader that later wants to write would meet "database is locked".
        write = connection.get_execution_options().get("write", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _server(url: URL) -> Engine:
    """The engine of a database server. Its connections are kept, and tried or replaced where they may not work."""
    options: dict[str, Any] = {"isolation_level": "READ COMMITTED"}  # for the row locks
    of_driver: dict[str, Any] = {}
    batches = False
    if url.get_driver_name() == "psycopg":
        of_driver["prepare_threshold"] = None  # a connection pooler may serve each transaction by another session
        if batches := import_module("psycopg").Pipeline.is_supported():
            options["isolation_level"] = "AUTOCOMMIT"  # of what is not `_batched`
    if url.get_driver_name() in LIBPQ:
        options["use_native_hstore"] = False  # looking for that type takes three round trips
        if "tcp_user_timeout" not in url.query:
            of_driver["tcp_user_timeout"] = 1000 * SILENT_SECONDS
    options |= {"connect_args": of_driver, "execution_options": {BATCHES: batches}, **HIDING}
    engine = create_engine(url, pool_size=1, max_overflow=-1, **options)
    dialect = engine.dialect

    @event.listens_for(engine, "connect")
    def connected(connection: Any, record: Any) -> None:
        record.info.update(process=os.getpid(), used=monotonic())

    @event.listens_for(engine, "checkin")
    def returned(connection: Any, record: Any) -> None:
        record.info["used"] = monotonic()

    @event.listens_for(engine, "checkout")
    def taken(connection: Any, record: Any, proxy: Any) -> None:
        if record.info["process"] != os.getpid():  # the parent's: it is neither used nor closed here
            record.dbapi_connection = proxy.dbapi_connection = None
            raise DisconnectionError
        if monotonic() - record.info["used"] > IDLE_SECONDS:
            try:
                dialect.do_ping(connection)
            except dialect.loaded_dbapi.Error:
                raise DisconnectionError from None  # then another one is opened

    @event.listens_for(engine, "after_cursor_execute")
    def sent(connection: Connection, cursor: Any, statement: Any, given: Any, context: Any, many: bool) -> None:
        if (pipeline := connection.info.get(PIPELINE)) is not None and not _returns_nothing(context):
            pipeline.sync()  # waits for it, and for all before it; raises the driver's error if one failed

    return engine


def _returns_nothing(context: Any) -> bool:
    """Whether a statement is an INSERT, UPDATE or DELETE that returns no rows."""
    changes = context.isinsert or context.isupdate or context.isdelete
    return changes and context.compiled is not None and not context.compiled.effective_returning


@contextmanager
def _batched(connection: Connection) -> Iterator[None]:
    """A transaction whose statements travel together. It is committed once the server has acknowledged the commit.

    If anything is raised inside, or by the commit, the connection is closed: the server then rolls back what it has.
    """
    driver = connection.connection.driver_connection
    assert driver is not None
    errors = connection.dialect.loaded_dbapi
    pipeline = driver.pipeline()
    try:
        connection.info[PIPELINE] = pipeline.__enter__()
        driver.execute("BEGIN ISOLATION LEVEL READ COMMITTED")  # for the row locks
        yield
        end = driver.execute("COMMIT")
        pipeline.__exit__(None, None, None)
        if end.statusmessage != "COMMIT":  # an error inside was caught: the server has rolled back
            raise errors.DatabaseError("not committed")
        del connection.info[PIPELINE]
    except BaseException:
        connection.invalidate()
        with suppress(errors.Error):
            pipeline.__exit__(None, None, None)  # of a closed connection: waits for nothing
        raise


def close(engine: Engine, process: int) -> None:
    """Close the kept connections of an engine that this process made."""
    if os.getpid() == process:
        engine.dispose()


def _make_file(path: Path) -> None:
    try:
        if not path.parent.is_dir():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            make_private_file(path)
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
    except (sqlite3.Error, OSError) as error:
        raise named(error, str(path)) from None


def make_private_file(path: Path) -> None:
    """An empty file that only this user may read, whatever the umask; SQLite gives its log the same mode.

    Raises FileExistsError.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.fchmod(handle, 0o600)
    finally:
        os.close(handle)


def copy_file(file: Path, target: Path) -> None:
    """Copy a SQLite file that others may be writing, whole, as of one moment. target: an empty file. Raises
    sqlite3.Error.
    """
    source = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
    with closing(source), closing(sqlite3.connect(target)) as copy:
        source.backup(copy)


def file_of(engine: Engine) -> Path | None:
    """The file of a SQLite ledger; None for a server's."""
    return engine.get_execution_options().get(FILE)


@contextmanager
def transaction(engine: Engine, where: str, *, write: bool, locks: bool = True) -> Iterator[Connection]:
    """One transaction, committed at the end of the block. Database errors become LedgerError, LedgerMissing.

    locks: whether it locks rows. What neither writes nor locks may be several transactions of a server.
    """
    driver = engine.dialect.loaded_dbapi
    try:
        with engine.connect() as connection:
            if write:
                connection = connection.execution_options(write=True)
            batched = (write or locks) and engine.get_execution_options().get(BATCHES, False)
            with connection.begin(), _batched(connection) if batched else nullcontext():
                yield connection
    except (IntegrityError, driver.IntegrityError):
        raise Conflict("another process wrote the same to the ledger at the same time.", "Try again.") from None
    except (SQLAlchemyError, driver.Error) as error:
        failure = named(getattr(error, "orig", None) or error, where)
        failure.of_database = True
        raise failure from None


def persist(work: Callable[[], T], seconds: float) -> T:
    """work(), which makes transactions: again and again on new connections while the database fails, for so long.

    Whether a transaction that failed at its commit was committed is known only to the next one. Raises what `work`
    does; of the database's errors the last.
    """
    deadline, pause = monotonic() + seconds, FIRST_PAUSE
    while True:
        try:
            return work()
        except LedgerError as failure:
            if not failure.of_database or monotonic() + pause > deadline:
                raise
            _log.warning("%s Trying again for %.0f s.", failure, deadline - monotonic())
        sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


REASONS = (  # what the database says (lower case) -> what happened, what to do
    (
        "unable to open database",
        LedgerMissing,
        "cannot be opened: it is missing, or its folder may not be written",
        "Restore it from a backup, or set FEDCORE_LEDGER to its place.",
    ),
    ("does not exist", LedgerMissing, "does not exist", "Check the address in FEDCORE_LEDGER."),
    ("no such table", LedgerMissing, "holds no ledger", "Check the address in FEDCORE_LEDGER."),
    ("disk is full", LedgerError, "cannot be written: the disk is full", "Free some space; then resume the run."),
    ("no space left", LedgerError, "cannot be written: the disk is full", "Free some space; then resume the run."),
    ("readonly", LedgerError, "may not be written", "Give this user permission to write the file and its folder."),
    ("must be owner of", NotAllowed, "may not be altered by this user", "Ask the owner of its tables."),
    ("permission denied", NotAllowed, "may not be used by this user", "Ask its owner for permission to write."),
    ("not a database", LedgerError, "is not a ledger, or is damaged", "Restore it from a backup."),
    ("malformed", LedgerError, "is damaged", "Restore it from a backup."),
    ("disk i/o error", LedgerError, "cannot be read or written: input/output error", "Check the disk."),
    ("locked", LedgerError, f"has been locked by another process for {BUSY_SECONDS:.0f} s", "Wait, then try again."),
)


def named(error: BaseException, where: str) -> LedgerError:
    """What a database's error means. Its own text is not repeated: it may quote statements and their values."""
    text = str(error).lower()
    for words, kind, what, remedy in REASONS:
        if words in text:
            return kind(f"the ledger {where!r} {what}.", remedy)
    return LedgerError(
        f"the ledger {where!r} cannot be used ({type(error).__name__}).",
        "Check that the database is running and that FEDCORE_LEDGER names it.",
    )


def default_ledger_url() -> str:
    """FEDCORE_LEDGER, or a SQLite file in the user's data folder."""
    named = os.environ.get("FEDCORE_LEDGER")
    if named:
        return named
    from platformdirs import user_data_path

    return f"sqlite:///{user_data_path('fedcore') / 'ledger.sqlite'}"
