"""A site in a process of its own, which dies by SIGKILL at a chosen step of a chosen round."""

import os
import signal
from collections.abc import Callable
from functools import wraps
from pathlib import Path

from fedcore.privacy.ledger.ledger import Ledger
from fedcore.runs.store import Run
from fedcore.sites.mailbox import Mailbox
from fedcore.sites.publisher import SitesPublisher
from fedcore.sites.run_key import RunKey
from tests.faults.driver import PROCESSES
from tests.sites.world import World, end, rounds_of

# step -> (whose, function, whether this call is the one of the round); the process dies when the call returns
STEPS: dict[str, tuple[type, str, Callable[..., bool]]] = {
    "key made": (RunKey, "create", lambda *_: True),
    "member posted": (Mailbox, "post", lambda _, __, header, *___: header.kind == "member"),
    "charged": (Ledger, "charge_round", lambda round, _, planned: planned[0].round == round),
    "stored": (Ledger, "publish_round", lambda round, _, charges, *__: charges[0].round == round),
    "recorded": (RunKey, "note", lambda round, of, *_: of == round),
    "posted": (Mailbox, "post", lambda round, _, header, *__: (header.kind, header.round) == ("answer", round)),
    "summed": (SitesPublisher, "_added", lambda round, of, *_: of == round),
    "committed": (Run, "commit", lambda round, of, *_, **__: of == round),
    "ended": (RunKey, "end", lambda *_: True),
    "end posted": (Mailbox, "post", lambda _, __, header, *___: header.kind == "end"),
    "settled": (Ledger, "finish", lambda *_, **__: True),
}


def killed(folder: Path, name: str, number: int, step: str, round: int) -> bool:
    """The site goes on with its run in another process, as far as it can. Whether that has died at the step."""
    process = PROCESSES.Process(target=_go_on, args=(folder, name, number, step, round, os.environ["XDG_CACHE_HOME"]))
    process.start()
    process.join(120)
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode == -signal.SIGKILL


def _go_on(folder: Path, name: str, number: int, step: str, round: int, cache: str) -> None:
    os.environ["XDG_CACHE_HOME"] = cache
    where, function, of_the_round = STEPS[step]
    inner = getattr(where, function)

    @wraps(inner)
    def dying(self, *arguments, **named):
        result = inner(self, *arguments, **named)
        if of_the_round(round, *arguments, **named):
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(where, function, dying)
    session = World(folder).resume(name, number)
    if rounds_of(session):
        end(session)
    session.close()
