"""Compiles CUDA source to PTX with the pinned nvcc of requirements.txt.

Decides where the compiler is (the PyPI packages of this interpreter, or the folder in
SM100SIM_CUDA_HOME) and where results are kept: a cache keyed by everything that can change the PTX
(source, options, the text of local includes, the compiler's version). The cache is an ignored
folder and may be deleted at any time; without write access nothing is cached.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence

REQUIREMENTS = pathlib.Path(__file__).resolve().parents[1] / "requirements.txt"
REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
CACHE = REPOSITORY / ".cache" / "sm100sim"
DEFAULT_ARCH = "sm_100f"


def cuda_home() -> pathlib.Path:
    """The folder with bin/nvcc, include/ and nvvm/ of the pinned packages."""
    override = os.environ.get("SM100SIM_CUDA_HOME")
    roots = [override] if override else [sysconfig.get_path("purelib"), *sys.path]
    for root in roots:
        base = pathlib.Path(root)
        for home in (base / "nvidia" / "cu13", base):
            if (home / "bin" / "nvcc").is_file() and (home / "nvvm" / "bin" / "cicc").is_file():
                return home
    raise FileNotFoundError(
        f"the pinned nvcc is not installed for {sys.executable}: looked for nvidia/cu13/bin/nvcc "
        f"in {roots}. Install it with: {sys.executable} -m pip install -r {REQUIREMENTS}"
    )


def cutlass_include() -> list[pathlib.Path]:
    """Include folders of the pinned CUTLASS headers (cutlass, cute and the util folder)."""
    files = importlib.metadata.files("nvidia-cutlass") or []
    for file in files:
        if file.as_posix().endswith("include/cutlass/cutlass.h"):
            include = pathlib.Path(str(file.locate())).resolve().parents[1]
            tools = include.parent / "tools" / "util" / "include"
            return [include, *([tools] if tools.is_dir() else [])]
    raise FileNotFoundError(f"no CUTLASS headers: pip install -r {REQUIREMENTS}")


def _version(home: pathlib.Path) -> str:
    """Identifies the compiler without starting it (it is started only on a cache miss)."""
    nvcc, cicc = home / "bin" / "nvcc", home / "nvvm" / "bin" / "cicc"
    return f"{nvcc.stat().st_size}-{cicc.stat().st_size}"


_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


def _local_text(
    source: str, folders: Sequence[pathlib.Path], seen: dict[pathlib.Path, str]
) -> None:
    """Collects the text of quoted includes found in `folders`, recursively: they are part of the
    key.
    """
    for name in _INCLUDE.findall(source):
        for folder in folders:
            path = (folder / name).resolve()
            if path.is_file():
                if path not in seen:
                    seen[path] = path.read_text()
                    _local_text(seen[path], [path.parent, *folders], seen)
                break


def compile_ptx(
    source: str | pathlib.Path,
    *,
    arch: str = DEFAULT_ARCH,
    options: Sequence[str] = (),
    include: Sequence[pathlib.Path] = (),
    lineinfo: bool = False,
) -> str:
    """PTX text of CUDA `source` (text, or a path to a .cu file)."""
    home = cuda_home()
    path = source if isinstance(source, pathlib.Path) else None
    text = path.read_text() if path else str(source)
    folders = [*([path.parent] if path else []), *include]
    flags = ["-std=c++17", f"-arch={arch}", "--expt-relaxed-constexpr", "-ptx", *options]
    flags += ["-lineinfo"] if lineinfo else []
    key = _key(text, flags, folders, home)
    command = [str(home / "bin" / "nvcc"), *flags, *(f"-I{folder}" for folder in folders)]
    if path:
        return _cached(key, "ptx", [*command, str(path)]).decode()
    with tempfile.TemporaryDirectory() as scratch:
        cu = pathlib.Path(scratch) / "source.cu"
        cu.write_text(text)
        return _cached(key, "ptx", [*command, str(cu)]).decode()


def compile_host(
    source: pathlib.Path, *, options: Sequence[str] = (), include: Sequence[pathlib.Path] = ()
) -> pathlib.Path:
    """A shared library of the host program `source`, compiled by g++ with CUDA's headers; its path,
    in a folder that lives as long as the process.
    """
    home = cuda_home()
    compiler = os.environ.get("SM100SIM_CXX", "g++")
    flags = ["-std=c++17", "-w", "-fPIC", "-shared", *options]
    folders = [source.parent, *include, home / "include", home / "include" / "cccl"]
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    key = _key(source.read_text(), [*flags, version.stdout], folders, home)
    data = _cached(key, "so", [compiler, str(source), *flags, *(f"-I{f}" for f in folders)])
    path = pathlib.Path(tempfile.mkdtemp(prefix="sm100sim-")) / "host.so"
    path.write_bytes(data)
    return path


def _key(
    text: str, flags: Sequence[str], folders: Sequence[pathlib.Path], home: pathlib.Path
) -> str:
    """Name of the result: a hash of everything that can change it."""
    seen: dict[pathlib.Path, str] = {}
    own = [folder for folder in folders if "site-packages" not in folder.parts]
    _local_text(text, own, seen)  # packages are pinned: their version stands for their text
    parts = [text, *flags, _version(home), *(f"{p.name}\0{t}" for p, t in sorted(seen.items()))]
    if any("cutlass" in str(f) for f in folders):
        parts.append(importlib.metadata.version("nvidia-cutlass"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _cached(key: str, suffix: str, command: Sequence[str]) -> bytes:
    """The cached result, or what `command` writes to the file that `-o` names."""
    cached = CACHE / f"{key}.{suffix}"
    if cached.is_file():
        return cached.read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / f"out.{suffix}"
        done = subprocess.run(
            [*command, "-o", str(out)], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"failed: {' '.join(command)}\n{done.stdout}{done.stderr}")
        data = out.read_bytes()
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as file:
            file.write(data)
        os.replace(file.name, cached)
    except OSError:
        pass  # a read-only checkout only loses the cache
    return data
