"""Large packages that many commands never use. `import numpy` is free until something of NumPy is used."""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any, cast

# SciPy looks up everything that NumPy has, and uses nothing of f2py and testing.
PACKAGES = ("numpy", "numpy.f2py", "numpy.testing", "scipy", "psutil")
PATH = "path to come"  # among the names of a package that has not been imported
_lock = RLock()


class Later(ModuleType):
    """A package that is imported at its first use, by the thread that needs it first.

    It has no `__path__` until then, so that an import of one of its modules is a use of it.
    """

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if PATH in vars(self):
                self.__path__ = vars(self).pop(PATH)
                assert self.__spec__ is not None and self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)
                cast(Any, self).__class__ = ModuleType
        if isinstance(self, Later):  # a module of the package asks while the package is being imported
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r} yet")
        return getattr(self, name)


def import_later() -> None:
    """Let PACKAGES be imported at their first use, for the rest of this process. One that is not installed, or has been
    imported, stays as it is.
    """
    for name in PACKAGES:
        parent, _, own = name.rpartition(".")
        around = vars(sys.modules[parent]) if parent else {}
        spec = PathFinder.find_spec(name, around.get(PATH, around.get("__path__")))
        if name not in sys.modules and spec is not None:
            sys.modules[name] = around[own] = module = module_from_spec(spec)
            vars(module)[PATH] = vars(module).pop("__path__")
            module.__class__ = Later
