"""Processes of runs that are forked by one that has imported everything: what they are asked to be, how they end, and
what happens when the one that forks does not.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import pytest

if sys.platform != "linux":
    pytest.skip("runs are forked on Linux", allow_module_level=True)

from fedcore.flows import forking
from fedcore.flows.forking import LOST, Forked, Template, _watch

ENGINE = """
import json, os, sys, time
if "TOLD" in os.environ:
    with open(os.environ["TOLD"], "w") as file:
        json.dump([sys.argv, dict(os.environ), os.getcwd(), len(os.listdir("/proc/self/task"))], file)
time.sleep(float(os.environ.get("SLEEP", 0)))
sys.exit(int(os.environ["STATUS"]))
"""


async def ready(template: Template) -> None:
    until = time.monotonic() + 120
    while not template.ready:
        assert await template.fork({}, None) is None, "what is not ready forks nothing"
        assert time.monotonic() < until
        await asyncio.sleep(0.05)


@pytest.fixture
def template(tmp_path, monkeypatch):
    """One that runs a program of the test's in place of Prefect's engine."""
    (tmp_path / "engine.py").write_text(ENGINE)
    start = (
        "import sys; import fedcore.flows.template as t; t.ENGINE = 'engine'; sys.argv = ['', sys.argv[1]]; t.main()"
    )
    real = subprocess.Popen

    def popen(command, **options):
        assert command[1:3] == ["-m", "fedcore.flows.template"]
        options["env"]["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
        return real([command[0], "-c", start, command[3]], **options)

    monkeypatch.setattr(forking.subprocess, "Popen", popen)
    with closing(Template()) as made:
        yield made


@pytest.mark.slow
def test_runs_are_forked_and_told_apart(template, tmp_path, monkeypatch):
    async def go():
        await ready(template)
        environment = {"PATH": os.environ["PATH"], "STATUS": "3", "OMP_NUM_THREADS": "1"}
        told = {"TOLD": str(tmp_path / "told")}
        runs = [
            await template.fork(environment | told, tmp_path),
            await template.fork({**environment, "STATUS": "0"}, None),
        ]
        await asyncio.gather(*(run.ended.wait() for run in runs))
        assert [run.returncode for run in runs] == [3, 0] and runs[0].pid != runs[1].pid
        argv, env, cwd, threads = json.loads((tmp_path / "told").read_text())
        assert env.items() >= environment.items() and "PYTHONPATH" not in env, "nothing of the template's own"
        assert (cwd, threads) == (str(tmp_path), 1) and len(argv) == 1
        # killed, as by a cancellation or for its memory: it takes nobody with it
        dying, living = [await template.fork({**environment, "SLEEP": "60"}, None) for _ in range(2)]
        os.kill(dying.pid, signal.SIGKILL)
        await dying.ended.wait()
        assert dying.returncode == -signal.SIGKILL and living.returncode is None and template.process.poll() is None
        # the template dies: its run goes on, the next ones start otherwise until another template is there
        template.process.kill()
        template.process.wait()
        while template.ready:
            await asyncio.sleep(0.05)
        os.kill(living.pid, 0)
        assert await template.fork(environment, None) is None
        living.send(signal.SIGTERM)
        await living.ended.wait()
        assert living.returncode == LOST
        await ready(template)
        again = await template.fork(environment, None)
        # what is installed is other code than the template has: it ends once its runs have, and forks no more
        monkeypatch.setattr(forking, "installed", lambda: ("an upgrade",))
        assert await template.fork(environment, None) is None
        await again.ended.wait()
        assert again.returncode == 3 and template.process.poll() is None
        assert await template.fork(environment, None) is None
        assert await asyncio.to_thread(template.process.wait, 30) == 0

    asyncio.run(go())


def test_a_run_that_its_template_left_behind_is_reaped():
    """Where this process is the first of a container, or takes over orphans, nobody else does."""
    left = subprocess.Popen([sys.executable, "-SIc", "raise SystemExit(3)"])
    os.waitid(os.P_PID, left.pid, os.WEXITED | os.WNOWAIT)
    run = Forked(left.pid)
    asyncio.run(asyncio.wait_for(_watch(run), 10))
    left.returncode = run.returncode
    assert run.returncode == 3 and run.ended.is_set()


def test_a_run_that_nobody_waits_for_any_more_ends(monkeypatch):
    """What asked for it was cancelled between the question and the answer."""
    monkeypatch.setattr(Template, "begin", lambda self: None)
    with subprocess.Popen(["sleep", "20"]) as process:

        async def go():
            template = Template()
            template.asked[1] = asyncio.get_running_loop().create_future()
            template.asked[1].cancel()
            template._hear({"number": 1, "pid": process.pid})

        try:
            asyncio.run(go())
            assert process.wait(10) == -signal.SIGTERM
        finally:
            process.kill()


@pytest.mark.slow
def test_a_template_with_several_threads_forks_nothing():
    code = """
import json, socket, threading
from fedcore.flows import template
ours, theirs = socket.socketpair()
ours.sendall(json.dumps({"number": 7, "env": {}, "cwd": None}).encode() + b"\\n")
ours.shutdown(socket.SHUT_WR)
threading.Thread(target=threading.Event().wait, daemon=True).start()
assert template.forked(theirs) is None
print(ours.recv(1000).decode())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == {"number": 7, "error": "the template has 2 threads"}, done.stderr
