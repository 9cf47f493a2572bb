"""Every setting is on its page, changes what comes out or what it costs, and is refused where it would do nothing."""

import re
from pathlib import Path

import numpy as np
import pytest
from fedcore.papers.fedem.paper_federated_em import PaperFederatedEMConfig

from fedcore.errors import ConfigError
from fedcore.methods.federated_em import FederatedEM, FederatedEMConfig
from fedcore.methods.federated_em.moved import MOVED
from fedcore.methods.registry import make_method
from fedcore.population.blocks import RowsBlock
from fedcore.rounds.choices import known_settings
from fedcore.rounds.private_settings import PrivateRunSettings
from tests.federated_em.run_in_memory import block_of, facts, run

PAGE = Path(__file__).parents[2] / "docs" / "federated-em.md"
START = {
    "weights": np.array([0.5, 0.5]),
    "means": np.array([[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
    "covariances": np.tile(np.eye(3), (2, 1, 1)),
}
COMMON = {"components": 2, "rounds": 6}
ONE_START = COMMON | {"restarts": 1}
EM = {"algorithm": "em", "components": 2, "max_passes": 8}
VR, PRIVATE = ({"algorithm": name, **COMMON} for name in ("vr-fedem", "private"))
TABLES = {"model": "gaussian_tables", "table_rows": 4, "rounds": 6}
OF_TABLES = {"rank": (TABLES, 1), "table_rows": (TABLES, 8), "nuclear_penalty": (TABLES, 2.0)}

# name: (other settings, what it is changed to)
SETTINGS = {
    "algorithm": ({"components": 2}, "em"),
    "model": ({}, "regression"),
    "components": ({}, 3),
    "covariance": ({}, "diag"),
    "pseudo_rows": ({}, 1.0),
    "tails": (EM, 5.0),
    **OF_TABLES,
    "weight_column": ({}, 2),
    "codec": ({}, "dithering"),
    "participation": ({}, 0.5),
    "batch": (VR, 3),
    "weights": ({}, "clients"),
    "rounds": ({}, 3),
    "gamma": ({}, 0.7),
    "start": ({}, "random"),
    "restarts": ({}, 2),
    "validation": ({}, 0.3),
    "tol": (EM, 0.0),
    "max_passes": (EM | {"tol": 0.0}, 5),
    "clip": (PRIVATE, 0.3),
    "record_bound": (PRIVATE, 1.0),
}


@pytest.fixture(scope="module")
def block() -> RowsBlock:
    generator = np.random.default_rng(0)
    sizes = (8, 16, 40, 64, 8, 24, 80, 16)
    rows = [generator.normal(size=(size, 3)) + np.where(generator.random((size, 1)) < 0.4, -2.0, 2.0) for size in sizes]
    return block_of([np.column_stack([own[:, :2], np.abs(own[:, 2])]) for own in rows])


def test_all_settings_are_here_and_on_the_page():
    known = known_settings(FederatedEMConfig).keys()
    own = known - PrivateRunSettings.model_fields.keys()
    assert own == {*SETTINGS, "kind"} and {*PrivateRunSettings.model_fields} < known
    table = PAGE.read_text().partition("\n## Settings\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == own


def made(block: RowsBlock, settings: dict):
    config = FederatedEMConfig(**settings)
    private = {"rho": 5.0, "nominal": 8, "start": START} if config.private else {}
    ran = run(config, block, facts(block, **private))
    return [ran.state.theta, ran.state.expectations, len(ran.infos)]


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_changes_what_comes_out_or_what_it_costs(block, name):
    settings, value = SETTINGS[name]
    settings = settings or ONE_START
    one, other = made(block, settings), made(block, {**settings, name: value})
    same = one[0].shape == other[0].shape and np.array_equal(one[0], other[0])
    assert not same or one[1:] != other[1:]


def test_the_kind_of_population():
    settings = {"model": "poisson", "kind": "counts"}
    assert FederatedEM(FederatedEMConfig(**settings)).kind == "counts" and FederatedEM().kind == "rows"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({**EM, "participation": 0.5}, "participation is for algorithm fedem, not em"),
        ({**EM, "codec": "identity"}, "codec is for algorithm fedem, vr-fedem, not em"),
        ({**VR, "participation": 0.5}, "participation is for algorithm fedem, not vr-fedem"),
        ({"rank": 2}, "rank is for model .* not gaussian"),
        ({"model": "regression", "covariance": "tied"}, "covariance is for model gaussian, not regression"),
        ({"kind": "counts"}, "kind is for model poisson, .* not gaussian"),
        ({"clip": 1.0}, "clip is for algorithm private, not fedem"),
        ({"model": "poisson_tables"}, "table_rows.*required"),
    ],
)
def test_what_would_do_nothing_is_refused(settings, told):
    with pytest.raises(ConfigError, match=told):
        make_method("federated_em", settings)


@pytest.mark.parametrize("name", MOVED)
def test_settings_that_left_are_refused_with_what_became_of_them(name):
    name, _, value = name.partition("=")
    with pytest.raises(ConfigError, match=re.escape(MOVED[f"{name}={value}" if value else name])):
        make_method("federated_em", {name: value or 1})


def test_a_setting_of_an_algorithm_that_left_is_refused_in_stored_settings_too():
    with pytest.raises(ConfigError, match=re.escape(MOVED["levels"])):
        make_method("federated_em", {"algorithm": {"name": "fedem", "levels": None}})


def test_levels_of_dithering_are_a_value_of_codec():
    assert [FederatedEMConfig(codec=codec).levels for codec in ("dithering", 8)] == [4, 8]
    names = [FederatedEMConfig(codec=codec).codec_name for codec in (8, "natural", "identity")]
    assert names == ["dithering", "natural", "identity"]


def test_what_the_paper_varies_is_a_setting_of_its_method():
    own = PaperFederatedEMConfig.model_fields.keys() - FederatedEMConfig.model_fields.keys()
    assert own == {name for name, told in MOVED.items() if "setting of the method paper" in told} | {"memories"}
    config = PaperFederatedEMConfig(memories=False, gamma_decay=3.0)
    assert not config.variant.memories and config.variant.gamma_decay == 3.0 and config.codec_name == "dithering"
