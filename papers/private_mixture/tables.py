"""`private_mixture` beside what people would use, at the same (epsilon, delta) for one record.

    mixture   labels and density on mixtures of normal distributions, by columns, components and separation
    set       the same on published sets, where FEDCORE_DATA names their folder
    server    the same on the mixture that FedDP-KMeans' authors publish, with their server rows
    family    groups that are claimed where there is one

All numbers are measured here; none is taken
from a paper.

Records are units, delta is 1e-6, noise is simulated: privacy: none. Learners that need a box are given the smallest one
that holds every training row, which a private analysis must not look at; `private_mixture` is given columns as they
are, and no more.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fedcore.papers.data import data_file
from fedcore.papers.private_gmm import baselines as rivals
from fedcore.papers.private_gmm.baselines import BLOCK_ROWS, LLOYD_ROUNDS, SUMS
from fedcore.papers.private_gmm.runs import FINEST, LEAST, agreement, learn
from fedcore.papers.private_mixture.data import FAMILIES, SETS, mixture, split_of
from fedcore.papers.simulation import ran
from fedcore.papers.table import Condition, Experiment, Found, Options, Row, Trial, given

from fedcore.evaluation.figures import COLOURS, SOFT, _figure, _png, _text, _title
from fedcore.methods.private_gmm.config import PrivateGMMConfig
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig
from fedcore.privacy.accounting import make_budget
from fedcore.privacy.mechanisms import TestNoise
from fedcore.randomness import stream
from fedcore.rounds.method import PublicFacts

# --- figure -----------------------------------------------------------------------------------------------------------


Line = tuple[Sequence[float], Sequence[float]]
DRAWN = ("private_mixture", "private_gmm", "DP-Lloyd", "DP-Lloyd, wide box", "diffprivlib", "S&A, averages")
BESIDE = {"EM": "EM, no privacy", "k-means": "k-means, no privacy"}


def labels_by_separation(panels: Mapping[str, Mapping[str, Line]], epsilon: float) -> bytes:
    """A panel for each shape, with a line for each learner that it has; learners without privacy are grey. epsilon: of
    the others."""
    figure, grid = _figure((11.0, 4.2), 1, max(len(panels), 1))
    if not panels:
        grid.flat[0].set_axis_off()
        grid.flat[0].text(0, 0.9, "no mixture was computed", transform=grid.flat[0].transAxes, va="top", **_text())
    for axes, (title, lines) in zip(grid.flat, panels.items(), strict=False):
        axes.set_title(title, **_title())
        axes.set_xscale("log", base=2)
        ticks = sorted({place for x, _ in lines.values() for place in x})
        axes.set_xticks(ticks, [f"{place:g}" for place in ticks])
        axes.set_ylim(-0.05, 1.05)
        for (name, label), style in zip(BESIDE.items(), ("-", ":"), strict=True):
            if name in lines:
                axes.plot(*lines[name], color=SOFT, linewidth=1.4, linestyle=style, label=label)
        for colour, name in zip(COLOURS, DRAWN, strict=False):
            if name in lines:
                wide = 2.4 if name == "private_mixture" else 1.4
                axes.plot(*lines[name], color=colour, linewidth=wide, marker="o", markersize=4, label=name)
        axes.set_xlabel("separation, in the largest standard deviation", **_text())
    if panels:
        grid.flat[0].set_ylabel(f"adjusted Rand index, median; ε = {epsilon:g}", **_text())
        handles, names = grid.flat[0].get_legend_handles_labels()
        figure.legend(handles, names, frameon=False, fontsize=8, loc="outside lower center", ncols=4)
    return _png(figure)


# --- tasks ------------------------------------------------------------------------------------------------------------


DELTA = 1e-6
ROWS, HELD_OUT = 10_000, 4000  # of a mixture
FAMILY_ROWS, FAMILY_COLUMNS, FAMILY_COMPONENTS = 5000, 5, 4  # of a family with one group
WIDER = 3.0  # a box of somebody who does not know the data
STARTS = 3  # of EM and k-means without privacy


@dataclass(frozen=True, slots=True)
class Task:
    """x: (n, d) training rows as they are; components: asked for; server: (m, d) rows that are public, if there are
    any, and server_bound: of the length of a row, public too. key: names the noise."""

    x: np.ndarray
    components: int
    key: str
    seed: int
    server: np.ndarray | None = None
    server_bound: float = 0.0

    @property
    def box(self) -> rivals.Box:
        return rivals.true_box(self.x)

    def generator(self, name: str, epsilon: float) -> np.random.Generator:
        return stream(self.seed, f"private_mixture/{self.key}/{name}/{epsilon:g}")


@dataclass(frozen=True, slots=True)
class Answer:
    """labels: of rows; density: nats of rows, None where a learner gives none; groups: so many are claimed to be apart;
    components: so many there are."""

    labels: Callable[[np.ndarray], np.ndarray]
    density: Callable[[np.ndarray], np.ndarray] | None
    groups: int
    components: int


# --- learners -------------------------------------------------------------------------------------------------------


def _ours(task: Task, epsilon: float) -> Answer:
    method = PrivateMixture(PrivateMixtureConfig(components=task.components))
    rho, (n, d) = make_budget(epsilon, DELTA).rho_max, task.x.shape
    public = PublicFacts("rows", d, 1024, n, None, rho, task.seed, unit="record")
    noise = TestNoise(f"{task.key}|{epsilon:g}|{task.seed}")
    model = method.model(ran(method, task.x, public, noise).state)
    return Answer(model.labels, model.log_likelihood, len(set(model.group.tolist())), model.components)


def _ball_search(task: Task, epsilon: float) -> Answer | None:
    box, d = task.box, task.x.shape[1]
    config = PrivateGMMConfig(
        components=max(task.components, 2),
        up_to=True,
        radius=d**0.5,
        sigma_min=FINEST,
        least_weight=min(LEAST, 1 / task.components),
        depth=1,
    )
    noise = TestNoise(f"{task.key}|{epsilon:g}|{task.seed}")
    found = learn(box.inside(task.x), config, epsilon=epsilon, delta=DELTA, noise=noise, seed=task.seed).mixture
    if not found.found:
        return None
    jacobian = float(np.log(box.half).sum())
    return Answer(
        lambda rows: found.labels(_unit(box, rows)),
        lambda rows: found.log_likelihood(_unit(box, rows)) - jacobian,
        found.components,
        found.components,
    )


def _unit(box: rivals.Box, x: np.ndarray) -> np.ndarray:
    """Rows in the box's units; held-out rows may lie beyond it."""
    return (x - (box.low + box.high) / 2) / box.half


def _clusters(centres: np.ndarray, box: rivals.Box | None) -> Answer:
    """Of centres, in the units of the box if there is one. k-means claims as many groups as it has centres."""
    k = len(centres)
    return Answer(lambda rows: rivals.nearest(rows if box is None else _unit(box, rows), centres), None, k, k)


def _lloyd(task: Task, epsilon: float) -> Answer:
    rng, box = task.generator("lloyd", epsilon), task.box
    return _clusters(rivals.dp_lloyd(box.inside(task.x), task.components, epsilon, DELTA, rng), box)


def _lloyd_in_a_wide_box(task: Task, epsilon: float) -> Answer:
    rng, box = task.generator("lloyd", epsilon), task.box.wider(WIDER)
    return _clusters(rivals.dp_lloyd(box.inside(task.x), task.components, epsilon, DELTA, rng), box)


def _averages(task: Task, epsilon: float) -> Answer:
    rng, box = task.generator("averages", epsilon), task.box
    return _clusters(rivals.averaged_blocks(box.inside(task.x), task.components, epsilon, DELTA, rng), box)


def _boxes(task: Task, epsilon: float) -> Answer | None:
    rng, box = task.generator("boxes", epsilon), task.box
    found = rivals.agreed_boxes(box.inside(task.x), task.components, epsilon, DELTA, rng, finest=2 * FINEST)
    return None if found is None else _clusters(found.means, box)


def _diffprivlib(task: Task, epsilon: float) -> Answer:
    box = task.box
    return _clusters(rivals.diffprivlib_centres(box.inside(task.x), task.components, epsilon, task.seed), box)


def _server_side(task: Task, epsilon: float) -> Answer | None:
    assert task.server is not None
    rng = task.generator("server", epsilon)
    bound, server = task.server_bound, task.server
    centres = rivals.server_side(task.x, task.components, epsilon, DELTA, rng, server=server, bound=bound)
    return None if centres is None else _clusters(centres, None)


def _server_alone(task: Task, epsilon: float) -> Answer:
    from sklearn.cluster import KMeans

    assert task.server is not None
    model = KMeans(task.components, n_init=10, random_state=task.seed).fit(task.server)
    return _clusters(model.cluster_centers_, None)


Learner = Callable[[Task, float], Answer | None]
BUDGETED: dict[str, Learner] = {
    "private_mixture": _ours,
    "private_gmm": _ball_search,
    "DP-Lloyd": _lloyd,
    "DP-Lloyd, wide box": _lloyd_in_a_wide_box,
    "diffprivlib": _diffprivlib,
    "S&A, averages": _averages,
    "S&A, boxes": _boxes,
    "FedDP-KMeans": _server_side,
    "server rows alone": _server_alone,
}
SERVED = ("FedDP-KMeans", "server rows alone")  # only where there are server rows


def em(task: Task, components: int) -> Answer:
    """scikit-learn's GaussianMixture on standardised columns."""
    from sklearn.mixture import GaussianMixture

    middle, spread = task.x.mean(axis=0), task.x.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    model = GaussianMixture(components, n_init=STARTS, random_state=task.seed).fit((task.x - middle) / spread)
    jacobian = float(np.log(spread).sum())
    return Answer(
        lambda rows: model.predict((rows - middle) / spread),
        lambda rows: model.score_samples((rows - middle) / spread) - jacobian,
        components,
        components,
    )


def kmeans(task: Task) -> Answer:
    """scikit-learn's KMeans on standardised columns."""
    from sklearn.cluster import KMeans

    middle, spread = task.x.mean(axis=0), task.x.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    model = KMeans(task.components, n_init=STARTS, random_state=task.seed).fit((task.x - middle) / spread)
    return Answer(lambda rows: model.predict((rows - middle) / spread), None, task.components, task.components)


def groups_by_bic(task: Task) -> int:
    """Of 1 to k components, how many the Bayesian information criterion asks EM for."""
    from sklearn.mixture import GaussianMixture

    x = (task.x - task.x.mean(axis=0)) / task.x.std(axis=0)
    fits = [GaussianMixture(k, random_state=task.seed).fit(x).bic(x) for k in range(1, task.components + 1)]
    return int(np.argmin(fits)) + 1


# --- scores ---------------------------------------------------------------------------------------------------------


def scored(
    answer: Callable[[], Answer | None], test: np.ndarray, classes: np.ndarray | None, offset: float
) -> dict[str, float | None]:
    """{"ari", "nll": nats a held-out row less offset, "groups", "components", "seconds" of CPU}; None where there is
    none, and groups 0 where there is no answer."""
    begin = time.process_time()
    found = answer()
    seconds = time.process_time() - begin
    if found is None:
        return {"ari": None, "nll": None, "groups": 0, "components": 0, "seconds": seconds}
    nll = None if found.density is None else -float(np.mean(found.density(test))) - offset
    return {
        "ari": agreement(classes, found.labels(test)),
        "nll": nll,
        "groups": found.groups,
        "components": found.components,
        "seconds": seconds,
    }


Scores = dict[str, list[dict[str, Any]]]  # by learner, one of each seed


def _learners(task: Task) -> dict[str, Learner]:
    here = {name: learner for name, learner in BUDGETED.items() if task.server is not None or name not in SERVED}
    return here if rivals.diffprivlib_is_here() else {name: one for name, one in here.items() if name != "diffprivlib"}


@dataclass(frozen=True, slots=True)
class Case:
    """A task with what it is scored on. offset: taken off every loss, the truth's own or a change of units."""

    task: Task
    test: np.ndarray
    classes: np.ndarray | None
    offset: float
    truth: dict[str, Any] | None = None


def mixture_case(d: int, k: int, separation: float, seed: int) -> Case:
    """Of the law of docs/notes/private-mixture.md."""
    generator = np.random.default_rng([seed, d, k, int(10 * separation)])
    truth = mixture(d, k, separation, generator)
    x, _ = truth.sample(ROWS, generator)
    test, labels = truth.sample(HELD_OUT, generator)
    joint = truth.log_joint(test)
    best = -float(np.logaddexp.reduce(joint, axis=1).mean())
    known = {"ari": agreement(labels, joint.argmax(axis=1)), "nll": 0.0, "groups": k, "components": k, "seconds": 0.0}
    return Case(Task(x, k, f"{d}-{k}-{separation:g}", seed), test, labels, best, known)


SERVER_COLUMNS, SERVER_COMPONENTS, SERVER_ROWS = 100, 10, 100_000
SERVER_VARIANCE, SERVER_BOUND, OF_EACH, UNIFORM = 0.5, 11.0, 20, 100


def server_case(seed: int) -> Case:
    """The mixture that FedDP-KMeans' authors publish for privacy of single rows: ten spherical components of variance
    1/2 with equal weights in 100 columns, means uniform in the unit cube, 100,000 rows; public are 20 rows of each
    component, 100 uniform ones, and that rows are no longer than 11."""
    generator = np.random.default_rng([seed, 2025])
    k, d = SERVER_COMPONENTS, SERVER_COLUMNS
    means = generator.uniform(size=(k, d))

    def rows(labels: np.ndarray) -> np.ndarray:
        return means[labels] + SERVER_VARIANCE**0.5 * generator.normal(size=(len(labels), d))

    x = rows(generator.integers(k, size=SERVER_ROWS))
    labels = generator.integers(k, size=HELD_OUT)
    test = rows(labels)
    server = np.vstack([rows(np.repeat(np.arange(k), OF_EACH)), generator.uniform(size=(UNIFORM, d))])
    squares = ((test[:, None] - means) ** 2).sum(axis=2) / (2 * SERVER_VARIANCE)
    joint = -squares - 0.5 * d * np.log(2 * np.pi * SERVER_VARIANCE) - np.log(k)
    best = -float(np.logaddexp.reduce(joint, axis=1).mean())
    known = {"ari": agreement(labels, joint.argmax(axis=1)), "nll": 0.0, "groups": k, "components": k, "seconds": 0.0}
    return Case(Task(x, k, "server", seed, server, SERVER_BOUND), test, labels, best, known)


def set_case(name: str, seed: int) -> Case:
    """A published set; losses are told in the set's own unit. Raises ConfigError without the data."""
    known, split = SETS[name], split_of(name)
    units = split.train.shape[1] * float(np.log(known.unit))
    return Case(Task(split.train, known.components, name, seed), split.test, split.classes, units)


def case_of(data: Sequence[Any], seed: int) -> Case:
    """data: ("mixture", d, k, separation), ("server",) or ("set", name)."""
    kind, *rest = data
    makers: Mapping[str, Callable[..., Case]] = {"mixture": mixture_case, "server": server_case, "set": set_case}
    return makers[kind](*rest, seed)


def privately(data: Sequence[Any], epsilon: float, seeds: Sequence[int]) -> Scores:
    """All private learners at this budget."""
    found: Scores = {}
    for seed in seeds:
        case = case_of(data, seed)
        for name, learner in _learners(case.task).items():
            one = scored(partial(learner, case.task, epsilon), case.test, case.classes, case.offset)
            found.setdefault(name, []).append(one)
    return found


def without_privacy(data: Sequence[Any], seeds: Sequence[int]) -> Scores:
    """ "EM", "k-means", "one normal", and "truth" where it is known."""
    found: Scores = {}
    for seed in seeds:
        case = case_of(data, seed)
        makers: dict[str, Callable[[], Answer]] = {
            "EM": partial(em, case.task, case.task.components),
            "k-means": partial(kmeans, case.task),
            "one normal": partial(em, case.task, 1),
        }
        for name, answer in makers.items():
            found.setdefault(name, []).append(scored(answer, case.test, case.classes, case.offset))
        if case.truth is not None:
            found.setdefault("truth", []).append(case.truth)
    return found


CLAIMING = ("private_mixture", "private_gmm", "S&A, boxes")  # k-means always claims as many groups as it is asked for


def claims(family: str, epsilon: float, seeds: Sequence[int]) -> dict[str, list[int]]:
    """Groups that each learner claims in data with one: of the private ones 0 is a refusal; "EM" by its BIC."""
    found: dict[str, list[int]] = {}
    for seed in seeds:
        generator = np.random.default_rng([seed, *family.encode()])
        x = FAMILIES[family](FAMILY_ROWS, FAMILY_COLUMNS, generator)
        task = Task(x, FAMILY_COMPONENTS, family, seed)
        for name in CLAIMING:
            answer = BUDGETED[name](task, epsilon)
            found.setdefault(name, []).append(0 if answer is None else answer.groups)
        found.setdefault("EM", []).append(groups_by_bic(task))
    return found


EPSILONS = (0.5, 1.0, 4.0)
PICTURED = 1.0  # epsilon of the figure
SHAPES, SEPARATIONS = ((2, 2), (5, 3), (10, 5)), (1, 2, 4, 8)
DEVELOPMENT = ("gvhd_flow", "pendigits", "satellite", "letter", "mnist")
SEEDS, SET_SEEDS, SERVER_SEEDS, QUICK_SEEDS, FREE_SEEDS = 10, 5, 2, 2, 3
QUICK_MIXTURES, QUICK_FAMILIES = (("mixture", 2, 2, 4), ("mixture", 5, 3, 2)), ("t3",)

LEARNERS = (*BUDGETED, "EM", "k-means", "one normal", "truth")


# --- conditions -----------------------------------------------------------------------------------------------------


def _name(data: Sequence[Any]) -> str:
    return "-".join(f"{part:g}" if isinstance(part, (int, float)) else part for part in data)


def conditions(options: Options) -> dict[str, Condition]:
    found: dict[str, Condition] = {}

    def of(data: Sequence[Any], epsilons: Sequence[float], seeds: int, free: int) -> None:
        """Without privacy, and at each budget."""
        name, about = _name(data), {"data": [*data]}
        title = f"{name}, without privacy"
        found[f"free-{name}"] = Condition(title, {"part": "free", **about, "seeds": free}, once=True)
        for epsilon in epsilons:
            asked = {"part": "private", **about, "epsilon": epsilon, "seeds": seeds}
            found[f"private-{name}-{epsilon:g}"] = Condition(f"{name}, epsilon {epsilon:g}", asked, once=True)

    def family(name: str, seeds: int) -> None:
        asked = {"part": "family", "family": name, "epsilon": 1.0, "seeds": seeds}
        found[f"family-{[*FAMILIES].index(name)}"] = Condition(f"one group: {name}", asked, once=True)

    seeds = options.seeds or (QUICK_SEEDS if options.quick else SEEDS)
    if options.quick:
        for data in QUICK_MIXTURES:
            of(data, (1.0,), seeds, seeds)
        for name in QUICK_FAMILIES:
            family(name, seeds)
        return found
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            of(("mixture", d, k, separation), EPSILONS, seeds, seeds)
    for name in FAMILIES:
        family(name, seeds)
    for name in DEVELOPMENT:
        if data_file(*SETS[name].file) is not None:
            of_set = options.seeds or SET_SEEDS
            of(("set", name), EPSILONS, of_set, min(of_set, FREE_SEEDS))
    of(("server",), EPSILONS, options.seeds or SERVER_SEEDS, 1)
    return found


def measure(trial: Trial) -> dict[str, Any]:
    seeds = range(1, trial["seeds"] + 1)
    match trial["part"]:
        case "private":
            return privately(trial["data"], trial["epsilon"], seeds)
        case "free":
            return without_privacy(trial["data"], seeds)
    return claims(trial["family"], trial["epsilon"], seeds)


# --- the table ------------------------------------------------------------------------------------------------------

WORDS = {"ari": "labels", "nll": "nats", "seconds": "CPU seconds"}
NOT_HERE = "not installed"
SETUP = (
    "labels: adjusted Rand index of held-out rows with their components or classes, median over seeds of the noise "
    "(and of the data, where they are synthetic). refused: runs without an answer, which are not in the median.",
    "nats: negative log-likelihood of a held-out row; of mixtures and of server above the truth's, of sets in the "
    "units of docs/notes/private-mixture.md. Empty for k-means, which gives no density.",
    "groups claimed: runs that claim several groups in data with one; a refusal claims nothing. k-means claims as many "
    "as it is asked for. EM: by BIC, of at most as many.",
    "Every learner is asked for the true number of components, of a set for that of docs/notes/private-mixture.md.",
    "Given beforehand, which private_mixture is not: the smallest box that holds all training rows (private_gmm, "
    "DP-Lloyd, diffprivlib, S&A). That itself is not private. private_gmm is also given sigma_min .01 and "
    "least_weight .05, in the box's units. wide box: three times as wide in every column.",
    f"DP-Lloyd: {LLOYD_ROUNDS} rounds from a start that looks at no data, {SUMS:g} of each for sums. diffprivlib: its "
    "KMeans, whose delta is 0: a stronger promise at the same epsilon.",
    f"S&A: sample and aggregate, blocks of {BLOCK_ROWS} rows for each component. averages: of the blocks' centres, in "
    "the order of their first coordinate. boxes: those that hold a centre of half of the blocks, else refused.",
    "server: 100,000 rows of 100 columns, the mixture that FedDP-KMeans' authors publish for privacy of single rows. "
    "The learner was written anew after their paper and public code, with their clip, shares and server rows (20 of "
    "each component and 100 uniform ones, which are public, as is the clip of 11), at the same total budget. server "
    "rows alone: k-means of the public rows, no budget.",
    "EM, k-means, one normal: scikit-learn on standardised columns, without privacy.",
)


def _row(what: str, data: str, epsilon: str, values: Mapping[str, str]) -> Row:
    return Row({"what": what, "data": data, "ε": epsilon}, None, values)


def _rows(results: Found) -> Iterator[Row]:
    names = [key.removeprefix("free-") for key in results.by_condition if key.startswith("free-")]
    for measure, what in WORDS.items():
        for name in names:
            for epsilon in EPSILONS:
                found = results.get(f"private-{name}-{epsilon:g}")
                if found is None or (measure == "seconds" and epsilon != 1.0):
                    continue
                everything = {**found, **results.one(f"free-{name}")}
                values = {learner: _shown(runs_of, measure) for learner, runs_of in everything.items()}
                if "diffprivlib" not in found and measure == "ari":
                    values["diffprivlib"] = NOT_HERE
                yield _row(what, name.removeprefix("set-"), f"{epsilon:g}", values)
    for number, family in enumerate(FAMILIES):
        claimed = results.get(f"family-{number}")
        if claimed is not None:
            yield _row("groups claimed", family, "1", {name: _counted(found) for name, found in claimed.items()})


def _shown(found: Sequence[Mapping[str, Any]], measure: str) -> str:
    """The median over runs, and how many were refused."""
    values = [one[measure] for one in found if one[measure] is not None]
    refused = sum(one["groups"] == 0 for one in found)
    if measure == "seconds":
        return f"{float(np.median(values)):.2g}"
    said = f"{refused} of {len(found)} refused" if refused else ""
    if not values:
        return said if measure == "ari" else ""
    median = f"{float(np.median(values)):.2f}"
    return f"{median}, {said}" if said and measure == "ari" else median


def _counted(groups: Sequence[int]) -> str:
    claimed, refused = sum(one > 1 for one in groups), sum(one == 0 for one in groups)
    return f"{claimed} of {len(groups)}" + (f", {refused} refused" if refused else "")


def _lines(results: Found, epsilon: float) -> dict[str, dict[str, tuple[list[float], list[float]]]]:
    """By shape and learner, separations and median agreement; a refusal counts as none."""
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {}
    for d, k in SHAPES:
        for separation in SEPARATIONS:
            name = _name(("mixture", d, k, separation))
            cell = results.get(f"private-{name}-{epsilon:g}")
            if cell is None:
                continue
            for learner, tried in {**cell, **results.one(f"free-{name}")}.items():
                lines = found.setdefault(f"{d} columns, {k} components", {})
                x, y = lines.setdefault(learner, ([], []))
                x.append(separation)
                y.append(float(np.median([one["ari"] or 0.0 for one in tried])))
    return found


PRIVATE_MIXTURE = Experiment(
    name="private-mixture",
    title="Private mixtures beside other private clusterings",
    heading=lambda found: "; records, δ 1e-6",
    conditions=conditions,
    measure=measure,
    rows=_rows,
    columns=lambda options: dict.fromkeys(LEARNERS, given),
    notes=lambda found: SETUP,
    figure=lambda found: labels_by_separation(_lines(found, PICTURED), PICTURED),
)
