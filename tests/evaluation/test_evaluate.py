"""Scoring a run: the table by hand, the same for every cut into blocks, and public data only in what is shown."""

import json
import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

from fedcore.errors import ConfigError, PopulationError, PrivacyError, WrongKind
from fedcore.evaluation.evaluate import check_public, evaluate_run, write_not_private
from fedcore.methods.histograms.scores import validation_clients
from fedcore.population.writer import PopulationWriter
from tests import sessions
from tests.command import works
from tests.conftest import small_counts, write_counts

SETTINGS = {"algorithm": "fedavg", "prior_tokens": 6.0}
BY_HAND = [[3, 1], [1, 1], [0, 4], [2, 2]]
HELDOUT = [[1, 1], [1, 3], [0, 2], [0, 0]]


def train(population, tmp_path, **settings):
    return sessions.train(population, tmp_path, settings=settings or SETTINGS)


def kl(t, p, e=1e-10) -> float:
    p = [(value + e) / (1 + len(p) * e) for value in p]
    return sum(a * (math.log(a) - math.log(b)) for a, b in zip(t, p, strict=True) if a)


def rows_of(result) -> dict:
    return {(row["method"], row["chosen_by"], row["smoothing"]): row for row in result["rows"]}


def test_fedavg_by_hand(tmp_path):
    """Four clients; the last has nothing held out, and which of the others only choose a is a matter of their index."""
    validation = validation_clients(0, 4)
    evaluated = [i for i in range(3) if not validation[i]]
    assert evaluated and not validation[2]
    population = write_counts(tmp_path / "p", sp.csr_matrix(BY_HAND), heldout=sp.csr_matrix(HELDOUT), leaf=2, block=2)
    result = evaluate_run(train(population, tmp_path).path, population)

    own = [np.array(row) / sum(row) for row in BY_HAND]
    test = [np.array(row) / sum(row) for row in HELDOUT[:3]]
    mean = np.mean(own, axis=0)
    mixed = [6 / (6 + sum(BY_HAND[i])) * mean + sum(BY_HAND[i]) / (6 + sum(BY_HAND[i])) * own[i] for i in range(4)]

    rows = rows_of(result)
    for key, estimate in {
        ("Local", "", 1e-10): own,
        ("FedAvg", "", 1e-10): [mean] * 4,
        ("FedAvg + FT", "", 1e-10): mixed,
    }.items():
        losses = [kl(test[i], estimate[i]) for i in evaluated]
        assert math.isclose(rows[key]["kl"], np.mean(losses), rel_tol=1e-9, abs_tol=1e-9), key
        if len(losses) > 1:
            error = np.std(losses, ddof=1) / math.sqrt(len(losses))
            assert math.isclose(rows[key]["se"], error, rel_tol=1e-6, abs_tol=1e-9), key
    local = [kl(test[i], own[i], 1e-8) for i in evaluated]
    assert math.isclose(rows["Local", "", 1e-8]["kl"], np.mean(local), rel_tol=1e-9, abs_tol=1e-9)
    assert rows["FedAvg + FT", "", 1e-10]["prior_tokens"] == 6.0
    assert result["clients"] == len(evaluated) and result["skipped"] == 1
    assert result["validation_clients"] == 3 - len(evaluated)
    unseen = [float(test[i][np.array(BY_HAND[i]) == 0].sum()) for i in evaluated]
    assert math.isclose(result["unseen_mass"], np.mean(unseen), abs_tol=1e-12)
    assert (result["run"], result["population"], result["version"]) == ("r", "p", 1)
    assert f"{len(evaluated)} clients of p; run r" in result["title"]


@pytest.mark.slow
@pytest.mark.parametrize("block", [4, 12, 64])
def test_blocks_change_no_bit(tmp_path, block):
    results = []
    for name, size in (("one", 8), ("other", block)):
        population = write_counts(tmp_path / name / "p", small_counts(), heldout=small_counts(seed=1), block=size)
        run = train(population, tmp_path / name, algorithm="algorithm2", clusters=3, rounds=3)
        results.append(evaluate_run(run.path, population))
    assert results[0] == results[1]
    assert {row["method"] for row in results[0]["rows"]} == {
        "Local",
        "FedAvg",
        "FedAvg + FT",
        "Algorithm 2",
        "Algorithm 2 + FT",
        "Local mixture",
        "Local mixture + FT",
    }


def test_a_chosen_prior_stands_beside_the_configured_one(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(), heldout=small_counts(seed=1))
    rows = rows_of(evaluate_run(train(population, tmp_path).path, population))
    assert rows["FedAvg + FT", "", 1e-10]["prior_tokens"] == 6.0
    assert rows["FedAvg + FT", "validation clients", 1e-10]["prior_tokens"] >= 6.0


def test_scores_with_other_free_settings_are_told_with_them_and_not_kept(tmp_path):
    population = write_counts(
        tmp_path / "p", small_counts(), heldout=small_counts(seed=1), public_for_evaluation="made up"
    )
    run = train(population, tmp_path)
    other = evaluate_run(run.path, population, keep=True, settings={"prior_tokens": 50.0})
    assert not (run.path / "evaluation.json").exists()
    kept = evaluate_run(run.path, population, keep=True)
    assert "settings" not in kept and other["settings"] == {"prior_tokens": 50.0}
    assert other["title"] == f"{kept['title']} with prior_tokens = 50.0"
    mixed = rows_of(other)["FedAvg + FT", "", 1e-10]
    assert mixed["prior_tokens"] == 50.0 and mixed["kl"] != rows_of(kept)["FedAvg + FT", "", 1e-10]["kl"]
    with pytest.raises(ConfigError, match="'algorithm' of method 'paper_histograms' acts on training"):
        evaluate_run(run.path, population, settings={"algorithm": "ifca"})


@pytest.mark.parametrize("least", [1, 4])
def test_short_clients_are_left_out_as_if_they_had_nothing_held_out(tmp_path, least):
    matrix, heldout = small_counts(), small_counts(seed=1)
    lengths = np.minimum(np.asarray(matrix.sum(axis=1)).ravel(), np.asarray(heldout.sum(axis=1)).ravel())
    assert 5 < (lengths >= 4).sum() < (lengths >= 1).sum() < 50
    population = write_counts(tmp_path / "p", matrix, heldout=heldout)
    only = sp.csr_matrix(sp.diags_array((lengths >= least).astype(np.int64), dtype=np.int64) @ heldout)
    run = train(population, tmp_path)
    expected = evaluate_run(run.path, write_counts(tmp_path / "q" / "p", matrix, heldout=only))
    found = evaluate_run(run.path, population, least=least)
    told = f" with at least {least} tokens in both parts; run r"
    assert found.pop("title") == expected.pop("title").replace("; run r", told)
    assert found.pop("min_tokens") == least
    assert found == expected


@pytest.mark.slow
def test_two_workers_give_the_same_bytes(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(), heldout=small_counts(seed=1), block=8)
    run, found = train(population, tmp_path, algorithm="algorithm2", clusters=3, rounds=3), []
    for workers in ((), ("--workers", "2")):
        file = tmp_path / f"scores{len(found)}.json"
        works("evaluate", run.path, population.path, "--not-private", file, *workers, "--json")
        found.append(file.read_bytes())
    assert found[0] == found[1]


def test_only_public_scores_are_kept(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(), heldout=small_counts(seed=1))
    run = train(population, tmp_path)
    for refused in (lambda: check_public(population), lambda: evaluate_run(run.path, population, keep=True)):
        with pytest.raises(PrivacyError, match="not declared public") as caught:
            refused()
        assert "--not-private" in caught.value.remedy
    assert not (run.path / "evaluation.json").exists()
    assert evaluate_run(run.path, population)["public"] == ""  # as a value, for the caller's own use


def test_kept_scores_say_why_they_may_be_shown(tmp_path):
    population = write_counts(
        tmp_path / "p", small_counts(), heldout=small_counts(seed=1), public_for_evaluation="made up"
    )
    run = train(population, tmp_path)
    result = evaluate_run(run.path, population, keep=True)
    assert json.loads((run.path / "evaluation.json").read_text()) == result and result["public"] == "made up"
    assert "FedAvg + FT" in (run.path / "report.html").read_text()


def test_a_file_of_scores_that_are_not_private_says_so_and_is_its_writers_alone(tmp_path):
    population = write_counts(tmp_path / "p", small_counts(), heldout=small_counts(seed=1))
    result = evaluate_run(train(population, tmp_path).path, population)
    tmp_path.chmod(0o755)
    write_not_private(result, tmp_path / "scores.json")
    kept = json.loads((tmp_path / "scores.json").read_text())
    assert kept["privacy"] == "none" and "Do not publish" in kept["warning"] and kept["rows"] == result["rows"]
    assert (tmp_path / "scores.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(PopulationError, match="cannot write"):
        write_not_private(result, tmp_path / "nowhere" / "scores.json")


def test_held_out_rows_that_are_absurd_end_no_command_and_are_never_shown_as_scores(tmp_path):
    """Whether a client has any must not show where the scores may not."""
    generator = np.random.default_rng(3)
    ptr, rows = np.arange(0, 121, 3), generator.normal(size=(120, 2))
    absurd = rows.copy()
    absurd[7], absurd[50] = (1e308, -1e308), (-1e308, 1e200)
    with PopulationWriter(tmp_path / "p", "rows", 2, dtype="float64", public_for_evaluation="made up") as writer:
        writer.write([f"c{client}" for client in range(40)], (ptr, rows), (ptr, absurd))
        population = writer.commit()
    run = sessions.train(population, tmp_path, "federated-em", {"algorithm": "em", "components": 2, "max_passes": 4})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_not_private(evaluate_run(run.path, population), tmp_path / "scores.json")
        with pytest.raises(PopulationError, match="are not finite"):
            evaluate_run(run.path, population, keep=True)
    assert {row["nll"] for row in json.loads((tmp_path / "scores.json").read_text())["rows"]} == {None}
    assert not (run.path / "evaluation.json").exists()


@pytest.mark.slow
def test_what_cannot_be_scored(tmp_path):
    population = write_counts(tmp_path / "p", small_counts())
    run = train(population, tmp_path)
    with pytest.raises(PopulationError, match="no held-out part"):
        evaluate_run(run.path, population)
    wide = small_counts(features=8)
    with pytest.raises(WrongKind, match="7 features"):
        evaluate_run(run.path, write_counts(tmp_path / "q", wide, heldout=wide))
    empty = sp.csr_matrix(small_counts().shape, dtype=np.int64)
    with pytest.raises(PopulationError, match="held-out"):
        evaluate_run(run.path, write_counts(tmp_path / "e", small_counts(), heldout=empty))
