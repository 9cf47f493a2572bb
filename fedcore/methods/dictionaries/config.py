"""Settings of the method `dictionaries`: one model for the TOML file, the command line, the flow and its form."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from fedcore.methods.dictionaries.private.settings import contradictions, with_private_defaults
from fedcore.rounds.private_settings import PrivateRunSettings

PERMA: dict[str, Any] = {  # what its profiles have in common; the sizes are those of the paper's synthetic task
    "learner": "orthogonal",
    "code": "threshold",
    "start": "local",
    "atoms": 6,
    "global_atoms": 3,
    "sparsity": 20,
    "rounds": 60,
}
PROFILES: dict[str, dict[str, Any]] = {
    "statistics": {},
    "recommended": {
        **PERMA,
        "matcher": "star",
        "aggregate": "median",
        "norm": "unit",
        "align": "lsa",
        "starts": 5,
        "far": 0.7,
    },
    "paper": {
        **PERMA,
        "matcher": "path",
        "aggregate": "mean",
        "norm": "none",
        "align": "greedy",
        "starts": 1,
        "far": None,
    },
    "scripts": {
        **PERMA,
        "matcher": "path",
        "aggregate": "mean",
        "norm": "polar",
        "align": "seq",
        "starts": 1,
        "far": None,
    },
    "robust": {
        **PERMA,
        "matcher": "star",
        "aggregate": "median",
        "norm": "polar",
        "align": "lsa",
        "starts": 1,
        "far": 0.7,
        "loss": "huber",
        "code": "top_k",
        "first": "singular",
        "start_steps": 0,
        "local_rounds": 1,
        "refine_steps": 10,
    },
}


OF_BACKGROUND = "is a setting of the method background"
MOVED = {
    "model": "is not a setting: dictionaries learns atoms alone, leave it out",
    "model=background": "is the method background now",
    "modes": OF_BACKGROUND,
}


class DictionariesConfig(PrivateRunSettings):
    """Settings of personalised dictionary learning. Ranges stand beside the fields.

    Defaults are those of the profile "statistics". The others are PerMA's, and set learner, code, start, sizes, rounds,
    matcher, aggregate, norm, align, starts and far where these are left out; "robust" also loss, first, start_steps,
    local_rounds and refine_steps.
    """

    profile: Literal["statistics", "recommended", "paper", "scripts", "robust"] = Field(
        "statistics",
        description="statistics: global atoms from sums over all clients, local ones where they pay. PerMA, which asks "
        "what clients have in common, with 3 of 6 atoms: recommended: star, median, unit, lsa, 5 starts; paper: path, "
        "mean, none, greedy, 1 start; scripts (the authors' programs): path, mean, polar, seq, 1 start; robust: star, "
        "median, polar, loss huber, from singular vectors",
    )

    # sizes
    atoms: int | None = Field(
        None, ge=1, le=100_000, description="atoms r of every client's dictionary; None: a fifth more than global ones"
    )
    global_atoms: int | Literal["auto", "null", "jump"] = Field(
        "auto",
        description="how many of them are global; auto: 100, at most twice the features, and five sixths of the atoms "
        "where their number is given; null: as many as match better than half of what clients without "
        "anything in common would; jump: up to the largest jump of path lengths, never 0 or all",
    )
    ragged: bool = Field(
        False, description="clients of few samples have fewer atoms, half as many as samples, but all global ones"
    )

    # local learner
    learner: Literal["orthogonal", "gradient", "statistics"] = Field(
        "statistics",
        description="statistics: any atoms of norm 1, global ones learnt from all clients' sums of codes and samples; "
        "orthogonal: polar factors (Algorithm 4); gradient: any atoms of norm 1, by gradient steps (Algorithm 5)",
    )
    code: Literal["threshold", "top_k", "omp", "lasso"] = Field(
        "omp",
        description="sparse codes: correlations above a threshold; the k largest; orthogonal matching "
        "pursuit; lasso (scikit-learn)",
    )
    threshold: float = Field(0.15, gt=0, le=1e12, description="zeta of code = threshold, in the units of the data")
    sparsity: int | None = Field(
        None, ge=1, le=100_000, description="k of code = top_k or omp; None: 20, at most a quarter of the features"
    )
    least_sparsity: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="statistics, split = nested, omp: while it learns, every sample has a k of its own, from this "
        "up to sparsity, so that one dictionary serves all of them; None: a quarter of sparsity",
    )
    alpha: float = Field(1.0, gt=0, le=1e12, description="l1 weight of code = lasso, in the units of the data")
    loss: Literal["squared", "huber"] = Field(
        "squared",
        description="of residuals; huber: residuals beyond the cut count less, global atoms code samples alone, and "
        "local atoms learn what is left (background and what moves); orthogonal learner, norm polar",
    )
    cut: float = Field(
        1.0,
        gt=0,
        le=1e12,
        description="huber: standard deviations (1.4826 median |residual|) of the client at which residuals are cut",
    )
    step_size: float | None = Field(
        None, gt=0, description="eta of the learner gradient; None: half of the largest stable one, for each client"
    )
    local_steps: int = Field(1, ge=1, le=1000, description="steps of a client in a round")
    refine_steps: int = Field(
        0,
        ge=0,
        le=1000,
        description="steps on the local atoms alone before each round's step (Algorithm 6); huber: "
        "in each of local_rounds, at least 1",
    )

    restarts: int = Field(
        0,
        ge=0,
        le=100,
        description="half way through the rounds every client learns its local atoms anew, from so many starts, on "
        "its samples' parts orthogonal to the global atoms, and keeps the best if that lowers its objective",
    )

    # start
    start: Literal["sums", "local", "given"] = Field(
        "sums",
        description="sums: the learner statistics, from sums over all clients alone; local: clients' own "
        "dictionaries, matched; given: a global dictionary from a warm start",
    )
    starts: int = Field(5, ge=1, le=100, description="starts of a client's own dictionary, of which the best is kept")
    first: Literal["auto", "unit", "singular", "samples", "random"] = Field(
        "auto",
        description="the first of the starts: unit vectors, singular vectors of the samples, samples, or random as the "
        "others are; auto: unit for square orthogonal dictionaries, singular for other orthogonal ones, else samples",
    )
    first_threshold: float = Field(0.6, gt=0, le=1e12, description="the thresholds of a start shrink from this one")
    threshold_decay: float = Field(0.99, gt=0, lt=1, description="factor of a start's thresholds from step to step")
    density: float | None = Field(
        None, gt=0, le=1, description="share of nonzero codes, if known: thresholds shrink until 0.8 of it"
    )
    start_steps: int | None = Field(
        None, ge=0, le=10_000, description="largest number of steps of a start; None: 200 with thresholds, otherwise 50"
    )

    # matching
    matcher: Literal["star", "path"] = Field(
        "star", description="star: assignment to one client's atoms, by medians; path: shortest paths (Algorithm 2)"
    )
    orders: int = Field(1, ge=1, le=1000, description="path: orders of clients tried; all but the first are random")
    matched_clients: int = Field(
        1000, ge=1, le=100_000, description="clients whose dictionaries are matched; the others join by assignment"
    )

    # aggregation
    aggregate: Literal["median", "mean"] = Field("median", description="of the clients' global atoms, aligned")
    norm: Literal["unit", "polar", "none"] = Field("unit", description="what is done with the norms of the aggregate")
    align: Literal["lsa", "seq", "greedy"] = Field(
        "lsa",
        description="how a client finds the global atoms among its updated ones: linear assignment; one after the "
        "other; nearest (Algorithm 3)",
    )
    weights: Literal["clients", "samples"] = Field(
        "clients", description="weight of a client in a mean: 1, or its number of samples"
    )
    weight_cap: int | None = Field(None, ge=1, description="samples beyond which a client's weight does not grow")
    far: float | None = Field(
        0.7,
        gt=0,
        le=2,
        description="a client whose mean matched distance stays above this is left out, unless a quarter of the "
        "clients is that far; None: nobody is left out",
    )
    far_rounds: int = Field(3, ge=1, le=1000, description="rounds in a row after which a far client is left out")

    # learner statistics
    split: Literal["nested", "joint"] = Field(
        "nested",
        description="statistics: global atoms code samples alone, local ones learn what is left; joint: both "
        "code them together",
    )
    local_rounds: int = Field(
        10,
        ge=1,
        le=1_000_000,
        description="split = nested: steps in which a client learns its local atoms, after the rounds; loss = huber: "
        "number of last rounds in which local atoms are learnt",
    )
    forgetting: float = Field(
        0.0,
        ge=0,
        le=1,
        description="split = nested, started from a run on this population whose clients have as many samples as then: "
        "weight of its sums beside those of the clients that came since, who alone answer in the rounds; for atoms "
        "that drift. 0: everybody answers",
    )

    # messages
    precision: Literal["float64", "float32"] = Field(
        "float64",
        description="of the dictionaries that are sent, both ways; computation, and sums of the learner statistics, "
        "are in float64",
    )

    # who takes part, and the end
    participation: float = Field(1.0, gt=0, le=1, description="expected share of clients in a round")
    rounds: int = Field(60, ge=1, le=1_000_000, description="rounds T after the matching")
    tolerance: float = Field(
        0.0,
        ge=0,
        description="the run ends when no global atom moves by more, but split = nested not in the first seven rounds; "
        "0, with sampled clients, or loss = huber: all rounds are made",
    )

    # privacy
    private: bool = Field(
        False,
        description="learner statistics with noise, private for clients: global atoms alone are learnt; unless other "
        "numbers are given 64, at most twice the features, in 20 rounds, and codes have at most 10 of them",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, settings: Any) -> Any:
        if isinstance(settings, dict) and settings.get("sweeps") == 1:  # of earlier runs; it is what there is
            settings = {name: value for name, value in settings.items() if name != "sweeps"}
        if isinstance(settings, dict) and settings.get("profile", "statistics") in PROFILES:
            return PROFILES[settings.get("profile", "statistics")] | with_private_defaults(settings)
        return settings

    @property
    def steps_of_start(self) -> int:
        if self.start_steps is not None:
            return self.start_steps
        return 200 if self.code == "threshold" else 50

    @property
    def restart_round(self) -> int | None:
        """The round in which local atoms are learnt anew; None: none."""
        return (self.rounds + 1) // 2 if self.restarts else None

    @property
    def robust(self) -> bool:
        return self.loss == "huber"

    @property
    def automatic(self) -> bool:
        """Whether the number of global atoms is found by matching."""
        return self.global_atoms in ("null", "jump")

    @property
    def nested(self) -> bool:
        """Whether global atoms are those that a learner of all samples in one place would have."""
        return self.learner == "statistics" and self.split == "nested"

    @model_validator(mode="after")
    def _settings_agree(self) -> Self:
        count = self.global_atoms
        for wrong, text in (
            (
                isinstance(count, int) and (count < 0 or self.atoms is not None and count > self.atoms),
                f"global_atoms must be 0 to atoms = {self.atoms}",
            ),
            (self.automatic and self.start == "given", "the number of global atoms is that of the given ones"),
            (not isinstance(count, int) and self.ragged, "ragged needs a number of global atoms"),
            (
                None not in (self.sparsity, self.least_sparsity) and (self.least_sparsity or 0) > (self.sparsity or 0),
                "least_sparsity must be at most sparsity",
            ),
            (
                self.learner == "orthogonal" and self.code in ("omp", "lasso"),
                "the orthogonal learner codes by threshold or top_k, as the profile recommended does",
            ),
            (
                self.learner == "statistics" and self.code in ("threshold", "top_k"),
                "the learner statistics codes by omp or lasso",
            ),
            (
                self.robust and (self.learner != "orthogonal" or self.norm != "polar"),
                "loss = huber goes with the orthogonal learner and norm = polar",
            ),
            (self.learner != "orthogonal" and self.norm == "polar", "norm = polar is for the orthogonal learner"),
            (self.aggregate == "median" and self.weights != "clients", "weights go with aggregate = mean"),
            (self.weight_cap is not None and self.weights != "samples", "weight_cap goes with weights = samples"),
            (self.learner == "statistics" and self.refine_steps > 0, "refine_steps is for Algorithms 4 and 5"),
            (
                self.restarts > 0 and (self.learner == "statistics" or self.robust),
                "restarts are for Algorithms 4 and 5 with squared loss",
            ),
            (self.learner == "statistics" and self.local_steps > 1, "local_steps is for Algorithms 4 and 5"),
            (self.automatic and self.start == "sums", f"global_atoms = {count} needs a matching: start = local"),
            (self.start == "sums" and not self.nested, "start = sums goes with learner = statistics, split = nested"),
            (self.start == "sums" and count == 0, "start = sums learns global atoms: at least 1"),
            *contradictions(self),
        ):
            if wrong:
                raise ValueError(text)
        return self
