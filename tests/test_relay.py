"""What `tests.relay` does to the connections of a store, on loopback."""

import asyncio
import json
from functools import partial

import pytest

pytest.importorskip("moto.server", reason="moto is not installed")

from tests.relay import Relay, requests

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
QUESTION = b"GET /b/x HTTP/1.1\r\n\r\n"


async def store(reader, writer):
    while await reader.read(1000):
        writer.write(ANSWER)
    writer.close()


def through(folder, faults) -> tuple[bytes, Relay]:
    """What a client gets that asks once, and the relay."""

    async def ask() -> tuple[bytes, Relay]:
        behind = await asyncio.start_server(store, "127.0.0.1", 0)
        to = behind.sockets[0].getsockname()
        named = {"log": folder / "log", "heard": folder / "heard", "hosts": {"127.0.0.1": "a"}}
        relay = Relay({"delay": 0.0, "cuts": 0.0, "seed": 1, **named}, to)
        front = await asyncio.start_server(partial(relay.connected, "store", to), "127.0.0.1", 0)
        (folder / "faults").write_text(json.dumps(faults))
        reader, writer = await asyncio.open_connection(*front.sockets[0].getsockname())
        await asyncio.sleep(0.05)
        watching = asyncio.ensure_future(relay.watch(folder / "faults"))
        await asyncio.sleep(0.15)
        got = b""
        try:
            writer.write(QUESTION)
            while len(got) < len(ANSWER) and (data := await asyncio.wait_for(reader.read(1000), 20)):
                got += data
        except ConnectionError:
            pass
        writer.close()
        await asyncio.sleep(0.3)
        watching.cancel()
        behind.close()
        front.close()
        return got, relay

    return asyncio.run(ask())


def test_a_store_without_faults(tmp_path):
    got, _ = through(tmp_path, {})
    assert got == ANSWER
    (one,) = requests((tmp_path / "log").read_text().splitlines())
    assert (one.site, one.method, one.path, one.status, one.cut) == ("a", "GET", "/b/x", 200, False)
    assert (tmp_path / "heard").read_text().split()[1:] == ["a", "GET", "/b/x"]


def test_faults_of_a_store(tmp_path):
    expected = {"503": b"HTTP/1.1 503 Slow Down", "body": ANSWER[:-5]}
    for kind, begins in expected.items():
        (folder := tmp_path / kind).mkdir()
        got, _ = through(folder, {"store": kind, "share": 1.0})
        assert got.startswith(begins) and not got.endswith(ANSWER[-5:])
        assert f"fault {kind}" in (folder / "heard").read_text()


def test_connections_of_two_hosts_are_cut(tmp_path):
    for pair, answer in ((["a", "store"], b""), (["b", "store"], ANSWER)):
        (folder := tmp_path / pair[0]).mkdir()
        got, relay = through(folder, {"cut": [pair]})
        assert got == answer and relay.open == {}
