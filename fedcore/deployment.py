"""A file that says what is trained, when, and on which machine: read and checked here, scheduled by `flows.serve`.

    [[deployment]]
    name = "nightly"
    method = "histograms"
    population = "populations/blogs"
    runs = "runs"
    start_from = "previous"    # optional: the newest finished run of this deployment; or a run's folder, an .npz file
    schedule = { cron = "0 3 * * *", timezone = "UTC" }    # or { interval = 3600 } seconds, or { rrule = "FREQ=DAILY" }

    [deployment.config]        # settings of the method
    epsilon = 0.5

    [deployment.compute]
    workers = 2
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedcore.engine import DEFAULT_CACHE_BYTES
from fedcore.errors import ConfigError
from fedcore.methods import canonical, explain, make_method
from fedcore.population.layout import is_url
from fedcore.starts import PREVIOUS


class Schedule(BaseModel):
    """Exactly one of cron, interval and rrule. timezone goes with cron and rrule."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cron: str | None = None
    interval: float | None = Field(None, ge=1, description="seconds between starts")
    rrule: str | None = None
    timezone: str = "UTC"

    @model_validator(mode="after")
    def _one(self):
        if sum(value is not None for value in (self.cron, self.interval, self.rrule)) != 1:
            raise ValueError("give exactly one of cron, interval and rrule")
        return self


class Compute(BaseModel):
    """Where the clients are answered."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(2, ge=1, le=256, description="worker processes of the local cluster")
    dask: str | None = Field(None, description="address of a running Dask scheduler, instead of a local cluster")
    cache_bytes: int = Field(DEFAULT_CACHE_BYTES, ge=0, description="decoded blocks that each worker may keep, bytes")


class Deployment(BaseModel):
    """One scheduled training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")
    method: Annotated[str, AfterValidator(canonical)]
    population: str
    runs: str = "runs"
    seed: int = Field(0, ge=0)
    start_from: str | None = Field(None, min_length=1, description='run or .npz file to start from, or "previous"')
    public_start_because: str | None = Field(None, min_length=1, description="why that start is public")
    schedule: Schedule | None = None
    config: dict = Field(default_factory=dict)
    compute: Compute = Compute()
    tags: list[str] = Field(default_factory=list)


class DeploymentFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment: list[Deployment] = Field(min_length=1)


def read_deployments(path: str | Path) -> list[Deployment]:
    """The deployments of a file; relative folders are taken from the file's own folder.

    Raises ConfigError for a file that cannot be read, an unknown key, or settings that the method refuses.
    """
    path = Path(path)
    try:
        content = DeploymentFile.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise ConfigError(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} is not valid TOML: {error}.") from None
    except ValidationError as error:
        raise ConfigError(f"{path.name}: {explain(error)}", "See docs/deployments.md.") from None
    names = [item.name for item in content.deployment]
    if len(set(names)) != len(names):
        raise ConfigError(f"{path.name}: two deployments have the same name.")
    for item in content.deployment:
        make_method(item.method, item.config)
    here = path.resolve().parent
    return [_placed(item, here) for item in content.deployment]


def _placed(item: Deployment, here: Path) -> Deployment:
    """With its folders taken from the folder `here`."""
    population = item.population if is_url(item.population) else str(here / item.population)
    places = {"population": population, "runs": str(here / item.runs)}
    if item.start_from is not None and item.start_from != PREVIOUS:
        places["start_from"] = str(here / item.start_from)
    return item.model_copy(update=places)
