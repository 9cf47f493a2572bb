"""Logs as JSON, one object in a line."""

import json
import logging
import os
import subprocess
import sys

import pytest

from fedcore.operations.log_lines import JsonLines, LineHandler, line
from tests.command import fedcore, works
from tests.conftest import small_counts, write_counts
from tests.operations.test_metrics import NOT_PRIVATE


def lines(text: str) -> list[dict]:
    """Every line is an object."""
    found = [json.loads(each) for each in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= each.keys() for each in found)
    return found


def test_a_record_becomes_one_line():
    record = logging.LogRecord("prefect.flow_runs", logging.INFO, "f.py", 1, "a %s", ("b\nc",), None)
    record.fedcore, record.flow_run_name = {"run": "r", "round": 3}, "flow"
    (told,) = lines(JsonLines("default", None, "%").format(record))
    assert (told["message"], told["level"], told["logger"]) == ("a b\nc", "INFO", "prefect.flow_runs")
    assert (told["run"], told["round"], told["flow_run_name"]) == ("r", 3, "flow")
    try:
        raise ValueError("x")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: x" in lines(JsonLines().format(record))[0]["traceback"]


def test_what_json_does_not_know_is_text(capsys):
    assert json.loads(line("m", value={1}))["value"] == "{1}"
    handler = LineHandler(styles={"a": "b"})
    handler.emit(logging.LogRecord("n", logging.INFO, "f.py", 1, "[bold]:smile:" + "x" * 300, (), None))
    assert capsys.readouterr().err == "[bold]:smile:" + "x" * 300 + "\n"


def test_rounds_and_errors_of_a_local_run(tmp_path, monkeypatch):
    population = write_counts(tmp_path / "p", small_counts())
    given = (
        "train",
        "paper_histograms",
        population.path,
        "--runs",
        tmp_path / "runs",
        "--run-id",
        "r",
        *NOT_PRIVATE[:-1],
    )
    monkeypatch.setenv("FEDCORE_LOG", "json")
    done = works(*given)
    rounds = [each for each in lines(done.err) if each.get("event") == "round"]
    assert [each["round"] for each in rounds] == list(range(1, len(rounds) + 1)) and len(rounds) >= 3
    assert {(each["run"], each["method"], each["population"]) for each in rounds} == {("r", "paper_histograms", "p")}
    again = fedcore(*given)
    (failed,) = lines(again.err)
    assert again.code == 2 and (failed["event"], failed["error"], failed["level"]) == ("failed", "RunError", "ERROR")
    monkeypatch.delenv("FEDCORE_LOG")
    assert fedcore(*given).err.startswith("RunError: ")


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.prefect
def test_a_flow_says_all_in_json(tmp_path):
    """With the server that it starts, and where it is refused."""
    population = write_counts(tmp_path / "p", small_counts())
    environment = os.environ | {"FEDCORE_LOG": "json", "PREFECT_HOME": str(tmp_path / "home")}
    environment.pop("PREFECT_API_URL", None)
    given = ["train", "paper_histograms", str(population.path), "--runs", str(tmp_path / "runs"), *NOT_PRIVATE[:-2]]
    command = [sys.executable, "-m", "fedcore.cli", *given, "--run-id", "r"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    mine = [each for each in lines(done.stderr) if each.get("run") == "r"]
    events = [each["event"] for each in mine]
    assert events[0] == "begins" and "round" in events and events[-1] == "ended"
    assert all((each["method"], each["population"]) == ("histograms", "p") for each in mine)
    assert mine[-1]["status"] == "finished" and mine[-1]["flow_run_name"]
