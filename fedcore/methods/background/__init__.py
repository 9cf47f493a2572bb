"""The background of a camera that stands still, by robust sums over the frames of clients."""

from fedcore.methods.background.config import BackgroundConfig
from fedcore.methods.background.method import Background
from fedcore.methods.background.state import BackgroundState

__all__ = ["Background", "BackgroundConfig", "BackgroundState"]
