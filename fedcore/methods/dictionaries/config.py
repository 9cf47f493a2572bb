"""Settings of the method `dictionaries`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from fedcore.rounds.private_settings import PrivateRunSettings

OF_BACKGROUND = "is a setting of the method background"
OF_PERMA = "is a setting of the method perma"
IS_PERMA = "is the method perma now"
CONSTANT = "is a constant of the method perma"
GONE = "is not a setting: leave it out"
MOVED = {
    "model=background": "is the method background now",
    "model": GONE,
    "modes": OF_BACKGROUND,
    "cut": f"{OF_BACKGROUND}, and a constant of the method perma",
    "weight_cap": OF_BACKGROUND,
    "profile=statistics": GONE,
    "profile": IS_PERMA,
    "learner=statistics": GONE,
    "learner": IS_PERMA,
    "start=local": IS_PERMA,
    "start": "is not a setting: a run starts from sums, or from the start that it is given",
    "code=omp": GONE,
    "code=lasso": GONE,
    "code": OF_PERMA,
    "global_atoms=auto": GONE,
    "global_atoms=null": OF_PERMA,
    "global_atoms=jump": OF_PERMA,
    "threshold": OF_PERMA,
    "loss=huber": 'is learner = "robust" of the method perma',
    "loss": GONE,
    "refine_steps": OF_PERMA,
    "restarts": OF_PERMA,
    "starts": OF_PERMA,
    "start_steps": OF_PERMA,
    "matcher": OF_PERMA,
    "aggregate": OF_PERMA,
    "norm": OF_PERMA,
    "align": OF_PERMA,
    "far": OF_PERMA,
    "first": CONSTANT,
    "first_threshold": CONSTANT,
    "threshold_decay": CONSTANT,
    "density": CONSTANT,
    "orders": CONSTANT,
    "matched_clients": CONSTANT,
    "far_rounds": CONSTANT,
    "local_steps": CONSTANT,
    "step_size": CONSTANT,
    "split": GONE,
    "alpha": GONE,
    "ragged": GONE,
    "weights": GONE,
    "precision": GONE,
    "tolerance": GONE,
}


class DictionariesConfig(PrivateRunSettings):
    """Settings of dictionaries from sums over clients. Each field declares its range."""

    # sizes
    atoms: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="atoms r of every client's dictionary; None: found from held-out rows, else a fifth more than "
        "global ones",
    )
    global_atoms: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="number of atoms that all clients share; None: those of a start, else five sixths of atoms, else "
        "found from held-out rows, else 100, at most twice the features",
    )
    sparsity: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="atoms k of a sample's code; None: found from held-out rows, else 20, at most a quarter of the "
        "features",
    )

    # learning
    least_sparsity: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="smallest k of a sample while a run that is not private learns. Samples have different "
        "k, up to sparsity, so that one dictionary serves all of them. None: a quarter of sparsity, or one less than "
        "a given sparsity of at most 4",
    )
    local_rounds: int = Field(
        10, ge=1, le=1_000_000, description="steps in which a client learns its local atoms, after the rounds"
    )
    forgetting: float = Field(
        0.0,
        ge=0,
        le=1,
        description="for atoms that drift. After a start from a run on this population whose clients have as many "
        "samples as then, only new clients answer in the rounds; this is the weight of the sums of that run "
        "relative to theirs. 0: all clients answer",
    )
    participation: float = Field(1.0, gt=0, le=1, description="expected share of clients in a round")
    rounds: int | None = Field(None, ge=1, le=1_000_000, description="rounds T; None: 60, or 20 of a private run")

    # privacy
    private: bool = Field(
        False,
        description="add noise to the sums, so that the run is private for clients. Only global atoms are learnt. "
        "Defaults are then 64 atoms, at most twice the features, and at most 10 atoms in a code",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if None not in (self.atoms, self.global_atoms) and (self.global_atoms or 0) > (self.atoms or 0):
            raise ValueError(f"global_atoms must be at most atoms = {self.atoms}")
        if self.private and self.participation < 1:
            raise ValueError("a private run asks all clients: sampling is not accounted for")
        if not self.private and self.epsilon is not None:
            raise ValueError("epsilon is the budget of a run with private = true")
        return self
