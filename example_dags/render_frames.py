"""Render the frames of a film by a command that is not Python: here awk, which every machine has.

The command runs once for each item, a frame number, in place of ``{item}``. Its exit code decides whether
the frame succeeded; the last line that it prints is the result, here the picture itself, packed. Blender
would stand there as ``["blender", "-b", "scene.blend", "-o", "//frame-####", "-f", "{item}"]`` with
``Environment(files={"scene.blend": "/path/to/scene.blend"})``, ffmpeg as
``["ffmpeg", "-ss", "{item}", "-t", "60", "-i", "https://…", "part-{item}.mkv"]`` with seconds as items.

What the command needs besides the item reaches it by environment variables, which are templates. A picture
of some MB is better copied to a bucket (``aws s3 cp``), with its URI as the last line.
"""

from __future__ import annotations

import base64
import gzip
import tempfile
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_spotbatch import Environment, Resources, SpotMapOperator

# By way of a file: the exit code of a pipe is that of its last command.
SCRIPT = """
awk -v frame="$1" -v width="$WIDTH" "$2" >frame.ppm
gzip -c frame.ppm | base64 -w 0
"""

# A frame of a zoom into the Mandelbrot set, as a picture in the PPM format.
PICTURE = """
BEGIN {
    height = int(width * 2 / 3); depth = 60; step = 3 * 0.7 ^ frame / width
    print "P3", width, height, 255
    for (row = 0; row < height; row++) {
        for (column = 0; column < width; column++) {
            real = -0.7436 + (column - width / 2) * step
            imaginary = 0.1318 + (row - height / 2) * step
            x = y = count = 0
            while (x * x + y * y < 4 && count < depth) {
                next_x = x * x - y * y + real
                y = 2 * x * y + imaginary; x = next_x; count++
            }
            print int(255 * count / depth), int(255 * (count % 8) / 8), 255 - int(255 * count / depth)
        }
    }
}
"""


@task
def list_frames(params: dict[str, Any]) -> list[int]:
    return list(range(params["frames"]))


@task
def contact_sheet(rendered: Any, params: dict[str, Any], columns: int = 4) -> str:
    """All frames in one picture, in order."""
    pictures = []
    for frame in rendered:
        _, width, height, _, *colours = gzip.decompress(base64.b64decode(frame)).decode().split()
        row = 3 * int(width)
        pictures.append([colours[start : start + row] for start in range(0, len(colours), row)])
    black = [["0"] * row] * int(height)
    pictures += [black] * (-len(pictures) % columns)
    rows = [
        " ".join(colour for row in side_by_side for colour in row)
        for first in range(0, len(pictures), columns)
        for side_by_side in zip(*pictures[first : first + columns], strict=True)
    ]
    sheet = Path(params["folder"], "contact-sheet.ppm")
    sheet.parent.mkdir(parents=True, exist_ok=True)
    sheet.write_text(f"P3 {columns * int(width)} {len(rows)} 255\n" + "\n".join(rows))
    print(f"{len(rendered)} frames in {rendered.duration} s: {sheet}")
    return str(sheet)


@dag(
    schedule=None,
    catchup=False,
    tags=["example"],
    params={"folder": f"{tempfile.gettempdir()}/spotbatch/render_frames", "frames": 12, "width": 96},
)
def render_frames() -> None:
    render = SpotMapOperator(
        task_id="render",
        # The item is an argument of its own: put into the text of the script it could be read as code.
        command=["sh", "-euc", SCRIPT, "render", "{item}", PICTURE],
        items=list_frames(),
        environment=Environment(env={"WIDTH": "{{ params.width }}"}),
        item_resources=Resources(cpus=1, memory_gb=0.5),
        item_timeout=300,
    )
    contact_sheet(render.output)


render_frames()
