"""One client contributes once, whatever files and versions its rows came in by, and however blocks and leaves are cut.

Through ingestion and the population store: the sums of a population with a client, less those without it, are that
client's own contribution, within the planned sensitivity, in exact integers.
"""

import csv

import numpy as np
import pytest

from fedcore.population.blocks import CountsBlock, leaves
from fedcore.population.ingest.ingest import ingest
from fedcore.rounds.statistics import merge_all
from tests.audit.releases import CASES, rounds_of, squared_distance, sums, whole
from tests.histograms.example_clients import block_of, random_counts

FEATURES = 6
HEAVY = 2**40
CANARY = np.array([0, 3, 0, HEAVY, 0, 7])


def rows_of(name: str, counts: np.ndarray, generator, parts: int) -> list[list[tuple]]:
    """The tokens of a client as (client, token, count), cut into parts; a count may be spread over several of them."""
    files = [[] for _ in range(parts)]
    for token in np.flatnonzero(counts):
        left = int(counts[token])
        while left:
            share = int(generator.integers(1, left + 1)) if left > 1 else 1
            files[generator.integers(0, parts)].append((name, int(token), share))
            left -= share
    return files


def write(path, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([("client", "token", "count"), *rows])
    return path


def population_of(folder, clients: dict[str, np.ndarray], generator, *, files=1, appended=0, leaf=4, block=8):
    """The clients' rows in some files, mixed up, and more of their rows in so many appended versions."""
    folder.mkdir(parents=True)
    parts = [[] for _ in range(files + appended)]
    for name, counts in clients.items():
        for part, rows in zip(parts, rows_of(name, counts, generator, files + appended), strict=True):
            part.extend(rows)
    paths = [
        write(folder / f"{number}.csv", [rows[i] for i in generator.permutation(len(rows))])
        for number, rows in enumerate(parts)
    ]
    options = {"format": "csv", "kind": "counts"}
    made = ingest(
        paths[:files],
        folder / "population",
        features=FEATURES,
        clients_per_leaf=leaf,
        clients_per_block=block,
        **options,
    )
    for path in paths[files:]:
        made = ingest(path, folder / "population", append=True, **options)
    return made


def exact_sums(case, message, clients: list[CountsBlock]) -> dict[str, np.ndarray]:
    """clients: leaves, as `leaves_of` a population."""
    answers = [case.method.client_update(message, leaf, None)[0] for leaf in clients]
    return case.method.release_values(message, merge_all(answers))


def leaves_of(population) -> list[CountsBlock]:
    return [
        leaf
        for index in range(len(population.blocks))
        for leaf in leaves(population.read(index), population.clients_per_leaf)
    ]


def people(generator) -> dict[str, np.ndarray]:
    counts = random_counts(generator, 13, FEATURES)
    counts[counts.sum(axis=1) == 0, 0] = 1  # a client without rows is in no file
    return {f"client-{i}": np.minimum(row, 10**6) for i, row in enumerate(counts)}


def every_round(clients):
    for case in CASES.values():
        for round in rounds_of(case, block_of(np.stack(list(clients.values())))):
            yield case, round


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "appended", "leaf", "block"), [(1, 0, 4, 8), (3, 0, 1, 1), (2, 2, 3, 3), (1, 4, 5, 20)]
)
def test_a_client_spread_over_files_and_appends_contributes_once(tmp_path, files, appended, leaf, block):
    generator = np.random.default_rng(files + 10 * appended)
    others = people(generator)
    without = population_of(tmp_path / "without", others, generator)
    joined = population_of(
        tmp_path / "with",
        {**others, "canary": CANARY},
        generator,
        files=files,
        appended=appended,
        leaf=leaf,
        block=block,
    )
    assert joined.n_clients == without.n_clients + 1
    worlds = leaves_of(without), leaves_of(joined)
    for case, round in every_round(others):
        before, after = (exact_sums(case, round.message, world) for world in worlds)
        alone = sums(case, round.message, block_of(CANARY[None]))
        for planned in round.planned:
            assert whole(after[planned.name] - before[planned.name]) == whole(alone[planned.name])
            assert 0 < squared_distance(after[planned.name], before[planned.name]) <= planned.sensitivity**2


def test_rows_counted_as_clients_would_be_noticed(tmp_path):
    """The same rows under a name for each file: the bound is broken, so the tests above can fail."""
    generator, case = np.random.default_rng(0), CASES["clusters"]
    others = people(generator)
    without = population_of(tmp_path / "without", others, generator)
    torn = population_of(tmp_path / "with", others | {f"canary-{i}": CANARY for i in range(3)}, generator)
    worlds = leaves_of(without), leaves_of(torn)
    broken = [
        squared_distance(*(exact_sums(case, round.message, world)[planned.name] for world in worlds))
        > planned.sensitivity**2
        for round in rounds_of(case, block_of(np.stack(list(others.values()))))
        for planned in round.planned
    ]
    assert all(broken)


@pytest.mark.slow
def test_blocks_leaves_and_files_change_no_bit_of_a_sum(tmp_path):
    generator = np.random.default_rng(5)
    everybody = people(generator) | {"canary": CANARY}
    layouts = [(1, 0, 100, 100), (2, 1, 1, 1), (4, 0, 2, 4), (1, 3, 7, 7)]  # 1, 14, 4 and 2 blocks
    made = [
        population_of(tmp_path / str(i), everybody, generator, files=files, appended=appended, leaf=leaf, block=block)
        for i, (files, appended, leaf, block) in enumerate(layouts)
    ]
    assert len({len(population.blocks) for population in made}) >= 3
    worlds = [leaves_of(population) for population in made]
    for case, round in every_round(everybody):
        found = [exact_sums(case, round.message, world) for world in worlds]
        for planned in round.planned:
            assert all(whole(other[planned.name]) == whole(found[0][planned.name]) for other in found[1:])
