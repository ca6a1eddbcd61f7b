"""An environment package for verifiers and its hub: the module that `--env.taskset.id stillweb-web` names."""

from stillweb.trainers.verifiers import ReplayEnv, ReplayTaskset

__all__ = ["ReplayEnv", "ReplayTaskset"]
