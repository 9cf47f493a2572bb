"""The methods, by name: those of this package, and those that other packages register as entry points.

A package registers a method under the group `fedcore.methods`, in its pyproject.toml:

    [project.entry-points."fedcore.methods"]
    federated_pca = "my_package:FederatedPCA"

Nothing here imports a method: `fedcore.methods.registry` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

from fedcore.errors import ConfigError

GROUP = "fedcore.methods"
OWN = {
    "histograms": "fedcore.methods.histograms:Histograms",
    "federated_em": "fedcore.methods.federated_em:FederatedEM",
    "gradient_em": "fedcore.methods.gradient_em:GradientEM",
    "mixed_effects": "fedcore.methods.mixed_effects:MixedEffects",
    "private_gmm": "fedcore.methods.private_gmm:PrivateGMM",
    "private_mixture": "fedcore.methods.private_mixture:PrivateMixture",
    "perma": "fedcore.methods.perma:Perma",
    "background": "fedcore.methods.background:Background",
    "dictionaries": "fedcore.methods.dictionaries:Dictionaries",
    "profile": "fedcore.methods.profile:Profile",
}
# Name, kind that it reads first, and first line of its documentation, of each method in this repository. So a list of
# methods imports none of them.
_LISTED = """
histograms counts K histograms that clients share, one for each cluster, and each client's mixture of cluster and own counts.
federated_em rows Expectation maximisation over clients who send compressed statistics and remember what they sent.
gradient_em rows Penalised federated gradient EM for mixtures that are similar between clients; some clients may be outliers.
mixed_effects rows Linear regressions of clients that differ: mean and covariance of their coefficients, estimated from sums.
private_gmm rows A mixture of separated Gaussians under differential privacy, by recursive partition of the rows.
private_mixture rows A Gaussian mixture under differential privacy: no bounds to declare, no separation to assume.
perma rows PerMA: clients' dictionaries, with atoms that they have in common, found by matching, and local atoms.
background rows The background of a camera that stands still, and what moves before it, by robust sums over clients' frames.
dictionaries rows Personalised dictionaries: atoms that all clients share, from sums over clients, and atoms that each has alone.
profile rows A first look at a private table: histograms, missing values, quantiles, categories and groups.
paper_federated_em rows The tables of the FedEM paper: no memories, one norm, fixed inner rounds, decreasing steps, no safeguards, and EM
paper_gradient_em rows The tables of the FedGrEM paper: FedGrEM, local and pooled EM, FedEM, TGMM and FedGMM from the same starts.
paper_histograms counts Clusters of histograms by the algorithms of a paper and by its baselines, without privacy.
"""  # noqa: E501
LISTED = {name: (kind, what) for name, kind, what in (line.split(maxsplit=2) for line in _LISTED.strip().splitlines())}


class Registry(Mapping[str, str]):
    """Where the class of each method is, "module:Class" by name. Other packages are asked only when it is necessary."""

    @cached_property
    def _others(self) -> dict[str, str]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=GROUP):
            name = canonical(point.name)
            if name in OWN or (name in found and found[name].value != point.value):
                raise ConfigError(
                    f"two packages register a method named {name!r}; one of them is {point.value}.",
                    "Uninstall one of them.",
                )
            found[name] = point
        return {name: found[name].value for name in sorted(found)}

    def __getitem__(self, name: str) -> str:
        return OWN[name] if name in OWN else self._others[name]

    def __iter__(self) -> Iterator[str]:
        return iter([*OWN, *self._others])

    def __len__(self) -> int:
        return len(OWN) + len(self._others)


METHODS = Registry()


def canonical(name: str) -> str:
    """The name as it is in METHODS: federated-em is federated_em."""
    return name.replace("-", "_")
