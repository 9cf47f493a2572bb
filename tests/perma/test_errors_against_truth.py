"""Scores of images and masks: by hand, by a slow implementation, by laws."""

import numpy as np
import pytest
from fedcore.papers.perma.truth import (
    best_mask_scores,
    energy_inside,
    image_quality,
    mask_scores,
    psnr,
    reconstructed,
    ssim,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcore.methods.dictionary_learning.operators import random_atoms


def slow_ssim(a, b, window):
    """Window by window, with sample covariances."""
    found = []
    for i in range(a.shape[0] - window + 1):
        for j in range(a.shape[1] - window + 1):
            x, y = a[i : i + window, j : j + window].ravel(), b[i : i + window, j : j + window].ravel()
            covariance = np.cov(x, y)
            top = (2 * x.mean() * y.mean() + 1e-4) * (2 * covariance[0, 1] + 9e-4)
            found.append(top / ((x.mean() ** 2 + y.mean() ** 2 + 1e-4) * (covariance[0, 0] + covariance[1, 1] + 9e-4)))
    return np.mean(found)


@pytest.mark.parametrize("shape", [(7, 7), (12, 9), (28, 28)])
def test_ssim_is_the_mean_over_windows(shape):
    generator = np.random.default_rng(1)
    a = generator.random((2, *shape))
    b = a + 0.2 * generator.normal(size=a.shape)
    np.testing.assert_allclose(ssim(a, b), [slow_ssim(*pair, 7) for pair in zip(a, b, strict=True)], rtol=1e-9)
    np.testing.assert_allclose(ssim(a, a), 1.0)
    np.testing.assert_allclose(ssim(a, b), ssim(b, a))


def test_ssim_is_that_of_scikit_image():
    similarity = pytest.importorskip("skimage.metrics").structural_similarity
    generator = np.random.default_rng(2)
    a, b = generator.random((2, 28, 28))
    assert ssim(a[None], b[None])[0] == pytest.approx(similarity(a, b, data_range=1.0, win_size=7), rel=1e-12)


def test_small_images_are_refused():
    with pytest.raises(ValueError, match="smaller than a window"):
        ssim(np.zeros((1, 6, 20)), np.zeros((1, 6, 20)))


def test_quality_by_hand():
    images, estimates = np.full((2, 49), 0.5), np.full((2, 49), 0.5)
    estimates[0] += 0.1  # MSE .01: 20 dB
    estimates[1] += 1.0  # MSE 1: 0 dB; clipped to 1: .25
    found = image_quality(images, estimates, (7, 7))
    assert found.mse == pytest.approx(0.505) and found.psnr == pytest.approx(10.0)
    assert found.clipped == pytest.approx((0.01 + 0.25) / 2)
    assert psnr(np.array([0.0]))[0] == np.inf


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=20))
def test_mean_psnr_is_never_below_that_of_the_mean_error(errors):
    errors = np.array(errors)
    assert psnr(errors).mean() >= psnr(errors.mean()) - 1e-9


@given(st.integers(0, 1000), st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_the_coders_agree_on_orthonormal_atoms(seed, k):
    generator = np.random.default_rng(seed)
    atoms, samples = random_atoms(generator, 6, 9), generator.normal(size=(12, 9))
    np.testing.assert_allclose(reconstructed(samples, atoms, k, "top_k"), reconstructed(samples, atoms, k), atol=1e-10)


def test_masks_by_hand():
    truth = np.array([1, 1, 1, 0, 0, 0], bool)
    mask = np.array([1, 1, 0, 1, 0, 0], bool)
    assert mask_scores(mask, truth) == (pytest.approx(2 / 3), 0.5)
    assert mask_scores(truth, truth) == (1.0, 1.0)
    assert mask_scores(~truth & False, truth & False) == (1.0, 1.0)
    assert mask_scores(~truth, truth) == (0.0, 0.0)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(0, 2**20))
def test_f1_follows_from_iou(values, bits):
    truth = np.array([(bits >> i) & 1 for i in range(len(values))], bool)
    scored, level = best_mask_scores(np.array(values), truth)
    assert scored == mask_scores(np.array(values) > level, truth)
    assert scored.f1 == pytest.approx(2 * scored.iou / (1 + scored.iou))


def test_the_best_threshold_separates_what_can_be_separated():
    values = np.array([0.01, 0.02, 0.03, 0.4, 0.5])
    scored, level = best_mask_scores(values, values > 0.3)
    assert scored.f1 == 1.0 and 0.03 <= level < 0.4


def test_energy_inside():
    foreground = np.zeros((1, 2, 2, 3))
    foreground[0, 0, 0] = [2.0, 0, 0]
    foreground[0, 1, 1] = [0, 1.0, 1.0]
    region = np.array([[True, False], [False, False]])
    assert energy_inside(foreground, region) == pytest.approx(4 / 6)
    assert energy_inside(0 * foreground, region) == 0.0
