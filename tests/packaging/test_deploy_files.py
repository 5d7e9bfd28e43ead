"""The deployment files: they can be parsed, name only what exists, and leave a worker time to end."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml  # type: ignore[import-untyped]
from starlette.testclient import TestClient

from onejob import App
from onejob.cli import main
from onejob.cli.options import read_duration
from onejob.http import dashboard
from tests.packaging import dockerfile
from tests.system.test_docs import blocks
from tools.environment import ROOT

FOLDER = ROOT / "examples" / "deploy"
PAGE = ROOT / "docs" / "deployment.md"
UNITS = sorted(FOLDER.glob("*.service"))
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())
KUBERNETES: list[dict[str, Any]] = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
END = 10  # seconds after the grace time within which a worker ends

DIRECTIVES = {
    "Unit": {"Description", "After", "Wants"},
    "Service": {
        *("Type", "User", "WorkingDirectory", "EnvironmentFile", "ExecStart", "Restart", "RestartSec"),
        *("KillMode", "TimeoutStopSec", "NoNewPrivileges", "PrivateTmp", "ProtectHome", "ProtectSystem"),
        "ReadWritePaths",
    },
    "Install": {"WantedBy"},
}  # those that systemd has and these files need


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign] # directives have capitals
    parser.read_string(path.read_text())
    return parser


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Return each container of the manifests, with the pod that it is in."""
    for manifest in KUBERNETES:
        if manifest["kind"] == "Deployment":
            pod = manifest["spec"]["template"]["spec"]
            for container in pod["containers"]:
                yield pod, container


def image_command() -> list[str]:
    [command] = [
        rest for name, rest in dockerfile.instructions((FOLDER / "Dockerfile").read_text()) if name == "CMD"
    ]
    found: list[str] = json.loads(command)
    return found


def commands() -> dict[str, list[str]]:
    """Return every command of onejob in the files, without the program."""
    found = {path.name: shlex.split(unit(path)["Service"]["ExecStart"])[1:] for path in UNITS}
    found |= {f"compose {name}": s["command"] for name, s in COMPOSE["services"].items() if "build" in s}
    found |= {f"kubernetes {container['name']}": container["args"] for _, container in containers()}
    for _, container in containers():
        for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
            if "exec" in container.get(probe, {}):
                found[f"{container['name']} {probe}"] = container[probe]["exec"]["command"][1:]
    found["compose healthcheck"] = COMPOSE["services"]["worker"]["healthcheck"]["test"][2:]
    return found | {"Dockerfile": image_command()}


def grace(command: list[str]) -> float:
    return float(read_duration(command[command.index("--grace") + 1]).total_seconds())


# ── every file ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("place", commands())
def test_the_command_exists_and_has_the_options(place: str) -> None:
    name, *arguments = commands()[place]
    command = main.get_command(click.Context(main), name)

    assert command is not None, f"onejob has no {name}"
    command.make_context(name, list(arguments))  # raises for an option or a value that it does not take


def test_every_kind_of_file_starts_the_same_worker() -> None:
    workers = {place: command for place, command in commands().items() if command[0] == "worker"}

    assert set(workers) == {"onejob-worker.service", "compose worker", "kubernetes worker", "Dockerfile"}
    assert len({tuple(command) for command in workers.values()}) == 1


def test_the_page_shows_the_files_as_they_are() -> None:
    shown = [block.text.strip() for block in blocks(PAGE) if block.info in {"ini", "yaml", "dockerfile"}]
    files = [path.read_text().strip() for path in sorted(FOLDER.iterdir()) if path.suffix not in {".py", ""}]

    assert sorted(shown) == sorted([*files, (FOLDER / "Dockerfile").read_text().strip()])


# ── systemd ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_has_known_directives(path: Path) -> None:
    parsed = unit(path)

    assert parsed.sections() == list(DIRECTIVES)
    for section, known in DIRECTIVES.items():
        assert set(parsed[section]) <= known
    assert parsed["Service"]["User"] != "root"
    assert parsed["Service"]["Restart"] == "always"


def test_a_unit_gives_its_worker_time_to_end() -> None:
    service = unit(FOLDER / "onejob-worker.service")["Service"]

    assert int(service["TimeoutStopSec"]) >= grace(shlex.split(service["ExecStart"])) + END
    assert service["KillMode"] == "mixed"  # the first signal goes to the worker, not to its processes


def test_the_command_of_the_unit_runs_and_ends_at_sigterm(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text((FOLDER / "shop.py").read_text())
    alive = tmp_path / "onejob.alive"
    command = [word.replace("/tmp/onejob.alive", str(alive)) for word in commands()["onejob-worker.service"]]  # noqa: S108 - as above
    program = Path(sys.executable).with_name("onejob")
    started = subprocess.Popen(
        [program, *command],
        cwd=tmp_path, env=os.environ | {"JOBS_URL": f"sqlite:///{tmp_path}/jobs.db"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    with started:
        assert "runs 1 task" in started.stdout.readline()
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=30) == 0
    assert not alive.exists()  # it has stopped in order


# ── containers ────────────────────────────────────────────────────────────────────────────────────


def test_the_image_adds_the_program_to_onejobs_image() -> None:
    steps = dockerfile.instructions((FOLDER / "Dockerfile").read_text())

    assert [name for name, _ in steps] == ["FROM", "COPY", "CMD"]
    assert (FOLDER / steps[1][1].split()[0]).exists()


def test_compose_services_refer_to_each_other() -> None:
    services = COMPOSE["services"]

    assert set(services) == {"postgres", "worker", "dashboard"}
    assert set(COMPOSE["volumes"]) == {"postgres"}
    for name in ("worker", "dashboard"):
        assert set(services[name]["depends_on"]) == {"postgres"}
        assert "@postgres/shop" in services[name]["environment"]["JOBS_URL"]
        assert services[name]["read_only"] is True
    assert "healthcheck" in services["postgres"]
    assert all(port.startswith("127.0.0.1:") for port in services["dashboard"]["ports"])


def test_compose_gives_a_worker_time_to_end() -> None:
    worker = COMPOSE["services"]["worker"]

    seconds = read_duration(worker["stop_grace_period"]).total_seconds()
    assert seconds >= grace(worker["command"]) + END


def test_kubernetes_manifests_refer_to_each_other() -> None:
    kinds = [(manifest["apiVersion"], manifest["kind"]) for manifest in KUBERNETES]
    assert kinds == [("apps/v1", "Deployment"), ("apps/v1", "Deployment"), ("v1", "Service")]
    for manifest in KUBERNETES[:2]:
        labels = manifest["spec"]["template"]["metadata"]["labels"]
        assert manifest["spec"]["selector"]["matchLabels"] == labels
    service = KUBERNETES[2]["spec"]
    [target] = [
        m for m in KUBERNETES[:2] if m["spec"]["template"]["metadata"]["labels"] == service["selector"]
    ]
    [container] = target["spec"]["template"]["spec"]["containers"]
    assert {port["targetPort"] for port in service["ports"]} == {port["name"] for port in container["ports"]}


def test_kubernetes_pods_run_without_privileges() -> None:
    for pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        assert container["resources"]["requests"]


def test_kubernetes_gives_a_worker_time_to_end() -> None:
    [(pod, worker)] = [(pod, one) for pod, one in containers() if one["name"] == "worker"]

    assert pod["terminationGracePeriodSeconds"] >= grace(worker["args"]) + END


def test_kubernetes_probes_ask_what_there_is() -> None:
    probed = {container["name"]: container for _, container in containers()}

    ports = {port["name"] for port in probed["dashboard"]["ports"]}
    with TestClient(dashboard(App("memory://"), token="a long secret", hosts=["jobs.example.com"])) as client:
        for probe in ("livenessProbe", "readinessProbe"):
            asked = probed["dashboard"][probe]["httpGet"]
            assert asked["port"] in ports
            assert client.get(asked["path"]).status_code == 200


def test_the_probes_of_a_worker_look_at_the_file_that_it_touches() -> None:
    files = {place: words[words.index("--liveness-file") + 1] for place, words in commands().items()
             if words[0] in {"worker", "health"}}  # fmt: skip

    assert len(files) == 6
    assert set(files.values()) == {"/tmp/onejob.alive"}  # noqa: S108 - of the worker's own file system
