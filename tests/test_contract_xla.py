"""The contract's tests on the pure-JAX implementation, as XLA compiles it for the CPU."""

from __future__ import annotations

from bound import BoundContract


class TestXla(BoundContract):
    implementation = "xla"
    # Every shape is compiled anew: fewer of them, at the edges of tiles of 2^n rows.
    batches = (2, 3, 8, 9, 16, 17, 33, 64, 65, 70)
    examples = 8
