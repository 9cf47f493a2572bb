"""A file that says what is trained, when, and on which machine: read and checked here, scheduled by
`fedcore.flows.serve` and `fedcore.flows.deploy`.

    [[deployment]]
    name = "nightly"
    method = "histograms"
    population = "populations/blogs"
    runs = "runs"
    start_from = "previous"    # optional: the newest finished run of this deployment; or a run's folder, an .npz file
    schedule = { cron = "0 3 * * *", timezone = "UTC" }    # or { interval = 3600 } seconds, or { rrule = "FREQ=DAILY" }
    evaluate_on = "populations/public"                     # optional, and what follows: see `Series`
    promote = "if_better"
    retention = 10

    [deployment.config]        # settings of the method
    epsilon = 0.5

    [deployment.compute]
    workers = 2

    [monitoring]               # optional, of the whole file; or [deployment.monitoring]: see `Monitoring`
    runs_left = 5

A file may also declare what `fedcore up` creates: populations, budgets, a ledger (`fedcore.operations.declared`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedcore.errors import ConfigError, FedcoreError
from fedcore.methods.names import canonical
from fedcore.methods.registry import known_at, make_method, reasons
from fedcore.operations.declared import DeclaredPopulation, Storage
from fedcore.operations.events import APPENDED, EVENTS
from fedcore.operations.monitoring import Monitoring
from fedcore.operations.pipelines.steps import Ingest, Pipeline
from fedcore.operations.schedule import NAME, Compute, Scheduled
from fedcore.population.store import Population
from fedcore.privacy.accounting import Budget
from fedcore.storage.files import is_url
from fedcore.storage.parsing import read_toml
from fedcore.training.budget import rho_asked
from fedcore.training.request import LARGEST_SEED, SHARE_NAME, Series, TrainRequest
from fedcore.training.spec import open_inputs, resolve
from fedcore.training.warm_start import PREVIOUS

SQLITE = "sqlite:///"  # how the URL of a ledger in a file begins


class Deployment(Scheduled, Series):
    """One scheduled training."""

    name: str = Field(pattern=NAME)
    method: Annotated[str, AfterValidator(canonical)]
    population: str
    runs: str = "runs"
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    start_from: str | None = Field(None, min_length=1, description='run or .npz file to start from, or "previous"')
    public_start_because: str | None = Field(None, min_length=1, description="why that start is public")
    share: str | None = Field(None, pattern=SHARE_NAME, description="share of the budget that its runs are charged to")
    config: dict = Field(default_factory=dict)
    compute: Compute = Compute()
    monitoring: Monitoring | None = Field(None, description="that of the file, unless the deployment has its own")

    @property
    def series(self) -> Series:
        return Series(**{name: getattr(self, name) for name in Series.model_fields})

    @property
    def request(self) -> TrainRequest:
        """What its next run will be asked to do."""
        same = ("method", "population", "runs", "seed", "start_from", "public_start_because", "share", "series")
        given = {name: getattr(self, name) for name in same}
        return TrainRequest.read(settings=self.config, deployment=self.name, **given)


class Notify(BaseModel):
    """The webhook that is called when a run of the file's deployments ends badly, or when an event happens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    webhook: str | None = Field(None, pattern=r"^https?://", description="URL that is sent a JSON object with `text`")
    block: str | None = Field(None, min_length=1, description="or the name of a Webhook block on the Prefect server")
    states: list[str] = Field(
        ["Failed", "Refused", "Crashed"], min_length=1, description="names of states of flow runs"
    )
    events: list[str] = Field(default_factory=list, description="names of events, as fedcore.budget.low")

    @model_validator(mode="after")
    def _one(self):
        if (self.webhook is None) == (self.block is None):
            raise ValueError("give exactly one of webhook and block")
        if unknown := [name for name in self.events if name not in EVENTS]:
            raise ValueError(f"there is no event {unknown[0]!r}; there are {', '.join(EVENTS)}")
        return self


class DeploymentFile(BaseModel):
    """Everything that a file may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    population: list[DeclaredPopulation] = Field(default_factory=list, description="populations to make")
    deployment: list[Deployment] = Field(default_factory=list, description="scheduled trainings")
    pipeline: list[Pipeline] = Field(default_factory=list, description="scheduled steps around trainings")
    notify: Notify | None = None
    monitoring: Monitoring = Monitoring()
    storage: Storage = Storage()

    @model_validator(mode="after")
    def _something(self):
        if not self.deployment and not self.pipeline:
            raise ValueError("there is no [[deployment]] and no [[pipeline]]")
        if self.notify is not None and APPENDED in self.notify.events and not self.pipeline:
            raise ValueError(f"{APPENDED} is an event of pipelines, and the file has none: make a separate automation")
        return self

    @property
    def contradictions(self) -> list[str]:
        """What the parts of the file say against one another, as sentences without a full stop."""
        found = []
        for what, names in (
            ("deployments have the same name", [item.name for item in self.deployment]),
            ("pipelines have the same name", [item.name for item in self.pipeline]),
            ("populations have the same path", [item.path for item in self.population]),
        ):
            found += [f"two {what}: {name}" for name in dict.fromkeys(names) if names.count(name) > 1]
        fed = {pipeline.population: pipeline.name for pipeline in self.pipeline if pipeline.ingests}
        return found + [
            f"population {item.path!r} has a source, and pipeline {fed[item.path]!r} ingests into it: leave source "
            "out, or a file of both would count twice"
            for item in self.population
            if item.source is not None and item.path in fed
        ]


def json_schema() -> dict[str, Any]:
    """The JSON schema of a file, for editors that complete and check TOML by one."""
    made = DeploymentFile.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "fedcore.toml"}


def read_deployments(path: str | Path) -> list[Deployment]:
    """The deployments of a file, as `read_file` reads it."""
    return read_file(path).deployment


def read_file(path: str | Path) -> DeploymentFile:
    """A deployment file; relative folders and files are taken from the file's own folder.

    Raises ConfigError with everything that is wrong in the file: keys that do not exist, values out of range, settings
    that a method refuses.
    """
    path = Path(path)
    try:
        given = read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}.") from None
    content, found = None, []
    try:
        content = DeploymentFile.model_validate(given)
        found = content.contradictions
    except ValidationError as error:
        found = [
            said.replace(".schedule.one.", ".schedule.").replace(".schedule.several.", ".schedule.")
            for said in reasons(error, known=lambda where: known_at(DeploymentFile, where))
        ]
    found += _refused_settings(given)
    if content is None or found:
        remedy = "See docs/deployments.md."
        if len(found) == 1:
            raise ConfigError(f"{path.name}: {found[0].removesuffix('.')}.", remedy)
        listed = "".join(f"\n  - {said}" for said in found)
        raise ConfigError(f"{len(found)} problems in {path.name}:{listed}", remedy)
    here = path.resolve().parent
    watched = [
        item if item.monitoring else item.model_copy(update={"monitoring": content.monitoring})
        for item in content.deployment
    ]
    ledger = content.storage.ledger
    if ledger is not None and ledger.startswith(SQLITE):
        ledger = f"{SQLITE}{here / ledger.removeprefix(SQLITE)}"
    return content.model_copy(
        update={
            "population": [_placed_population(item, here) for item in content.population],
            "deployment": [_placed(item, here) for item in watched],
            "pipeline": [_placed_pipeline(item, here) for item in content.pipeline],
            "storage": content.storage.model_copy(update={"ledger": ledger}),
        }
    )


def _refused_settings(given: dict[str, Any]) -> list[str]:
    """What methods refuse of the settings of a file's deployments, also where something else in the file is wrong."""
    found = []
    deployments = given.get("deployment")
    for item in deployments if isinstance(deployments, list) else ():
        method, settings = (item.get("method"), item.get("config", {})) if isinstance(item, dict) else (None, None)
        if isinstance(method, str) and isinstance(settings, dict):
            try:
                make_method(method, settings)
            except ConfigError as error:
                found.append(f"deployment {str(item.get('name'))!r}: {error.message} {error.remedy}".rstrip())
    return found


def shares_on(
    path: str | Path, population: Population, budget: Budget, share_name: str | None = None
) -> list[tuple[str, float]]:
    """(name, rho of a run) of the file's deployments that draw on this population's budget: all of them share it.

    share_name: of a divided budget the share that they draw on, as whose runs `budget` is seen; None: what is
    undivided. One that names neither epsilon nor a horizon takes all that is left. Raises what `read_file` and
    `Population.open` raise.
    """
    shares = []
    for item in read_deployments(path):
        method = make_method(item.method, item.config)
        if item.share != share_name or not method.private or Population.open(item.population).id != population.id:
            continue
        share = rho_asked(method, budget)
        shares.append((item.name, budget.rho_max if share is None else share))
    return shares


def expectations(deployments: Sequence[Deployment]) -> list[str]:
    """A line for each deployment with the expected utility of its next run, by the budget that is left now. A method
    that cannot predict it has no line, and neither has a deployment that cannot be resolved from here, for example
    because its population is on another host.
    """
    lines = []
    for item in deployments:
        try:
            spec = resolve(item.request, open_inputs(item.request))
            worth = spec.worth
        except FedcoreError:
            continue
        if worth is not None:
            refused = " It will be refused, unless its config sets anyway = true." if spec.is_refused else ""
            lines.append(f"{item.name}: what to expect of the next run, by the budget: {worth.in_words}.{refused}")
    return lines


def _placed(item: Deployment, here: Path) -> Deployment:
    """With its folders taken from the folder `here`."""
    if item.monitoring is not None and item.monitoring.metrics is not None and not is_url(item.monitoring.metrics):
        watched = item.monitoring.model_copy(update={"metrics": str(here / item.monitoring.metrics)})
        item = item.model_copy(update={"monitoring": watched})
    given = {name: getattr(item, name) for name in ("population", "runs", "evaluate_on", "start_from")}
    return item.model_copy(
        update={
            name: where if (name, where) == ("start_from", PREVIOUS) else _from(here, where)
            for name, where in given.items()
        }
    )


def _placed_population(item: DeclaredPopulation, here: Path) -> DeclaredPopulation:
    """The same of a population: its folder, and the files of its first ingest."""
    placed: dict[str, Any] = {"path": _from(here, item.path)}
    names = ["schema_file", "vocabulary", "heldout", *(() if item.format == "sql" else ("source",))]
    for name in names:
        where = getattr(item, name)
        if isinstance(where, str):
            placed[name] = _from(here, where)
        elif where is not None and name != "vocabulary":  # a list of files; of words it is no place
            placed[name] = tuple(_from(here, str(one)) for one in where)
    return item.model_copy(update=placed)


def _placed_pipeline(item: Pipeline, here: Path) -> Pipeline:
    """The same of a pipeline and its steps."""
    steps = []
    for step in item.step:
        given = {name: getattr(step, name, None) for name in ("files", "schema_file", "on", "to")}
        placed: dict[str, Any] = {name: _from(here, where) for name, where in given.items() if where}
        if isinstance(step, Ingest) and isinstance(words := step.options.get("vocabulary"), str):
            placed["options"] = {**step.options, "vocabulary": _from(here, words)}
        steps.append(step.model_copy(update=placed))
    places = {name: _from(here, getattr(item, name)) for name in ("population", "runs")}
    return item.model_copy(update={**places, "step": steps})


def _from(here: Path, where: str | None) -> str | None:
    """A place of a file in the folder `here`."""
    return where if where is None or is_url(where) else str(here / where)
