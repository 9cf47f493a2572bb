"""Measures `private_mixture` against its aims: `python -m tests.private_mixture.gates TABLE [--seeds N] [--epsilon E]`.

    mixtures     labels, groups and density on mixtures of normal distributions, by columns, components and separation
    false        groups claimed where there is one, by family, with 95 % intervals (Clopper, Pearson)
    clients      the same, with clients of many rows that differ from each other, as units
    t3           labels where components are Student's t with 3 degrees of freedom, 8 apart
    series       density after each of eight runs that go on, beside runs alone
    worth        groups and density beside what is said of a run beforehand
    units        columns times 1e-6 to 1e6, and shifted by 1e6 standard deviations
    mixed        labels and density on tables of numbers and categories, with the categories and without them
    steps        groups claimed where there is one, of whole numbers, as they are and by steps
    sets         density beside one normal distribution with the same point masses, set by set, beside the forecast
    apart        the same on ten generators that nothing was chosen with
    hard         density on tables with many zeros, or with a few rows far out
    gaps         density where numbers are missing, filled and with their rows left out
    profiled     density of runs that start from a profile, beside runs alone
    sites        density of a run of several sites, beside one place and noise of each site alone
    small        groups found where 2 to 5 % of the rows are far from the others
    errors       how often intervals by standard errors hold
    time         CPU seconds of a run with 60,000 rows of 10 columns
    NAME         density and labels on the data set of this name below FEDCORE_DATA, beside non-private EM

Noise is simulated at the planned scale; nothing here is private. What was chosen by these numbers was chosen on
`mixtures` alone.
"""

from __future__ import annotations

import argparse
import itertools
import time

import numpy as np
from fedcore.papers.private_mixture.data import FAMILIES, SETS, split_of
from scipy.stats import beta

from fedcore.methods.private_mixture import PrivateMixtureConfig, PrivateMixtureModel
from fedcore.methods.private_mixture.feasibility import strength
from fedcore.methods.private_mixture.scores import normal_of
from tests.private_mixture import apart, from_profile, hard, missing
from tests.private_mixture.coverage import coverages
from tests.private_mixture.mixed import mixed
from tests.private_mixture.worlds import DELTA, adjusted_rand, block_of, facts, mixture, mu_max, records, run

CELLS = ((2, 2), (5, 3), (10, 5), (20, 3), (20, 10), (50, 5))
MIXED = ((5, 3, 2, (4, 6)), (10, 5, 2, (3, 3, 8)), (2, 4, 1, (5, 5, 5, 5)), (5, 4, 3, (20,)))
SEPARATIONS = (1, 2, 3, 4, 8)
HELD_OUT = 4000
TABLES = (
    "mixtures false clients t3 series worth units mixed steps sets apart hard gaps profiled sites small errors time"
).split()


def groups_of(model: PrivateMixtureModel) -> int:
    return len(set(model.group.tolist()))


def interval(found: int, runs: int) -> tuple[float, float]:
    """95 % for a share."""
    low = beta.ppf(0.025, found, runs - found + 1) if found else 0.0
    high = beta.ppf(0.975, found + 1, runs - found) if found < runs else 1.0
    return float(low), float(high)


def mixtures(seeds: range, epsilon: float, n: int, cells=CELLS, separations=SEPARATIONS) -> None:
    print("d k sep | ARI (Bayes) within | exactly k, more | nats above truth: median, worst (one normal) | CPU s")
    for d, k in cells:
        for separation in separations:
            rows = []
            for seed in seeds:
                generator = np.random.default_rng([seed, d, k, int(10 * separation)])
                truth = mixture(d, k, separation, generator)
                x, _ = truth.sample(n, generator)
                test, labels = truth.sample(HELD_OUT, generator)
                begin = time.process_time()
                method, state = run(records(x), PrivateMixtureConfig(components=k), epsilon, seed)
                seconds, model = time.process_time() - begin, method.model(state)
                joint = truth.log_joint(test)
                best = float(np.logaddexp.reduce(joint, axis=1).mean())
                rows.append(
                    (
                        adjusted_rand(labels, model.labels(test)),
                        adjusted_rand(labels, joint.argmax(axis=1)),
                        groups_of(model),
                        best - float(model.log_likelihood(test).mean()),
                        best - float(normal_of(model).log_likelihood(test).mean()),
                        seconds,
                    )
                )
            ari, bayes, groups, loss, one, cpu = np.array(rows).T
            near = int((ari >= bayes - (0.02 if separation >= 4 else 0.05)).sum())
            print(
                f"{d} {k} {separation} | {np.median(ari):.2f} ({np.median(bayes):.2f}) {near} of {len(rows)} | "
                f"{int((groups == k).sum())}, {int((groups > k).sum())} | {np.median(loss):.2f}, {loss.max():.2f} "
                f"({np.median(one):.2f}) | {np.median(cpu):.2f}",
                flush=True,
            )


def mixed_tables(seeds: range, epsilons: list[float], n: int) -> None:
    print("d k sep values epsilon | with: ARI (Bayes), nats above truth | without: ARI (Bayes of numbers), nats")
    for (d, k, separation, sizes), epsilon in itertools.product(MIXED, epsilons):
        rows = []
        for seed in seeds:
            generator = np.random.default_rng([seed, d, k, separation])
            truth = mixed(d, k, separation, sizes, generator)
            x, _ = truth.sample(n, generator)
            test, labels = truth.sample(HELD_OUT, generator)
            joint = truth.log_joint(test)
            best = float(np.logaddexp.reduce(joint, axis=1).mean())
            of_numbers = truth.log_joint(test, categories=False).argmax(axis=1)
            config = PrivateMixtureConfig(components=k, categories=truth.categories)
            method, state = run(records(x), config, epsilon, seed)
            both = method.model(state)
            method, state = run(records(x[:, :d]), PrivateMixtureConfig(components=k), epsilon, seed)
            alone = method.model(state)
            apart = np.append(np.log(both.probabilities[-1]), 0.0)[both.layout.codes(test)].sum(axis=1)
            rows.append(
                (
                    adjusted_rand(labels, both.labels(test)),
                    adjusted_rand(labels, joint.argmax(axis=1)),
                    best - float(both.log_likelihood(test).mean()),
                    adjusted_rand(labels, alone.labels(test[:, :d])),
                    adjusted_rand(labels, of_numbers),
                    best - float((alone.log_likelihood(test[:, :d]) + apart).mean()),
                )
            )
        a, b, c, e, f, g = np.median(rows, axis=0)
        worst = max(row[2] for row in rows)
        print(
            f"{d} {k} {separation} {sizes} {epsilon} | {a:.2f} ({b:.2f}), {c:.2f} (worst {worst:.2f}) | "
            f"{e:.2f} ({f:.2f}), {g:.2f}",
            flush=True,
        )


def _whole_numbers(name: str, n: int, generator: np.random.Generator) -> tuple[np.ndarray, int]:
    """Rows of one group, and how many of the columns come in steps of 1."""
    if name == "normal":
        return np.rint(generator.normal(size=(n, 3)) * 0.5), 3
    if name == "poisson":
        return generator.poisson([1.0, 3.0], (n, 2)).astype(np.float64), 2
    x = generator.normal(size=(n, 3))
    x[:, 0] = np.rint(np.abs(x[:, 0]) * 3)
    if name == "zeros":
        x[generator.random(n) < 0.5, 0] = 0.0
    return x, 1


def steps(seeds: range, epsilons: list[float], n: int = 6000) -> None:
    print("family epsilon | false groups of runs as they are | by steps")
    for name, epsilon in itertools.product(("normal", "poisson", "one column", "zeros"), epsilons):
        found = [0, 0]
        for seed in seeds:
            x, stepped = _whole_numbers(name, n, np.random.default_rng([seed, *name.encode()]))
            for number, asked in enumerate(({}, {str(column): 1.0 for column in range(stepped)})):
                method, state = run(records(x), PrivateMixtureConfig(components=4, steps=asked), epsilon, seed)
                found[number] += int(groups_of(method.model(state)) > 1)
        print(f"{name} {epsilon} | {found[0]} of {len(seeds)} | {found[1]} of {len(seeds)}", flush=True)


def _settings(seed: int, name: str) -> tuple[np.random.Generator, int, int, int, float]:
    """Columns, rows, components and epsilon of a run of the table of false groups."""
    generator = np.random.default_rng([seed, *name.encode()])
    d, n = int(generator.integers(2, 31)), int(np.exp(generator.uniform(np.log(1000), np.log(20_000))))
    return generator, d, n, int(generator.integers(2, 11)), float(generator.choice([0.5, 1.0, 4.0]))


def false(seeds: range, names: list[str], rounds: int) -> None:
    print("family | false groups of runs, 95 % | by epsilon .5, 1, 4")
    families = FAMILIES | hard.NULLS
    for name in names or list(families):
        found, by = 0, {0.5: [0, 0], 1.0: [0, 0], 4.0: [0, 0]}
        for seed in seeds:
            generator, d, n, k, epsilon = _settings(seed, name)
            x = families[name](n, d, generator)
            method, state = run(records(x), PrivateMixtureConfig(components=k, rounds=rounds), epsilon, seed)
            wrong = int(groups_of(method.model(state)) > 1)
            found += wrong
            by[epsilon] = [by[epsilon][0] + wrong, by[epsilon][1] + 1]
        low, high = interval(found, len(seeds))
        parts = ", ".join(f"{wrong}/{runs}" for wrong, runs in by.values())
        print(f"{name} | {found} of {len(seeds)}, {100 * low:.1f} to {100 * high:.1f} % | {parts}", flush=True)


def clients(seeds: range, rows: int = 20) -> None:
    """One normal distribution over all clients' rows, of which each client has its own part."""
    print("share of the variance between clients | false groups of runs, 95 %")
    for between in (0.0, 0.5, 0.95):
        found = 0
        for seed in seeds:
            generator, d, n, k, epsilon = _settings(seed, "clients")
            d = min(d, 10)
            own = generator.normal(size=(n // 2, 1, d)) * np.sqrt(between)
            x = own + generator.normal(size=(n // 2, rows, d)) * np.sqrt(1 - between)
            config = PrivateMixtureConfig(components=k)
            method, state = run(block_of(list(x)), config, epsilon, seed, unit="client")
            found += groups_of(method.model(state)) > 1
        low, high = interval(found, len(seeds))
        print(f"{between} | {found} of {len(seeds)}, {100 * low:.1f} to {100 * high:.1f} %", flush=True)


def heavy_tails(seeds: range, n: int) -> None:
    print("d k | ARI: median, least | groups, of runs with exactly k")
    for d, k in CELLS:
        rows = []
        for seed in seeds:
            generator = np.random.default_rng([seed, d, k, 3])
            truth = mixture(d, k, 8.0, generator)
            x, _ = truth.sample(n, generator, degrees=3)
            test, labels = truth.sample(HELD_OUT, generator, degrees=3)
            method, state = run(records(x), PrivateMixtureConfig(components=k), 1.0, seed)
            model = method.model(state)
            rows.append((adjusted_rand(labels, model.labels(test)), groups_of(model) == k))
        ari, exact = np.array(rows).T
        print(f"{d} {k} | {np.median(ari):.2f}, {ari.min():.2f} | {int(exact.sum())} of {len(rows)}", flush=True)


def series(seeds: range, epsilon: float = 0.5, runs: int = 8) -> None:
    print("d k sep n | nats above truth, median of a run of the series | alone")
    for d, k, separation, n in ((5, 3, 4.0, 4000), (10, 4, 4.0, 5000), (20, 3, 4.0, 20_000)):
        config, losses, alone = PrivateMixtureConfig(components=k), [], []
        for seed in seeds:
            generator = np.random.default_rng([seed, d, k, 55])
            truth = mixture(d, k, separation, generator)
            x, _ = truth.sample(n, generator)
            test, _ = truth.sample(HELD_OUT, generator)
            best = float(np.logaddexp.reduce(truth.log_joint(test), axis=1).mean())
            start, found = None, []
            for number in range(runs):
                method, state = run(records(x), config, epsilon, 1000 * seed + number, start=start)
                found.append(best - float(method.model(state).log_likelihood(test).mean()))
                start = method.warm_start_of(state) if state.warm or len(state.p) else None
            losses.append(found)
            method, state = run(records(x), config, epsilon, 5000 + 1000 * seed)
            alone.append(best - float(method.model(state).log_likelihood(test).mean()))
        each = " ".join(f"{loss:.2f}" for loss in np.median(losses, axis=0))
        print(f"{d} {k} {separation:g} {n} | {each} | {np.median(alone):.2f}", flush=True)


def worths(seeds: range) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    for number, (d, k, epsilon, n) in enumerate(
        itertools.product((2, 5, 10, 20, 50), (2, 4, 8), (0.3, 1.0, 4.0), (500, 2000, 8000))
    ):
        config = PrivateMixtureConfig(components=k)
        word = strength(config, facts(d, n, epsilon)).word
        for seed in seeds:
            generator = np.random.default_rng([number, seed, 4])
            truth = mixture(d, k, 6.0, generator)
            x, _ = truth.sample(n, generator)
            test, _ = truth.sample(HELD_OUT, generator)
            method, state = run(records(x), config, epsilon, 10 * number + seed)
            model = method.model(state)
            best = float(np.logaddexp.reduce(truth.log_joint(test), axis=1).mean())
            loss = best - float(model.log_likelihood(test).mean())
            found.setdefault(word, []).append((groups_of(model) == k, loss))
    print("word | exactly k groups | nats above truth: median")
    for word, rows in found.items():
        exact, losses = np.array(rows).T
        print(f"{word} | {int(exact.sum())} of {len(rows)} | {np.median(losses):.2f}", flush=True)


def units(seeds: range) -> None:
    print("columns | nats a row beside those of the same data in plain units (5 columns, 3 components, sep 4)")
    for name in ("times 1e-6 to 1e6", "shifted by 1e6 sd", "one shifted by 1e6 sd"):
        worst = []
        for seed in seeds:
            generator = np.random.default_rng([seed, 5])
            truth = mixture(5, 3, 4.0, generator)
            x, _ = truth.sample(10_000, generator)
            test, _ = truth.sample(HELD_OUT, generator)
            factor, shift = np.ones(5), np.zeros(5)
            if name.startswith("times"):
                factor = np.geomspace(1e-6, 1e6, 5)
            else:
                shift[: 1 if name.startswith("one") else 5] = 1e6 * x.std(axis=0).mean()
            losses = []
            for scale, by in ((np.ones(5), np.zeros(5)), (factor, shift)):
                method, state = run(records(x * scale + by), PrivateMixtureConfig(components=3), 1.0, seed)
                density = method.model(state).log_likelihood(test * scale + by)
                losses.append(-float(density.mean()) - np.log(scale).sum())
            worst.append(losses[1] - losses[0])
        print(f"{name} | {np.median(worst):.3f}, at most {np.max(worst):.3f}", flush=True)


def seconds_of_a_run() -> None:
    generator = np.random.default_rng(0)
    x, _ = mixture(10, 10, 4.0, generator).sample(60_000, generator)
    begin = time.process_time()
    run(records(x), PrivateMixtureConfig(components=10), 1.0)
    print(f"60,000 x 10, K = 10: {time.process_time() - begin:.2f} s of CPU")


def data_set(name: str, seeds: range, epsilons: list[float]) -> None:
    known, found = SETS[name], split_of(name)
    k, train, test = known.components, found.train, found.test
    labels = np.zeros(len(test), np.int64) if found.classes is None else found.classes
    units = train.shape[1] * float(np.log(known.unit))
    for epsilon in epsilons:
        rows = []
        for seed in seeds:
            method, state = run(records(train), PrivateMixtureConfig(components=k), epsilon, seed)
            model = method.model(state)
            rows.append(
                (
                    -float(model.log_likelihood(test).mean()) - units,
                    adjusted_rand(labels, model.labels(test)),
                    groups_of(model),
                    model.components,
                    -float(normal_of(model).log_likelihood(test).mean()) - units,
                )
            )
        median, least, most = np.median(rows, axis=0), np.min(rows, axis=0), np.max(rows, axis=0)
        print(
            f"{name} {train.shape} eps {epsilon}: nll {median[0]:.2f} ({least[0]:.2f} to {most[0]:.2f}), "
            f"ARI {median[1]:.2f}, components {median[3]:.0f}, groups {least[2]:.0f} to {most[2]:.0f}, "
            f"its own normal {median[4]:.2f}",
            flush=True,
        )


def of_sites(seeds: range, epsilon: float, n: int) -> None:
    """A study plans its total with rho (m - t) / m, t = 1. Where each of m sites adds all of the noise, the variance of
    the total is m times as large, which is that of a run with rho / m."""
    generator, rho = np.random.default_rng(7), mu_max(epsilon, DELTA) ** 2 / 2
    truth = mixture(10, 5, 4, generator)
    x, test = truth.sample(n, generator)[0], truth.sample(HELD_OUT, generator)[0]
    best = float(np.logaddexp.reduce(truth.log_joint(test), axis=1).mean())

    def shown(part: float) -> str:
        runs = [run(records(x), PrivateMixtureConfig(components=5), seed=seed, rho=part * rho) for seed in seeds]
        behind = [best - float(method.model(state).log_likelihood(test).mean()) for method, state in runs]
        return f"{np.median(behind):.2f} ({min(behind):.2f} to {max(behind):.2f})"

    print(f"sites | nats above the truth, epsilon {epsilon:g}, {n} rows: one place {shown(1)} | study | each alone")
    for m in (2, 3, 10, 50):
        print(f"{m} | {shown((m - 1) / m)} | {shown(1 / m)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", choices=[*TABLES, *SETS])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="first seed")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--cells", type=int, nargs="*", help="lines of mixtures or small; default: all")
    parser.add_argument("--separations", type=float, nargs="*", default=list(SEPARATIONS))
    parser.add_argument("--rounds", type=int, default=PrivateMixtureConfig().rounds, help="of EM, for small and false")
    parser.add_argument("--families", nargs="*", default=[], help="of false; sets of gaps")
    asked = parser.parse_args()
    seeds = range(asked.first, asked.first + asked.seeds)
    if asked.table == "mixtures":
        cells = list(CELLS) if asked.cells is None else [CELLS[index] for index in asked.cells]
        for epsilon in asked.epsilon:
            mixtures(seeds, epsilon, asked.rows, cells, asked.separations)
    elif asked.table == "false":
        false(seeds, asked.families, asked.rounds)
    elif asked.table == "clients":
        clients(seeds)
    elif asked.table == "t3":
        heavy_tails(seeds, asked.rows)
    elif asked.table == "series":
        series(seeds)
    elif asked.table == "worth":
        worths(seeds)
    elif asked.table == "units":
        units(seeds)
    elif asked.table == "mixed":
        mixed_tables(seeds, asked.epsilon, asked.rows)
    elif asked.table == "steps":
        steps(seeds, asked.epsilon)
    elif asked.table == "sets":
        hard.sets(seeds, asked.epsilon, hard.known_sets())
    elif asked.table == "apart":
        hard.sets(seeds, asked.epsilon, apart.sets())
    elif asked.table == "hard":
        hard.tables(seeds, asked.epsilon)
    elif asked.table == "gaps":
        missing.table(seeds, asked.epsilon, asked.families, missing.RATES)
    elif asked.table == "sites":
        for epsilon in asked.epsilon:
            of_sites(seeds, epsilon, asked.rows)
    elif asked.table == "profiled":
        from_profile.table(seeds, asked.epsilon, asked.families)
    elif asked.table == "small":
        chosen = list(range(len(hard.GROUPS))) if asked.cells is None else asked.cells
        hard.small_groups(seeds, asked.epsilon, chosen, asked.rounds)
    elif asked.table == "errors":
        coverages(seeds)
    elif asked.table == "time":
        seconds_of_a_run()
    else:
        data_set(asked.table, seeds, asked.epsilon)


if __name__ == "__main__":
    main()
