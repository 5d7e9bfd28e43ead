"""A Chromium for the dashboard's tests: an installed one, or one that npm fetches without root.

`python -m tests.chromium` fetches it into `.tools` if none is found; `make test` does so by itself. The
package `@sparticuz/chromium` carries the browser compressed, with the few libraries that a bare system lacks.
"""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import brotli  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[1]
VARIABLE = "ONEJOB_TEST_CHROMIUM"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PACKAGE, VERSION = "@sparticuz/chromium", "153.0.0"
FOLDER = ROOT / ".tools" / f"chromium-{VERSION}"
FLAGS = (
    "--no-sandbox",  # a container has none, and the pages are our own
    "--no-zygote",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def find() -> Path | None:
    """Return a browser: the one that the environment names, an installed one, or the fetched one."""
    if given := os.environ.get(VARIABLE):
        return Path(given)
    installed = next(filter(None, map(shutil.which, NAMES)), None)
    if installed is not None:
        return Path(installed)
    fetched = FOLDER / "chromium"
    return fetched if fetched.exists() else None


def environment(browser: Path) -> dict[str, str]:
    """Return the environment in which a browser starts: a bare system lacks some of its libraries."""
    command = [shutil.which("ldd") or "ldd", str(browser)]
    needs = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    libraries = {"LD_LIBRARY_PATH": str(FOLDER / "lib")} if "not found" in needs else {}
    return {name: value for name, value in os.environ.items() if isinstance(value, str)} | libraries


def fetch() -> Path:
    """Fetch the browser with npm."""
    npm = shutil.which("npm", path=f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}")
    if npm is None or platform.machine() != "x86_64" or sys.platform != "linux":
        raise SystemExit(
            f"No browser was found for the dashboard's tests: install Chromium, name one in {VARIABLE}, or, "
            "on x86-64 Linux, install npm."
        )
    with tempfile.TemporaryDirectory() as temporary:
        command = [npm, "pack", "--silent", f"{PACKAGE}@{VERSION}"]
        subprocess.run(command, cwd=temporary, check=True, stdout=subprocess.DEVNULL)
        [archive] = Path(temporary).glob("*.tgz")
        unpack(archive, Path(temporary) / "made")
        FOLDER.parent.mkdir(exist_ok=True)
        shutil.rmtree(FOLDER, ignore_errors=True)
        shutil.move(Path(temporary) / "made", FOLDER)
    return FOLDER / "chromium"


def unpack(archive: Path, folder: Path) -> None:
    """Unpack the browser and its libraries."""
    folder.mkdir()
    with tarfile.open(archive) as package:
        for name in ("chromium", "al2023.tar", "swiftshader.tar"):
            member = package.extractfile(f"package/bin/{name}.br")
            assert member is not None
            content = brotli.decompress(member.read())
            if name == "chromium":
                (folder / name).write_bytes(content)
                (folder / name).chmod(0o755)
            else:
                with tarfile.open(fileobj=io.BytesIO(content)) as inner:
                    inner.extractall(folder, filter="data")


if __name__ == "__main__":
    print(find() or ("" if "--find" in sys.argv else fetch()))  # noqa: T201 - a tool prints
