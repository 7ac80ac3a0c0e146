"""`ptctl run`: starts the stages as warm processes and draws their batches.

It holds no state: every step looks at the disk.

plan        recipe → the batches and evaluations of the run, in order
prepare     lock, checks before anything is written, recipe and pool of the run
processes   stage processes: start, watch, stop
progress    what is going on, for a terminal and for a log
supervise   the loop
"""
