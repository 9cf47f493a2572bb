"""The command line in this process, through `main`: exit code, stdout and stderr as a shell would see them; and small
populations with a budget.
"""

import contextlib
import io
import json
import shlex
import sys
from dataclasses import dataclass
from functools import cache
from unittest import mock

from typer import main as commands

from fedcore.cli import main
from fedcore.privacy.ledger.ledger import create_ledger, default_ledger_url
from tests.conftest import write_counts

TREE = cache(commands.get_command)  # of commands: the same in every call, and slow to make


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
    """`fedcore ARGUMENTS`; one text is split as by a shell. What `main` does not catch is raised here, as it would end
    a process with a traceback.
    """
    out, err = io.StringIO(), io.StringIO()
    text = len(arguments) == 1 and isinstance(arguments[0], str)
    argv = ["fedcore", *(shlex.split(arguments[0]) if text else map(str, arguments))]
    same = mock.patch.object(commands, "get_command", TREE)
    with same, mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
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


def private_population(
    path,
    matrix,
    *,
    epsilon: float | None = 8.0,
    delta: float = 1e-6,
    nominal: int | None = 1000,
    test: bool = False,
    heldout=None,
    **options,
):
    """(population, ledger): counts with a budget in the ledger that FEDCORE_LEDGER names. test: one of test noise."""
    ledger = create_ledger(default_ledger_url(), test=test)
    population = write_counts(
        path, matrix, heldout=heldout, nominal_clients=nominal, ledger={"id": ledger.id, "url": ledger.url}, **options
    )
    ledger.register(population.id)
    if epsilon is not None:
        ledger.set_budget(population.id, epsilon, delta)
    return population, ledger
