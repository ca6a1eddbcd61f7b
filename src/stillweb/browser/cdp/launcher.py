"""Become a browser whose debugging pipe leads to another process: a program, started by `launcher`.

Playwright gives descriptors 3 and 4, which a browser reads and writes (--remote-debugging-pipe). They go to
the Unix socket STILLWEB_PIPE, and one that comes back replaces both. Then the program STILLWEB_EXECUTABLE
replaces this one, so that process, arguments and exit status are the browser's.
"""

import os
import socket
import sys

READ, WRITE = 3, 4  # content/browser/devtools/devtools_pipe_handler.cc


def main() -> None:
    del os.environ["STILLWEB_PYTHON"]
    address, browser = os.environ.pop("STILLWEB_PIPE"), os.environ.pop("STILLWEB_EXECUTABLE")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(address)
        socket.send_fds(server, [b"\0"], [READ, WRITE])
        descriptor = socket.recv_fds(server, 1, 1)[1][0]
    os.dup2(descriptor, READ)
    os.dup2(descriptor, WRITE)
    os.close(descriptor)
    os.execv(browser, [browser, *sys.argv[1:]])


if __name__ == "__main__":
    main()
