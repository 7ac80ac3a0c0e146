"""The data floor: rows as immutable Parquet shards, datasets as directories of them.

schema     row type → Arrow schema, version and fingerprint
columns    rows ↔ Arrow tables, a column at a time
streams    token streams as numpy offsets and values
files      temp name, fsync, link without clobbering, fsync of the directory
lineage    where a shard comes from, in its metadata
writer     rows → committed shard, a row group in memory at a time
row_groups where row groups end
file_hash  sha256 of what is written, in the footer
reader     shard → rows or columns, whole or by row groups, refused where schema or file is not right
rank_rows  which rows each of many ranks reads
dataset    directory of shards, its manifest, and what a command-line argument names
follow     shards as they are committed, from a directory or a pipe
policies   numbered policy directories
verified   the kind of a shard, believed only after its columns were looked at
database   DuckDB within a memory limit, with a spill directory of its own
views      the datasets of a run for SQL that reads and does nothing else
"""
