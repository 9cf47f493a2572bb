"""Settings that the method had, for the error that refuses one (`Method.moved_settings`)."""

OF_THE_PAPER = (
    "norms_by_part",
    "standardise",
    "regularisation",
    "cluster_rounds",
    "inner_rounds",
    "gamma_decay",
    "monitor_every",
    "safeguards",
)
ALWAYS = ("pseudo_counts", "norm", "alpha", "memory_start", "margin", "trial_rounds", "sampling")
THEOREMS = ("v_min", "v_max", "field_lipschitz", "objective_lipschitz")
MOVED = {
    "algorithm=naive": "is memories = false of the method paper_federated_em",
    "codec=block": "is codec = 1",
    "codec=rand-k": "is no more: choose natural or dithering",
    "levels": "is a number as the value of codec now: codec = 8 is dithering with 8 levels",
    "kept": "was of the codec rand-k, which is no more",
    **dict.fromkeys(OF_THE_PAPER, "is a setting of the method paper_federated_em"),
    **dict.fromkeys(ALWAYS, "has its former default always: leave it out"),
    **dict.fromkeys(THEOREMS, "is no more: of mixtures the constants of the theorems are not finite. Set gamma"),
}
