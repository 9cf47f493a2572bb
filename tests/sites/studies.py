"""Sites with identities, and a study of theirs over counts."""

from pathlib import Path

from fedcore.methods.registry import make_method
from fedcore.sites.identity import Identity
from fedcore.sites.study import Schema, Signer, Study, StudySite

NAMES = ("hospital-a", "hospital-b", "hospital-c")


def identities(folder: Path, names=NAMES) -> dict[str, Identity]:
    return {name: Identity.create(name, folder / name) for name in names}


def signer(identity: Identity) -> Signer:
    return Signer(name=identity.name, key=identity.public.hex())


def study_of(known: dict[str, Identity], **changes) -> Study:
    """A study that the first site proposes."""
    method = make_method("histograms", {"clusters": 2, "rounds": 2})
    asked = {
        "method": method.name,
        "arithmetic": method.arithmetic_version,
        "settings": method.config.model_dump(mode="json"),
        "schema": Schema(kind="counts", features=7),
        "rho": 0.5,
        "sites": tuple(StudySite(**signer(one).model_dump(), nominal=1000) for one in known.values()),
        "seed": 7,
        "proposer": signer(next(iter(known.values()))),
    }
    return Study(**{**asked, **changes})
