"""Two plots of `peers.py` as one SVG, without a library."""

from __future__ import annotations

import math
from pathlib import Path

COLOURS = ("#2563eb", "#b45309", "#6b7280")
WIDTH, HEIGHT, LEFT, TOP = 320, 220, 44, 40
Series = dict[str, list[tuple[int, float]]]


def write_svg(path: Path, plots: list[tuple[str, Series]]) -> None:
    """Write plots side by side, each with a title and the points of its lines; both axes are logarithmic."""
    inside = "".join(_plot(title, lines, number * (WIDTH + LEFT)) for number, (title, lines) in enumerate(plots))
    width = len(plots) * (WIDTH + LEFT) + 20
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {TOP + HEIGHT + 64}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" fill="white"/>{inside}</svg>\n'
    )


def _plot(title: str, lines: Series, left: int) -> str:
    points = [point for line in lines.values() for point in line]
    xs, ys = (_range([point[at] for point in points]) for at in (0, 1))
    drawn = [f'<text x="{left + LEFT}" y="24" font-weight="bold">{title}</text>']
    for axis, ticks in ((0, _ticks(*xs)), (1, _ticks(*ys))):
        for tick in ticks:
            x, y = _place(tick if axis == 0 else xs[0], tick if axis else ys[0], xs, ys, left)
            anchor, at = ("middle", (x, y + 18)) if axis == 0 else ("end", (x - 6, y + 4))
            end = (x, TOP) if axis == 0 else (left + LEFT + WIDTH - LEFT, y)
            drawn.append(f'<path d="M{x:.0f} {y:.0f}L{end[0]:.0f} {end[1]:.0f}" stroke="#e5e7eb"/>')
            drawn.append(f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="{anchor}">{tick:,g}</text>')
    for number, ((name, line), colour) in enumerate(zip(lines.items(), COLOURS, strict=False)):
        places = [_place(x, y, xs, ys, left) for x, y in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        x = left + LEFT + number * 105
        drawn.append(f'<text x="{x}" y="{TOP + HEIGHT + 50}" fill="{colour}">{name}</text>')
    return "".join(drawn)


def _range(values: list[float]) -> tuple[float, float]:
    return min(values) / 1.15, max(values) * 1.15


def _ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside, or 1, 2 and 5 times these where there are few."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = [10.0**power for power in powers if low <= 10.0**power <= high]
    if len(found) < 3:
        found = [step * 10.0**power for power in powers for step in (1, 2, 5) if low <= step * 10.0**power <= high]
    return found


def _place(x: float, y: float, xs: tuple[float, float], ys: tuple[float, float], left: int) -> tuple[float, float]:
    across = math.log(x / xs[0]) / math.log(xs[1] / xs[0])
    up = math.log(y / ys[0]) / math.log(ys[1] / ys[0])
    return left + LEFT + across * (WIDTH - LEFT), TOP + (1 - up) * HEIGHT
