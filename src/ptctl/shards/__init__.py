"""The data floor: rows as immutable Parquet shards, datasets as directories of them.

schema    row type → Arrow schema, version and fingerprint
columns   rows ↔ Arrow tables, token streams as numpy offsets and values
files     temp name, fsync, link without clobbering, fsync of the directory
writer    rows → committed shard
reader    shard → rows or columns, refused where schema or file is not right
dataset   directory of shards, its manifest, and what a command-line argument names
follow    shards as they are committed, from a directory or a pipe
policies  numbered policy directories
verified  the kind of a shard, believed only after its columns were looked at
database  DuckDB within a memory limit, with a spill directory of its own
views     the datasets of a run for SQL that reads and does nothing else
"""
