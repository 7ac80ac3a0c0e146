"""Backends: what trains a policy. Each is found by name through the registry; nothing heavy is imported here."""

from __future__ import annotations
