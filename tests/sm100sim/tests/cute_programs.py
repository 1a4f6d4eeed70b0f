"""Compiles and runs the small host programs of tests/sm100sim/cute, which print layouts from CuTe's
own definitions.

The printed text is kept in the ignored cache folder under a key of the program's text and the
pinned header versions: a second run compiles nothing. g++ suffices: only host code of the headers
is used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import pathlib
import subprocess
import tempfile

from sm100sim import nvcc

PROGRAMS = pathlib.Path(__file__).resolve().parents[1] / "cute"


def output(name: str) -> list[list[str]]:
    """Lines of the program's output, split into words."""
    source = PROGRAMS / f"{name}.cc"
    versions = [
        importlib.metadata.version(package)
        for package in ("nvidia-cutlass", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
    ]
    key = hashlib.sha256("\0".join([source.read_text(), *versions]).encode()).hexdigest()[:32]
    cached = nvcc.CACHE / f"cute-{key}.txt"
    if cached.is_file():
        text = cached.read_text()
    else:
        include = nvcc.cuda_home() / "include"
        with tempfile.TemporaryDirectory() as scratch:
            binary = pathlib.Path(scratch) / name
            folders = [*nvcc.cutlass_include(), include, include / "cccl"]
            command = [
                "g++",
                "-std=c++17",
                "-O0",
                "-w",
                str(source),
                "-o",
                str(binary),
                *(f"-I{folder}" for folder in folders),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"g++ failed ({' '.join(command)}):\n{done.stderr}")
            text = subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout
        try:
            nvcc.CACHE.mkdir(parents=True, exist_ok=True)
            cached.write_text(text)
        except OSError:
            pass  # a read-only checkout only loses the cache
    # CuTe complains on host code that takes a shared-memory address; the address is 0, as wanted.
    return [line.split() for line in text.splitlines() if not line.startswith("ERROR")]
