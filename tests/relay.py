"""An S3 server behind a slow and unreliable relay: `python -m tests.relay CONFIG.json`.

The relay forwards every piece of data `delay` seconds late, in each direction, and closes a connection at a piece with
probability `cuts`. Which host has connected is known by `hosts`, {address: name}. Besides the store, at `port`, it
forwards what is sent to other addresses: `routes`, rows of (name, its own address and port, the other's). It writes
one line of JSON for each request to the store, once its connection has ended:

    site, method, path, status: of the request    body: bytes of what a site puts; up, down: all bytes
    start, end: seconds since 1970                cut: whether the relay closed the connection

The file `heard`, if one is named, has each request when it begins, and each fault of the store. The file `faults` says
what else goes wrong; it may change at any time:

    cut: pairs of names whose connections are cut once; stamp: differs in each file
    store: "503" (SlowDown in place of an answer), "slow" (answers come `seconds` late), "body" (the connection is cut
        in the middle of an answer's body)    share: of the requests that are struck
"""

import asyncio
import json
import logging
import random
import re
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from moto.server import ThreadedMotoServer

BUCKET = "study"
PIECE = 2**16
REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (/[^ ?]*)[^ ]* HTTP/1\.[01]\r\n")
LENGTH = re.compile(rb"\r\n(?:x-amz-decoded-)?content-length: *([0-9]+)\r\n", re.IGNORECASE)
UNANSWERED = 30  # seconds after which a connection to a host that is silent is given up, as Dask does
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")


@dataclass
class Request:
    site: str
    method: str
    path: str
    start: float
    body: int = 0
    status: int = 0
    up: int = 0
    down: int = 0
    end: float = 0.0
    cut: bool = False


@dataclass
class Conversation:
    """The requests of one connection, one after another."""

    site: str
    now: Any = time.time
    made: list[Request] = field(default_factory=list)

    def sent(self, data: bytes) -> None:
        """A piece from the site, which begins with a request unless it continues one."""
        for found in REQUEST.finditer(data):
            lengths = [int(length) for length in LENGTH.findall(data, found.end() - 2)]
            self.made.append(
                Request(self.site, found[1].decode(), found[2].decode(), self.now(), min(lengths, default=0))
            )
        if self.made:
            self.made[-1].up += len(data)

    def received(self, data: bytes) -> None:
        if self.made:
            if self.made[-1].down == 0 and (found := STATUS.match(data)):
                self.made[-1].status = int(found[1])
            self.made[-1].down += len(data)
            self.made[-1].end = self.now()


class Relay:
    def __init__(self, config: Mapping[str, Any], store: tuple[str, int]) -> None:
        self.store = store
        self.delay, self.cuts = config["delay"], config["cuts"]
        self.hosts = config["hosts"]
        self.random = random.Random(config["seed"])
        self.log = Path(config["log"]).open("a", buffering=1)
        self.heard = Path(config["heard"]).open("a", buffering=1) if "heard" in config else None
        self.faults: dict[str, Any] = {}
        self.open: dict[Any, tuple[str, str]] = {}  # the hosts at both ends of each connection, by its task

    async def connected(
        self, name: str, to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        site, task = self.hosts.get(writer.get_extra_info("peername")[0], ""), asyncio.current_task()
        talk = Conversation(site) if to == self.store else None
        self.open[task] = (site, name)
        try:
            await self._talk(talk, to, reader, writer)
        finally:
            del self.open[task]

    async def _talk(
        self, talk: Conversation | None, to: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            inside = await asyncio.open_connection(*to)
        except OSError:
            writer.transport.abort()
            return
        for end in (writer, inside[1]):
            impatient(end.get_extra_info("socket"))
        asking = None if talk is None else lambda data: self._asked(talk, data, writer)
        answering = None if talk is None else lambda data: self._answered(talk, data, writer)
        ways = ((reader, inside[1], asking), (inside[0], writer, answering))
        pumps = [asyncio.ensure_future(self._pump(*way)) for way in ways]
        try:
            done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            errors = [one.exception() for one in done]
            cut = any(isinstance(error, ConnectionAbortedError) for error in errors)
            broken = cut or any(isinstance(error, OSError) for error in errors)
            if not broken and pumps[1] not in done:  # the site has closed its end, and may wait for the answer
                await asyncio.wait(pumps[1:])
        except asyncio.CancelledError:
            cut = broken = True
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, inside[1]):
            end.transport.abort() if broken else end.close()
        for number, request in enumerate(talk.made if talk else (), 1):
            request.cut = cut and number == len(talk.made)
            self.log.write(json.dumps(asdict(request)) + "\n")

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, seen: Any) -> None:
        while data := await source.read(PIECE):
            if seen is not None:
                await seen(data)
            if self.random.random() < self.cuts:
                raise ConnectionAbortedError
            await asyncio.sleep(self.delay)
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    # --- faults of the store ------------------------------------------------------------------------------------

    async def _asked(self, talk: Conversation, data: bytes, writer: asyncio.StreamWriter) -> None:
        """Raises OSError if the connection ends here."""
        known = len(talk.made)
        talk.sent(data)
        for one in talk.made[known:]:
            self._note(f"{one.site} {one.method} {one.path}")
        if len(talk.made) > known and self._struck("503"):
            head = f"HTTP/1.1 503 Slow Down\r\nContent-Length: {len(SLOW_DOWN)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + SLOW_DOWN)
            await writer.drain()
            await asyncio.sleep(0.1)  # for what is on its way
            raise ConnectionAbortedError

    async def _answered(self, talk: Conversation, data: bytes, writer: asyncio.StreamWriter) -> None:
        begins = STATUS.match(data)
        talk.received(data)
        if begins and self._struck("slow"):
            await asyncio.sleep(self.faults["seconds"])
        body = data.find(b"\r\n\r\n") + 4 if begins else 0
        if talk.made and talk.made[-1].method == "GET" and len(data) - body > 1 and self._struck("body"):
            writer.write(data[: body + (len(data) - body) // 2])
            await writer.drain()
            await asyncio.sleep(0.1)
            raise ConnectionAbortedError

    def _struck(self, kind: str) -> bool:
        found = self.faults.get("store") == kind and self.random.random() < self.faults["share"]
        if found:
            self._note(f"fault {kind}")
        return found

    def _note(self, line: str) -> None:
        if self.heard is not None:
            self.heard.write(f"{time.time():.3f} {line}\n")

    async def watch(self, file: Path) -> None:
        """Read the faults whenever their file has changed, and cut what is to be cut."""
        while True:
            await asyncio.sleep(0.05)
            found = json.loads(file.read_text()) if file.exists() else {}
            if found == self.faults:
                continue
            self.faults = found
            pairs = {tuple(pair) for pair in found.get("cut", ())}
            struck = [task for task, ends in self.open.items() if ends in pairs]
            for task in struck:
                task.cancel()
            if pairs:
                self._note(f"fault cut {len(struck)}")


def impatient(end: socket.socket) -> None:
    """A host whose cable was pulled out is noticed, as its peers would without a relay between them."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 10)):
        end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED * 1000)


async def serve(config: Mapping[str, Any]) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"PUT /{BUCKET} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()
    relay = Relay(config, (host, port))
    routes = [("store", "", config["port"], host, port), *config.get("routes", ())]
    for name, own, port, to, at in routes:
        way = partial(relay.connected, name, (to, at))
        await asyncio.start_server(way, own or None, port, family=socket.AF_INET)
    Path(config["ready"]).touch()
    if "faults" in config:
        await relay.watch(Path(config["faults"]))
    await asyncio.Event().wait()


# --- what the log shows -----------------------------------------------------------------------------------------------


def requests(log: Iterable[str]) -> list[Request]:
    """In the order of their start."""
    return sorted((Request(**json.loads(line)) for line in log), key=lambda one: one.start)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
