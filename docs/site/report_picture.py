"""Draws docs/images/report.png: the first screen of the report that the analyst's tutorial ends with.

python docs/site/report_picture.py [IMAGE]     from the root of a clone, with Chromium installed

It types the commands of docs/tutorials/analyst.md into an empty folder, which takes a minute, and has Chromium draw the
report of that run.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
WIDTH, HEIGHT = 1200, 1080
COLOURS = 64  # of the picture, so that it stays small


def draw(report: Path, image: Path) -> None:
    """A PNG of the upper part of a page. Raises SystemExit without Chromium."""
    from PIL import Image

    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        raise SystemExit("There is no Chromium on the path. Install it, for example by: apt-get install chromium")
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}"]
    subprocess.run([browser, *options, f"--screenshot={image}", report.as_uri()], check=True, capture_output=True)
    with Image.open(image) as drawn:
        small = drawn.convert("RGB").quantize(COLOURS)
    small.save(image, optimize=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.tutorial import in_a_shell

    drawn = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "docs/images/report.png").absolute()
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        empty.mkdir()
        in_a_shell("analyst.md", empty)
        draw(empty / "runs/stays/report.html", drawn)
    print(f"{drawn}: {drawn.stat().st_size / 1000:.0f} kB")
