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
    extra = [*options, *(["-lineinfo"] if lineinfo else [])]
    return _compile(source, arch, ["-ptx", *extra], include, "ptx").decode()


def compile_library(
    source: str | pathlib.Path,
    *,
    arch: str = DEFAULT_ARCH,
    options: Sequence[str] = (),
    include: Sequence[pathlib.Path] = (),
) -> pathlib.Path:
    """A shared library of the host code of `source`; its path, in the cache or in a folder that
    lives as long as the process.
    """
    flags = ["-shared", "-Xcompiler", "-fPIC", f"-L{cuda_home() / 'lib'}", *options]
    data = _compile(source, arch, flags, include, "so")
    path = pathlib.Path(tempfile.mkdtemp(prefix="sm100sim-")) / "host.so"
    path.write_bytes(data)
    return path


def _compile(
    source: str | pathlib.Path,
    arch: str,
    options: Sequence[str],
    include: Sequence[pathlib.Path],
    suffix: str,
) -> bytes:
    home = cuda_home()
    path = source if isinstance(source, pathlib.Path) else None
    text = path.read_text() if path else str(source)
    folders = [*([path.parent] if path else []), *include]
    flags = ["-std=c++17", f"-arch={arch}", "--expt-relaxed-constexpr", *options]
    seen: dict[pathlib.Path, str] = {}
    own = [folder for folder in folders if "site-packages" not in folder.parts]
    _local_text(text, own, seen)  # packages are pinned: their version stands for their text
    parts = [text, *flags, _version(home), *(f"{p.name}\0{t}" for p, t in sorted(seen.items()))]
    if any("cutlass" in str(f) for f in include):
        parts.append(importlib.metadata.version("nvidia-cutlass"))
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    cached = CACHE / f"{key}.{suffix}"
    if cached.is_file():
        return cached.read_bytes()
    with tempfile.TemporaryDirectory() as scratch:
        work = pathlib.Path(scratch)
        cu = path or work / "source.cu"
        if path is None:
            cu.write_text(text)
        out = work / f"out.{suffix}"
        command = [
            str(home / "bin" / "nvcc"), str(cu), "-o", str(out), *flags,
            *(f"-I{folder}" for folder in folders),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"nvcc failed ({' '.join(command)}):\n{done.stdout}{done.stderr}")
        data = out.read_bytes()
    try:
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=CACHE, delete=False) as file:
            file.write(data)
        os.replace(file.name, cached)
    except OSError:
        pass  # a read-only checkout only loses the cache
    return data
