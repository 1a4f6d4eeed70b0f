"""The kernel compiled from changed sources: planted mistakes, delays that a right kernel must bear,
orders that must not matter. Each change names a text of one file that occurs exactly once.
"""

from __future__ import annotations

import dataclasses
import functools
import pathlib
import tempfile

from harness import KERNEL

from sm100sim import nvcc


@dataclasses.dataclass(frozen=True)
class Change:
    file: str
    text: str
    instead: str


def delay(file: str, before: str, condition: str = "true", ns: int = 500_000) -> Change:
    """Threads for which `condition` holds spin for some simulated time in front of the text."""
    spin = f"const uint64_t t = ptx::global_timer(); while (ptx::global_timer() - t < {ns}) {{}}"
    return Change(file, before, f"  if ({condition}) {{ {spin} }}\n{before}")


SECOND_CTA_STARTS_LATE = delay(
    "kernel.cu", "  if (c.warp == 1 && ptx::elect_one()) {\n    for", "!c.leader() && c.warp == 1"
)
LATER_BUILDERS_WRITE_LATE = delay(
    "build_lists.cuh", "      for (; bits != 0;", "c.warp != kFirstBuilderWarp"
)


@functools.cache
def program(*changes: Change) -> str:
    """PTX of the kernel with the changes in it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        for path in KERNEL.parent.iterdir():
            if path.suffix not in (".h", ".cuh", ".cu"):
                continue
            text = path.read_text()
            for change in changes:
                if path.name == change.file:
                    found = text.count(change.text)
                    assert found == 1, f"{change.file}: found {found} times: {change.text}"
                    text = text.replace(change.text, change.instead)
            (folder / path.name).write_text(text)
        return nvcc.compile_ptx(folder / "kernel.cu")
