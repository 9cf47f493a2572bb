"""An S3 server behind a slow and unreliable relay: `python -m tests.sites.relay CONFIG.json`.

The relay listens at one address for each site. It forwards every piece of data `delay` seconds late, in each
direction, and closes a connection at a piece with probability `cuts`. It writes one line of JSON for each request:

    site, method, path, status: of the request    body: bytes of what a site puts; up, down: all bytes
    start, end: seconds since 1970                cut: whether the relay closed the connection
"""

import asyncio
import json
import logging
import random
import re
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from moto.server import ThreadedMotoServer

BUCKET = "study"
PIECE = 2**16
REQUEST = re.compile(rb"(GET|PUT|HEAD|POST|DELETE) (/[^ ?]*)[^ ]* HTTP/1\.[01]\r\n")
LENGTH = re.compile(rb"\r\n(?:x-amz-decoded-)?content-length: *([0-9]+)\r\n", re.IGNORECASE)
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
    def __init__(self, port: int, delay: float, cuts: float, seed: int, log: Path) -> None:
        self.port, self.delay, self.cuts = port, delay, cuts
        self.random = random.Random(seed)
        self.log = log.open("a", buffering=1)
        self.open: set[Any] = set()  # asyncio itself keeps no task alive

    async def connected(self, site: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk, task = Conversation(site), asyncio.current_task()
        self.open.add(task)
        try:
            await self._talk(talk, reader, writer)
        finally:
            self.open.discard(task)

    async def _talk(self, talk: Conversation, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inside = await asyncio.open_connection("127.0.0.1", self.port)
        ways = ((reader, inside[1], talk.sent), (inside[0], writer, talk.received))
        pumps = [asyncio.ensure_future(self._pump(*way)) for way in ways]
        done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        cut = any(not one.cancelled() and isinstance(one.exception(), ConnectionAbortedError) for one in done)
        if not cut and pumps[1] not in done:  # the site has closed its end, and may wait for the answer
            await asyncio.wait(pumps[1:])
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, inside[1]):
            end.transport.abort() if cut else end.close()
        for number, request in enumerate(talk.made, 1):
            request.cut = cut and number == len(talk.made)
            self.log.write(json.dumps(asdict(request)) + "\n")

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, seen: Any) -> None:
        while data := await source.read(PIECE):
            seen(data)
            if self.random.random() < self.cuts:
                raise ConnectionAbortedError
            await asyncio.sleep(self.delay)
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()


async def serve(config: Mapping[str, Any]) -> None:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"PUT /{BUCKET} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 0\r\n\r\n".encode())
    assert b" 200 " in await reader.readline()
    writer.close()
    relay = Relay(port, config["delay"], config["cuts"], config["seed"], Path(config["log"]))
    for site, address in config["sites"].items():
        await asyncio.start_server(lambda *ends, site=site: relay.connected(site, *ends), address, config["port"])
    Path(config["ready"]).touch()
    await asyncio.Event().wait()


# --- what the log shows -----------------------------------------------------------------------------------------------


def requests(log: Iterable[str]) -> list[Request]:
    """In the order of their start."""
    return sorted((Request(**json.loads(line)) for line in log), key=lambda one: one.start)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(Path(sys.argv[1]).read_text())))
