"""A Prefect server on this host, for when PREFECT_API_URL names none.

Every user of the host reaches its port, and whoever may tell a Prefect server what to do runs commands as those whose
flows it starts. So it wants a password. That of a server with a UI is kept in a file of Prefect's folder which only its
owner can read; that of any other server is made anew, and only the server, this process and its children know it. The
port is taken here, before another process could answer in its place.

This module does not import Prefect, which reads its settings when it is imported.
"""

import base64
import os
import re
import secrets
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from fedcore.errors import ConfigError

START_SECONDS = 180
STOP_SECONDS = 15
# The server ends with the process that started it, however that ends: nothing is ever written to its input, which is
# closed when nobody holds the other end any more.
SERVER = f"""
import os, signal, threading, time

def end():
    os.read(0, 1)
    os.killpg(os.getpgrp(), signal.SIGTERM)
    time.sleep({STOP_SECONDS})
    os.killpg(os.getpgrp(), signal.SIGKILL)

threading.Thread(target=end, daemon=True).start()
from uvicorn import main
main()
"""
ADDRESS = "PREFECT_API_URL"
ASKED_FOR = "PREFECT_SERVER_API_AUTH_STRING"  # the password that a server wants
GIVEN = "PREFECT_API_AUTH_STRING"  # the one that is sent to it
LOGIN = re.compile(r"fedcore:[\w-]{40,}")  # as it is kept: name and password of the UI
LOOKS = 50  # for a login that another process is about to write
WITHOUT_UI = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}  # nor a scheduler: as Prefect starts its own
# The working folder holds no modules: a folder there that is called fedcore or prefect is not to be imported.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}
NO_PAGES = {"PREFECT_UI_URL": ""}  # so that nobody is sent to them


@contextmanager
def server(ui: bool = True, first: Callable[[], object] | None = None) -> Iterator[str]:
    """The base address of the server that PREFECT_API_URL names, or of one started here on loopback, which ends with
    the block, or with this process. Meanwhile the environment has its address and password.

    Args:
        ui: whether it shows runs in a browser, and starts what is scheduled
        first: called when the environment has them, before the server is started: the first one that may import
            Prefect. Without an address Prefect would start one more server, which knows no password

    Raises ConfigError if it does not come up, and what `first` raises.
    """
    address = os.environ.get(ADDRESS)
    if address:
        if first is not None:
            first()
        yield address.removesuffix("/api")
        return
    password = os.environ.get(ASKED_FOR) or (kept_login() if ui else _new_login())
    with port_taken() as taken:
        base = f"http://127.0.0.1:{taken.getsockname()[1]}"
        own = {"PREFECT_SERVER_UI_API_URL": f"{base}/api", "PREFECT__SERVER_FINAL": "1", ASKED_FOR: password}
        its_environment = os.environ | own | SAFE_PATH | ({} if ui else WITHOUT_UI)
        close_databases()
        with environment({ADDRESS: f"{base}/api", GIVEN: password} | ({} if ui else NO_PAGES)):
            if first is not None:
                first()
            process = subprocess.Popen(
                [sys.executable, "-c", SERVER, "--factory", "prefect.server.api.server:create_app"]
                + ["--fd", str(taken.fileno()), "--log-level", "error", "--lifespan", "on"]
                + ["--app-dir", sys.prefix],  # uvicorn puts it before all others; else the working folder
                env=its_environment,
                pass_fds=[taken.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                umask=0o077,  # for its database
            )
            try:
                _wait(base, process)
                yield base
            finally:
                _stop(process)


def prefect_home() -> Path:
    """Prefect's folder: its database, and the login of the UI."""
    return Path(os.environ.get("PREFECT_HOME") or Path.home() / ".prefect").expanduser()


def login_file() -> Path:
    return prefect_home() / "fedcore-login"


def kept_login() -> str:
    """Name and password of the UI, as "name:password": those that are kept, or new ones that are kept from now on. A
    file that other users can read, or of another user, is replaced. Raises ConfigError if none can be kept.
    """
    file = login_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(LOOKS):
            if (login := _login_in(file)) is not None:
                return login
            try:
                written = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            except FileExistsError:
                time.sleep(0.02)
                continue
            with open(written, "w") as opened:
                opened.write(login := _new_login())
            return login
        file.unlink()
    except OSError as error:
        raise ConfigError(
            f"the login of the Prefect UI cannot be kept in {file}: {error.strerror}.",
            f"Set PREFECT_HOME to a folder of your own, or {ASKED_FOR} to name:password.",
        ) from None
    return kept_login()


def _new_login() -> str:
    return f"fedcore:{secrets.token_urlsafe(32)}"


def _login_in(file: Path) -> str | None:
    """What the file keeps; None if there is none, or it is not for its owner's eyes only."""
    try:
        facts, text = file.lstat(), file.read_text()
    except (OSError, UnicodeDecodeError):
        return None
    private = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077
    return text if private and LOGIN.fullmatch(text) else None


def close_databases() -> None:
    """Take the databases of Prefect's folder (PREFECT_HOME) from other users: one that a server made by itself is open
    to them, and holds the parameters and logs of runs.
    """
    with suppress(OSError):
        for file in prefect_home().glob("prefect.db*"):
            with suppress(OSError):  # another user's
                file.chmod(0o600)


def port_taken() -> socket.socket:
    """A socket at a free port of the loopback interface, which nobody else gets while it is open: it shares no address
    (SO_REUSEADDR).
    """
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    return taken


def authorization() -> dict[str, str]:
    """The HTTP header that tells a server the password of this environment; none without a password."""
    password = os.environ.get(GIVEN)
    return {"Authorization": f"Basic {base64.b64encode(password.encode()).decode()}"} if password else {}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables, and as they were afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def without_login(address: str) -> str:
    """The address of a server without the name and password that it may hold."""
    scheme, found, rest = address.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{found}{host.rpartition('@')[2]}{slash}{path}"


def check_reachable(address: str) -> None:
    """Raises ConfigError if no Prefect server answers at this address (which ends in /api)."""
    address = without_login(address)
    try:
        with urllib.request.urlopen(f"{address.rstrip('/')}/health", timeout=10):
            return
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise ConfigError(
            f"no Prefect server answers at {address} ({getattr(error, 'reason', error)}).",
            "Start it, or correct PREFECT_API_URL.",
        ) from None


def _wait(base: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{base}/api/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.3)
    raise ConfigError("the Prefect server did not start.", "Try `prefect server start` by itself to see why.")


def _stop(process: subprocess.Popen) -> None:
    """The server may have children of its own: end the whole process group."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
