"""`fedcore up` as a person uses it: one file, one command, a login that works; killed, started again, ended."""

import base64
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fedcore.flows import server

from fedcore.operations.up_record import standing
from fedcore.population.store import Population
from fedcore.runs.store import list_runs
from tests.flows.test_prefect import first
from tests.operations.test_creating import BUDGET, ROWS, SOURCE
from tests.pipelines.places import PRIVATE

SCHEDULED = PRIVATE.replace("config =", "schedule = { interval = 10 }\nconfig =").replace(
    "epsilon = 0.5", "horizon = 20"
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    for name in ("PREFECT_API_URL", server.ASKED_FOR, server.GIVEN):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "first.csv").write_text(ROWS)
    text = SOURCE + BUDGET.replace('shares = { a = "1/3" }\n', "") + SCHEDULED
    (tmp_path / "fedcore.toml").write_text(text)
    return tmp_path


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "fedcore.cli", *arguments, str(folder / "fedcore.toml")]


def started(folder: Path) -> tuple[subprocess.Popen, str, str]:
    """The process of `fedcore up`, and the address and the login that it has printed."""
    process = subprocess.Popen(command(folder, "up"), cwd=folder, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("Login: "):
            break
    text = "".join(said)
    found = re.search(r"^Prefect UI: (\S+)$", text, re.M), re.search(r"^Login: (\S+)", text, re.M)
    assert all(found), text
    return process, found[0][1], found[1][1]


def status(base: str, login: str | None) -> int:
    headers = {} if login is None else {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{base}/api/admin/version", headers=headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def data(base: str, login: str, page: str) -> str:
    """What an artifact of the server shows. page: its address in the UI"""
    headers = {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}
    url = page.replace(f"{base}/artifacts/artifact/", f"{base}/api/artifacts/")
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
        return json.loads(answer.read())["data"]


@contextmanager
def never_answering():
    """(URL, what was sent to it so far) of a receiver that takes messages and never answers."""
    told, ended = [], threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            told.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            ended.wait()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{receiver.server_port}/", told
        ended.set()
        receiver.shutdown()


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_up_killed_up_again_and_down(folder):
    with never_answering() as (webhook, sent):
        table = f'[notify]\nwebhook = "{webhook}"\nevents = ["fedcore.budget.charged"]\n'
        file = folder / "fedcore.toml"
        file.write_text(table + file.read_text())
        up_killed_up_again_and_down(folder, sent)


def up_killed_up_again_and_down(folder, sent):
    process, base, login = started(folder)
    try:
        assert (status(base, None), status(base, login)) == (401, 200)
        kept = folder / "prefect" / "fedcore-login"
        assert kept.read_text() == login and stat.S_IMODE(kept.stat().st_mode) == 0o600
        again = subprocess.run(command(folder, "up"), capture_output=True, text=True, timeout=120)
        assert again.returncode == 0 and base in again.stderr and login in again.stderr
        # its receiver never answers, and the next run is made all the same
        assert first(lambda: len([run for run in list_runs(folder / "runs") if run.status == "finished"]) > 1, 240)
        assert "has charged rho = " in first(lambda: sent, 30)[0]["text"]
        page = standing(folder / "fedcore.toml").page
        assert f"Overview: {page}" in again.stderr
        shown = first(
            lambda: (text := data(base, login, page)) and "closed" in text and "finished" in text and text, 60
        )
        assert shown.startswith("# Overview of fedcore.toml") and "Runs left in the privacy budget" in shown
        told = subprocess.run(command(folder, "status", "--json"), capture_output=True, text=True, timeout=120)
        facts = json.loads(told.stdout)
        assert facts["prefect"]["page"] == page
        assert all("Late" in one["what"] for one in facts["alerts"]), "as on a machine that is busy"
        (row,) = facts["deployments"]
        assert row["deployment"] == "closed" and row["next start"] and row["runs left"] > 0
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert standing(folder / "fedcore.toml") is None
    version = Population.open(folder / "population").version

    process, base, same = started(folder)
    try:
        assert same == login and status(base, login) == 200
        assert Population.open(folder / "population").version == version
        ended = subprocess.run(command(folder, "down", "--json"), capture_output=True, text=True, timeout=120)
        assert json.loads(ended.stdout)["ended"] == process.pid
        process.wait(60)
        assert not (folder / ".fedcore" / "fedcore.json").exists(), "it ended by itself"
    finally:
        process.kill()
    assert "is not being served" in subprocess.run(command(folder, "down"), capture_output=True, text=True).stdout
    with pytest.raises(OSError):
        status(base, login)


@pytest.mark.slow
def test_a_login_is_kept_and_only_where_nobody_else_can_read_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    login = server.kept_login()
    assert server.LOGIN.fullmatch(login) and server.kept_login() == login
    server.login_file().chmod(0o644)
    other = server.kept_login()
    assert other != login and stat.S_IMODE(server.login_file().stat().st_mode) == 0o600
    server.login_file().write_text("")  # of a process that died
    assert server.kept_login() not in ("", login, other)
    server.login_file().unlink()
    os.symlink(tmp_path / "elsewhere", server.login_file())
    server.kept_login()
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("mode", "shown"), [(0o600, True), (0o644, False)])
def test_a_password_is_not_printed_into_a_file_that_others_can_read(tmp_path, monkeypatch, mode, shown):
    from fedcore.cli import serving

    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv(server.ASKED_FOR, raising=False)
    (tmp_path / "log").touch(mode)
    (tmp_path / "log").chmod(mode)
    with open(tmp_path / "log", "w") as log:
        monkeypatch.setattr(sys, "stderr", log)
        words = serving.login_in_words()
    assert (server.kept_login() in words) == shown and str(server.login_file()) in words
    monkeypatch.setenv(server.ASKED_FOR, "ada:secret")
    assert "secret" not in serving.login_in_words()
