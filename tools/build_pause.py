"""Assemble the pause program of standalone mode: src/pykubelet/standalone/pause/*.s to the executables beside them.

`python tools/build_pause.py` renews what is committed, for every architecture on any machine. Needs llvm-mc and
llvm-objcopy (Debian: llvm).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "pykubelet" / "standalone" / "pause"
TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


def assemble(architecture: str) -> bytes:
    """The executable of one architecture. The source holds the ELF headers too, so that no linker is involved."""
    with tempfile.TemporaryDirectory() as folder:
        compiled, program = Path(folder, "pause.o"), Path(folder, "pause")
        source = f"{architecture}.s"
        llvm_mc = ["llvm-mc", "-filetype=obj", f"-triple={TRIPLES[architecture]}", source, "-o", str(compiled)]
        subprocess.run(llvm_mc, cwd=SOURCE, check=True)
        subprocess.run(
            ["llvm-objcopy", "--output-target=binary", "--only-section=.text", compiled, program], check=True
        )
        return program.read_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description="Assemble the pause program of standalone mode.").parse_args(argv)
    for architecture in TRIPLES:
        (SOURCE / architecture).write_bytes(assemble(architecture))
    print(f"build_pause: wrote {', '.join(TRIPLES)} under {SOURCE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
