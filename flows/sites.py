"""Runs of studies as flow runs: a run that a site makes shows its rounds, artifacts and report in Prefect."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from fedcore.flows.names import kept
from fedcore.flows.own_server import flow
from fedcore.flows.states import WAITING, failed
from fedcore.flows.train import run_and_show, stamp, tag, train
from fedcore.tasks.backends import backend_for
from prefect.runtime import flow_run
from prefect.states import Completed

from fedcore.errors import RunLeft, StudyError
from fedcore.operations.schedule import Compute
from fedcore.population.store import Population
from fedcore.rounds.engine import Backend
from fedcore.sites.identity import Identity
from fedcore.sites.joining import Joined, joined_studies
from fedcore.sites.serve import ENDED_FOR_ALL, FINISHED, take_turn
from fedcore.training.publishing import Publishing
from fedcore.training.request import TrainRequest
from fedcore.training.session import Session, resume, start_run
from fedcore.training.spec import RunSpec


def _name() -> str:
    return f"study-{flow_run.parameters['study']}-{stamp()}"


@dataclass(frozen=True)
class _Making:
    """Rounds as Prefect tasks, on Dask workers (`fedcore.sites.serve.Making`). sessions: is given the run's."""

    joined: Joined
    compute: Compute
    sessions: list[Session]

    def begin(self, request: TrainRequest, spec: RunSpec, publisher: Publishing) -> None:
        self._make(lambda backend: start_run(request, backend, stamp=stamp(), spec=spec, publisher=publisher))

    def resume(self, path: str, publisher: Publishing) -> None:
        size = self.compute.cache_bytes
        self._make(lambda backend: resume(path, backend, cache_bytes=size, publisher=publisher))

    def _make(self, begin: Callable[[Backend], Session]) -> None:
        tag(self.joined.study.method, self.joined.population, True)
        store = Population.open(self.joined.population)
        with backend_for(store, self.compute.workers, self.compute.dask, True) as backend:
            self.sessions.append(session := begin(backend))
            train(session, backend, lambda _: None)


@flow(name="site-run", flow_run_name=kept(_name), persist_result=False, retries=0)
def site_run(
    study: str, identity: str | None = None, once: bool = True, waits: float = 600.0, compute: Compute = Compute()
) -> Any:
    """Start the next run of a study at this site, or continue the newest one.

    Args:
        study: name of the study, as `fedcore study join` printed it
        identity: folder of this site; by default in the user's data folder
        once: whether a run of a study without an interval is due
        waits: seconds to wait for other sites in a round, before the flow run ends as Waiting
        compute: where the clients are answered
    """
    joined = next((one for one in joined_studies(identity) if one.name == study), None)
    if joined is None:
        return failed(StudyError(f"This site has not joined a study {study!r}.", "fedcore study join MAILBOX"), True)
    found: Joined = joined

    def work(sessions: list[Session]) -> Any:
        making = _Making(found, compute, sessions)
        now = lambda: datetime.now(UTC)  # noqa: E731
        turn = take_turn(found, Identity.load(identity), making, waits=waits, once=once, now=now)
        if turn.state == ENDED_FOR_ALL:
            return failed(RunLeft(turn.words, "The next run continues from what was published."), False)
        if turn.state != FINISHED:
            return Completed(name=WAITING, message=turn.words or turn.state, data=asdict(turn))
        return asdict(turn)

    return run_and_show(work, found.study.method, found.population, found.runs)
