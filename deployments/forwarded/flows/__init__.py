"""A name that fedcore gave up: only `flows.train` is still found, for deployments that were registered under it.

PYTHONPATH is searched before the site-packages, and a package wins over a folder without `__init__.py`. So this package
looks for another `flows` everywhere else where modules are searched; if there is one, that is what has been imported.
"""

import sys
from importlib import import_module
from pathlib import Path

_here = str(Path(__file__).parent.parent)
_this = sys.modules.pop(__name__)
sys.path[:] = [entry for entry in sys.path if entry != _here]
try:
    import_module(__name__)
except ModuleNotFoundError as _error:
    if _error.name != __name__:
        raise
    sys.modules[__name__] = _this
