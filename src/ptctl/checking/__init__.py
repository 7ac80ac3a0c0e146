"""Checking: what is wrong with the files of a run, found and named.

    problems     what can be wrong, and how it is told
    places       arguments → datasets, policies and the directories that hold them
    datasets     one dataset: its manifest, files, schemas and lineage; deep, every byte and every value
    tokens       deep: streams and spans of each trajectory
    relations    deep: keys that must be unique, rows that must exist, over all shards at once
    policies     policy.json and weights
    leftovers    temporary names of writers that are gone
    examine      all of it

Quick checks read footers and sizes alone. Nothing here changes a file.
"""
