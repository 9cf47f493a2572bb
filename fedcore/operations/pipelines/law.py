"""On what the steps of a pipeline may depend (docs/pipelines.md, "Conditions of steps").

Whether something private is released must not depend on what a client holds or sends. So a private training runs at the
time of its schedule, whatever happened in the steps before it: whether files came, could be read, or were appended. By
default it is skipped if too few clients were declared since the last one, which is public
(`fedcore.operations.pipelines.growth`). Three conditions are refused unless the file gives a reason why they reveal
nothing, and the statement then shows that reason. A fourth depends on published values, or is refused:

    if_new_files           depends on the files that arrived
    invalid_rows = refuse  one client's invalid row sets its file aside, and all others in it come with another append
    changed = append       one client's new row lets the rows of all others in the file be appended once more
    if_promoted            depends on the run of another deployment. If that is private: on its published values and
                           scores on public data. If it is not: possibly on any client's data, and no reason is
                           accepted
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from fedcore.errors import ConfigError, PrivacyError
from fedcore.methods.registry import make_method
from fedcore.operations.deployment import Deployment
from fedcore.operations.pipelines.steps import Ingest, OfDeployment, Pipeline, Train, When, label


class Ready(BaseModel):
    """A pipeline with the deployments that its steps name, all places absolute: what one run of it needs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    pipeline: Pipeline
    deployments: list[Deployment]

    def deployment(self, name: str) -> Deployment:
        return next(item for item in self.deployments if item.name == name)

    def when(self, step: OfDeployment) -> When:
        """Whether the step is made, by its `when` or by default."""
        if step.when is not None:
            return step.when
        return "if_grown" if isinstance(step, Train) and is_private(self.deployment(step.deployment)) else "always"

    @property
    def ingest(self) -> Ingest | None:
        return next((step for step in self.pipeline.step if isinstance(step, Ingest)), None)

    @property
    def trained(self) -> list[Deployment]:
        """By steps of this pipeline, in their order."""
        return [self.deployment(step.deployment) for step in self.pipeline.step if isinstance(step, Train)]

    @property
    def private(self) -> bool:
        """Whether it trains something private."""
        return any(map(is_private, self.trained))


def is_private(deployment: Deployment) -> bool:
    return make_method(deployment.method, deployment.config).private


def ready(pipeline: Pipeline, deployments: Sequence[Deployment]) -> Ready:
    """The pipeline with its deployments. Raises ConfigError for one that the file does not have, or steps that cannot
    be made in this order; PrivacyError for what `checked` refuses, also for private deployments that others train.
    """
    by_name = {item.name: item for item in deployments}
    named = dict.fromkeys(
        name
        for step in pipeline.step
        if isinstance(step, OfDeployment)
        for name in (step.deployment, step.decider)
        if name in by_name or _no_deployment(pipeline, name)
    )
    made = checked(Ready(pipeline=pipeline, deployments=[by_name[name] for name in named]))
    _check_beside(made, deployments)
    return made


def _no_deployment(pipeline: Pipeline, name: str) -> bool:
    raise ConfigError(
        f"pipeline {pipeline.name!r} names the deployment {name!r}, which the file does not have.",
        "Add a [[deployment]] of that name; without a schedule only the pipeline starts it.",
    )


def checked(given: Ready) -> Ready:
    """Return the same, if its steps may depend on what they declare. Raises ConfigError, PrivacyError."""
    pipeline, trained = given.pipeline, list[str]()
    ingested = False
    for step in pipeline.step:
        if not isinstance(step, OfDeployment):
            ingested |= isinstance(step, Ingest)
            continue
        where, item = f"step {label(step)!r} of pipeline {pipeline.name!r}", given.deployment(step.deployment)
        if item.population != pipeline.population:
            raise ConfigError(
                f"{where} is about deployment {item.name!r}, which is trained on another population "
                f"({item.population}) than that of the pipeline ({pipeline.population}).",
                "A pipeline has one population: write another pipeline for the other.",
            )
        if isinstance(step, Train):
            if item.name in trained:
                raise ConfigError(f"pipeline {pipeline.name!r} trains {item.name!r} twice.", "Once is enough.")
            trained.append(item.name)
        if step.when == "if_promoted" and step.decider not in trained:
            raise ConfigError(
                f"{where} follows from the promotion of {step.decider!r}, which no step before it trains.",
                "Put the training before it, or name another one: of = NAME.",
            )
        if step.when == "if_grown" and not (isinstance(step, Train) and is_private(item)):
            raise ConfigError(f'{where} is no private training, for which when = "if_grown" is.', "Leave it out.")
        if step.when == "if_new_files" and not ingested:
            raise ConfigError(f"{where} follows from new files, and no step before it ingests any.", "Leave it out.")
        if is_private(item):
            _check_private(given, step, where)
    _check_ingest(given)
    return given


def _check_ingest(given: Ready) -> None:
    """Raises PrivacyError if what one client sent would decide over the rows of others, and something is private."""
    pipeline, ingest, undeclared = given.pipeline, given.ingest, given.pipeline.files_are_public_because is None
    if ingest is not None and ingest.bad_rows == "refuse" and given.private and undeclared:
        raise PrivacyError(
            f"pipeline {pipeline.name!r} trains privately, and an invalid row of one client would quarantine its "
            "file, so that all other clients in that file come with another append.",
            'Set invalid_rows = "leave_out", which leaves out that row alone; or declare why files, and whether they '
            "can be read, reveal nothing about the clients: files_are_public_because = REASON. Statements show it.",
        )
    if ingest is not None and ingest.changed == "append" and given.private and undeclared:
        raise PrivacyError(
            f"pipeline {pipeline.name!r} trains privately, and would append a file once more if its content changed: "
            "one client's rows would decide whether those of all other clients in it count again.",
            "Leave `changed` out, and let files with new rows have new names; or declare why files reveal nothing "
            "about the clients: files_are_public_because = REASON, which every statement will show.",
        )


def _check_beside(given: Ready, deployments: Sequence[Deployment]) -> None:
    """The same for private deployments of the file on this population that others train: their statements do not show
    what this pipeline says of its files. Raises PrivacyError.
    """
    pipeline, ingest = given.pipeline, given.ingest
    if ingest is None or (ingest.bad_rows, ingest.changed) == ("leave_out", "refuse"):
        return
    trained = [item.name for item in given.trained]
    others = [item for item in deployments if item.population == pipeline.population and item.name not in trained]
    if private := [item.name for item in others if is_private(item)]:
        raise PrivacyError(
            f"pipeline {pipeline.name!r} ingests into the population of the private deployment {private[0]!r}, which "
            "it does not train, and one client's row would decide with which append all others in its file come.",
            'Set invalid_rows = "leave_out", and leave `changed` out; or train that deployment in this pipeline, which '
            "can then declare why its files reveal nothing about the clients.",
        )


def _check_private(given: Ready, step: OfDeployment, where: str) -> None:
    if step.when == "if_new_files" and given.pipeline.files_are_public_because is None:
        raise PrivacyError(
            f"{where} is about the private deployment {step.deployment!r}, and would follow from whether files "
            "arrived: one client's arrival would decide whether something is released.",
            "Leave `when` out: the schedule decides. Or declare why the arrival of files reveals nothing about the "
            "clients: files_are_public_because = REASON, which every statement will show.",
        )
    if step.when == "if_promoted" and not is_private(given.deployment(step.decider)):
        raise PrivacyError(
            f"{where} is about the private deployment {step.deployment!r}, and would follow from the runs of "
            f"{step.decider!r}, which are not private and may reveal anything about any client.",
            "Leave `when` out, or let a private deployment decide.",
        )
