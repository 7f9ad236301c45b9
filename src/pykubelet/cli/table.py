"""Tables as kubectl prints them, cut to the terminal's width; and which words get a colour on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

import click

GAP = "   "
SHORTEST = 8
GOOD = frozenset({"Running", "Succeeded", "Completed", "healthy", "done", "Normal"})
PENDING = frozenset(
    {"Pending", "ContainerCreating", "PodInitializing", "Terminating", "starting", "ending", "not ready"}
)


def colour_of(word: str) -> str | None:
    """green, yellow, red or none, by what a status says."""
    if word in GOOD:
        return "green"
    if word in PENDING or (word.startswith("Init:") and word[5:6].isdigit()):
        return "yellow"
    return "red" if word and word != "<none>" else None


def styled(word: str, text: str | None = None) -> str:
    """The text in the colour of the word; click drops the colour when the output is no terminal."""
    return click.style(text if text is not None else word, fg=colour_of(word))


def width() -> int | None:
    """Columns of the terminal; None when the output is none, then nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def lines(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, limit: int | None, coloured: int | None = None
) -> list[str]:
    """The table's lines, the head first. `coloured` is the column whose words get colours."""
    cells = [[_flat(cell) for cell in row] for row in rows]
    widths = [max([len(head[i]), *(len(row[i]) for row in cells)]) for i in range(len(head))]
    if limit is not None:
        widths = fitted(widths, limit)
    made = [_line(head, widths, None)]
    return made + [_line(row, widths, coloured) for row in cells]


def fitted(widths: list[int], limit: int) -> list[int]:
    """Narrower columns so that a line fits: the widest gives first, none below a few letters."""
    widths = list(widths)
    while sum(widths) + len(GAP) * (len(widths) - 1) > limit:
        widest = max(range(len(widths)), key=lambda i: widths[i])
        if widths[widest] <= SHORTEST:
            break
        widths[widest] -= 1
    return widths


def _line(row: Sequence[str], widths: Sequence[int], coloured: int | None) -> str:
    cells = []
    for number, (cell, room) in enumerate(zip(row, widths, strict=True)):
        cut = cell if len(cell) <= room else f"{cell[: room - 1]}…"
        shown = cut if number == len(widths) - 1 else cut.ljust(room)
        cells.append(styled(cell.strip(), shown) if number == coloured else shown)
    return GAP.join(cells).rstrip()


def _flat(cell: str) -> str:
    return " ".join(cell.split())


def show(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, coloured: int | None = None, no_head: bool = False
) -> None:
    for line in lines(head, rows, limit=width(), coloured=coloured)[1 if no_head else 0 :]:
        click.echo(line)
