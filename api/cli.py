"""The `sluicegate` command: check the Python that runs it, then load the commands.

Standard library only, and in the syntax of older Pythons: whoever starts it with one is to read a sentence
and not a traceback.

Exit status: 0 done, 1 refused or failed, 2 wrong command line, 3 a server cannot be reached, 130 Ctrl-C.
"""

import sys
from importlib import import_module

MINIMUM = (3, 11)
"""The oldest Python that Sluicegate runs on; pyproject.toml says the same."""


def main() -> None:
    """Run the command of the command line and end the process with its status."""
    if sys.version_info[:2] < MINIMUM:
        sys.stderr.write(
            "error: Sluicegate needs Python {}.{} or newer, and this is Python {}.{} ({}).\n"
            "Make its environment again with a newer one: make PYTHON=/path/to/python3.12\n".format(
                *MINIMUM, *sys.version_info[:2], sys.executable
            )
        )
        sys.exit(2)
    import_module("api.commands.root").run()


if __name__ == "__main__":
    main()
