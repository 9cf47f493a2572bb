"""`fedcore.flows.train` by its old name."""

import sys

from fedcore.flows import train

sys.modules[__name__] = train
