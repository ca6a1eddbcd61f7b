"""Recording by browsertrix-crawler: a program of its own in a container, told by YAML, heard by its log.

`settings` makes its YAML and the call of Docker, `engine` finds Docker and its image, `log` reads what it
says, `ends` judges how it ended, `leftovers` imports what it left, and `run` does it all. Nothing of it is
imported or copied: its licence is the AGPL.
"""

from __future__ import annotations
