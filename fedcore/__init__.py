"""Federated, private, unsupervised learning over populations too large for memory."""

__version__ = "0.1.0"


def __getattr__(name: str):
    """`fedcore.load_run`, imported when it is asked for: `import fedcore` alone stays quick."""
    if name == "load_run":
        from fedcore.runs.store import load_run

        return load_run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), "load_run"])
