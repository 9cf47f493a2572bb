"""The command line in this process, through `main`: exit code, stdout and stderr as a shell would see them."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from unittest import mock

from fedcore.cli import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        """The one JSON object that stdout consists of."""
        value = json.loads(self.out)
        assert isinstance(value, dict) and self.out.count("\n") == 1
        return value


def fedcore(*arguments) -> Outcome:
    """`fedcore ARGUMENTS`. What `main` does not catch is raised here, as it would end a process with a traceback."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["fedcore", *map(str, arguments)]
    with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return Outcome(code, out.getvalue(), err.getvalue())


def works(*arguments) -> Outcome:
    outcome = fedcore(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome
