"""Where experiments run, and their data: files of published sets, components of images, and populations."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedcore.errors import ConfigError
from fedcore.population.store import Population
from fedcore.population.writer import PopulationWriter
from fedcore.rounds.engine import Backend

TILE = 5000  # images that are standardised at a time


@dataclass(frozen=True, slots=True)
class Place:
    """Where an experiment runs.

    folder: its own; backend: computes the client statistics; cache_bytes: as in `fedcore.rounds.engine`
    """

    folder: Path
    backend: Backend
    cache_bytes: int


def data_file(*parts: str) -> Path | None:
    """A file below the folder of data sets that FEDCORE_DATA names; None if there is no such file."""
    folder = os.environ.get("FEDCORE_DATA")
    file = Path(folder, *parts) if folder else None
    return file if file is not None and file.exists() else None


def needed_data(*parts: str) -> Path:
    """`data_file`, or a ConfigError."""
    file = data_file(*parts)
    if file is None:
        raise ConfigError(
            f"{'/'.join(parts)} is not there.", "Set FEDCORE_DATA to a folder of data sets that holds it."
        )
    return file


def rows_population(
    place: Place,
    name: str,
    clients: Callable[[], Sequence[np.ndarray]],
    reason: str = "a published research data set",
    image: tuple[int, int] | None = None,
) -> Population:
    """The population of this name in the experiment's folder, made from rows (m_i, d) of each client if need be.

    float64, so that the numbers are those of a computation in memory. reason: why it may be used for evaluation. image:
    (height, width) of rows that are pictures.
    """
    path = place.folder / "populations" / name
    if not path.exists():
        rows = clients()
        ptr = np.concatenate([[0], np.cumsum([len(own) for own in rows])])
        with PopulationWriter(
            path, "rows", rows[0].shape[1], dtype="float64", public_for_evaluation=reason, image=image
        ) as writer:
            writer.write(range(len(rows)), (ptr, np.concatenate(rows)))
            writer.commit()
    return Population.open(path)


def whitened_components(images: np.ndarray, directions: int) -> tuple[np.ndarray, float]:
    """((N, directions) scores of mean 0 and covariance I, their share of the variance).

    images: (N, pixels). Constant pixels are left out, the others standardised, a tile of images at a time.
    """
    tiles = [slice(low, low + TILE) for low in range(0, len(images), TILE)]
    mean = sum(images[tile].sum(axis=0, dtype=np.float64) for tile in tiles) / len(images)
    variance = sum(np.square(images[tile] - mean).sum(axis=0) for tile in tiles) / len(images)
    kept = variance > 0
    mean, scale = mean[kept], np.sqrt(variance[kept])
    covariance = np.zeros((len(mean), len(mean)))
    for tile in tiles:
        standard = (images[tile][:, kept] - mean) / scale
        covariance += standard.T @ standard / len(images)
    values, vectors = np.linalg.eigh(covariance)
    projection = vectors[:, ::-1][:, :directions] / np.sqrt(values[::-1][:directions])
    scores = np.concatenate([((images[tile][:, kept] - mean) / scale) @ projection for tile in tiles])
    return scores, float(values[::-1][:directions].sum() / values.sum())


def whitened(train: np.ndarray, test: np.ndarray, directions: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """Scores of images on the first principal components of `train`, with the covariance I there."""
    train, test = (images.reshape(len(images), -1).astype(np.float64) for images in (train, test))
    mean = train.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(train.T, bias=True))
    projection = vectors[:, ::-1][:, :directions] / np.sqrt(values[::-1][:directions])
    return (train - mean) @ projection, (test - mean) @ projection
