from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ptctl.protocols import SandboxLimits
from ptctl.sandboxes.memory import (
    BoxHandles,
    CgroupLimit,
    Cgroups,
    RssWatchdog,
    cgroup_candidates,
    cgroup_settings,
    processes_bytes,
    read_counter,
    tmpfs_bytes,
)

UNIFIED = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = (
    "24 1 0:22 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n"
    "31 24 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
    "32 24 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 24 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
)


def test_candidates_of_a_unified_hierarchy() -> None:
    own = "0::/user.slice/user-7.slice/run-1.scope\n"
    found = cgroup_candidates(mountinfo=UNIFIED, own_cgroups=own, token="t")
    assert [(c.means, str(c.directory)) for c in found] == [
        ("cgroup v2", "/sys/fs/cgroup/user.slice/user-7.slice/run-1.scope/ptctl-t"),
        ("cgroup v2", "/sys/fs/cgroup/user.slice/user-7.slice/ptctl-t"),
    ]


def test_candidates_inside_a_container() -> None:
    found = cgroup_candidates(mountinfo=UNIFIED, own_cgroups="0::/\n", token="t")
    assert [str(c.directory) for c in found] == ["/sys/fs/cgroup/ptctl-t"]


def test_candidates_of_a_hybrid_hierarchy() -> None:
    own = "4:memory:/job/5\n1:cpu:/\n0::/\n"
    found = cgroup_candidates(mountinfo=HYBRID, own_cgroups=own, token="t")
    assert [(c.version, str(c.directory)) for c in found] == [
        (2, "/sys/fs/cgroup/unified/ptctl-t"),
        (1, "/sys/fs/cgroup/memory/job/5/ptctl-t"),
    ]


def test_no_cgroups_at_all() -> None:
    assert cgroup_candidates(mountinfo="1 0 8:1 / / rw - ext4 /dev/sda rw\n", own_cgroups="", token="t") == []


def test_settings() -> None:
    limits = SandboxLimits(memory_bytes=1000)
    assert cgroup_settings(2, limits) == [
        ("memory.max", "1000"), ("memory.swap.max", "0"), ("memory.oom.group", "1"),
    ]  # fmt: skip
    assert cgroup_settings(1, limits) == [
        ("memory.limit_in_bytes", "1000"), ("memory.memsw.limit_in_bytes", "1000"),
    ]  # fmt: skip


def test_a_cgroup_that_takes_no_process_is_removed_again(tmp_path: Path) -> None:
    # A plain directory has no memory.max, and cgroup.procs cannot be made in a read-only one: the limit is refused.
    control = Cgroups(means="cgroup v1", directory=tmp_path / "absent" / "ptctl-t", version=1)
    with pytest.raises(OSError, match="absent"):
        control.limit("box-0", SandboxLimits(), BoxHandles(init_pid=1, proc_fd=-1, tmpfs_fds=()))


def test_kills_are_counted(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("low 0\nmax 9\noom 2\noom_kill 1\noom_group_kill 0\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert read_counter(tmp_path / "memory.events", "oom_kill") == 1
    assert read_counter(tmp_path / "absent", "oom_kill") == 0
    assert CgroupLimit(path=tmp_path, version=2).ran_out()
    assert not CgroupLimit(path=tmp_path, version=1).ran_out()
    assert not CgroupLimit(path=tmp_path, version=1).exceeded()


def test_memory_of_processes_is_summed(tmp_path: Path) -> None:
    for pid, resident, shared in ((10, 300, 100), (11, 50, 0)):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "statm").write_text(f"1000 {resident} {shared} 1 0 20 0\n")
        (tmp_path / str(pid) / "smaps_rollup").write_text(
            f"Rss: 999 kB\nPss: 99 kB\nPss_Anon: {pid} kB\nPss_File: 7 kB\n"
        )
    (tmp_path / "12").mkdir()  # ended between listing and reading
    (tmp_path / "self").mkdir()
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert processes_bytes(descriptor, exact=False) == 250 * os.sysconf("SC_PAGE_SIZE")
    assert processes_bytes(descriptor, exact=True) == 21 * 1024
    os.close(descriptor)


def test_watchdog_sees_this_process() -> None:
    program = "held = bytearray(b'x') * (30 << 20); print('held', flush=True); input()"
    with subprocess.Popen(
        ["/usr/bin/python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        proc = os.open("/proc", os.O_RDONLY)
        handles = BoxHandles(init_pid=process.pid, proc_fd=proc, tmpfs_fds=())
        limit = RssWatchdog().limit("box-0", SandboxLimits(memory_bytes=20 << 20), handles)
        assert limit.exceeded()
        assert limit.ran_out()
        process.kill()
        os.close(proc)


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a tmpfs")
def test_files_and_inodes_of_a_tmpfs() -> None:
    descriptor = os.open("/dev/shm", os.O_RDONLY)
    before = tmpfs_bytes((descriptor,))
    path = Path(f"/dev/shm/ptctl-test-{os.getpid()}-{time.monotonic_ns()}")
    path.write_bytes(bytes(1 << 20))
    grown = tmpfs_bytes((descriptor,)) - before
    path.unlink()
    os.close(descriptor)
    assert grown >= (1 << 20)
