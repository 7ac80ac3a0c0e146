"""Sandboxes: where model-written code runs.

`bubblewrap` starts one box a command, needs no daemon and no root. Its parts:

    host.py        what of this node decides the argument vector: bwrap, setpriv, uid, directories, hard limits
    box_argv.py    the argument vector of a box, a pure function of host and command
    box_files.py   files into the workspace, and the safe way to read them back
    memory.py      the ladder of memory limits: cgroup v2, cgroup v1, RSS watchdog
    box.py         one box from start to removal
    keeper.py      the process that removes everything when ptctl itself is killed
    bubblewrap.py  the plug-in
"""
