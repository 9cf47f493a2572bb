"""Settings of a method, compared on held-out rows of the clients.

Every combination of settings is trained like any other run, in the same way and from the same seed. A fraction of each
client's rows is held out (`validation`), the same rows for all. The combination with the smallest loss on them is
recommended; the information criteria are shown with it. Candidates are ordinary runs, so an interrupted comparison
continues with the missing ones.

None of this is private: losses are exact, and so is the choice.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedcore.errors import ConfigError, RunError, RunNotFound
from fedcore.evaluation.run_summary import run_summary
from fedcore.methods.registry import make_method, method_class
from fedcore.population.store import Population
from fedcore.rounds.choices import flat, known_settings
from fedcore.runs.store import Run
from fedcore.storage.files import place
from fedcore.training.request import TrainRequest

VALIDATION = "validation"
LOSSES = ("held_out_loss_in_data_units", "held_out_loss")  # the first that a run has; nats, or what the method names
CRITERIA = ("bic", "icl")
MOST = 200  # candidates
LONGEST = 110  # characters of a run's name, but a digest


@dataclass(frozen=True, slots=True)
class Candidate:
    """A combination that was trained.

    tried: its settings that others have differently; run: its folder
    loss: mean over the held-out rows; bic, icl: NaN if the method has none; status: of the run
    """

    tried: Mapping[str, Any]
    run: str
    loss: float
    bic: float
    icl: float
    status: str
    seconds: float

    def row(self) -> dict[str, Any]:
        """As a line of a table, or JSON: numbers that are not known are None."""
        numbers = {"held-out loss": self.loss, "bic": self.bic, "icl": self.icl}
        known = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        return {**self.tried, **known, "status": self.status, "seconds": self.seconds, "run": self.run}


def combinations(tries: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination, the first settings varying slowest. Raises ConfigError for none, for too many, or for a value
    that is there twice."""
    if not tries:
        raise ConfigError("no settings to compare.", "Pass settings and values: --try components=2,3,5")
    for name, values in tries.items():
        if not values or len({repr(value) for value in values}) < len(values):
            raise ConfigError(f"{name} needs values that differ, at least one.")
    number = math.prod(len(values) for values in tries.values())
    if number > MOST:
        raise ConfigError(f"{number} combinations are too many; at most {MOST}.", "Try fewer values at once.")
    return [dict(zip(tries, values, strict=True)) for values in itertools.product(*tries.values())]


def requests(
    request: TrainRequest, tries: Mapping[str, Sequence[Any]], validation: float, name: str
) -> list[tuple[dict[str, Any], TrainRequest]]:
    """What is tried, and the run that tries it. The runs are called `name` and what is tried.

    Raises ConfigError for a method that holds no rows back, a private one, settings that a method refuses, the share
    of rows among them, and a name that runs cannot have.
    """
    if VALIDATION not in known_settings(method_class(request.method).Config):
        raise ConfigError(f"{request.method} has no held-out rows, so its settings cannot be compared.")
    if VALIDATION in flat(request.settings) or VALIDATION in tries:
        raise ConfigError(
            f"{VALIDATION} is no setting to compare or to keep: which rows are held back is the same for all, and the "
            "best is trained on all rows.",
            f"Name the share with --{VALIDATION}.",
        )
    found = []
    for tried in combinations(tries):
        settings = {**request.settings, **tried}
        method = make_method(request.method, settings)
        if method.private:
            raise ConfigError(
                "private runs are not compared: each would cost budget, and the choice among them would be exact.",
                "Choose on public data, or on a private run's published result.",
            )
        asked = {**dict(request), "settings": {**settings, VALIDATION: validation}, "run_id": run_name(name, tried)}
        make_method(request.method, asked["settings"])
        found.append((tried, TrainRequest.read("Choose another --name.", **asked)))
    return found


def run_name(name: str, tried: Mapping[str, Any]) -> str:
    """`name` and the settings that are tried. A digest replaces what does not fit into the name of a run."""
    label = "-".join(f"{key}-{value}" for key, value in tried.items())
    fits = re.sub(r"[^A-Za-z0-9_.-]+", "-", label)[: max(LONGEST - len(name), 0)]
    if fits != label:
        fits += "-" + hashlib.sha256(label.encode()).hexdigest()[:8]
    return f"{name}-{fits}"


def compare(
    wanted: Sequence[tuple[dict[str, Any], TrainRequest]],
    train: Callable[[TrainRequest], str],
    resume: Callable[[str], str],
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """All candidates, the smallest loss first; those without a finite one last.

    train, resume: make a run of a request, or continue one; both return its folder
    progress: called with how many are done, of how many

    Raises RunError for a run of that name that was asked for something else, was given up, or is of an arithmetic that
    this fedcore does not have.
    """
    found = []
    for number, (tried, request) in enumerate(wanted):
        path = str(place(request.runs) / str(request.run_id))
        try:
            run = Run.open(path)
        except RunNotFound:
            path = train(request)
        else:
            _check_same(run, request)
            if run.status != "finished":
                path = resume(path)
        found.append(_candidate(tried, Run.open(path), path))
        if progress is not None:
            progress(number + 1, len(wanted))
    return sorted(found, key=lambda one: one.loss if math.isfinite(one.loss) else math.inf)


def _check_same(run: Run, request: TrainRequest) -> None:
    method = make_method(request.method, request.settings)
    config = method.config.model_dump(mode="json")
    population, trained_on = Population.open(request.population, version=request.version), run.info.get("population")
    same_rows = trained_on and (trained_on["id"], trained_on["version"]) == (population.id, population.version)
    known = {name: run.info.get(name) for name in ("method", "config", "seed")}
    if not same_rows or known != {"method": request.method, "config": config, "seed": request.seed}:
        why = "is there already, of another population or version, with other settings or another seed"
    elif run.info.get("kernel") != method.arithmetic_version:
        why = "was made by a fedcore that computes otherwise, so that its loss cannot be compared with new ones"
    elif run.status == "abandoned":
        why = "was given up"
    else:
        return
    raise RunError(f"run {run.id!r} {why}.", "Give the comparison another --name, or remove that run.")


def _candidate(tried: Mapping[str, Any], run: Run, path: str) -> Candidate:
    summary = run_summary(run)
    last = summary.get("metrics", {})
    loss = next((float(last[name]) for name in LOSSES if last.get(name) is not None), math.nan)
    bic, icl = (float(last.get(name, math.nan)) for name in CRITERIA)
    status = str(summary.get("outcome") or run.status)
    return Candidate(dict(tried), path, loss, bic, icl, status, float(summary.get("seconds", math.nan)))
