"""Training flows: one flow run for each training run, one Dask client for all its rounds."""

import os
from datetime import UTC, datetime
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.runtime import deployment, flow_run

from fedcore.deployment import Compute
from fedcore.engine import peak_memory
from fedcore.methods import make_method, method_class, summary
from fedcore.runs import Run
from fedcore.session import Session, TrainRequest, ending, resume, start
from tasks.artifacts import Showcase
from tasks.dask_backend import DaskBackend, dask_client
from tasks.training import next_rounds


def stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S")


def _name() -> str:
    given = flow_run.parameters
    return f"{Path(str(given.get('population') or given.get('run'))).name}-{stamp()}"


def training_flow(method: str):
    """The training flow of a method; its settings are a form in the UI, because they are the type of `config`."""
    settings = method_class(method).Config

    def train_method(population: str, config: settings = settings(), runs: str = "runs",
                     compute: Compute = Compute(), seed: int = 0, run_id: str | None = None,
                     version: int | None = None, test_noise: str | None = None, start_from: str | None = None,
                     public_start_because: str | None = None) -> str:  # fmt: skip
        request = TrainRequest(method=method, population=population, settings=config.model_dump(mode="json"),
                               runs=runs, run_id=run_id, version=version, seed=seed, cache_bytes=compute.cache_bytes,
                               test_noise=test_noise, start_from=start_from,
                               public_start_because=public_start_because, deployment=deployment.name)  # fmt: skip
        private = make_method(request.method, request.settings).private
        with dask_client(compute.workers, compute.dask, private) as client:
            backend = DaskBackend(client)
            return train(start(request, backend, stamp=stamp()), backend)

    train_method.__name__ = train_method.__qualname__ = f"train_{method}"
    train_method.__doc__ = f"""{summary(method_class(method))}

    Args:
        population: folder or URL of the population
        config: settings of the method
        runs: folder in which the run's folder is made
        compute: where the clients are answered
        seed: names the streams of simulation randomness; it never protects anybody
        run_id: name of the run; made from method, population and time by default
        version: version of the population; the newest by default
        test_noise: key of pseudo-random noise for tests; such a run is not private
        start_from: folder of a run, or .npz file of arrays, that it starts from; or "previous", the newest finished run
            of the same deployment on the population
        public_start_because: why that start is public, if it is not a private run
    """
    return flow(name=f"train-{method.replace('_', '-')}", flow_run_name=_name, persist_result=False,
                validate_parameters=True)(train_method)  # fmt: skip


@flow(name="resume-run", flow_run_name=_name, persist_result=False)
def resume_run(run: str, compute: Compute = Compute(), take_over: bool = False, population: str | None = None) -> str:
    """Go on with a run after its last committed round.

    Args:
        run: folder of the run
        compute: where the clients are answered
        take_over: take the run from a holder that seems alive
        population: where the population is now, if it was moved
    """
    private = Run.open(run).info["private"]
    with dask_client(compute.workers, compute.dask, private) as client:
        backend = DaskBackend(client)
        return train(resume(run, backend, cache_bytes=compute.cache_bytes, take_over=take_over,
                            population=population), backend)  # fmt: skip


def train(session: Session, backend: DaskBackend) -> str:
    """Rounds to the end; artifacts while it runs; the report. Returns the folder of the run."""
    logger = get_run_logger()
    logger.info("run %s: %s on population %s version %d, process %d", session.run.id, session.method.name,
                session.population.path.name, session.population.version, os.getpid())  # fmt: skip
    show = Showcase(session)
    with ending(session):
        goes_on, seconds = True, None
        while goes_on:
            goes_on, seconds = next_rounds(session, seconds)
            show.progress()
            logger.info("run %s: round %d of at most %d, %.2f s each", session.run.id, session.run.round,
                        session.method.total_rounds(session.training.state), seconds)  # fmt: skip
        session.run.note(peak_memory_of_workers=backend.memory_of_workers(), peak_memory_of_flow=peak_memory())
    logger.info("run %s: %s after %d rounds; report: %s", session.run.id, session.run.status, session.run.round,
                show.report())  # fmt: skip
    return str(session.run.path)


train_histograms = training_flow("histograms")
train_federated_em = training_flow("federated_em")
FLOWS = {"histograms": train_histograms, "federated_em": train_federated_em}
