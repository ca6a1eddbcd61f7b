from .background import BlockingEnv
from .replayed import Replayed

__all__ = ["BlockingEnv", "Replayed"]
