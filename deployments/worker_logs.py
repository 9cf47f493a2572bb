"""Logs of Prefect workers as JSON lines, where FEDCORE_LOG asks for them.

A worker loads this module when it starts: it is the entry point `fedcore` of the group `prefect.collections`. Without
FEDCORE_LOG=json it imports nothing of fedcore, because workers that have nothing to do with fedcore load it too.
"""

import os


def log_lines() -> None:
    """Logs of this process, and of those that are started from now on, as JSON."""
    from fedcore.flows.settings import apply
    from prefect.logging.configuration import setup_logging

    apply()
    setup_logging(incremental=False)


if os.environ.get("FEDCORE_LOG") == "json":
    log_lines()
