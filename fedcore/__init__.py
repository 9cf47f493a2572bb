"""Federated, private, unsupervised learning over populations too large for memory.

    open_population, train, resume, load_run, plan, budget, set_budget    what the command line does, from Python
    compare, plot_components, plot_scores                                 of fitted models and rows
    FederatedMixture, PrivateMixture, RobustMultiTaskMixture, PersonalHistograms, PersonalDictionaries
                                                                          estimators in the manner of scikit-learn
    errors.FedcoreError                                                   what they raise

Names are imported at their first use: `import fedcore` alone stays quick. The examples of docstrings read a population
"heights": 80 rows of 2 columns, of 20 clients.
"""

from importlib import import_module

__version__ = "1.0.0"

WHERE = {
    "open_population": "functions",
    "train": "functions",
    "resume": "functions",
    "plan": "functions",
    "budget": "functions",
    "set_budget": "functions",
    "load_run": "model",
    "compare": "compare",
    "plot_components": "plots",
    "plot_scores": "plots",
    "FederatedMixture": "federated_mixture",
    "PrivateMixture": "mixtures",
    "RobustMultiTaskMixture": "multi_task",
    "PersonalHistograms": "personal",
    "PersonalDictionaries": "personal",
}
__all__ = ["__version__", *WHERE]


def __getattr__(name: str):
    """What `WHERE` names, from its module."""
    if name in WHERE:
        return getattr(import_module(f"fedcore.interface.{WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *WHERE})
