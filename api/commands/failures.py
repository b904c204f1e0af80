"""How a command says that it did not work, and the exit statuses that scripts can rely on.

CommandFailed            1  the server, or this machine, refused
├── UsageFailed          2  the command line or a file it names is wrong
└── ServerNotReachable   3  nobody answers
"""

REFUSED = 1
USAGE = 2
NOT_REACHABLE = 3


class CommandFailed(Exception):
    """A command did not do what it was asked; the message says what happened and what to do."""

    status = REFUSED


class UsageFailed(CommandFailed):
    """What was asked for cannot be read."""

    status = USAGE


class ServerNotReachable(CommandFailed):
    """A server that the command needs does not answer."""

    status = NOT_REACHABLE
