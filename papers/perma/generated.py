"""Generated rows of clients, on which dictionaries are measured: what they are made of is known.

A family gives (training rows, fresh rows) of each client, (n_i, d) float64 each, from a seed alone.

    planted     two of 20 shared and two of 10 own random atoms with Gaussian weights, noise .02; 12 x 400 rows of 64
    patches     8 x 8 patches of pictures of discs and strips that hide one another, a picture for each client
    gabor       sums of 5 of 100 Gabor functions on 8 x 8 pixels, each client with its own frequencies of use
    genes       logarithms of counts of 100 genes: each cell has two of 15 programs, some of them the client's own
    sounds      frames of 64 samples of a wave: a note of the client with harmonics of any phase, and shared clicks
    spectra     absolute Fourier coefficients of such frames of 128 samples, without clicks
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedcore.methods.dictionary_learning.operators import normalise, random_atoms
from fedcore.randomness import stream

Rows = tuple[list[np.ndarray], list[np.ndarray]]
SIDE = 8  # pixels of a patch
PICTURE, SHAPES = 64, 60  # pixels of a picture; discs and strips in it
NOISE = 0.06  # of a wave, whose harmonics have sizes up to 1


def sums(generator: np.random.Generator, atoms: np.ndarray, count: int, k: int) -> np.ndarray:
    """(count, d) sums of k of the atoms (r, d) with Gaussian weights."""
    at = generator.permuted(np.tile(np.arange(len(atoms)), (count, 1)), axis=1)[:, :k]
    return np.asarray(np.einsum("nk,nkd->nd", generator.standard_normal(at.shape), atoms[at]))


def family(
    name: str, seed: int, clients: int, rows: tuple[int, int], of: Callable[[np.random.Generator], Callable]
) -> Rows:
    """rows: to train on and fresh ones. of: what all share -> what a client is -> its rows."""
    shared = of(stream(seed, f"generated/{name}"))
    found: Rows = ([], [])
    for client in range(clients):
        generator = stream(seed, f"generated/{name}", client=client)
        own = shared(generator)
        for part, count in zip(found, rows, strict=True):
            part.append(own(generator, count))
    return found


def planted(seed: int, clients: int = 12, rows: tuple[int, int] = (400, 200)) -> Rows:
    def of(generator):
        common = random_atoms(generator, 20, 64)

        def client(generator):
            own = random_atoms(generator, 10, 64)
            return lambda draw, n: (
                sums(draw, common, n, 2) + sums(draw, own, n, 2) + 0.02 * draw.standard_normal((n, 64))
            )

        return client

    return family("planted", seed, clients, rows, of)


def picture(generator: np.random.Generator) -> np.ndarray:
    """(PICTURE, PICTURE) grey of [0, 1]: discs and strips, the later ones in front."""
    down, across = np.mgrid[:PICTURE, :PICTURE]
    found = np.full((PICTURE, PICTURE), generator.random())
    for _ in range(SHAPES):
        y, x = generator.random(2) * PICTURE
        size = 3.0 / (generator.random() + 0.1)
        if generator.random() < 0.5:
            inside = (down - y) ** 2 + (across - x) ** 2 < size**2
        else:
            angle = np.pi * generator.random()
            inside = np.abs((down - y) * np.cos(angle) + (across - x) * np.sin(angle)) < size / 3
        found[inside] = generator.random()
    return found


def patches(seed: int, clients: int = 12, rows: tuple[int, int] = (400, 200)) -> Rows:
    """Less middle grey."""

    def client(generator):
        view = np.lib.stride_tricks.sliding_window_view(picture(generator), (SIDE, SIDE))
        return lambda draw, n: view[tuple(draw.integers(PICTURE - SIDE + 1, size=(2, n)))].reshape(n, SIDE**2) - 0.5

    return family("patches", seed, clients, rows, lambda generator: client)


def gabor(seed: int, clients: int = 12, rows: tuple[int, int] = (400, 200)) -> Rows:
    def of(generator):
        y, x = (np.arange(SIDE) - generator.uniform(1, SIDE - 2, (100, 1, 1)) for _ in range(2))
        y = y.swapaxes(1, 2)
        angle, wave, width, phase = (
            generator.uniform(*ends, (100, 1, 1)) for ends in ((0, np.pi), (3, 8), (1.5, 3), (0, 2 * np.pi))
        )
        along = x * np.cos(angle) + y * np.sin(angle)
        atoms = np.exp(-(x**2 + y**2) / (2 * width**2)) * np.cos(2 * np.pi * along / wave + phase)
        atoms = normalise(atoms.reshape(100, SIDE**2))[0]

        def client(generator):
            use = np.log(generator.dirichlet(np.full(100, 0.5)) + 1e-300)

            def rows(draw, n):
                at = np.argsort(use - np.log(draw.exponential(size=(n, 100))), axis=1)[:, -5:]
                return np.einsum("nk,nkd->nd", draw.standard_normal(at.shape), atoms[at])

            return rows

        return client

    return family("gabor", seed, clients, rows, of)


def genes(seed: int, clients: int = 12, rows: tuple[int, int] = (300, 200)) -> Rows:
    def programs(generator, count):
        return generator.gamma(0.3, size=(count, 100)) * (generator.random((count, 100)) < 0.3)

    def of(generator):
        common, base = programs(generator, 10), generator.gamma(0.5, size=100)

        def client(generator):
            known = np.concatenate([common, programs(generator, 5)])

            def rows(draw, n):
                at = draw.permuted(np.tile(np.arange(15), (n, 1)), axis=1)[:, :2]
                rate = base + np.einsum("nk,nkd->nd", 4 * draw.random((n, 2)), known[at])
                return np.log1p(draw.poisson(rate * draw.lognormal(1, 0.3, (n, 1)))).astype(float)

            return rows

        return client

    return family("genes", seed, clients, rows, of)


def notes(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Of a client: (4,) pitches in cycles a sample, and (4, 4) sizes of their harmonics."""
    return generator.uniform(0.02, 0.1, 4), generator.uniform(0.2, 1, (4, 4)) / np.arange(1, 5)


def wave(draw: np.random.Generator, pitches: np.ndarray, sizes: np.ndarray, n: int, samples: int) -> np.ndarray:
    """(n, samples), each of one note, as loud as it happens, its harmonics of any phase; with noise."""
    at = draw.integers(len(pitches), size=n)
    turns = np.arange(1, 5)[:, None] * pitches[at][:, None, None] * np.arange(samples)
    waves = np.cos(2 * np.pi * (turns + draw.random((n, 4, 1))))
    waves = draw.lognormal(0, 0.3, (n, 1)) * np.einsum("nh,nhs->ns", sizes[at], waves)
    return np.asarray(waves + NOISE * draw.standard_normal(waves.shape))


def sounds(seed: int, clients: int = 12, rows: tuple[int, int] = (400, 200)) -> Rows:
    def of(generator):
        fall = np.exp(-np.arange(64) / generator.uniform(3, 12, (8, 1)))
        clicks = normalise(fall * generator.standard_normal((8, 64)))[0]

        def client(generator):
            own = notes(generator)

            def rows(draw, n):
                click = (draw.random((n, 1)) < 0.5) * sums(draw, clicks, n, 1)
                return wave(draw, *own, n, 64) + 2 * click

            return rows

        return client

    return family("sounds", seed, clients, rows, of)


def spectra(seed: int, clients: int = 12, rows: tuple[int, int] = (400, 200)) -> Rows:
    def client(generator):
        own = notes(generator)
        return lambda draw, n: np.abs(np.fft.rfft(wave(draw, *own, n, 128) * np.hanning(128)))[:, :64] / 8

    return family("spectra", seed, clients, rows, lambda generator: client)
