"""Checks that code for wide instruction sets cannot reach the portable path.

    python tests/cpp/check_isolation.py <build directory>

Two dangers, two checks on the object files. An inline function or template that a path file
instantiates could be merged by the linker with the baseline's: so a path's object must define one
global symbol, its table, and no weak one. And a flag could be set for too much: so no object but
the path files' may hold an instruction of AVX or later.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

PATHS = {"path_avx2", "path_avx512", "path_avx512_bf16", "bf16_emulated"}
WIDE = re.compile(r"%[yz]mm\d|\tv[a-z0-9]+ ")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def faults(path: pathlib.Path) -> list[str]:
    name = path.name.split(".")[0]
    if name in PATHS:
        defined = [line.split() for line in output("nm", "--defined-only", str(path)).splitlines()]
        shared = [symbol for _, kind, symbol in defined if kind.isupper() or kind in "vw"]
        return (
            [] if len(shared) == 1 else [f"{path}: defines {shared}, accepted is its table alone"]
        )
    wide = WIDE.findall(output("objdump", "-d", "--no-show-raw-insn", str(path)))
    return [f"{path}: {len(wide)} instructions of AVX or later, accepted is none"] if wide else []


def main(build: str) -> int:
    objects = sorted(pathlib.Path(build).rglob("megamoe_cpu*.dir/**/*.o"))
    names = {path.name.split(".")[0] for path in objects}
    found = [fault for path in objects for fault in faults(path)]
    if not {"path_portable", "path_avx512"} <= names:
        found.append(f"{build}: found the objects {sorted(names)}, but not those of the paths")
    print("\n".join(found) or f"{len(objects)} objects are isolated")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
