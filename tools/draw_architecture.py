"""Writes docs/images/architecture.svg, the picture of the README: `python tools/draw_architecture.py`.

A test compares the committed file with what this script writes. The colours follow the reader's light or dark theme.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "architecture.svg"

WIDTH, HEIGHT = 840, 390
TOP, ROW = 24, 186
"""Upper edges of the masters and of the peers."""

BOX = (160, 56)
"""Width and height of a process."""

STYLE = """
.page { fill: #ffffff; stroke: #d0d7de; } .box { fill: #ddf4ff; stroke: #0969da; stroke-width: 2; }
.master { fill: #fff8c5; stroke: #9a6700; stroke-width: 2; } .spare { stroke-dasharray: 6 4; }
.name { fill: #1f2328; font: 600 15px sans-serif; } .note { fill: #59636e; font: 13px sans-serif; }
.data { stroke: #0969da; stroke-width: 3; fill: none; } .control { stroke: #9a6700; stroke-width: 1.5; fill: none;
stroke-dasharray: 5 4; }
.state { stroke: #1a7f37; stroke-width: 3; fill: none; } .tip-data { fill: #0969da; } .tip-state { fill: #1a7f37; }
.tip-control { fill: #9a6700; }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117; stroke: #3d444d; } .box { fill: #0c2d6b; stroke: #4493f8; } .master { fill: #3b2300; stroke: #d29922; }
.name { fill: #f0f6fc; } .note { fill: #9198a1; } .data { stroke: #4493f8; } .control { stroke: #d29922; }
.state { stroke: #3fb950; } .tip-data { fill: #4493f8; } .tip-state { fill: #3fb950; } .tip-control { fill: #d29922; }
}
"""


def text(x: int, y: int, content: str, kind: str = "note", anchor: str = "middle") -> str:
    """Returns a text element; `kind` is a class of STYLE."""
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def box(x: int, y: int, name: str, note: str, kind: str) -> str:
    """Returns a process, whose upper edge has its middle at x."""
    width, height = BOX
    frame = f'<rect class="{kind}" x="{x - width // 2}" y="{y}" width="{width}" height="{height}" rx="8"/>'
    return "\n".join((frame, text(x, y + 24, name, "name"), text(x, y + 43, note)))


def arrow(path: str, kind: str) -> str:
    """Returns a line that ends in a tip."""
    return f'<path class="{kind}" d="{path}" marker-end="url(#{kind})"/>'


def marker(kind: str, size: int) -> str:
    """Returns the tip of arrows of `kind`."""
    return (
        f'<marker id="{kind}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="{size}" markerHeight="{size}" '
        f'orient="auto-start-reverse"><path class="tip-{kind}" d="M0 0 10 5 0 10z"/></marker>'
    )


def picture() -> str:
    """Returns the file's content."""
    width, height = BOX
    master, standby, peers, newcomer = 320, 560, (110, 320, 530), 740
    below, middle = ROW + height, ROW + height // 2
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>A master keeps the list of members; peers move tensors around a ring; a standby takes over.</title>",
        f"<style>{STYLE}</style>",
        f"<defs>{marker('data', 4)}{marker('state', 4)}{marker('control', 7)}</defs>",
        f'<rect class="page" x="1" y="1" width="{WIDTH - 2}" height="{HEIGHT - 2}" rx="12"/>',
    ]
    lines += [f'<path class="control" d="M{master} {TOP + height} {x} {ROW}"/>' for x in (*peers, newcomer)]
    lines.append(arrow(f"M{master + width // 2} {TOP + height // 2} H{standby - width // 2}", "control"))
    lines += [
        box(master, TOP, "master", "list of members, votes", "master"),
        box(standby, TOP, "standby", "takes over", "master spare"),
        *(box(x, ROW, f"peer {rank}", "your program", "box") for rank, x in enumerate(peers)),
        box(newcomer, ROW, "newcomer", "joins a run", "box spare"),
    ]
    lines += [arrow(f"M{x + width // 2} {middle} H{after - width // 2}", "data") for x, after in itertools.pairwise(peers)]
    lines.append(arrow(f"M{peers[-1]} {below} C{peers[-1]} 310 {peers[0]} 310 {peers[0]} {below + 2}", "data"))
    lines.append(arrow(f"M{peers[-1] + width // 2} {middle} H{newcomer - width // 2}", "state"))
    lines += [text(peers[1], 280, "ring"), text((peers[-1] + newcomer) // 2, middle - 10, "state")]
    legend = [
        ("data", "tensors: peer to peer"),
        ("state", "model state, from memory"),
        ("control", "membership only, no tensors"),
    ]
    for place, (kind, meaning) in enumerate(legend):
        x = 40 + 270 * place
        lines += [f'<path class="{kind}" d="M{x} 350 h36"/>', text(x + 46, 355, meaning, anchor="start")]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
