"""Guards of the pins in pyproject.toml: the server can be made, and its scheduler makes runs."""

import os
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory):
    """A server of its own, on loopback; gone with the module."""
    home = tmp_path_factory.mktemp("prefect")
    before = {name: os.environ.get(name) for name in ("PREFECT_HOME", "PREFECT_API_URL")}
    os.environ["PREFECT_HOME"] = str(home)
    os.environ.pop("PREFECT_API_URL", None)
    import flows  # noqa: F401  makes the settings
    from flows.server import server

    try:
        with server() as base:
            yield base
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def test_the_server_application_can_be_created():
    code = ("from prefect.server.api.server import create_app; app = create_app(ephemeral=True);"
            "print(len(app.routes) > 0)")  # fmt: skip
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert out.stdout.strip().endswith("True"), out.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.prefect
def test_a_schedule_gets_scheduled_runs(prefect_server):
    """In a process of its own, because Prefect reads its settings once."""
    code = """
import asyncio, time
from datetime import timedelta
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.schedules import Interval

@flow
def nothing(): pass

async def main():
    deployment = await nothing.ato_deployment("often", schedule=Interval(timedelta(seconds=60)))
    await deployment.apply()
    async with get_client() as client:
        for _ in range(90):
            runs = await client.read_flow_runs()
            if runs:
                print("STATE", runs[0].state.type.value)
                return
            await asyncio.sleep(1)

asyncio.run(main())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert "STATE SCHEDULED" in out.stdout, out.stderr[-2000:]
