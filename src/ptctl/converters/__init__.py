"""Trajectories of other tools, in and out: one file a format, found by name through `ptctl.converters`.

atif        Harbor's trajectory documents (JSON)
verifiers   `results.jsonl` with `metadata.json`
verl        dumped rollouts (JSONL)
trl         data sets for SFT, DPO and KTO (JSONL, Parquet)

A format is two functions: `parse` (its row → our rows) and `derive` (our rows → its row). What of a source has no
column is found by comparing: `leftovers.difference(source, derive(parse(source)))` is kept in the trajectory's
`original_json`, and applied again when the same format is written. The other way round, what of our rows a format has
no field for goes into a member `ptctl` of its row, where the format allows one (`envelope`). So nothing needs a list
of fields that somebody must keep complete.

json_input      files → JSON values, strictly, with the place of what is wrong
leftovers       difference and restore, exact inverses
chat            chat messages and tool calls ↔ turns
token_streams   prompt and completion ids of each generation ↔ one masked stream
assembly        parsed rows → tasks, draws, trajectories and scores that refer to each other
envelope        our columns inside a foreign row
round_trip      the two directions, for formats with one row a trajectory
"""
