"""Make the environments that the packages of others run in: one for each requirements/integration/*.txt.

    python tests/integration/environments.py ~/.cache/stillweb-integration [NAME...]

Each is pinned as a whole, and has this checkout without its dependencies, as an adapter meets it. An
existing one is left alone until its file changes. The first line of a file may be `# --no-deps` or
`# --python VERSION`, 3.11 otherwise.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
WANTED = REPO / "requirements" / "integration"
UV = Path(sys.executable).with_name("uv")


def make(requirements: Path, folder: Path) -> str:
    """Make one; return what came of it."""
    digest = hashlib.sha256(requirements.read_bytes() + str(REPO).encode()).hexdigest()
    stamp = folder / "stillweb.stamp"
    if stamp.is_file() and stamp.read_text() == digest:
        return "there already"
    shutil.rmtree(folder, ignore_errors=True)
    began = time.perf_counter()
    text = requirements.read_text()
    alone = ["--no-deps"] if text.startswith("# --no-deps") else []
    named = re.match(r"# --python (\S+)", text)
    python = named[1] if named else "3.11"
    if subprocess.run([UV, "python", "find", "--quiet", python], capture_output=True, check=False).returncode:
        return f"left out: no Python {python} on the PATH"
    environment = {**os.environ, "VIRTUAL_ENV": str(folder)}
    for command in (
        ["venv", "--python", python, folder],
        ["pip", "install", *alone, "-r", requirements],
        ["pip", "install", "--no-deps", "--editable", REPO],
    ):
        subprocess.run([UV, *command[:1], "--quiet", *command[1:]], env=environment, check=True)
    stamp.write_text(digest)
    return f"made in {time.perf_counter() - began:.0f} s"


def main() -> int:
    root, names = Path(sys.argv[1]).expanduser(), sys.argv[2:]
    failed = 0
    for requirements in sorted(WANTED.glob("*.txt")):
        if names and requirements.stem not in names:
            continue
        try:
            status = make(requirements, root / requirements.stem)
        except subprocess.CalledProcessError as error:
            status, failed = f"failed: {error}", failed + 1
        sys.stdout.write(f"{requirements.stem:<12}{status}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
