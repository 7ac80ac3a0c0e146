"""Environments: what a policy acts in, one object for each episode.

`single_turn` ends with the first assistant message; `tools` runs the function tools that the task declares, by the
kinds of `tool_kinds`. Each is found by name through `ptctl.registry`, and none knows an engine, a verifier or another
environment.
"""
