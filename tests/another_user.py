"""What another user of the machine tries on a run: `python -m tests.another_user WHAT.json`, started as root. It
imports all that it needs, becomes the user nobody, and prints as JSON what it got.
"""

import asyncio
import json
import os
import socket
import ssl
import sys
import tempfile
import urllib.error
import urllib.request
from pathlib import Path

import distributed.comm
import websockets.exceptions
import websockets.sync.client
from distributed import Client, Security
from fedcore.tasks.local_cluster import own_certificate

NOBODY = 65534
PATIENCE = 10.0  # for an answer, seconds
SECRETS = ("PRIVATE KEY", "AUTH_STRING")


def become_nobody() -> None:
    os.chdir("/")
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


def says(port: int, tls: ssl.SSLContext | None, sent: bytes) -> str:
    """The first bytes that a port answers with, by TLS or in the clear; "" if it says nothing to us."""
    try:
        with socket.create_connection(("127.0.0.1", port), PATIENCE) as plain:
            plain.settimeout(PATIENCE)
            with tls.wrap_socket(plain) if tls else plain as connection:
                connection.sendall(sent)
                got = connection.recv(80)
    except OSError:  # also of TLS
        return ""
    alert = tls is None and got[:2] == b"\x15\x03"  # what a server that speaks TLS says to who does not
    return "" if alert else got.decode("latin-1")


def certificates() -> dict[str, Security]:
    """By which Dask is tried: in the clear, and with a certificate that the cluster did not make."""
    return {"tcp": Security(require_encryption=False), "tls": own_certificate()}


async def connected(ports: list[int], known: dict[str, Security]) -> list[str]:
    """The addresses at which Dask's protocol lets us in."""

    async def attempt(scheme: str, port: int) -> str | None:
        arguments = known[scheme].get_connection_args("client") if scheme == "tls" else {}
        try:
            comm = await distributed.comm.connect(f"{scheme}://127.0.0.1:{port}", timeout=PATIENCE, **arguments)
        except (OSError, ValueError):  # the latter where TLS is answered in the clear
            return None
        await comm.close()
        return f"{scheme}://127.0.0.1:{port}"

    found = await asyncio.gather(*(attempt(scheme, port) for scheme in known for port in ports))
    return [address for address in found if address]


def runs_code(addresses: list[str], known: dict[str, Security]) -> list[int]:
    """The users as whom code of ours was run, through one of the addresses."""
    for address in addresses:
        try:
            with Client(address, timeout=PATIENCE, security=known[address[:3]], set_as_default=False) as client:
                return [client.run_on_scheduler(os.getuid), *client.run(os.getuid).values()]
        except Exception:  # not a scheduler
            continue
    return []


def asked_of_prefect(port: int) -> dict[str, object]:
    """What a Prefect server at this port lets us do; nothing if there is none."""
    base, found = f"http://127.0.0.1:{port}", {}
    for path, body in (("/health", None), ("/flow_runs/filter", {}), ("/flows/", {"name": "of somebody else"})):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{base}/api{path}", data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                found[path] = answer.status
        except urllib.error.HTTPError as error:
            found[path] = error.code
        except (OSError, ValueError):
            return {}
    try:
        with websockets.sync.client.connect(f"ws://127.0.0.1:{port}/api/events/in", subprotocols=["prefect"]) as events:
            events.send(json.dumps({"type": "auth", "token": "guessed"}))
            found["events"] = json.loads(events.recv(PATIENCE))["type"]
    except websockets.exceptions.WebSocketException as error:
        found["events"] = type(error).__name__
    return found


def read(path: str) -> str:
    """What is in a file or folder; "" if it is not for us, or nothing is in it."""
    try:
        return "\n".join(os.listdir(path)) if os.path.isdir(path) else Path(path).read_bytes()[:10000].decode("latin-1")
    except OSError:
        return ""


def main(what: dict) -> dict:
    """what: `ports`, processes (`pids`) and `paths` of a run."""
    known = certificates()
    mine = known["tls"]
    anonymous, stranger = ssl.create_default_context(), mine.get_connection_args("client")["ssl_context"]
    for context in (anonymous, stranger):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    become_nobody()
    tempfile.tempdir = what["scratch"]
    ports = what["ports"]
    told = {}
    for port in ports:
        for name, context in (("in the clear", None), ("no certificate", anonymous), ("another one", stranger)):
            if answer := says(port, context, b"GET / HTTP/1.0\r\n\r\n"):
                told[f"{port} {name}"] = answer
    pages = {port for port in ports if told.get(f"{port} in the clear", "").startswith("HTTP")}
    entered = asyncio.run(connected([port for port in ports if port not in pages], known))
    private = [f"/proc/{pid}/{name}" for pid in what["pids"] for name in ("environ", "maps", "fd", "task/../mem")]
    lines = {f"/proc/{pid}/cmdline": read(f"/proc/{pid}/cmdline") for pid in what["pids"]}
    return {
        "user": os.getuid(),
        "told": told,
        "entered": entered,
        "ran as": runs_code(entered, known),
        "prefect": {port: found for port in pages if (found := asked_of_prefect(port))},
        "read": [path for path in [*private, *what["paths"]] if read(path)],
        "secrets in": [path for path, line in lines.items() if any(secret in line for secret in SECRETS)],
        "lines": len([line for line in lines.values() if line]),
    }


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))
