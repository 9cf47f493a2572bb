"""What the laws are asked about: the small runs whose ends are kept in tests/digests, with held-out data.

FAST has at least one of each algorithm, SLOW more of what clients remember and of what is released.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import scipy.sparse as sp

from fedcore.methods.registry import make_method
from fedcore.rounds.clients import one_blas_thread
from fedcore.testing import Case, SmallPopulation
from tests.digests.cases import CASES
from tests.digests.cases import Case as KeptCase
from tests.digests.populations import POPULATIONS, STARTS

FAST = [
    "histograms/private",
    "histograms/private-frequency-replace-one",
    "paper_histograms/algorithm2",
    "paper_histograms/fedavg",
    "federated_em/fedem-sampled",
    "paper_federated_em/naive",
    "federated_em/em",
    "federated_em/private-diag",
    "gradient_em/fedgrem",
    "paper_gradient_em/paper",
    "private_gmm/diag",
    "perma/recommended",
    "dictionaries/default",
    "dictionaries/private",
    "background/default",
    "profile/clients",
]
SLOW = [
    "paper_histograms/ifca",
    "paper_histograms/published",
    "federated_em/vr-batches",
    "gradient_em/fedgrem-regression",
    "paper_gradient_em/tgmm",
    "paper_gradient_em/fedem",
    "perma/gradient",
    "dictionaries/few",
    "histograms/private-merged",
    "mixed_effects/tried",
    "private_gmm/full-records",
    "histograms/private-given-many",
    "histograms/private-weights",
    "paper_histograms/algorithm2-merged",
    "federated_em/fedem-full",
    "federated_em/fedem-batches",
    "federated_em/fedem-poisson",
    "federated_em/fedem-gaussian-tables",
    "federated_em/private-replace-one",
    "federated_em/private-imputer",
    "federated_em/em-tails",
    "gradient_em/fedgrem-columns",
    "gradient_em/fedgrem-sampled",
    "paper_gradient_em/fedgmm",
    "paper_gradient_em/local-fit",
    "paper_gradient_em/pooled-grem",
    "private_mixture/clients",
    "profile/records-replace-one",
    "perma/paper",
    "perma/recommended-refined",
    "perma/recommended-few-samples",
    "perma/robust",
    "dictionaries/private-replace-one",
]
MORE = {  # whose ends are not kept
    "private_mixture/categories": KeptCase(
        "private_mixture",
        "table_with_gaps",
        {"components": 3, "rounds": 2, "spare_releases": 0, "categories": [[2, 3, 4], [5]], "anyway": True},
    )
}
OTHERS = [
    name for name, case in CASES.items() if name not in FAST + SLOW and (case.given is None or case.given in STARTS)
]


@cache
def population(name: str) -> SmallPopulation:
    people = POPULATIONS[name]()
    if people.kind == "counts":
        clients = tuple(sp.csr_matrix(people.matrix).toarray().astype(np.int64))
    else:
        ptr, x = people.matrix
        clients = tuple(np.split(x, ptr[1:-1]))
    heldout, halves = clients, None
    if people.heldout is not None:
        heldout, halves = tuple(sp.csr_matrix(people.heldout).toarray().astype(np.int64)), "document"
    shape = (people.dtype, people.leaf, people.block)
    return SmallPopulation(people.kind, people.features, clients, heldout, *shape, halves, people.image)


@cache  # with its run in memory, which most laws look at
def case(name: str) -> Case:
    kept = MORE[name] if name in MORE else CASES[name]
    method = make_method(kept.method, kept.settings)
    start = None
    if kept.given is not None:
        start = STARTS[kept.given] if kept.given in STARTS else left_by(case(kept.given))
    return Case(name, method, population(kept.population), start, kept.unit, kept.relation)


def left_by(earlier: Case):
    """What later runs may start from."""
    with one_blas_thread():
        return earlier.method.warm_start_of(earlier.history.state)
