"""Who holds a run: at most one live process, and a fencing token that grows whenever the holder changes.

The token protects, not the liveness check: a process that was taken for dead wrongly finds its token stale at its next
charge or publication, and can do neither.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to charge and publish for a run, until another process takes it over.

    token: larger than that of every earlier lease of the run
    """

    run_id: str
    token: int
