"""Settings that the method had, for the error that refuses one (`Method.moved_settings`)."""

_ALGORITHMS = ("local-fit", "local-em", "local-grem", "fedem", "fedem-w", "tgmm", "fedgmm", "pooled-em", "pooled-grem")
_OF_THE_PAPER = ("preset", "step_size", "ward", "start_steps", "gradient_step", "average", "tgmm_penalty", "covariates")
_PAPER_PRESET = ("shrinkage", "central", "step")
_CONSTANTS = (
    "limit",
    "pooling",
    "penalty",
    "penalty_decay",
    "first_penalty",
    "smallest_cluster",
    "weight_floor",
    "batch_decay",
    "batch_weight",
    "alignment",
    "shuffles",
)
_GONE = ("by_component", "share_weights", "weights_penalty", "cap_steps", "local_steps", "gradient_clip")
MOVED = {
    "algorithm=mixed-effects": "is the method mixed_effects now",
    "robust": "is a setting of the method mixed_effects",
    "algorithm=fedgrem": "is what gradient_em always trains: leave it out",
    **{f"algorithm={name}": "is an algorithm of the method paper_gradient_em" for name in _ALGORITHMS},
    "central=authors": "is the setting one_sweep of the method paper_gradient_em",
    **dict.fromkeys(_OF_THE_PAPER, "is a setting of the method paper_gradient_em"),
    **dict.fromkeys(_PAPER_PRESET, 'is what preset = "paper" of the method paper_gradient_em chooses'),
    "known": "is the value of covariance now",
    "covariance=known": "is what a number, or numbers, as the value of covariance say now",
    **dict.fromkeys(_CONSTANTS, "has its former default always: leave it out"),
    **dict.fromkeys(_GONE, "is no more: no measurement showed that it pays"),
}
