"""A store is opened for the length of a race, and so is a server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.races.stores import served, sqlite


@dataclass
class Server:
    url: str
    runs: bool = True


def test_a_server_runs_for_the_length_of_a_block(tmp_path: Path) -> None:
    server = Server("postgresql://somewhere")

    @contextmanager
    def start() -> Iterator[Server]:
        yield server
        server.runs = False

    with served(start)(tmp_path) as url:
        assert (url, server.runs) == ("postgresql://somewhere", True)
    assert not server.runs


def test_a_file_is_made_in_the_folder(tmp_path: Path) -> None:
    with sqlite(tmp_path) as url:
        assert url == f"sqlite:///{tmp_path}/jobs.db"
