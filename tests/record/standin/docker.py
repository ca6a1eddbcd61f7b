"""A program that takes the arguments of `docker` that we use, and runs the stand-in without a container.

FAKE_DOCKER says what is wrong with it: `down`, `denied`, `unpullable`, `busy`.
"""

# ruff: noqa: T201  a program, which prints
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path


def main(arguments):
    wrong = os.environ.get("FAKE_DOCKER", "")
    if wrong == "down":
        print("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", file=sys.stderr)
        return 1
    if wrong == "denied":
        print("permission denied while trying to connect to the Docker daemon socket", file=sys.stderr)
        return 1
    if arguments[0] == "image":
        return wrong == "unpullable"
    if arguments[0] == "pull":
        print("Error response from daemon: manifest for it not found", file=sys.stderr)
        return 1
    if arguments[0] == "kill":
        return kill(arguments[-1])
    if arguments[0] != "run":
        return 0
    if wrong == "busy":
        print('docker: Error: Conflict. The container name "/x" is already in use by it.', file=sys.stderr)
        return 125
    return run(arguments[1:])


def kill(label):
    os.kill(int(pid_file(label).read_text()), signal.SIGKILL)
    return 0


def pid_file(label):
    return Path(os.environ["FAKE_RUN"]) / label


def run(arguments):
    environment, volume, label = dict(os.environ), "", ""
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--shm-size", "--add-host", "--network"):
            next(rest)
        elif argument == "--name":
            label = next(rest)
        elif argument == "-v":
            volume = volume or next(rest).partition(":")[0]
        elif argument == "-e":
            name, _, value = next(rest).partition("=")
            environment[name] = value
        elif argument != "--rm":
            break  # the image
    command = list(rest)
    if command[0] != "crawl":
        return 127
    environment["CRAWLS"] = volume
    program = Path(__file__).with_name("crawl.py")
    child = subprocess.Popen([sys.executable, str(program), *command[1:]], env=environment)
    pid_file(label).write_text(str(child.pid))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: child.send_signal(number))  # as docker does
    code = child.wait()
    return 128 - code if code < 0 else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
