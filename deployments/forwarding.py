"""Keeps deployments alive that a Prefect server knows by the entry point `flows.train.train_METHOD`.

Versions before `fedcore.flows` owned the name `flows`, and what `fedcore deploy` registered then is stored under it. A
worker loads this module when it starts: it is the entry point `fedcore` of the group `prefect.collections`. Its flow
processes then also search the folder `forwarded`, where a package `flows` steps aside for any other of that name.

This module imports nothing of fedcore, because it is also loaded by workers that have nothing to do with it; but where
FEDCORE_LOG asks for logs as JSON, it sees to those of the worker and of its flow processes.
"""

import os
from pathlib import Path

FORWARDED = str(Path(__file__).parent / "forwarded")


def forward() -> None:
    """Put the folder at the end of PYTHONPATH, for processes that are started from now on."""
    searched = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if FORWARDED not in searched:
        os.environ["PYTHONPATH"] = os.pathsep.join([*searched, FORWARDED])


def log_lines() -> None:
    """Logs of this process, and of those that are started from now on, as JSON."""
    from fedcore.flows.settings import apply
    from prefect.logging.configuration import setup_logging

    apply()
    setup_logging(incremental=False)


forward()
if os.environ.get("FEDCORE_LOG") == "json":
    log_lines()
