from .blocking import BlockingEnv
from .replayed import Replayed

__all__ = [
    "BlockingEnv",
    "Replayed",
]
