"""Makes, or brings up to date, the virtual environment that the Makefile works in.

Decides what is missing on this machine and says so in words; leaves versions to the requirements
files. Needs only a plain Python, and must be readable by an old one, which it refuses. A file in
the environment names all that went into it by hash, so a second run does nothing.

    python3 tools/setup_venv.py VENV REQUIREMENTS...
"""

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST = (3, 11)
ROOT = Path(__file__).resolve().parent.parent


def main(venv: Path, requirements: "list[Path]") -> None:
    check_machine()
    identity = f"{sys.version} {sys.base_prefix}\n"
    made_by, contents = venv / "made-by", venv / "contents"
    if not (made_by.exists() and made_by.read_text() == identity):
        if venv.exists():
            print(f"{venv}: made by another Python, making it anew", flush=True)
            shutil.rmtree(venv)
        print(f"{venv}: making it with Python {sys.version.split()[0]}", flush=True)
        run(sys.executable, "-m", "venv", venv)
        made_by.write_text(identity)
    done = contents.read_text().split() if contents.exists() else []

    python = venv / "bin" / "python"
    # Twice quiet: only errors, since pip warns about the machine's own settings.
    pip = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    for file in requirements:
        key = hashlib.sha256(file.read_bytes()).hexdigest()
        if key not in done:
            print(f"{venv}: installing {file}", flush=True)
            run(*pip, "-r", file)
            done.append(key)
            contents.write_text("\n".join(done))
    wanted = header_requirement()
    key = hashlib.sha256(wanted.encode()).hexdigest()
    if key not in done:
        install_headers(venv, pip, wanted)
        contents.write_text("\n".join([*done, key]))


def header_requirement() -> str:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return next(r for r in project["build-system"]["requires"] if r.startswith("jaxlib"))


def install_headers(venv: Path, pip: "list[object]", wanted: str) -> None:
    """Puts the FFI headers to build against into VENV/include/jaxlib.

    They are those that an isolated build would take, which are older than those of the newest
    jaxlib that the environment may hold to run the tests with.
    """
    print(f"{venv}: installing the headers of {wanted}", flush=True)
    target, unpacked = venv / "include" / "jaxlib", venv / "jaxlib-for-headers"
    shutil.rmtree(target, ignore_errors=True)
    shutil.rmtree(unpacked, ignore_errors=True)
    run(*pip, "--no-deps", "--target", unpacked, wanted)
    shutil.copytree(unpacked / "jaxlib" / "include", target)
    shutil.rmtree(unpacked)


def check_machine() -> None:
    if sys.version_info < OLDEST:
        fail(
            f"Python: found {sys.version.split()[0]} ({sys.executable}), but jax_megamoe needs "
            f"{OLDEST[0]}.{OLDEST[1]} or newer. Name a newer one: make PYTHON=python3.13 ..."
        )
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        fail(
            f"python3-venv: {sys.executable} cannot make virtual environments. Install the rest of "
            f"the standard library (Debian, Ubuntu: apt-get install python{version}-venv)."
        )
    compiler = os.environ.get("CXX", "").split()[:1] or ["c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in compiler):
        fail(
            f"C++ compiler: found none ({', '.join(compiler)}), and jax_megamoe is built from "
            "C++20 sources. Install one (Debian, Ubuntu: apt-get install g++; version 11 or "
            "newer), or name one: make CXX=clang++ ..."
        )


def run(*command: object) -> None:
    code = subprocess.run([str(part) for part in command], check=False).returncode
    if code:
        fail(f"failed with exit status {code}: {' '.join(str(part) for part in command)}")


def fail(message: str) -> None:
    sys.exit(f"jax_megamoe: {message}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
