"""Settings of the method `perma`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

PROFILES: dict[str, dict[str, Any]] = {
    "recommended": {},
    "paper": {"matcher": "path", "aggregate": "mean", "norm": "none", "align": "greedy", "starts": 1, "far": None},
    "scripts": {"matcher": "path", "aggregate": "mean", "norm": "polar", "align": "seq", "starts": 1, "far": None},
    "robust": {
        "learner": "robust",
        "norm": "polar",
        "code": "top_k",
        "starts": 1,
        "start_steps": 0,
        "refine_steps": 10,
    },
}


class PermaConfig(BaseModel):
    """Settings of PerMA. Each field declares its range. Defaults are those of the profile "recommended"; the sizes are
    those of the paper's synthetic task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    profile: Literal["recommended", "paper", "scripts", "robust"] = Field(
        "recommended",
        description="defaults of other settings: recommended: star, median, unit, lsa, 5 starts; paper: path, mean, "
        "none, greedy, 1 start, far None; scripts (the authors' programs): path, mean, polar, seq, 1 start, far None; "
        "robust: learner robust, top_k, 1 start of 0 steps, 10 refine_steps",
    )

    # sizes
    atoms: int = Field(6, ge=1, le=100_000, description="atoms r of every client's dictionary")
    global_atoms: int | Literal["null", "jump"] = Field(
        3,
        description="number of global atoms; null: as many as match better than half as well as atoms of unrelated "
        "clients; jump: up to the largest jump of path lengths, never 0 or all. A given start needs a number",
    )

    # clients' learner
    learner: Literal["orthogonal", "gradient", "robust"] = Field(
        "orthogonal",
        description="orthogonal: polar factors (Algorithm 4); gradient: any atoms of norm 1, by gradient steps "
        "(Algorithm 5); robust: polar factors of samples whose residuals are cut, global atoms code samples alone, and "
        "in the last round local atoms learn what is left (background and what moves)",
    )
    code: Literal["threshold", "top_k", "omp"] = Field(
        "threshold",
        description="sparse codes: correlations above a threshold; the k largest; orthogonal matching pursuit, which "
        "with orthonormal atoms is the k largest",
    )
    threshold: float = Field(0.15, gt=0, le=1e12, description="zeta of code = threshold, in the units of the data")
    sparsity: int = Field(20, ge=1, le=100_000, description="k of code = top_k or omp")
    refine_steps: int = Field(
        0,
        ge=0,
        le=1000,
        description="steps on the local atoms alone before each round's step (Algorithm 6); learner robust: in the "
        "last round, at least 1",
    )
    restarts: int = Field(
        0,
        ge=0,
        le=100,
        description="number of starts from which every client learns its local atoms again, half way through the "
        "rounds, on its samples' parts orthogonal to the global atoms; it keeps the best if that lowers its objective; "
        "not with learner robust",
    )

    # start
    starts: int = Field(5, ge=1, le=100, description="starts of a client's own dictionary, of which the best is kept")
    start_steps: int | None = Field(
        None,
        ge=0,
        le=10_000,
        description="steps of a start; of code = threshold at most, while its threshold shrinks; None: 200 then, else "
        "50",
    )

    # matching and aggregation
    matcher: Literal["star", "path"] = Field(
        "star",
        description="star: around client after client, the best one kept, which leaves clients out that have nothing "
        "in common with it; path: shortest paths through all clients (Algorithm 2)",
    )
    aggregate: Literal["median", "mean"] = Field("median", description="combines the clients' aligned global atoms")
    norm: Literal["unit", "polar", "none"] = Field(
        "unit", description="normalisation of the combined atoms; learner robust: always polar"
    )
    align: Literal["lsa", "seq", "greedy"] = Field(
        "lsa",
        description="how a client finds the global atoms among its updated ones: linear assignment; one after the "
        "other; nearest (Algorithm 3)",
    )
    far: float | None = Field(
        0.7,
        gt=0,
        le=2,
        description="a client whose mean matched distance stays above this for three rounds is left out, unless a "
        "quarter of the clients is that far; None: all clients stay",
    )

    # end
    rounds: int = Field(60, ge=1, le=1_000_000, description="rounds T after the matching")

    @model_validator(mode="before")
    @classmethod
    def _of_profile(cls, settings: Any) -> Any:
        profile = PROFILES.get(settings.get("profile", "recommended")) if isinstance(settings, dict) else None
        return settings if profile is None else profile | settings

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.global_atoms, int) and not 0 <= self.global_atoms <= self.atoms:
            raise ValueError(f"global_atoms must be 0 to atoms = {self.atoms}")
        return self

    @property
    def wanted(self) -> int | None:
        """Global atoms rg; None where matching finds their number."""
        return self.global_atoms if isinstance(self.global_atoms, int) else None

    @property
    def robust(self) -> bool:
        return self.learner == "robust"

    @property
    def steps_of(self) -> Literal["orthogonal", "gradient"]:
        """The learner of clients alone, and of local atoms."""
        return "gradient" if self.learner == "gradient" else "orthogonal"

    @property
    def steps_of_start(self) -> int:
        if self.start_steps is not None:
            return self.start_steps
        return 200 if self.code == "threshold" else 50

    @property
    def restart_round(self) -> int | None:
        """The round in which local atoms are learnt again; None: none."""
        return (self.rounds + 1) // 2 if self.restarts else None
