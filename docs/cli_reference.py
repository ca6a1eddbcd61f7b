"""The generator is now tools/cli_reference.py; this forwards to it."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().parents[1] / "tools" / "cli_reference.py"), run_name="__main__")
