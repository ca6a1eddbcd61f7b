"""A web held still, so that agents can learn in it.

stillweb records task sites into web-archive collections, serves them back through a
MITM replay proxy so that real URLs replay frozen, and gives trainers an asynchronous
Playwright environment whose episodes are identical, run after run.

The rooms are sub-packages: `certs`, `collections`, `browser`, `record`, `replay`, `env`,
`diff`; `ARCHITECTURE.md` draws how they connect. Importing this package does no work.
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
