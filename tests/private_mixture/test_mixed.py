"""Whole runs on tables of numbers, categories and numbers with steps, in memory and from files."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers.private_mixture.data import Truth

import fedcore
from fedcore.errors import ConfigError
from fedcore.methods.private_mixture import PrivateMixture, PrivateMixtureConfig, answers
from fedcore.methods.private_mixture.layout import COPIES, layout_of
from fedcore.methods.private_mixture.plan import plan, share_of_answers
from fedcore.methods.private_mixture.scores import normal_of
from fedcore.rounds.results import Features
from fedcore.testing import LAWS, Case, SmallPopulation
from tests.command import fedcore as command
from tests.command import works
from tests.private_mixture.mixed import MixedTruth, mixed
from tests.private_mixture.test_mixed_sensitivity import CATEGORIES, COLUMNS, STEPS, entries, usual
from tests.private_mixture.worlds import adjusted_rand, block_of, facts, records, run

pytestmark = pytest.mark.usefixtures("few_repetitions")
APART = Truth(np.array([0.5, 0.5]), np.array([[0.0, 0.0], [2.0, 0.0]]), np.tile(np.eye(2), (2, 1, 1)))
ANSWERED = (np.array([[0.9, 0.05, 0.05], [0.05, 0.15, 0.8]]), np.array([[0.1, 0.9], [0.85, 0.15]]))
PARTLY = MixedTruth(APART, ANSWERED, missing=0.1)  # neither numbers nor answers alone tell the components well
CONFIG = PrivateMixtureConfig(components=2, categories=PARTLY.categories)


@pytest.fixture(scope="module")
def world():
    generator = np.random.default_rng(0)
    return PARTLY.sample(20_000, generator)[0], *PARTLY.sample(4000, generator)


@pytest.fixture(scope="module")
def fitted(world):
    return run(records(world[0]), CONFIG, 4.0)


def test_components_that_differ_in_categories_are_told(world, fitted):
    x, test, labels = world
    method, state = fitted
    model, joint = method.model(state), PARTLY.log_joint(test)
    bayes = adjusted_rand(labels, joint.argmax(axis=1))
    alone = adjusted_rand(labels, PARTLY.log_joint(test, categories=False).argmax(axis=1))
    assert alone + 0.2 < bayes - 0.05 < adjusted_rand(labels, model.labels(test))
    best = np.logaddexp.reduce(joint, axis=1).mean()
    assert best - 0.05 < model.log_likelihood(test).mean() < best + 0.02
    assert normal_of(model).log_likelihood(test).mean() < best - 0.3
    order = model.means_of_data()[:, 0].argsort()
    found = model.probabilities[order]
    assert np.abs(found - np.concatenate(ANSWERED, axis=1)).max() < 0.08
    assert np.allclose(model.responsibilities(test).sum(axis=1), 1)
    assert len(set(model.group)) == 1  # their numbers touch, and groups are claimed by valleys in numbers alone


def test_tables_name_categories_and_values(fitted):
    method, state = fitted
    names = ["height", "weight", "city=Bern", "city=Basel", "city=<other>", "a", "b"]
    tables = {table.name: table for table in method.result(state, Features(7, names, ["m", "kg", *[""] * 5])).tables}
    columns = {column.name: column.values for column in tables["categories"].columns}
    assert columns["category"] == ["city"] * 3 + ["a"] * 2 and columns["value"][:3] == ["Bern", "Basel", "<other>"]
    for name in ("all", "A", "B"):
        assert sum(columns[name][:3]) == pytest.approx(1) and sum(columns[name][3:]) == pytest.approx(1)
    assert [column.values for column in tables["means"].columns[:2]] == [["height", "weight"], ["m", "kg"]]
    assert tables["categories"].note.endswith("states why numbers have no error bars.")
    with pytest.raises(ConfigError, match="categories"):
        method.fitted_model(state)


def test_a_row_with_gaps_in_its_answers_is_labelled_by_the_rest(world, fitted):
    _, test, _ = world
    method, state = fitted
    full = test[np.isfinite(test).all(axis=1)][:50]
    gaps = full.copy()
    gaps[:, 2:] = np.nan
    broken = np.where(np.arange(7) == 0, np.inf, full)
    fewer = np.where(np.arange(7) == 0, np.nan, full)
    block = block_of([full, gaps, broken, fewer])
    labels = np.split(method.personalise(state, block, None)["rows_labels"], 4)
    assert (
        (labels[2] == -1).all()
        and (labels[1] >= 0).all()
        and (labels[3] >= 0).all()
        and 0 < (labels[0] != labels[1]).sum() < 25
    )
    held_out = replace(block_of([full, gaps]), heldout=block_of([full, gaps]))
    scored = {name: statistic.value() for name, statistic in method.score_block(state, held_out, None).items()}
    assert np.isfinite(method.score_table(scored).lines[0].loss)


@pytest.mark.slow
def test_a_series_averages_probabilities(world, fitted):
    _, first = fitted
    x, test, _ = world
    method, state = run(records(x), CONFIG, 1.0, 1)
    losses = [-method.model(state).log_likelihood(test).mean()]
    for seed in (2, 3):
        start = method.checked_warm_start(method.warm_start_of(state), "it", 7)
        method, state = run(records(x), CONFIG, 1.0, seed, start=start)
        assert state.warm and state.probabilities.shape == (len(state.means) + 1, 5)
        losses.append(-method.model(state).log_likelihood(test).mean())
    assert min(losses[1:]) < losses[0]
    other = PrivateMixture(PrivateMixtureConfig(components=2, categories=()))
    with pytest.raises(ConfigError, match="read other columns as categories"):
        other.checked_warm_start(method.warm_start_of(first), "it", 7)
    spoilt = method.warm_start_of(first)
    with pytest.raises(ConfigError, match="what no run leaves"):
        method.checked_warm_start({**spoilt, "pooled_probabilities": -spoilt["pooled_probabilities"]}, "it", 7)


def test_what_cannot_be_read_is_refused_by_name():
    for settings, said in (
        ({"categories": [[0], [1]]}, "all columns of this population are categories"),
        ({"categories": [[0, 0]]}, "belongs to two"),
        ({"categories": [[5]]}, "there is no column 5"),
        ({"categories": [[0]], "steps": {"0": 1}}, "has a step, and is a category"),
        ({"steps": {"age": 1}}, "there is no column 'age'"),
        ({"steps": {"0": 1, "00": 2}}, "column 0 has two steps"),
        ({"steps": {"²": 1}}, "there is no column '²'"),
    ):
        with pytest.raises(ConfigError, match=said):
            plan(PrivateMixtureConfig(**settings), facts(2, 1000, 1.0))


def test_prices_add_up_to_the_budget_and_numbers_keep_most_of_it():
    for categories in ([[3, 4]], [[3], [4, 5, 6]], [list(range(3, 60))]):
        features = 1 + max(max(own) for own in categories)
        public = facts(features, 5000, 1.0)
        releases = plan(PrivateMixtureConfig(categories=categories), public)
        assert 0.999999 * public.rho < sum(release.rho for release in releases) <= public.rho
        of_answers = sum(release.rho for release in releases if release.name.startswith("em_answers"))
        of_em = sum(release.rho for release in releases if release.name.startswith("em_"))
        assert 0.02 < of_answers / of_em <= 0.5 + 1e-9
    assert share_of_answers((), 3) == 0.0


def test_the_statement_says_what_the_bound_of_answers_is():
    """Of all categories together: a unit may answer each of them."""
    releases = plan(PrivateMixtureConfig(categories=[[3], [4, 5, 6]]), facts(7, 5000, 1.0))
    said = {release.name: release.composition for release in releases if release.name.endswith("_0")}
    assert "each category" in said["em_answers_0"] and "all categories together" in said["em_answers_0"]
    assert "all components cost one release" in said["em_p_0"] and "record" in said["em_answers_0"]


def test_counts_that_cannot_be_negative_stand_for_the_mean_of_what_they_may_be():
    counts = np.array([-300.0, -2.0, 0.0, 1.0, 50.0])
    found = answers.not_negative(counts, 1.0)
    grid = np.linspace(0, 80, 400_001)
    for count, mean in zip(counts[1:], found[1:], strict=True):
        law = np.exp(-0.5 * (grid - count) ** 2)
        assert mean == pytest.approx((grid * law).sum() / law.sum(), rel=1e-3)
    assert 0 < found[0] < 0.05 and np.allclose(answers.not_negative(counts, 0.0)[2:], [0.0, 1.0, 50.0], atol=1e-9)


def test_probabilities_move_by_what_noise_does_not_explain():
    """A component that answers as all do keeps their probabilities to the last bit but for the prior; one that does not
    gets its own."""
    sizes, noise = (4,), 20.0
    truth = np.array([[700, 100, 100, 100], [250, 250, 250, 250], [10, 10, 10, 10]], np.float64)
    counts = truth + np.random.default_rng(0).normal(0, noise, truth.shape)
    stay = np.array([True, True])
    after = answers.moved(answers.Answers(np.zeros((0, 4)), np.zeros((0, 1))), counts, noise, sizes, stay)
    assert np.allclose(after.probabilities.sum(axis=1), 1) and (after.probabilities > 0).all()
    assert np.abs(after.probabilities[:2] - truth[:2] / 1000).max() < 0.05
    again = answers.moved(after, counts, 1e6, sizes, np.array([True, False]))
    assert len(again.probabilities) == 2 and np.abs(again.probabilities[0] - after.probabilities[0]).max() < 0.01


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_columns_with_steps_have_an_honest_density_and_no_false_groups():
    """Of numbers few of which occur: the density is a probability, and gaps between numbers are no valleys. None is 0,
    so that a run does not find the steps by itself."""
    generator = np.random.default_rng(0)
    x = np.rint(generator.normal(size=(9000, 3)) * 0.5) + 0.25
    config = PrivateMixtureConfig(components=4)
    stepped = config.model_copy(update={"steps": (("0", 1.0), ("1", 1.0), ("2", 1.0))})
    found = {}
    for name, each in {"as they are": config, "by steps": stepped}.items():
        method, state = run(records(x[:6000]), each, 4.0)
        model = method.model(state)
        found[name] = len(set(model.group)), model.log_likelihood(x[6000:]).mean()
    values, counts = np.unique(x[6000:], axis=0, return_counts=True)
    entropy = -(counts / 3000 * np.log(counts / 3000)).sum()
    assert found["as they are"][0] > 1 and found["as they are"][1] > -entropy  # a density without an end
    assert found["by steps"][0] == 1 and -entropy - 0.3 < found["by steps"][1] < -entropy
    grid = np.stack(np.meshgrid(*[np.arange(-5.0, 6.0) + 0.25] * 3), axis=-1).reshape(-1, 3)
    assert np.exp(model.log_likelihood(grid)).sum() == pytest.approx(1, abs=0.02)


def test_clients_without_usable_rows_are_labelled_by_nothing_where_numbers_have_steps():
    x = np.rint(np.random.default_rng(0).normal(size=(3000, 2)) * 5)
    method, state = run(records(x), PrivateMixtureConfig(components=2, rounds=1, steps={"0": 1.0}), 4.0)
    outputs = method.personalise(state, block_of([np.full((2, 2), np.nan), x[:0]]), None)
    assert (outputs["rows_labels"] == -1).all() and (outputs["component"] == -1).all()
    assert method.model(state).log_likelihood(x[:0]).shape == (0,)


def test_densities_of_many_rows_with_steps_take_little_memory():
    """A row stands for several, but not all rows at once."""
    x = np.rint(np.random.default_rng(0).normal(size=(3000, 4)) * 5)
    steps = {str(column): 1.0 for column in range(4)}
    method, state = run(records(x), PrivateMixtureConfig(components=2, rounds=1, steps=steps), 4.0)
    model, many = method.model(state), np.tile(x, (12, 1))
    tracemalloc.start()
    try:
        found = model.log_likelihood(many)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 20 * many.nbytes
    assert np.allclose(found.reshape(12, -1), model.log_likelihood(x[:3000]), rtol=1e-12)


def test_moved_numbers_are_within_half_a_step_and_even():
    config = PrivateMixtureConfig(steps={"0": 2.0, "1": 0.5})
    x = np.column_stack([np.arange(4000.0) % 7, np.arange(4000.0) % 3 / 2])
    layout = layout_of(config, 2, 3)
    moved = (layout.numbers(x, COPIES) - np.repeat(x, COPIES, axis=0)) / [2.0, 0.5]
    assert np.abs(moved).max() <= 0.5 and np.abs(moved.mean(axis=0)).max() < 0.02
    one = np.sort(moved[:COPIES], axis=0)
    assert np.diff(one, axis=0).max() < 4 / COPIES  # the copies of a row fill its step
    assert np.array_equal(layout.numbers(x[5:6], COPIES), layout.numbers(x, COPIES)[5 * COPIES : 6 * COPIES])
    assert not np.array_equal(layout_of(config, 2, 4).numbers(x, 1), layout.numbers(x, 1))
    some = layout_of(PrivateMixtureConfig(steps={"1": 0.5}), 2, 3)
    assert some.copies() == 1 and np.array_equal(some.numbers(x, 1)[:, 0], x[:, 0])


# --- whole commands ---------------------------------------------------------------------------------------------------


def table(path, n=3000):
    generator = np.random.default_rng(1)
    x, _ = replace(PARTLY, numbers=replace(APART, means=3 * APART.means)).sample(n, generator)
    lines = ["height,weight,visits,city,smokes"]
    for row in x:
        city = "" if np.isnan(row[2]) else ["Bern", "Basel", "Zug"][int(row[2:5].argmax())]
        smokes = "" if np.isnan(row[5]) else ["no", "yes"][int(row[5:].argmax())]
        lines.append(f"{row[0]:.3f},{row[1]:.3f},{generator.poisson(3)},{city},{smokes}")
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.slow
def test_from_a_table_to_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table(tmp_path / "a.csv")
    made = (*"--category city=Bern,Basel,<other> --boolean smokes --unit record --nominal-clients 3000".split(),)
    works("population", "ingest", "a.csv", "p", *made)
    reason = ("--unit", "record", "--public-schema", "a published form")
    works("budget", "set", "p", "--epsilon", "8", "--delta", "1e-6", *reason)
    asked = ("private_mixture", "p", "--set", "components=2", "--set", "epsilon=4", "--set", "steps={visits = 1}")
    assert works("plan", *asked, "--json").json["worth"].startswith("good")
    assert "there is no column 'visit'" in command("plan", *asked[:-1], "steps={visit = 1}").err
    name = works("train", *asked, "--local", "--json").json["run_id"]
    model = fedcore.load_run(f"runs/{name}")
    assert model.info["config"]["categories"] == [[3, 4, 5], [6]] and model.info["config"]["steps"] == [["2", 1.0]]
    shown = model.columns("categories")
    assert shown["category"] == ["city"] * 3 + ["smokes"] * 2 and shown["value"] == [
        "Bern",
        "Basel",
        "<other>",
        "0",
        "1",
    ]
    assert model.columns("means")["column"] == ["height", "weight", "visits"]
    works("predict", f"runs/{name}", "p", "labels")
    works("export", f"runs/{name}", "answers.csv", "--table", "categories")
    works("export", f"runs/{name}", "all.npz")
    assert "categories" in command("export", f"runs/{name}", "model.joblib").err
    asked = (*asked[:2], "--start-from", "previous", "--set", "components=2", "--set", "steps={visits = 1}")
    later = fedcore.load_run(f"runs/{works('train', *asked, '--local', '--json').json['run_id']}")
    assert {f"em_answers_{step}" for step in range(5)} <= {item["name"] for item in later.info["plan"]}
    assert later.state["warm"] and later.state["probabilities"].shape[1] == 5


@pytest.mark.heavy
@pytest.mark.slow
@pytest.mark.parametrize("unit", ["client", "record"])
def test_the_laws_of_methods_hold(unit):
    generator = np.random.default_rng(2)
    rows = np.vstack([own for seed in range(5) for own in (*usual(seed)[0], *usual(seed)[1:])])
    people = tuple(np.array_split(rows, 60)) if unit == "client" else tuple(row[None] for row in rows[:120])
    held_out = np.nan_to_num(rows[generator.permutation(len(rows))][: len(people)])
    population = SmallPopulation("rows", COLUMNS, people, tuple(row[None] for row in held_out), "float64", 4, 8)
    method = PrivateMixture(PrivateMixtureConfig(components=2, rounds=2, categories=CATEGORIES, steps=STEPS))
    case = Case(f"mixed {unit}", method, population, None, unit, "add_or_remove_one")
    for law, check in LAWS.items():
        if law != "workers":
            check(case)


def test_entries_are_what_ingest_makes():
    assert np.array_equal(entries(np.array([[1, -1, 0]])), [[0, 1, 0, np.nan, np.nan, np.nan]], equal_nan=True)
    assert mixed(2, 2, 3.0, (3, 2), np.random.default_rng(0)).categories == ((2, 3, 4), (5, 6))
