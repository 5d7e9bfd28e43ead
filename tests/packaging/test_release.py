"""The checks before a release, each on a small repository that passes them, and on one that does not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from tools import release as checks
from tools.environment import ROOT, make_environment, run
from tools.release import NotReady, Release

CHANGELOG = (
    "# Changelog\n\n## [Unreleased]\n\n## [1.2.3] - 2026-01-31\n\n- A change.\n\n## [1.2.2] - 2026-01-01\n"
)


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """Return a committed source tree of version 1.2.3."""
    root = tmp_path / "source"
    (root / "src" / "onejob").mkdir(parents=True)
    (root / "src" / "onejob" / "__init__.py").write_text('__version__ = "1.2.3"\n')
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / ".gitignore").write_text("/build/\n/dist/\n")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root)
    run("git", "init", "-q", cwd=root)
    commit(root)
    return Release(root, root / "dist")


def commit(root: Path) -> None:
    run("git", "add", "-A", cwd=root)
    run("git", "-c", "user.name=test", "-c", "user.email=test", "commit", "-qm", "Change", cwd=root)


def change(release: Release, old: str, new: str) -> None:
    page = release.root / "CHANGELOG.md"
    page.write_text(page.read_text().replace(old, new))


def test_a_change_that_is_not_committed_is_named(release: Release) -> None:
    assert checks.check_tree(release).startswith("everything is committed")
    (release.root / "new.py").touch()

    with pytest.raises(NotReady, match=r"commit or remove these changes:\n\?\? new\.py"):
        checks.check_tree(release)


def test_the_changelog_begins_with_the_version(release: Release) -> None:
    assert checks.check_version(release) == "CHANGELOG.md begins with 1.2.3"


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("[1.2.3]", "[1.3.0]", "is not 1.2.3: write `## [1.2.3] - "),
        (" - 2026-01-31", "", "is not 1.2.3: write `## [1.2.3] - "),
        ("[1.2.3] - 2026-01-31", "[Unreleased]", "is not 1.2.3: write `## [1.2.3] - "),
        ("[Unreleased]\n", "[Unreleased]\n\n- More.\n", "unreleased changes: move them under [1.2.3]"),
    ],
)
def test_a_changelog_of_another_version_is_refused(
    release: Release, old: str, new: str, sentence: str
) -> None:
    change(release, old, new)

    with pytest.raises(NotReady, match=re.escape(sentence)):
        checks.check_version(release)


@pytest.mark.parametrize("version", ["1.2", "1.2.3.dev0", "v1.2.3"])
def test_a_version_of_another_form_is_refused(release: Release, version: str) -> None:
    (release.root / "src" / "onejob" / "__init__.py").write_text(f'__version__ = "{version}"\n')

    with pytest.raises(NotReady, match="is no semantic version"):
        checks.check_version(release)


def test_the_tests_must_have_passed_on_this_very_commit(release: Release) -> None:
    with pytest.raises(NotReady, match="run `make test-all`"):
        checks.check_green(release)

    assert checks.mark_green(release).startswith("All tests have passed on ")
    assert checks.check_green(release) == "`make test-all` has passed on this commit"

    change(release, "A change.", "Another change.")
    assert "not a commit" in checks.mark_green(release)
    commit(release.root)
    with pytest.raises(NotReady, match="run `make test-all`"):
        checks.check_green(release)


def test_the_build_and_its_metadata(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    assert checks.examine(release, [checks.check_build, checks.check_metadata])

    shown = capsys.readouterr().out
    assert "ok   build     onejob-1.2.3-py3-none-any.whl and onejob-1.2.3.tar.gz make the same wheel" in shown
    assert "ok   metadata  the metadata of onejob 1.2.3 are valid" in shown


def test_a_wheel_of_another_version_is_refused(release: Release) -> None:
    with pytest.raises(NotReady, match="there is no wheel"):
        checks.check_metadata(release)
    checks.check_build(release)
    (release.root / "src" / "onejob" / "__init__.py").write_text('__version__ = "1.2.4"\n')

    with pytest.raises(NotReady, match=r"the wheel is version 1\.2\.3, the source 1\.2\.4"):
        checks.check_metadata(release)


def test_one_failure_fails_the_whole(release: Release, capsys: pytest.CaptureFixture[str]) -> None:
    assert not checks.examine(release, [checks.check_green, checks.check_version])

    assert [line.split()[:2] for line in capsys.readouterr().out.splitlines()] == [
        ["FAIL", "green"],
        ["ok", "version"],
    ]


def test_nothing_in_it_uploads() -> None:
    text = (ROOT / "tools" / "release.py").read_text() + (ROOT / "tools" / "environment.py").read_text()

    assert not re.search(r"publish|twine|upload\(|git.{3}push|git.{3}tag", text)


@pytest.mark.slow
def test_the_sbom_lists_what_an_install_contains(wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "environment", sys.executable)
    environment.install(wheel)

    checks.write_sbom(environment, tmp_path / "sbom.json", ROOT)  # cyclonedx-py validates it

    sbom = json.loads((tmp_path / "sbom.json").read_text())
    assert sbom["bomFormat"] == "CycloneDX"
    assert {part["name"]: part["version"] for part in sbom["components"]} == environment.versions()
    assert str(tmp_path) not in json.dumps(sbom)


SAFE = {"name": "click", "version": "8.5.1", "vulns": []}
UNKNOWN = {"name": "msgspec", "skip_reason": "Dependency not found on PyPI"}
VULNERABLE = {"name": "jinja2", "version": "2.0", "vulns": [{"id": "PYSEC-1"}, {"id": "PYSEC-2"}]}


def test_an_audit_of_known_packages_without_vulnerabilities_passes() -> None:
    checks.judge([SAFE])


def test_an_audit_names_vulnerable_packages_before_those_that_it_could_not_look_up() -> None:
    with pytest.raises(NotReady, match=r"^update what is vulnerable: jinja2 2\.0 \(PYSEC-1, PYSEC-2\)$"):
        checks.judge([SAFE, UNKNOWN, VULNERABLE])


def test_an_audit_says_how_many_packages_it_could_not_look_up() -> None:
    with pytest.raises(NotReady) as refused:
        checks.judge([SAFE, UNKNOWN])

    assert str(refused.value) == (
        "1 of 2 packages could not be looked up, so nothing is known about them: "
        "run this where pip-audit reaches its public service. The first answer was: "
        "msgspec: Dependency not found on PyPI"
    )


@pytest.mark.slow
def test_an_audit_that_cannot_look_packages_up_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make_environment(tmp_path / "environment", sys.executable)
    environment.install("click")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # where nothing listens
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")

    with pytest.raises(NotReady, match=r"1 of 1 packages could not be looked up.*ProxyError: "):
        checks.audit(environment)
