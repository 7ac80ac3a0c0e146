"""Seeds are hashed from names and indices, never added.

Adding (`seed + step`, `seed * 1000 + i`) makes runs that overlap: run 1 at step 5 is run 5 at step 1. A hash of all the
parts has no such neighbours, and the same parts give the same seed on every machine and Python version.
"""

from __future__ import annotations

import hashlib

SEED_BITS = 63
"""Width of a seed: it fits a signed 64-bit column."""


def derive_seed(*parts: int | str) -> int:
    """Hash `parts` to a seed in [0, 2**63).

    Every part is length-prefixed and typed, so ("ab", "c") and ("a", "bc") differ, and so do 1 and "1".
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        kind = b"i" if isinstance(part, int) else b"s"
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(kind + len(text).to_bytes(4, "little") + text)
    return int.from_bytes(digest.digest(), "little") >> (64 - SEED_BITS)
