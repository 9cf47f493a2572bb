"""What a run of a pipeline would do now, without doing it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from fedcore.errors import FedcoreError, Waiting
from fedcore.operations.latest_runs import latest
from fedcore.operations.pipelines.append import aged, existing, look
from fedcore.operations.pipelines.doing import as_text, request_of, run_name
from fedcore.operations.pipelines.growth import too_little
from fedcore.operations.pipelines.journal import read_journal
from fedcore.operations.pipelines.law import Ready
from fedcore.operations.pipelines.steps import Evaluate, Export, Forget, Ingest, OfDeployment, Personalise, Step, Train
from fedcore.population.store import Population
from fedcore.storage.files import place
from fedcore.training.spec import open_inputs, resolve


def expected(ready: Ready, at: datetime) -> list[dict[str, str]]:
    """A row for each run that would be continued first, and for each step: step, when, would. Nothing is written.

    The row of a training uses the population and the budget as they are now, before the earlier steps.
    """
    left = read_journal(ready.pipeline.runs, ready.pipeline.name).interrupted(as_text(at))
    rows = [
        {"step": "before", "when": "always", "would": f"continue the run for {run.at}, which was interrupted"}
        for run in left
    ]
    for called, step in zip(ready.pipeline.labels, ready.pipeline.step, strict=True):
        try:
            words = _would(ready, step, at)
        except FedcoreError as error:
            words = f"{'wait' if isinstance(error, Waiting) else 'be refused'}: {type(error).__name__}: {error}"
        rows.append({"step": called, "when": _when(ready, step), "would": words})
    return rows


def _when(ready: Ready, step: Step) -> str:
    if not isinstance(step, OfDeployment):
        return "always"
    when = ready.when(step)
    return f"{when} of {step.decider}" if when == "if_promoted" else when


def _would(ready: Ready, step: Step, at: datetime) -> str:
    if isinstance(step, Ingest):
        return _would_ingest(ready, step, at)
    if isinstance(step, Forget):
        number = aged(Population.open(ready.pipeline.population), at, step.after_days)
        return (
            f"forget the cohorts 1 to {number}"
            if number
            else f"do nothing: no cohort is older than {step.after_days} days"
        )
    item = ready.deployment(step.deployment)
    if isinstance(step, Train):
        if existing(item.population) is None and ready.ingest is not None:
            return f"make run {run_name(item.name, at)} of the population that the pipeline makes"
        coming = 0 if ready.ingest is None else ready.ingest.newcomers or 0
        if ready.when(step) == "if_grown" and (why := too_little(item, at, coming)):
            return f"do nothing: {why}"
        request = request_of(ready, item, at)
        spec = resolve(request, open_inputs(request))
        spec.check_worth()
        expect = f"; what to expect, by the budget: {spec.worth.in_words}" if spec.worth is not None else ""
        return f"make run {run_name(item.name, at)} on version {spec.population.version}{expect}"
    found = latest(item.runs, item.name)
    run = f"run {found.run}, which is the latest of {item.name} now" if found else f"the latest run of {item.name}"
    if isinstance(step, Evaluate):
        return f"score {run}, on {place(step.on).name}"
    if isinstance(step, Export):
        return f"write {run}, to {step.to}"
    assert isinstance(step, Personalise)
    return f"write each client's output of {run}, below {Path(step.to)}"


def _would_ingest(ready: Ready, step: Ingest, at: datetime) -> str:
    aside = read_journal(ready.pipeline.runs, ready.pipeline.name).set_aside()
    population, files = look(step, ready.pipeline, at, aside)
    words = [f"append {len(files.new)} files" if population is not None else f"make it of {len(files.new)} files"]
    words += [f"pass over {len(files.known)} that it has"] if files.known else []
    words += [f"leave {len(files.later)} that are being written"] if files.later else []
    words += [f"set aside {one.name}: {one.because}" for one in files.aside]
    if population is not None and population.manifest.cohorts:
        words.append("open a cohort")
    return "; ".join(words)
