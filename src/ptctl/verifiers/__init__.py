"""Verifiers: what compares a trajectory with its task's target.

    exact          the final answer is the target, character by character
    numeric        the final answer holds one number, equal to the target
    python_tests   the answer's code passes the task's hidden tests in a sandbox

Each is built with the task's decoded `verifier_json`, is deterministic, and raises RowFailure where it cannot tell: a
verifier that fails is never a wrong answer. A change that may change a verdict raises `version`.
"""
