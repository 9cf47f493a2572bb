"""A Prefect server on this host, for when PREFECT_API_URL names none.

This module does not import Prefect, which reads that address when it is imported.
"""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from fedcore.errors import ConfigError

START_SECONDS = 180


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


@contextmanager
def server(port: int | None = None) -> Iterator[str]:
    """The base address of the server that PREFECT_API_URL names, or of one started here on loopback and stopped at
    the end. Raises ConfigError if it does not come up.
    """
    address = os.environ.get("PREFECT_API_URL")
    if address:
        yield address.removesuffix("/api")
        return
    base = f"http://127.0.0.1:{port or free_port()}"
    environment = os.environ | {"PREFECT_SERVER_UI_API_URL": f"{base}/api"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", base.split(":")[-1]]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        _wait(base, process)
        os.environ["PREFECT_API_URL"] = f"{base}/api"
        yield base
    finally:
        os.environ.pop("PREFECT_API_URL", None)
        _stop(process)


def check_reachable(address: str) -> None:
    """Raises ConfigError if no Prefect server answers at this address (which ends in /api)."""
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
    """The server has children of its own: end the whole process group."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
