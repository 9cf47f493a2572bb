"""`fedcore reproduce private-mixture`: what the baselines' noise is calibrated to, cells, the table and the figure."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
from fedcore.papers import experiment
from fedcore.papers.private_gmm import baselines
from fedcore.papers.private_gmm.baselines import Box, CellNoise
from fedcore.papers.private_mixture import tables as private_mixture
from fedcore.papers.private_mixture import tables as private_mixture_runs
from fedcore.papers.private_mixture.data import FAMILIES, split_of
from fedcore.papers.private_mixture.tables import labels_by_separation
from fedcore.papers.table import Options, Place, reproduce

from fedcore.errors import ConfigError
from fedcore.privacy.gdp import mu_max
from fedcore.rounds.engine import InProcessBackend

PNG = b"\x89PNG"
EPSILON, DELTA = 1.0, 1e-6


def rng(seed=0) -> np.random.Generator:
    return np.random.default_rng(seed)


def two_groups(n: int, generator: np.random.Generator) -> np.ndarray:
    """Rows of the box, around -.5 and .5 of both columns."""
    sides = np.where(generator.random((n, 1)) < 0.5, -0.5, 0.5)
    return np.clip(sides + 0.05 * generator.normal(size=(n, 2)), -1, 1)


def found_both(centres: np.ndarray, within: float = 0.1) -> bool:
    wanted = np.array([[-0.5, -0.5], [0.5, 0.5]])
    return bool(np.abs(centres[np.argsort(centres[:, 0])] - wanted).max() < within)


# --- Lloyd with noise -----------------------------------------------------------------------------------------------


def squares_of(noise: CellNoise, count: float, length: float) -> float:
    """mu^2 of a round whose count and sums move by this."""
    return (count / noise.count) ** 2 + (length / noise.sum) ** 2


@pytest.mark.parametrize("columns, rounds", [(1, 1), (4, 5), (30, 3)])
def test_rounds_of_lloyd_cost_the_budget_and_no_more(columns, rounds):
    noise = baselines.lloyd_noise(columns, EPSILON, DELTA, rounds)
    paid = rounds * squares_of(noise, 1.0, math.sqrt(columns))
    assert paid == pytest.approx(mu_max(EPSILON, DELTA) ** 2, rel=1e-12)


def test_a_row_moves_cells_by_no_more_than_the_noise_is_made_for():
    x, d, k = rng().uniform(-1, 1, (50, 3)), 3, 4
    x[0] = 1.0  # the corner: the longest row there is
    centres, bound = rng(1).uniform(-1, 1, (k, d)), math.sqrt(d)
    labels = baselines.nearest(x, centres)
    counts, sums = baselines.sums_of_cells(x, labels, k)
    moved = []
    for row in range(len(x)):
        fewer = np.delete(np.arange(len(x)), row)
        there = baselines.sums_of_cells(x[fewer], labels[fewer], k)
        assert np.abs(counts - there[0]).sum() == 1
        moved.append(np.linalg.norm(sums - there[1]))
    assert max(moved) == pytest.approx(bound) and max(moved) <= bound + 1e-12


def test_the_noise_of_a_round_has_the_planned_deviation():
    noise, k, d = CellNoise.of(0.5, 0.25, 2.0), 2000, 2
    assert (noise.count, noise.sum) == (2.0, 8.0)
    x, labels = np.zeros((k * 100, d)), np.repeat(np.arange(k), 100)
    means = baselines.noisy_means(x, labels, np.zeros((k, d)), noise, rng())
    assert means.std() == pytest.approx(noise.sum / 100, rel=0.05)
    ones = baselines.noisy_means(x + 1, labels, np.zeros((k, d)), CellNoise(noise.count, 0.0), rng())
    assert (1 / ones[:, 0]).std() == pytest.approx(noise.count / 100, rel=0.05)
    empty = baselines.noisy_means(x[:0], labels[:0], np.full((k, d), 7.0), noise, rng())
    assert 0.75 < (empty == 7.0).mean() < 0.9  # a count of noise alone exceeds its deviation in 16 % of cells


def test_lloyd_finds_two_groups_and_loses_them_in_noise():
    x = two_groups(4000, rng())
    assert found_both(baselines.dp_lloyd(x, 2, EPSILON, DELTA, rng(1)))
    assert not found_both(baselines.dp_lloyd(x[:40], 2, 0.1, DELTA, rng(1)))


def test_starts_are_apart_and_do_not_look_at_data():
    starts = baselines.sphere_packed(6, 3, rng())
    gaps = np.linalg.norm(starts[:, None] - starts, axis=2)[np.triu_indices(6, 1)]
    assert starts.shape == (6, 3) and np.abs(starts).max() < 1 and gaps.min() > 0.5


# --- sample and aggregate -------------------------------------------------------------------------------------------


def test_a_block_moves_the_average_by_no_more_than_the_noise_is_made_for():
    k, d, m, mu = 3, 4, 50, mu_max(EPSILON, DELTA)
    deviation = baselines.deviation_of_average(k, d, m, mu)
    furthest = np.linalg.norm(np.full((k, d), 1.0) - np.full((k, d), -1.0)) / m  # one block from corner to corner
    assert furthest / deviation == pytest.approx(mu, rel=1e-12)


def test_a_row_more_or_less_changes_one_block():
    x = rng().normal(size=(101, 2))
    blocks = baselines.dealt(x, 7, rng(1))
    there = np.isfinite(blocks).all(axis=2)
    assert there.sum() == 101 and len(np.unique(blocks[there], axis=0)) == 101
    fewer = baselines.dealt(x[:-1], 7, rng(1))
    changed = [
        len(np.unique(one[np.isfinite(one).all(axis=1)], axis=0)) != np.isfinite(other).all(axis=1).sum()
        for one, other in zip(blocks, fewer, strict=True)
    ]
    assert sum(changed) == 1
    assert baselines.dealt(x[:0], 3, rng()).shape == (3, 1, 2)


def test_answers_of_blocks_stay_in_the_box_whatever_they_hold(monkeypatch):
    def wild(blocks, components, generator):
        means = np.full((len(blocks), components, blocks.shape[2]), np.nan)
        means[::2] = 1e9
        return means, np.ones(means.shape[:2])

    monkeypatch.setattr(baselines, "spherical_em", wild)
    monkeypatch.setattr(baselines, "deviation_of_average", lambda *_: 0.0)
    found = baselines.averaged_blocks(np.zeros((100, 2)), 2, EPSILON, DELTA, rng(), blocks=10)
    assert np.allclose(found, 0.5)  # half of the blocks at the corner, half say nothing


def test_averages_of_blocks_find_two_groups_with_enough_rows():
    x = two_groups(20_000, rng())
    assert found_both(baselines.averaged_blocks(x, 2, EPSILON, DELTA, rng(1)))
    assert not found_both(baselines.averaged_blocks(x[:300], 2, EPSILON, DELTA, rng(1)))


# --- a start from public rows ---------------------------------------------------------------------------------------


def test_releases_of_a_start_from_public_rows_cost_the_budget_and_no_more():
    mu = mu_max(EPSILON, DELTA)
    shares = baselines.server_shares(mu)
    paid = sum(share**2 * (2 if name in ("start", "round") else 1) for name, share in shares.items())
    assert paid == pytest.approx(mu**2, rel=1e-12)
    assert squares_of(CellNoise.of(shares["start"], shares["start"], 11.0), 1.0, 11.0) == pytest.approx(
        2 * shares["start"] ** 2
    )


def test_the_noise_of_second_moments_is_symmetric_and_of_the_planned_deviation():
    d, bound, mu = 200, 3.0, 0.5
    noise = baselines.moments_noise(d, bound, mu, rng())
    assert (noise == noise.T).all()
    above = noise[np.triu_indices(d, 1)]
    # z z' as (z_i z_j, i < j; z_i^2 / sqrt 2) has length |z|^2 / sqrt 2, and its diagonal is read times sqrt 2
    assert above.std() == pytest.approx(bound**2 / math.sqrt(2) / mu, rel=0.02)
    assert np.diag(noise).std() == pytest.approx(bound**2 / mu, rel=0.15)
    z = rng(1).normal(size=d)
    packed = np.concatenate([np.outer(z, z)[np.triu_indices(d, 1)], z**2 / math.sqrt(2)])
    assert np.linalg.norm(packed) == pytest.approx((z @ z) / math.sqrt(2))


def test_public_rows_give_a_start_and_too_light_ones_none():
    x = two_groups(20_000, rng())
    server = np.vstack([two_groups(10, rng(1)), rng(2).uniform(-1, 1, (20, 2))])
    centres = baselines.server_side(x, 2, EPSILON, DELTA, rng(3), server=server, bound=2.0)
    assert centres is not None and found_both(centres)
    assert baselines.server_side(x[:1], 20, 50.0, DELTA, rng(3), server=server, bound=2.0) is None


# --- boxes, and a package that need not be there --------------------------------------------------------------------


def test_a_box_holds_all_rows_and_cuts_others():
    x = rng().normal(size=(100, 3)) * [1.0, 10.0, 0.0] + 5
    box = baselines.true_box(x)
    inside = box.inside(x)
    assert inside[:, :2].min(axis=0) == pytest.approx(-1) and inside[:, :2].max(axis=0) == pytest.approx(1)
    assert (inside[:, 2] == 0).all()  # a column without width
    assert np.abs(box.inside(x * 100)).max() == 1
    wider = Box(np.zeros(2), np.ones(2)).wider(3.0)
    assert (wider.low == -1).all() and (wider.high == 2).all()


def test_without_diffprivlib_its_column_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "diffprivlib.models", None)
    assert not baselines.diffprivlib_is_here()
    with pytest.raises(ConfigError, match="not installed"):
        baselines.diffprivlib_centres(np.zeros((10, 2)), 2, EPSILON, 0)
    results = {"free-mixture-2-2-1": {}, "private-mixture-2-2-1-1": {"DP-Lloyd": [score(0.5)]}}
    rows = table_of(results).rows
    assert rows[0]["diffprivlib"] == private_mixture.NOT_HERE and rows[0]["DP-Lloyd"] == "0.50"


# --- the table ------------------------------------------------------------------------------------------------------


def table_of(results):
    table = experiment("private-mixture")
    return table.table(table.found(Options(), results))


def score(ari=None, nll=None, groups=2):
    return {"ari": ari, "nll": nll, "groups": groups, "components": groups, "seconds": 0.25}


def test_refusals_are_counted_and_not_scored():
    private = {
        "private_mixture": [score(0.9, 0.1), score(0.7, 0.3)],
        "private_gmm": [score(groups=0), score(0.8, 0.5)],
        "S&A, boxes": [score(groups=0), score(groups=0)],
    }
    results = {
        "free-mixture-2-2-4": {"EM": [score(0.95, 0.05)]},
        "private-mixture-2-2-4-1": private,
        "family-0": {"private_mixture": [1, 1, 2], "private_gmm": [0, 0, 3]},
    }
    labels, nats, seconds, groups = table_of(results).rows
    assert labels["private_mixture"] == "0.80" and labels["EM"] == "0.95"
    assert labels["private_gmm"] == "0.80, 1 of 2 refused" and labels["S&A, boxes"] == "2 of 2 refused"
    assert nats["private_mixture"] == "0.20" and nats["private_gmm"] == "0.50" and nats["S&A, boxes"] == ""
    assert seconds["what"] == "CPU seconds" and seconds["private_mixture"] == "0.25"
    assert groups["private_mixture"] == "1 of 3" and groups["private_gmm"] == "1 of 3, 2 refused"
    assert len({tuple(row) for row in (labels, nats, seconds, groups)}) == 1


def test_cells_are_named_once_and_are_json(monkeypatch):
    monkeypatch.delenv("FEDCORE_DATA", raising=False)
    table = experiment("private-mixture")
    for options in (Options(), Options(quick=True)):
        cells = table.cells(options)
        assert len({cell.key for cell in cells}) == len(cells)
        for cell in cells:
            assert json.loads(json.dumps(cell.arguments)) == cell.arguments
            assert cell.arguments["part"] in ("private", "free", "family")
    assert not any(cell.key.startswith("private-set") for cell in table.cells(Options()))
    assert sum(cell.key.startswith("family") for cell in table.cells(Options())) == len(FAMILIES)
    with pytest.raises(ConfigError):
        table.cells(Options(population="somewhere"))


def test_sets_that_are_kept_are_not_in_the_table():
    assert "shuttle" not in private_mixture.DEVELOPMENT


def test_published_rows_are_split_and_scored(tmp_path, monkeypatch):
    (tmp_path / "tabular").mkdir()
    x = np.concatenate([rng().normal(0, 1, (500, 2)), rng(1).normal(9, 1, (500, 2))])
    np.savez(tmp_path / "tabular" / "satellite.npz", x=x, y=np.repeat(["a", "b"], 500))
    np.savez(tmp_path / "tabular" / "gvhd_flow.npz", x=x)
    monkeypatch.setenv("FEDCORE_DATA", str(tmp_path))
    split = split_of("satellite")
    assert split.train.shape == (800, 2) and split.test.shape == (200, 2)
    assert (split.classes == (split.test[:, 0] > 4.5)).all() and split_of("gvhd_flow").classes is None
    case = private_mixture_runs.case_of(["set", "satellite"], 1)
    answer = private_mixture_runs.em(case.task, 2)
    found = private_mixture_runs.scored(lambda: answer, case.test, case.classes, case.offset)
    assert found["ari"] == 1.0 and found["groups"] == 2
    assert found["nll"] == pytest.approx(-answer.density(case.test).mean() - 2 * math.log(128))
    nothing = private_mixture_runs.scored(lambda: None, case.test, case.classes, 0.0)
    assert (nothing["ari"], nothing["nll"], nothing["groups"]) == (None, None, 0)


def test_the_figure_is_drawn_with_and_without_lines():
    assert labels_by_separation({}, 1.0).startswith(PNG)
    lines = {"private_mixture": ([1, 2], [0.5, 0.9]), "EM": ([1, 2], [0.6, 0.95])}
    assert labels_by_separation({"2 columns, 2 components": lines, "others": lines}, 1.0).startswith(PNG)


@pytest.mark.slow
def test_the_quick_table_is_made_and_goes_on_where_it_was_stopped(tmp_path):
    table, options = experiment("private-mixture"), Options(quick=True, seeds=1)
    place = Place(tmp_path / "experiment", InProcessBackend(), 2**24)
    first = reproduce(table, options, place)
    assert reproduce(replace(table, measure=lambda trial: {}), options, place) == first
    assert (place.folder / "figure.png").read_bytes().startswith(PNG)
    labels = next(row for row in first.rows if row["data"] == "mixture-2-2-4")
    assert float(labels["private_mixture"]) > 0.95 and float(labels["truth"]) > 0.97
    claimed = next(row for row in first.rows if row["what"] == "groups claimed")
    assert claimed["private_mixture"] == "0 of 1"


@pytest.mark.slow
def test_public_rows_are_scored_beside_private_ones(monkeypatch):
    monkeypatch.setattr(private_mixture_runs, "SERVER_ROWS", 20_000)
    monkeypatch.setattr(private_mixture_runs, "SERVER_COLUMNS", 10)
    chosen = {name: private_mixture_runs.BUDGETED[name] for name in ("FedDP-KMeans", "server rows alone")}
    monkeypatch.setattr(private_mixture_runs, "BUDGETED", chosen)
    found = private_mixture_runs.privately(["server"], 4.0, (1,))
    assert found.keys() == chosen.keys() and all(one[0]["groups"] == 10 for one in found.values())
