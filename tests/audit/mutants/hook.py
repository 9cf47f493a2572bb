"""A pytest plugin that alters one module as it is imported: `FEDCORE_MUTANT` names the mutant.

It imports nothing of fedcore, because it must be there before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

from tests.audit.mutants.table import ROOT, Mutant, chosen

NAME, MARK = "FEDCORE_MUTANT", "FEDCORE_MUTANT_MARK"


class Altered(SourceFileLoader):
    """Compiles the mutant's text in place of the file's, and leaves a mark."""

    mutant: Mutant

    def get_code(self, fullname: str):
        Path(os.environ[MARK]).touch()
        return self.source_to_code(self.mutant.altered().encode(), self.path)


class Finder:
    """Before all other finders: gives the altered module, and leaves others to them."""

    def __init__(self, mutant: Mutant):
        self.mutant, self.file = mutant, ROOT / mutant.file

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.rsplit(".", 1)[-1] != self.file.stem or not name.startswith("fedcore"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or Path(spec.origin).resolve() != self.file.resolve():
            return None
        loader = Altered(name, spec.origin)
        loader.mutant = self.mutant
        spec.loader = loader
        return spec


if NAME in os.environ:
    (_mutant,) = chosen([os.environ[NAME]])
    assert not any(name.startswith("fedcore.") for name in sys.modules), "fedcore was imported before the plugin"
    sys.meta_path.insert(0, Finder(_mutant))
