"""Stage processes of `ptctl run` end with it, also when it is killed with SIGKILL."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "PTCTL_PARENT_PID"
PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the process that started this one as a stage of a run dies.

    Without this, an orphan would go on training while the next `ptctl run` starts another. Does nothing for a stage
    that a person or Slurm started.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):  # it died before the request was made
        sys.exit(128 + signal.SIGKILL)
