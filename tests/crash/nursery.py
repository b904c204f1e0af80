"""Forks workers and APIs from a process that has imported everything: python -m tests.crash.nursery.

Importing takes seconds of a core, and a kill is followed by a start; what is forked here is a process of its
own that runs the same entry as `python -m` would. Requests come over the socket whose number is the argument:
a JSON object {"module", "environment"} with two descriptors, for standard output and for the log; the answer
is the process's id with a descriptor of the process itself, for which there is no mistaking it for another.
"""

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tests.crash import api_entry, worker_entry

ENTRIES: Mapping[str, Callable[[], None]] = {
    "tests.crash.api_entry": api_entry.main,
    "tests.crash.worker_entry": worker_entry.main,
}

LARGEST_REQUEST = 1 << 16


def serve(requests: socket.socket) -> None:
    """Fork until the other end is closed; then whatever was forked is killed."""
    if threading.active_count() != 1:
        raise RuntimeError("A process with threads must not be forked; an import has started one.")
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LARGEST_REQUEST, 2)
        if not message:
            break
        request = json.loads(message)
        pid = os.fork()
        if pid == 0:
            requests.close()
            become(request, *descriptors)
        children.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        handle = os.pidfd_open(pid)
        socket.send_fds(requests, [str(pid).encode()], [handle])
        os.close(handle)
        children = {child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)}
    for child in children:
        os.kill(child, signal.SIGKILL)


def become(request: dict[str, Any], output: int, log: int) -> None:
    """Run an entry in this process, which is new, and end with it."""
    os.dup2(output, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(output)
    os.close(log)
    os.environ.clear()
    os.environ.update(request["environment"])
    status = 1
    try:
        ENTRIES[request["module"]]()
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
