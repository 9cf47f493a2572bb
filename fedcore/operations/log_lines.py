"""Logs as JSON, one object in a line, where `FEDCORE_LOG=json` asks for them.

Each has `time` (UTC), `level`, `logger` and `message`, which is the text that a person reads otherwise; lines about a
run also `run`, `method`, `population`, `deployment` if it has one, `event`, and `round` where one was made. They say
what the texts say and no more.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:  # lines are also written by processes that have nothing to do with runs
    from fedcore.training.session import Session

VARIABLE = "FEDCORE_LOG"
FIELDS = "fedcore"  # attribute of a record of logging that holds the fields of its line


def wanted() -> bool:
    """Whether logs are to be JSON in this process and its children."""
    return os.environ.get(VARIABLE) == "json"


def fields(session: Session, event: str, **more: Any) -> dict[str, dict[str, Any]]:
    """The `extra` of a line of log about a run. more: JSON values"""
    run = session.run
    about = {"run": run.id, "method": session.method.name, "population": session.population.path.name}
    deployment = run.info.get("deployment")
    return {FIELDS: {**about, **({"deployment": deployment} if deployment else {}), "event": event, **more}}


def line(message: str, level: str = "INFO", logger: str = "fedcore", **more: Any) -> str:
    """One object. more: fields, JSON values or anything that has a text."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return json.dumps({"time": now, "level": level, "logger": logger, "message": message, **more}, default=str)


def say(message: str, extra: Mapping[str, Mapping[str, Any]] | None = None, level: str = "INFO") -> None:
    """A line on stderr: JSON if it is wanted, else the message. extra: as `fields` makes it"""
    more = {} if extra is None else extra[FIELDS]
    print(line(message, level, **more) if wanted() else message, file=sys.stderr, flush=True)


class JsonLines(logging.Formatter):
    """Records as such lines. What a formatter is configured with does not matter."""

    def __init__(self, *_: Any, **__: Any):
        super().__init__()

    def format(self, record: logging.LogRecord) -> str:
        more = dict(getattr(record, FIELDS, None) or {})
        for name in ("flow_run_name", "task_run_name"):
            if (value := getattr(record, name, None)) is not None:
                more.setdefault(name, value)
        if record.exc_info:
            more["traceback"] = self.formatException(record.exc_info)
        return line(record.getMessage(), record.levelname, record.name, **more)


class LineHandler(logging.StreamHandler):
    """Writes lines as they are, without colours."""

    def __init__(self, stream: TextIO | None = None, **_: Any):
        super().__init__(stream)
