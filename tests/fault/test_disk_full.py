"""A full disk: exit 74, the earlier state stays readable, and with more room the same command goes on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fake_run import write_fake_recipe

pytestmark = pytest.mark.kill
SCRIPT = """
set -u
mount -t tmpfs -o size=64k tmpfs "$1/small" || exit 99
cd "$1/small"
P="$2 -m ptctl"; R="--recipe $1/recipe --phase second"
codes=""
step() { "$@" >> ../out 2>> ../err; code=$?; codes="$codes $code"; return $code; }
play() {
    step $P tasks import ../recipe/pool.jsonl -o tasks &&
    step $P sample tasks $R -n 24 -o batches/0 &&
    step $P rollout batches/0 $R --policy ../recipe/model -o trajectories/0 &&
    step $P score trajectories/0 $R -o scores/0 &&
    step $P train scores/0 $R --policy ../recipe/model -o policies
}
play; full=$?
readable=0
for shard in $(find . -name '*.parquet' -not -name '.*'); do
    $2 -c "$3" "$shard" || readable=1
done
mount -o remount,size=16m tmpfs "$1/small"
play; again=$?
leftovers=$(find . -name '.*tmp-*' | wc -l)
echo "$full $readable $again $leftovers $(ls policies)"
"""
READ = """
import sys
from pathlib import Path
from ptctl.shards.reader import read_table, shard_metadata
path = Path(sys.argv[1])
read_table(path, shard_metadata(path)["kind"])
"""


def test_disk_full_is_74_and_resumable(tmp_path: Path) -> None:
    if os.geteuid() != 0 and shutil.which("unshare") is None:
        pytest.skip("mounting a small file system needs root or unshare")
    write_fake_recipe(tmp_path / "recipe")
    (tmp_path / "small").mkdir()
    enter = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-Urm"]
    command = [*enter, "bash", "-c", SCRIPT, "bash", str(tmp_path), sys.executable, READ]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    errors = (tmp_path / "err").read_text()
    assert done.returncode == 0, done.stderr + errors
    full, readable, again, leftovers, policies = done.stdout.split()
    assert (full, readable, again, leftovers, policies) == ("74", "0", "0", "0", "1"), errors
    assert "No space left on device" in errors
    assert "Traceback" not in errors
