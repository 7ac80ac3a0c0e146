"""The five stages killed at random moments: nothing lost, nothing twice, and the same end as without a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.kill
NUM_KILLS = int(os.environ.get("PTCTL_NUM_KILLS", "100"))


def test_random_kills_change_nothing(tmp_path: Path) -> None:
    harness = Path(__file__).with_name("kill_harness.py")
    command = [sys.executable, str(harness), str(tmp_path), str(NUM_KILLS), "1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    print(counts)
    assert counts["SIGKILL"] + counts["SIGTERM"] >= NUM_KILLS
    assert min(counts["SIGKILL"], counts["SIGTERM"]) > NUM_KILLS / 4
    assert NUM_KILLS < 50 or counts["resumable"] > 0  # SIGTERM is answered with 75 where a stage was at work
