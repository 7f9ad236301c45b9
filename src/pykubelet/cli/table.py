"""Tables as kubectl prints them, cut to the terminal's width; and which texts get a colour on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence

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
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    limit: int | None,
    coloured: int | None = None,
    firm: Collection[str] = (),
) -> list[str]:
    """The table's lines, the head first. `coloured` is the column whose texts get colours.

    Columns that are `firm`, and the coloured one, are cut only when nothing else is left to cut: half a status or an
    address is worth nothing.
    """
    cells = [[_flat(cell) for cell in row] for row in rows]
    widths = [max([len(head[i]), *(len(row[i]) for row in cells)]) for i in range(len(head))]
    if limit is not None:
        kept = [number for number, title in enumerate(head) if title.strip() in firm or number == coloured]
        widths = fitted(widths, limit, kept)
    made = [_line(head, widths, None)]
    return made + [_line(row, widths, coloured) for row in cells]


def fitted(widths: Sequence[int], limit: int, firm: Collection[int] = ()) -> list[int]:
    """Narrower columns so that a line fits: the widest gives first, firm ones last, none below a few letters."""
    made = list(widths)
    while sum(made) + len(GAP) * (len(made) - 1) > limit:
        soft = [i for i in range(len(made)) if i not in firm and made[i] > SHORTEST]
        widest = max(soft or range(len(made)), key=lambda i: made[i])
        if made[widest] <= SHORTEST:
            break
        made[widest] -= 1
    return made


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
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    coloured: int | None = None,
    firm: Collection[str] = (),
    no_head: bool = False,
) -> None:
    for line in lines(head, rows, limit=width(), coloured=coloured, firm=firm)[1 if no_head else 0 :]:
        click.echo(line)
