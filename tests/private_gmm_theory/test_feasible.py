"""Published constants in numbers, against the specification's table and each other."""

import pytest

from fedcore.reproduce.private_gmm_theory import feasible as fea


def test_published_constants_at_the_specifications_example():
    found = fea.literal(5, 1.0, 1e-6, 100_000)
    assert found.dimension == pytest.approx(8252, abs=1)
    assert found.flatness == pytest.approx(1030, abs=2)
    assert 2 * found.separation == pytest.approx(2400, rel=0.01)
    assert found.unit.epsilon == pytest.approx(0.012, abs=5e-4)
    assert found.unit_basic.epsilon == pytest.approx(0.045, abs=5e-4)
    assert found.gamma == pytest.approx(10_100, rel=0.04) and found.gamma_basic == pytest.approx(2760, rel=0.02)
    assert found.rows_basic == pytest.approx(20 * found.gamma_basic)  # n w_min / 2 > 2 Gamma


def test_sample_sizes_have_the_powers_of_the_theorems():
    general = [fea.general_terms(d, 5, 1.0, 1e-6, 0.1, 0.2) for d in (50, 100)]
    assert general[1]["learning"] == 4 * general[0]["learning"]
    assert general[1]["pca"] / general[0]["pca"] == pytest.approx(2**1.5)
    assert general[0]["learning"] == pytest.approx(50**2 / (0.01 * 0.2))
    easy = [fea.easy_terms(50, 5, epsilon, 1e-6, 0.1, 10_000, 0.05, dimension=5) for epsilon in (1.0, 2.0)]
    assert easy[0]["learning"] == easy[1]["learning"] == pytest.approx(5 * 50 / 0.01)
    for name in ("pca", "mean", "variance"):
        assert easy[0][name] == pytest.approx(2 * easy[1][name])
    assert fea.aggregation_blocks(400, 4, 1.0, 1e-6) < 2 * fea.aggregation_blocks(100, 4, 1.0, 1e-6)


def test_forecast_needs_more_rows_for_harder_cells_and_smaller_budgets():
    cells = [(10, 2, 8), (20, 3, 10), (50, 5, 12), (100, 5, 12)]
    rows = [[fea.least_rows(*cell, epsilon, 1e-6) for cell in cells] for epsilon in (0.5, 1.0, 4.0)]
    assert all(a > b for low, high in zip(rows, rows[1:], strict=False) for a, b in zip(low, high, strict=True))
    assert all(low == sorted(low) for low in rows)
    edge = rows[1][2]
    assert fea.feasible(edge, 50, 5, 12, 1.0, 1e-6).feasible
    assert not fea.feasible(int(0.98 * edge), 50, 5, 12, 1.0, 1e-6).feasible
    assert not fea.feasible(edge, 50, 5, 12, 1.0, 1e-6, scales=3).feasible
