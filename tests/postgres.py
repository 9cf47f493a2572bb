"""PostgreSQL servers for tests, on loopback."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


class NoPostgres(Exception):
    """PostgreSQL cannot be started here, and why."""


@contextmanager
def postgres_server(port: int, inside: Sequence[str] = ()) -> Iterator[str]:
    """A server of its own with a database `ledger`, owned by the role `owner`: address, port and database.

    inside: what comes before each command, such as one that enters a network namespace. Raises NoPostgres.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "")]
    if not found[-1].is_file():
        raise NoPostgres("PostgreSQL is not installed")
    binaries, folder = found[-1].parent, Path(tempfile.mkdtemp(prefix="postgres"))
    as_user = []
    if os.geteuid() == 0:  # it does not run as root
        if not shutil.which("runuser") or subprocess.run(["id", "postgres"], capture_output=True).returncode:
            raise NoPostgres("PostgreSQL does not run as root, and there is no user postgres")
        shutil.chown(folder, "postgres")
        as_user = ["runuser", "-u", "postgres", "--"]
    data = str(folder / "data")

    def run(*command):
        done = subprocess.run([*inside, *as_user, *map(str, command)], capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr

    run(binaries / "initdb", "-D", data, "-U", "owner", "--auth", "trust")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    run(binaries / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start")
    try:
        run(binaries / "createdb", "-h", "127.0.0.1", "-p", port, "-U", "owner", "ledger")
        yield f"127.0.0.1:{port}/ledger"
    finally:
        run(binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
