"""The contract's tests on the pure-JAX implementation, as XLA compiles it for the CPU."""

from __future__ import annotations

from bound import BoundContract


class TestXla(BoundContract):
    implementation = "xla"
    # Every shape is compiled anew, for seconds: few of them, with one, two and more tiles of 32
    # slots for an expert.
    batches = (2, 16, 33, 70)
    examples = 5
    wide_examples = 200
