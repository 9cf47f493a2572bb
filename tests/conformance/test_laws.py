"""Every method obeys every law, with settings of each of its algorithms."""

import re
from dataclasses import replace

import numpy as np
import pytest
from fedcore.tasks.dask_backend import DaskBackend, dask_client

from fedcore.errors import SensitivityError, StudyError
from fedcore.methods.names import METHODS
from fedcore.methods.registry import make_method
from fedcore.rounds.results import Features, Positions, segment_names
from fedcore.sites.study import private_method
from fedcore.testing import LAWS, LawBroken, same_at_sites, same_with
from tests.audit import em_releases, sabotage
from tests.conformance.cases import FAST, OTHERS, SLOW, case
from tests.digests.cases import CASES

MORE_ROUNDS = "clusters that become empty get new centres in rounds that total_rounds does not count"
BROKEN = {
    (f"paper_histograms/algorithm2-{name}", "rounds"): MORE_ROUNDS for name in ("drawn-uniformly", "given-frequency")
}


LONG = ("private_gmm/diag", "federated_em/fedem-sampled")  # together a third of the time of the others


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in FAST])
def test_laws(name, law):
    LAWS[law](case(name))


def every_law(name):
    for law, check in LAWS.items():
        if (name, law) not in BROKEN:
            check(case(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_laws_with_other_settings(name):
    every_law(name)


@pytest.mark.heavy
@pytest.mark.parametrize("name", OTHERS)
def test_laws_with_all_settings(name):
    every_law(name)


@pytest.mark.parametrize(("name", "law"), BROKEN)
def test_known_faults(name, law):
    with pytest.raises(AssertionError):
        LAWS[law](case(name))


@pytest.fixture(scope="module")
def workers():
    """Of a number that divides no number of blocks; other numbers: `tests.flows.test_dask`."""
    with dask_client(3) as client:
        yield DaskBackend(client)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*FAST, "federated_em/fedem-full", "federated_em/fedem-random-restarts"])
def test_the_number_of_workers_changes_no_bit(workers, name):
    same_with(case(name), workers, "Dask")


PRIVATE = [name for name in FAST + SLOW + OTHERS if make_method(CASES[name].method, CASES[name].settings).private]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.heavy] * (name in OTHERS)) for name in PRIVATE])
def test_two_and_seven_sites_publish_the_bits_of_one_place(name):
    same_at_sites(case(name), 2, (1, 0))
    same_at_sites(case(name), 7, (3, 0, 6, 1, 5, 2, 4))


@pytest.mark.parametrize("name", [name for name in FAST + SLOW if name not in PRIVATE])
def test_what_is_not_private_is_no_study(name):
    """Methods whose clients answer with lists, largest values or floats are among them."""
    with pytest.raises(StudyError, match="not private"):
        private_method(CASES[name].method, CASES[name].settings)


def parts_named(result):
    """Numbers of components, centres, groups and atoms in each table and figure, by what they are of."""
    for table in result.tables:
        for column in table.columns:
            if column.name in ("component", "centre", "group", "atom"):
                yield column.name, {value for value in column.values if isinstance(value, int)}
            elif found := re.fullmatch(r"(component|atom) (\d+)", column.name):
                yield found[1], {int(found[2])}
    for figure in result.figures:
        if isinstance(figure, Positions):
            segments = segment_names(len(figure.labels))  # of the components from the largest on
            labels = [] if list(figure.labels) == segments else figure.labels
            yield "component", {int(label.removeprefix("component ")) for label in labels}


@pytest.mark.parametrize("name", [*FAST, pytest.param("private_mixture/clients", marks=pytest.mark.slow)])
def test_parts_have_the_numbers_of_outputs(name):
    """0 .. n - 1: positions in arrays, and what clients are given."""
    made = case(name)
    named = list(parts_named(made.method.result(made.history.state, Features(made.population.features))))
    for part in {part for part, _ in named}:
        every = set.union(*(numbers for other, numbers in named if other == part))
        assert every == set(range(len(every))), part


KERNELS = [
    ("histograms/private", kernel) for name, kernel in sabotage.KERNELS.items() if name != "precision of the block"
]
KERNELS += [("federated_em/private-diag", kernel) for kernel in em_releases.KERNELS.values()]


KERNELS += [("histograms/private-weights", kernel) for kernel in sabotage.OF_HALVES.values()]


@pytest.mark.parametrize(("name", "kernel"), KERNELS, ids=lambda value: getattr(value, "__name__", None))
def test_builds_that_break_a_bound_are_noticed(name, kernel):
    """All but one of those of the audits: that one needs a tie between two centres."""
    with kernel(), pytest.raises(LawBroken, match="one client more moves release"):
        LAWS["sensitivity"](case(name))


@pytest.mark.parametrize("name", ["histograms/private", "federated_em/private-diag", "dictionaries/private"])
def test_clients_that_do_not_check_numbers_are_noticed(name, monkeypatch):
    """Without the check a clip that is not a number moves a release by up to 10**15 times its sensitivity."""
    monkeypatch.setattr("fedcore.rounds.method.check_numbers", lambda message: None)
    with pytest.raises(LawBroken, match="by more than its sensitivity"):
        LAWS["messages"](case(name))


def test_second_halves_are_looked_at():
    """The law of sensitivity would hold for any release that nobody has halves for."""
    made = case("histograms/private-weights").history.rounds
    assert [planned.name for planned in made[-1].planned] == ["weights"] and made[-1].exact["weights"].any()


def test_every_method_is_looked_at():
    assert {CASES[name].method for name in FAST + SLOW} == set(METHODS)


def message_of(name: str, phase: str):
    made = case(name)
    found = next(one for one in made.history.rounds if made.method.phase(one.state, one.message) == phase)
    return made, found.message


def test_clients_refuse_a_basis_that_makes_numbers_of_no_value():
    made, message = message_of("private_gmm/full-records", "search: offsets")
    wrong = replace(message, basis=np.full_like(message.basis, 1.7e308))
    with pytest.raises(SensitivityError, match="basis"):
        made.method.check_message(wrong, made.population.features)
    with pytest.raises(SensitivityError, match="shifts"):
        made.method.check_message(replace(message, shifts=message.shifts - 2**62), made.population.features)


def test_clients_refuse_weights_of_tokens_below_zero():
    made, message = message_of("histograms/private-frequency-replace-one", "rounds")
    with pytest.raises(SensitivityError, match="whitening"):
        made.method.check_message(replace(message, whitening=-message.whitening), made.population.features)
