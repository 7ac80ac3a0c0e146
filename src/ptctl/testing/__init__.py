"""Fakes and contract suites for the tests of ptctl and of plug-ins.

Import the modules; this package itself is empty.
"""
