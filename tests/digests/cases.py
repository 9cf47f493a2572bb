"""The runs whose ends are kept: every algorithm of each method, and each setting that takes another path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from fedcore.methods.federated_em.variant import Variant
from fedcore.methods.gradient_em.config import Variant as GradientVariant

EPSILON = 60.0  # of a population's budget; so large that noise does not drown few clients


@dataclass(frozen=True)
class Case:
    """population: a name of POPULATIONS. given: a name of STARTS, or of another case, which is run before. constants:
    of the settings' class, with other values.

    unit, relation: of the population's budget, if the run is private.
    """

    method: str
    population: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    given: str | None = None
    unit: str = "client"
    relation: str = "add_or_remove_one"
    constants: Mapping[str, Any] = field(default_factory=dict)


CASES: dict[str, Case] = {}


# --- histograms -------------------------------------------------------------------------------------------------------


def histograms(name: str, population: str = "counts", given: str | None = None, relation: str = "", **settings) -> None:
    settings = {"clusters": 2, "rounds": 3, **settings}
    CASES[f"histograms/{name}"] = Case(
        "histograms", population, settings, given, relation=relation or "add_or_remove_one"
    )


PRIVATE = {"nominal_clients": 26, "effective_tokens": 20.0, "clip": 2.0}

histograms("private", **PRIVATE)
histograms("private-by-size-rules", clusters=None, rounds=None, nominal_clients=26)
histograms("private-merged", **PRIVATE, rounds=5, overseed=4, merge_after=2)
histograms("private-replace-one", **PRIVATE, relation="replace_one")
histograms("private-frequency", **PRIVATE, reduction="frequency", keep=3)
histograms("private-frequency-replace-one", **PRIVATE, reduction="frequency", relation="replace_one")
histograms("private-given", given="three histograms", **{**PRIVATE, "clusters": 4})
histograms("private-given-many", given="seven histograms", **PRIVATE)
histograms("private-given-frequency", given="three histograms", **PRIVATE, clusters=3, reduction="frequency", keep=3)
histograms("private-after-private", given="histograms/private", **PRIVATE)
histograms("private-after-private-grown", given="histograms/private", **{**PRIVATE, "clusters": 3})
histograms("private-one-mean", clusters=1, rounds=None, nominal_clients=26, anyway=True)
histograms("private-after-one-mean", given="histograms/private-one-mean", **{**PRIVATE, "clusters": 1, "rounds": 2})
histograms("private-wide", "counts_wide", nominal_clients=14)
MANY = {**PRIVATE, "nominal_clients": 10_000}
histograms("private-weights", "counts_in_halves", **MANY)
histograms("private-weights-nearest", "counts_in_halves", relation="replace_one", **MANY, personalisation="centre")
histograms("private-own-cluster", **PRIVATE, personalisation="centre", weights="local")


def paper_histograms(name: str, population: str = "counts", given: str | None = None, **settings) -> None:
    """algorithm: the first word of the name."""
    algorithm = name.split("-")[0]
    sizes = {} if algorithm == "fedavg" else {"clusters": 2, "rounds": 3}
    settings = {"algorithm": algorithm, **sizes, **settings}
    CASES[f"paper_histograms/{name}"] = Case("paper_histograms", population, settings, given)


paper_histograms("algorithm2")
paper_histograms("algorithm2-rows", start="algorithm1")
paper_histograms("algorithm2-farthest", start="algorithm1", temperature=50.0)
paper_histograms("algorithm2-drawn-uniformly", start="algorithm1", temperature=0.0, clusters=3)
paper_histograms("algorithm2-merged", start="perturbed_mean", rounds=6, overseed=5, merge_after=3)
paper_histograms("algorithm2-uniform", start="uniform", clusters=3)
paper_histograms("algorithm2-frequency", reduction="frequency", keep=3)
paper_histograms("algorithm2-eigenvectors", reduction="eigenvectors", keep=3)
paper_histograms("algorithm2-given", given="three histograms", clusters=4, overseed=5, merge_after=1)
paper_histograms("algorithm2-given-frequency", given="three histograms", clusters=3, reduction="frequency", keep=3)
paper_histograms("algorithm2-wide", "counts_wide", personalisation="centre")
paper_histograms("fedavg")
paper_histograms("fedavg-local-weights", weights="local")
paper_histograms("ifca")
paper_histograms("ifca-perturbed-mean", start="perturbed_mean", learning_rate=1.0)
paper_histograms("ifca-uniform-frequency", start="uniform", reduction="frequency", keep=3)
paper_histograms("ifca-eigenvectors", reduction="eigenvectors")
paper_histograms("published", published_rounds=3)
paper_histograms("published-mean", published_noise="mean", published_rounds=3)
paper_histograms("published_ifca", published_rounds=3)
paper_histograms("published-exact", accounting="exact", published_rounds=3)
paper_histograms("published_ifca-exact", accounting="exact", start="perturbed_mean")
paper_histograms("published-eigenvectors", reduction="eigenvectors", keep=3)


# --- federated EM -----------------------------------------------------------------------------------------------------


def federated_em(
    name: str,
    population: str = "gaussians",
    given: str | None = None,
    relation: str = "",
    method: str = "federated_em",
    **settings,
):
    algorithm = settings.setdefault("algorithm", "fedem")
    own = {"private": {"nominal_clients": 22, "rounds": 4}, "em": {"max_passes": 6}}
    looks, constants = {"rounds": 4, "monitor_every": 2}, {}
    if method == "federated_em":
        looks, constants = own.get(algorithm, {"rounds": 4}), {"variant": Variant(monitor_every=2)}
    relation = relation or "add_or_remove_one"
    CASES[f"{method}/{name}"] = Case(
        method, population, looks | settings, given, relation=relation, constants=constants
    )


TABLES = {"table_rows": 5, "nuclear_penalty": 0.3}
COUNTS = {"kind": "counts", "components": 2}

for covariance in ("full", "tied", "diag", "spherical", "known"):
    federated_em(f"fedem-{covariance}", covariance=covariance)
    federated_em(f"private-{covariance}", algorithm="private", covariance=covariance, given=f"gaussian {covariance}")
federated_em("fedem-float64", "gaussians_float64", start="kmeans++")
federated_em("fedem-identity", codec="identity", weights="rows")
federated_em("fedem-dithering", codec=2)
federated_em("fedem-dithering-diag", codec="dithering", covariance="diag")
federated_em("fedem-sampled", codec="natural", participation=0.5, rounds=6)
federated_em("fedem-batches", batch=5, covariance="diag")
federated_em("fedem-batches-imputer", "incomplete", model="gaussian_imputer", batch=4)
federated_em("fedem-clients", weights="clients")
federated_em("fedem-dithering-clients", codec="dithering", weights="clients")
federated_em("fedem-dithering-sampled", codec="dithering", participation=0.5, rounds=6)
federated_em("fedem-half-steps", gamma=0.5)
federated_em("fedem-to-tolerance", codec="identity", tol=0.5, rounds=12)
federated_em("fedem-random-restarts", start="random", restarts=2)
federated_em("fedem-given", given="gaussian full scaled", start="given")
federated_em("fedem-after-fedem", given="federated_em/fedem-full", start="given")
federated_em(
    "fedem-after-private-gmm",
    "separated",
    given="private_gmm/diag",
    start="given",
    covariance="diag",
    components=2,
    rounds=2,
)
federated_em("fedem-regression", "regressions", model="regression", components=2)
federated_em("fedem-poisson", "rows_of_counts", model="poisson")
federated_em("fedem-multinomial-counts", "counts", model="multinomial", **COUNTS)
federated_em("fedem-gaussian-tables", "tables_gaussian", model="gaussian_tables", **TABLES)
for covariance in ("full", "diag"):
    federated_em(f"vr-{covariance}", algorithm="vr-fedem", covariance=covariance, rounds=10)
federated_em("vr-batches", algorithm="vr-fedem", batch=3, codec="dithering", rounds=10)
federated_em("vr-dithering", algorithm="vr-fedem", codec="dithering", covariance="tied")
federated_em("vr-regression", "regressions", algorithm="vr-fedem", model="regression", components=2)
federated_em("vr-poisson-counts", "counts", algorithm="vr-fedem", model="poisson", **COUNTS)
federated_em("vr-bernoulli-tables", "tables_bernoulli", algorithm="vr-fedem", model="bernoulli_tables", **TABLES)
federated_em("em", algorithm="em")
federated_em("em-auto", algorithm="em", pseudo_rows="auto", restarts=2, validation=0.2)
federated_em("em-defaults", algorithm="em")
federated_em("fedem-gaps", "gaussians_with_gaps")
federated_em("vr-gaps", "gaussians_with_gaps", algorithm="vr-fedem", covariance="tied", validation=0.3, rounds=10)
federated_em("em-regression", "regressions", algorithm="em", model="regression", components=2)
federated_em("em-poisson", "rows_of_counts", algorithm="em", model="poisson")
federated_em("em-poisson-counts", "counts", algorithm="em", model="poisson", **COUNTS)
federated_em("em-multinomial", "rows_of_counts", algorithm="em", model="multinomial")
federated_em("em-bernoulli-counts", "counts_binary", algorithm="em", model="bernoulli", **COUNTS)
federated_em("em-imputer", "incomplete", algorithm="em", model="gaussian_imputer")
federated_em("em-imputer-factors", "incomplete", algorithm="em", model="gaussian_imputer", rank=2)
federated_em("em-imputer-auto", "incomplete", algorithm="em", model="gaussian_imputer", rank="auto")
federated_em("em-gaps-auto", "gaussians_with_gaps", algorithm="em", components="auto")
federated_em("em-tails", "gaussians_with_gaps", algorithm="em", tails=5.0)
federated_em("em-tails-auto", "gaussians_with_gaps", algorithm="em", tails="auto", components=2)
federated_em(
    "em-tables-auto", "tables_poisson", algorithm="em", model="poisson_tables", **{**TABLES, "nuclear_penalty": "auto"}
)
federated_em("em-gaussian-tables", "tables_gaussian", algorithm="em", model="gaussian_tables", **TABLES)
federated_em("em-poisson-tables", "tables_poisson", algorithm="em", model="poisson_tables", **TABLES, rank=2)
federated_em("em-bernoulli-tables", "tables_bernoulli", algorithm="em", model="bernoulli_tables", **TABLES)
federated_em("private-scaled", algorithm="private", given="gaussian full scaled")
federated_em("private-replace-one", algorithm="private", given="gaussian full", relation="replace_one")
federated_em("private-after-private", algorithm="private", given="federated_em/private-full")
federated_em(
    "private-after-private-mixture",
    "separated",
    algorithm="private",
    given="private_mixture/clients",
    covariance="tied",
    components=2,
    nominal_clients=1200,
)
federated_em("private-regression", "regressions", "regression", algorithm="private", model="regression", components=2)
federated_em("private-poisson", "rows_of_counts", "poisson", algorithm="private", model="poisson")
federated_em("private-imputer", "incomplete", "imputer", algorithm="private", model="gaussian_imputer")


# --- federated EM, of the paper ---------------------------------------------------------------------------------------


def paper_federated_em(name: str, population: str = "gaussians", **settings) -> None:
    federated_em(name, population, method="paper_federated_em", **settings)


paper_federated_em("fedem")
paper_federated_em("naive", memories=False)
paper_federated_em("naive-bernoulli-counts", "counts_binary", memories=False, model="bernoulli", **COUNTS)
paper_federated_em("fedem-one-norm", codec="dithering", norms_by_part=False)
paper_federated_em("fedem-plain-units", standardise=False, regularisation=0.01, cluster_rounds=1)
paper_federated_em("fedem-decreasing", gamma=0.8, gamma_decay=2.0, safeguards=False)
paper_federated_em("em", algorithm="em")
paper_federated_em("vr-inner-rounds", algorithm="vr-fedem", codec="dithering", inner_rounds=3, rounds=6)


# --- gradient EM ------------------------------------------------------------------------------------------------------


def gradient_em(
    name: str, population: str = "gaussians", given: str | None = None, method: str = "gradient_em", **settings
) -> None:
    regression = population == "regressions"
    few = {"model": "regression", "components": 2} if regression else {"components": 3}
    starts, constants = {"second_start": 2, "starts": 1}, {}
    if method == "gradient_em":
        starts |= {name: settings.pop(name) for name in ("starts", "aligned_clients") if name in settings}
        starts, constants = {}, {"variant": GradientVariant(**starts)}
    settings = {"rounds": 4, **starts, **few, **settings}
    if given is not None:
        settings["start"] = "given"
    CASES[f"{method}/{name}"] = Case(method, population, settings, given, constants=constants)


gradient_em("fedgrem")
gradient_em("fedgrem-float64", "gaussians_float64", rounds=10)
gradient_em("fedgrem-regression", "regressions")
gradient_em("fedgrem-regression-shared", "regressions", covariance="shared", intercept=True)
gradient_em("fedgrem-regression-known", "regressions", covariance=0.2)
gradient_em("fedgrem-identity", covariance="identity", standardise="clients")
gradient_em("fedgrem-known", covariance=(1.0, 4.0, 1.0, 0.25))
gradient_em("fedgrem-components", covariance="components")
gradient_em("fedgrem-columns", standardise="columns")
gradient_em("fedgrem-sampled", participation=0.6)
gradient_em("fedgrem-given", given="centres")
gradient_em("fedgrem-given-regression", "regressions", "coefficients")
gradient_em("fedgrem-after-fedgrem", given="gradient_em/fedgrem")
gradient_em("fedgrem-few-compared", aligned_clients=8)
gradient_em("fedgrem-starts", starts=3)
gradient_em("fedgrem-starts-regression", "regressions", starts=3)


# --- gradient EM and its baselines, of the paper ----------------------------------------------------------------------

BASELINES = ("local-fit", "local-em", "local-grem", "fedem", "fedem-w", "pooled-em", "pooled-grem")
PAPER = {"preset": "paper"}


def paper_gradient_em(name: str, population: str = "gaussians", **settings) -> None:
    # Of several starts that end equally well, last bits choose one, and with it the order of the components.
    gradient_em(name, population, method="paper_gradient_em", **{"ward": False, "start_steps": 3, **settings})


paper_gradient_em("fedgrem")
paper_gradient_em("paper", **PAPER, ward=True)
paper_gradient_em("paper-regression", "regressions", **PAPER)
paper_gradient_em("one-sweep", **PAPER, one_sweep=True)
for algorithm in BASELINES:
    paper_gradient_em(algorithm, algorithm=algorithm)
    paper_gradient_em(f"{algorithm}-regression", "regressions", algorithm=algorithm)
paper_gradient_em("fedem-clients", algorithm="fedem", average="clients", standardise="columns")
paper_gradient_em("pooled-em-given", given="centres", algorithm="pooled-em")
paper_gradient_em("tgmm", algorithm="tgmm")
paper_gradient_em("fedgmm", "regressions", algorithm="fedgmm", covariates=2)
paper_gradient_em("fedgmm-clients", "regressions", algorithm="fedgmm", covariates=1, average="clients", intercept=True)


# --- mixed effects ----------------------------------------------------------------------------------------------------


def mixed_effects(name: str, constants: Mapping[str, Any] = MappingProxyType({}), **settings) -> None:
    constants = {"start_steps": 3, "starts": 1, **constants}
    CASES[f"mixed_effects/{name}"] = Case(
        "mixed_effects", "regressions", {"rounds": 4, **settings}, constants=constants
    )


mixed_effects("tried", intercept=True)
mixed_effects("likelihood", robust=False)
mixed_effects("robust", robust=True)
mixed_effects("mixture", {"second_start": 2}, components=2)
mixed_effects("mixture-few-compared", {"aligned_clients": 8}, components=2, robust=False)


# --- private Gaussian mixtures ----------------------------------------------------------------------------------------


def private_gmm(
    name: str,
    population: str = "separated",
    unit: str = "client",
    relation: str = "",
    given: str | None = None,
    widths: int = 2,
    box_dimensions: int = 8,
    **settings,
) -> None:
    settings = {"components": 2, "radius": 60.0, "sigma_min": 0.5, "least_weight": 0.2, **settings}
    relation = relation or "add_or_remove_one"
    CASES[f"private_gmm/{name}"] = Case(
        "private_gmm",
        population,
        {"spare_releases": 0, **settings},
        given,
        unit,
        relation,
        {"widths": widths, "box_dimensions": box_dimensions},
    )


THREE = {"components": 3, "depth": 2, "widths": 3}

private_gmm("diag", covariance="diag")
private_gmm("full-records", unit="record", covariance="full")
private_gmm("spherical-replace-one", relation="replace_one", covariance="spherical")
private_gmm("diag-records-replace-one", unit="record", relation="replace_one", covariance="diag")
private_gmm("two-levels", **THREE, covariance="full")
private_gmm("up-to", components=4, up_to=True, depth=2, covariance="spherical", box_dimensions=2)
private_gmm("nothing-projected", "separated_narrow", covariance="full")
private_gmm("nothing-found", "separated_not", covariance="diag", anyway=True)
private_gmm("series", given="private_gmm/diag", covariance="diag")
private_gmm("series-searching", given="private_gmm/two-levels", **THREE | {"components": 4}, up_to=True)


# --- private mixtures at any separation -------------------------------------------------------------------------------


def private_mixture(
    name: str,
    population: str = "separated",
    unit: str = "client",
    relation: str = "",
    given: str | None = None,
    **settings,
):
    settings = {"components": 2, "rounds": 2, "spare_releases": 0, **settings}
    relation = relation or "add_or_remove_one"
    CASES[f"private_mixture/{name}"] = Case("private_mixture", population, settings, given, unit, relation)


private_mixture("clients")
private_mixture("records-replace-one", unit="record", relation="replace_one", components=4)
private_mixture("one", "separated_not", anyway=True)
private_mixture("series", given="private_mixture/clients")
private_mixture("gaps", "separated_with_gaps", components=3)


# --- profiles ---------------------------------------------------------------------------------------------------------


def profile(name: str, unit: str = "client", relation: str = "add_or_remove_one", **settings):
    settings = {"categories": [[2, 3, 4], [5]], "bounds": [[0, 100], None, None, None, None, None], **settings}
    CASES[f"profile/{name}"] = Case("profile", "table_with_gaps", settings, None, unit, relation)


profile("clients", by=["0", "1"])
profile("records-replace-one", "record", "replace_one", by=["0"])
profile("numbers", categories=[], bounds=None)


# --- perma ------------------------------------------------------------------------------------------------------------


def perma(name: str, population: str = "atoms", given: str | None = None, **settings) -> None:
    settings = {"rounds": 4, "start_steps": 5, "sparsity": 2, **settings}
    CASES[f"perma/{name}"] = Case("perma", population, settings, given)


GRADIENT = {"learner": "gradient"}

perma("recommended")
perma("recommended-top-k", code="top_k")
perma("recommended-near", far=0.2)
perma("recommended-refined", refine_steps=2)
perma("recommended-few-samples", "atoms_few_samples")
perma("recommended-restarts", restarts=2, start_steps=None)
perma("recommended-square", atoms=8, global_atoms=3)
perma("recommended-null", global_atoms="null")
perma("recommended-jump", global_atoms="jump")
perma("recommended-given", given="atoms")
perma("recommended-after-paper", given="perma/paper")
perma("paper", profile="paper")
perma("scripts", profile="scripts")
perma("robust", profile="robust", rounds=3)
perma("robust-threshold", profile="robust", code="threshold", aggregate="mean", rounds=3, refine_steps=2)
perma("robust-given", given="atoms", profile="robust", rounds=3)
perma("median-polar", norm="polar", align="greedy")
perma("mean-unit", aggregate="mean", norm="unit", align="seq")
perma("gradient", **GRADIENT)
perma("gradient-top-k", **GRADIENT, code="top_k")
perma("gradient-omp", **GRADIENT, code="omp", atoms=10)
perma("gradient-restarts", **GRADIENT, restarts=1)


# --- dictionaries -----------------------------------------------------------------------------------------------------


def dictionaries(name: str, given: str | None = None, relation: str = "add_or_remove_one", **settings) -> None:
    CASES[f"dictionaries/{name}"] = Case("dictionaries", "atoms", settings, given, relation=relation)


DEFAULT = {"rounds": 4, "atoms": 12}
FEW = {"rounds": 4, "sparsity": 2, "atoms": 6, "global_atoms": 3, "local_rounds": 2}
OF_PRIVATE = {"private": True, "nominal_clients": 26, "global_atoms": 8, "sparsity": 2, "rounds": 3}

dictionaries("default", **DEFAULT)
dictionaries("default-given", given="dictionaries/default", **DEFAULT, participation=0.6)
dictionaries("few", **FEW)
dictionaries("few-given", given="atoms", **FEW)
dictionaries("private", **OF_PRIVATE)
dictionaries("private-replace-one", relation="replace_one", **{**OF_PRIVATE, "atoms": 10, "global_atoms": 5})
dictionaries("private-series", given="dictionaries/private", **OF_PRIVATE)


# --- background -------------------------------------------------------------------------------------------------------

CASES["background/default"] = Case("background", "frames", {"rounds": 12})
CASES["background/scenes"] = Case("background", "cameras", {"rounds": 12})
CASES["background/shakes"] = Case("background", "shaken_frames", {"rounds": 12, "shadows": False})
CASES["background/samples"] = Case("background", "frames", {"weight_cap": 3, "precision": "float32"})
