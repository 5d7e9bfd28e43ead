"""Check that a release can be made: `python -m tools.release --check`. It uploads nothing.

The files of the release are in `dist` afterwards: the wheel, the sdist, and `sbom.json`, which lists the
packages that `onejob[all]` installs, in the form of CycloneDX.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.version import Version

from tools.environment import ROOT, CommandFailed, Environment, build, make_environment, run

SEMANTIC = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")
SECTION = re.compile(r"^## \[([^\]]+)\](.*)$", re.MULTILINE)
DATE = re.compile(r" - \d{4}-\d\d-\d\d")


class NotReady(Exception):
    """A reason not to release; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Release:
    """A source tree, and the folder for the files made from it."""

    root: Path
    dist: Path

    @property
    def version(self) -> str:
        """Return the version, from the only place that has it."""
        text = (self.root / "src" / "onejob" / "__init__.py").read_text()
        [version] = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
        return str(version)

    @property
    def green(self) -> Path:
        """Return the file that names the commit on which `make test-all` has passed."""
        return self.root / "build" / "green"

    def wheel(self) -> Path:
        """Return the wheel that `check_build` made."""
        wheels = list(self.dist.glob("*.whl"))
        if len(wheels) != 1:
            raise NotReady("there is no wheel to examine: the build failed")
        return wheels[0]

    def commit(self) -> str:
        """Return the commit of a source tree without changes."""
        if changes := run("git", "status", "--porcelain", cwd=self.root):
            raise NotReady(f"commit or remove these changes:\n{changes.rstrip()}")
        return run("git", "rev-parse", "HEAD", cwd=self.root).strip()


# ── the checks ────────────────────────────────────────────────────────────────────────────────────


def check_tree(release: Release) -> str:
    """Check that everything is committed."""
    return f"everything is committed, as {release.commit()[:12]}"


def check_version(release: Release) -> str:
    """Check that the changelog describes this version, and nothing newer."""
    version = release.version
    if not SEMANTIC.fullmatch(version):
        raise NotReady(f"{version} is no semantic version: write it as 1.2.3 or 1.2.3rc1")
    text = (release.root / "CHANGELOG.md").read_text()
    sections = list(SECTION.finditer(text))
    newest = next((found for found in sections if found[1] != "Unreleased"), None)
    if newest is None or newest[1] != version or not DATE.fullmatch(newest[2]):
        raise NotReady(
            f"the newest release in CHANGELOG.md is not {version}: write `## [{version}] - 2026-01-31`"
        )
    if sections[0] is not newest and text[sections[0].end() : newest.start()].strip():
        raise NotReady(f"CHANGELOG.md has unreleased changes: move them under [{version}]")
    return f"CHANGELOG.md begins with {version}"


def check_green(release: Release) -> str:
    """Check that all tests have passed on this commit."""
    commit = release.commit()
    if not release.green.exists() or release.green.read_text() != commit:
        raise NotReady(f"run `make test-all`: it has not passed on {commit[:12]}")
    return "`make test-all` has passed on this commit"


def check_build(release: Release) -> str:
    """Build the wheel and the sdist, and check that the sdist makes the same wheel."""
    shutil.rmtree(release.dist, ignore_errors=True)
    wheel, sdist = build(release.root, release.dist)
    with tempfile.TemporaryDirectory() as folder:
        [again] = build(sdist, Path(folder), "--wheel")
        if again.read_bytes() != wheel.read_bytes():
            raise NotReady(f"{sdist.name} makes another wheel than the source tree")
    return f"{wheel.name} and {sdist.name} make the same wheel"


def check_metadata(release: Release) -> str:
    """Check what an index would read: the metadata of the wheel, and its version."""
    with zipfile.ZipFile(release.wheel()) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Metadata.from_email(archive.read(name), validate=True)
    if metadata.version != Version(release.version):
        raise NotReady(f"the wheel is version {metadata.version}, the source {release.version}")
    if metadata.description_content_type != "text/markdown" or not metadata.description:
        raise NotReady("the wheel has no README in Markdown")
    return f"the metadata of {metadata.name} {metadata.version} are valid"


def check_sbom(release: Release) -> str:
    """Write `sbom.json`: everything that the wheel installs with all extras."""
    target = release.dist / "sbom.json"
    with tempfile.TemporaryDirectory() as folder:
        environment = install_all(release.wheel(), Path(folder))
        write_sbom(environment, target, release.root)
    components = json.loads(target.read_text())["components"]
    return f"{target.name} lists {len(components)} packages"


def check_audit(release: Release) -> str:
    """Check that no package of an install with all extras has a known vulnerability."""
    with tempfile.TemporaryDirectory() as folder:
        audit(install_all(release.wheel(), Path(folder)))
    return "no installed package has a known vulnerability"


CHECKS: list[Callable[[Release], str]] = [
    check_tree,
    check_version,
    check_green,
    check_build,
    check_metadata,
    check_sbom,
    check_audit,
]


# ── tools ─────────────────────────────────────────────────────────────────────────────────────────


def install_all(wheel: Path, folder: Path) -> Environment:
    """Install a wheel with all extras in an environment of its own."""
    environment = make_environment(folder / "environment", sys.executable)
    environment.install(f"onejob[all] @ {wheel.as_uri()}")
    return environment


def write_sbom(environment: Environment, target: Path, root: Path) -> None:
    """Write the packages of an environment as CycloneDX 1.6; cyclonedx-py validates it against the schema."""
    run(
        Path(sys.executable).with_name("cyclonedx-py"), "environment", "--validate", "--output-reproducible",
        "--spec-version", "1.6", "--output-file", target, environment.python, cwd=root,
    )  # fmt: skip


def audit(environment: Environment) -> None:
    """Look up the packages of an environment in the public service that pip-audit asks."""
    packages = {name: version for name, version in environment.versions().items() if name != "onejob"}
    with tempfile.TemporaryDirectory() as folder:
        requirements, report = Path(folder, "requirements.txt"), Path(folder, "report.json")
        requirements.write_text("\n".join(f"{name}=={version}" for name, version in packages.items()))
        try:
            run(
                Path(sys.executable).with_name("pip-audit"), "--no-deps", "--disable-pip",
                "--progress-spinner", "off", "--format", "json", "--output", report, "-r", requirements,
            )  # fmt: skip
        except CommandFailed as error:  # a vulnerable package ends it with an error too, but with a report
            if not report.exists():
                raise NotReady(not_looked_up(packages, packages, str(error).splitlines()[-1])) from error
        judge(json.loads(report.read_text())["dependencies"])


def judge(packages: list[dict[str, Any]]) -> None:
    """Raise NotReady for a package that is vulnerable, and for one that could not be looked up."""
    vulnerable = [
        f"{package['name']} {package['version']} ({', '.join(one['id'] for one in package['vulns'])})"
        for package in packages
        if package.get("vulns")
    ]
    if vulnerable:
        raise NotReady(f"update what is vulnerable: {', '.join(vulnerable)}")
    unknown = [package for package in packages if "skip_reason" in package]
    if unknown:
        answer = f"{unknown[0]['name']}: {unknown[0]['skip_reason']}"
        raise NotReady(not_looked_up(unknown, packages, answer))


def not_looked_up(unknown: Sized, packages: Sized, answer: str) -> str:
    """Return what an audit could not do, and what to do about it."""
    return (
        f"{len(unknown)} of {len(packages)} packages could not be looked up, so nothing is known about them: "
        f"run this where pip-audit reaches its public service. The first answer was: {answer}"
    )


def examine(release: Release, checks: list[Callable[[Release], str]]) -> bool:
    """Run checks, print a line for each, and return whether all have passed."""
    passed = True
    for check in checks:
        try:
            mark, line = "ok  ", check(release)
        except (NotReady, CommandFailed) as error:
            passed, mark, line = False, "FAIL", str(error)
        sys.stdout.write(f"{mark} {check.__name__.removeprefix('check_'):9} {line}\n")
        sys.stdout.flush()
    return passed


def mark_green(release: Release) -> str:
    """Record that all tests have passed on this commit; return a sentence."""
    try:
        commit = release.commit()
    except (NotReady, CommandFailed):  # changed since the commit, or not a checkout
        return "All tests have passed. The source tree is not a commit, so no release can be made from it."
    release.green.parent.mkdir(exist_ok=True)
    release.green.write_text(commit)
    return f"All tests have passed on {commit[:12]}."


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--check", action="store_true", help="run all checks; exit with 1 if one fails")
    chosen.add_argument("--mark-green", action="store_true", help="record that all tests have passed")
    given = parser.parse_args()
    release = Release(ROOT, ROOT / "dist")
    if given.mark_green:
        sys.stdout.write(mark_green(release) + "\n")
    else:
        sys.exit(not examine(release, CHECKS))


if __name__ == "__main__":
    main()
