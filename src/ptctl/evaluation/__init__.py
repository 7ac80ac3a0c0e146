"""Evaluation: scores, trajectories, draws and tasks → a report.

    lineage      score shards → the trajectories, draws and tasks behind them
    frames       one side as counts per task; refuses duplicates and digests that do not fit
    process      tool calls, stop reasons, cost
    strata       keys → cells, cut on facts that were fixed before the run
    comparison   candidate against baseline, by task
    gate         gate.toml → verdict
    report       the tree that all of it ends in

The formulas are in `ptctl.stats`; nothing here has one of its own.
"""
