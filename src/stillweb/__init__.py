"""Record web sites, replay them deterministically, and run agents' episodes on the replay.

Subpackages: `certs`, `collections`, `browser`, `record`, `replay`, `env`, `diff`, `coverage`, `server`,
`trainers` and `cli`. ARCHITECTURE.md describes how they depend on each other. Importing this package does no
work.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
