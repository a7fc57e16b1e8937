"""What this system offers to fence a program in; the strongest that works is used, and results say which.

None of it is a security boundary. For hostile code use a container or a virtual machine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

#: an account without files of its own
NOBODY = 65534


@dataclass(frozen=True)
class Isolation:
    """One way to start a child.

    Attributes:
        name: for records.
        network: whether the program can reach the network.
        files: ``read`` = the account's files can be read and changed as it may; ``hidden`` = only the system's and the
            interpreter's can be read, and only the working folder written.
        account: user and group id to run as, or None for the caller's.
        prefix: command in front of the interpreter; ``{folder}`` is the working folder.
    """

    name: str
    network: bool
    files: str
    account: int | None = None
    prefix: tuple[str, ...] = ()

    def command(self, folder: str) -> list[str]:
        """The words in front of the interpreter."""
        return [word.replace("{folder}", folder) for word in self.prefix]


def candidates() -> list[Isolation]:
    """Every way that this system's tools might allow, strongest first."""
    root = os.geteuid() == 0
    fences = _fences()
    found: list[Isolation] = []
    if root:
        found += [replace(one, name=f"{one.name} as nobody", account=NOBODY) for one in fences]
        # The kernel counts processes by the real account and exempts root's; a namespace takes root's other powers.
        other = shutil.which("setpriv")
        if other:
            found += [replace(one, prefix=(other, "--ruid", str(NOBODY), "--", *one.prefix)) for one in fences]
    found += fences
    if root:
        found.append(Isolation("process as nobody", True, "read", NOBODY))
    return [*found, Isolation("process", True, "read")]


def _fences() -> list[Isolation]:
    found: list[Isolation] = []
    bubblewrap, unshare = shutil.which("bwrap"), shutil.which("unshare")
    if bubblewrap:
        found.append(Isolation("bubblewrap", False, "hidden", None, _bubblewrap(bubblewrap)))
    if unshare:
        prefix = (unshare, "--user", "--net", "--pid", "--ipc", "--fork", "--kill-child", "--")
        found.append(Isolation("user namespace", False, "read", None, prefix))
    return found


def strongest(works: Callable[[Isolation], bool]) -> Isolation | None:
    """The first candidate for which ``works`` holds, or None."""
    return next((candidate for candidate in candidates() if works(candidate)), None)


def _bubblewrap(path: str) -> tuple[str, ...]:
    readable = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", *{sys.prefix, sys.base_prefix}]
    binds = [word for item in readable if os.path.exists(item) for word in ("--ro-bind", item, item)]
    harness = os.path.dirname(os.path.abspath(__file__))
    return (
        path, "--unshare-all", "--die-with-parent", "--new-session", *binds, "--ro-bind", harness, harness,
        "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--bind", "{folder}", "{folder}", "--chdir", "{folder}",
        "--",
    )  # fmt: skip
