"""Parts of `examples/benchmark.py`: what the layer is compared with, and how time is taken."""
