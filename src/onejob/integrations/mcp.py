"""Model Context Protocol: read-only tools by which an assistant answers "why was my job dropped?".

`onejob mcp shop:app` serves them over standard input and output; `make_server(app)` returns the server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from functools import wraps
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ParamSpec

import msgspec

from onejob import App, Job, Why, __version__
from onejob.errors import InvalidCall, OnejobError, SchemaMismatch

if TYPE_CHECKING:
    from mcp.server import MCPServer

P = ParamSpec("P")
Document = dict[str, Any]

MOST = 100  # entries of a list
LONGEST = 2000  # characters of a text
HIDDEN = "…"
IDS = frozenset("0123456789abcdef-….")  # the characters of ids, short ones included, and of keys
INSTRUCTIONS = """\
These tools read the jobs of an application that uses onejob, a background job system that deduplicates
requests. None of them changes anything. A request whose key is held is absorbed: an existing job serves it,
and it makes no job of its own. To answer "why was my job dropped?", call `why` with the task and its
arguments, with the id of a job, or with a key. Outcomes are kept, updated, rerun, rejected and stale."""


def require() -> None:
    """Raise InvalidCall if the package that the server needs is missing."""
    if find_spec("mcp") is None:
        raise InvalidCall("The MCP server needs mcp: install it with pip install 'onejob[mcp]'.")


def make_server(app: App, *, show_arguments: bool = False) -> MCPServer[Any]:
    """Return a server with tools that read an app's jobs and change nothing.

    Args:
        app: The app whose jobs the tools show.
        show_arguments: Also show the values of arguments, metadata and results.

    Raises:
        InvalidCall: The package of `onejob[mcp]` is missing.

    Examples:
        >>> make_server(app).run("stdio")
    """
    require()
    from mcp.server import MCPServer
    from mcp.types import ToolAnnotations

    server = MCPServer("onejob", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    tools = Tools(app, show_arguments=show_arguments)
    harmless = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    for tool in (tools.why, tools.jobs, tools.job, tools.holds, tools.stats, tools.workers, tools.doctor):
        server.add_tool(answering(tool), annotations=harmless)
    return server


async def serve(app: App, *, show_arguments: bool = False) -> None:
    """Serve the tools over standard input and output until the input ends; print nothing else there.

    Raises:
        InvalidCall: The package of `onejob[mcp]` is missing.
        SchemaMismatch: The tables are of another version, and using the app would upgrade them.
    """
    server = make_server(app, show_arguments=show_arguments)
    schema = app.maintenance.schema()
    if schema.found != schema.known:
        advice = "run onejob migrate first" if schema.found < schema.known else "upgrade onejob"
        raise SchemaMismatch(
            f"The tables have version {schema.found}, and this onejob knows {schema.known}: {advice}. "
            "The MCP server changes nothing."
        )
    async with app:
        await server.run_stdio_async()


def answering(tool: Callable[P, Awaitable[Document]]) -> Callable[P, Awaitable[Document]]:
    """Return a tool whose answers are bounded, and whose errors are sentences for the model to read."""

    @wraps(tool)
    async def answer(*args: P.args, **kwargs: P.kwargs) -> Document:
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            document: Document = cut_long(await tool(*args, **kwargs))
        except OnejobError as error:
            raise ToolError(str(error)) from error
        return document

    return answer


class Tools:
    """The tools: each returns JSON values."""

    def __init__(self, app: App, *, show_arguments: bool) -> None:
        self._app = app
        self._show_arguments = show_arguments

    async def why(
        self, what: str, arguments: dict[str, Any] | None = None, compare: str | None = None
    ) -> dict[str, Any]:
        """Explain why a request was or would be absorbed, why a job waits, or how it ended.

        Args:
            what: The id of a job, a key of 64 hexadecimal digits, or the name of a task.
            arguments: With the name of a task: the arguments of the request. No request is made.
            compare: With the id of a job: the id of another one, to learn why the two were not merged.
        """
        if what in self._app.tasks and compare is None:
            call = self._app.task_named(what).call_from(arguments or {})
            return self._answer(await self._app.why(call))
        if arguments is not None or (compare is None and not IDS.issuperset(what.lower())):
            self._app.task_named(what)  # raises, and names the tasks: only a call has arguments
        return self._answer(await self._app.why(what, compare))

    async def jobs(
        self,
        states: list[str] | None = None,
        task: str | None = None,
        queue: str | None = None,
        key: str | None = None,
        limit: int = 20,
    ) -> dict[str, Any]:
        """List jobs, newest first.

        Args:
            states: Only in these states, of scheduled, available, pending, active, retryable, completed,
                cancelled and discarded.
            task: Only of this task.
            queue: Only in this queue.
            key: Only of this key, in hexadecimal digits.
            limit: How many to list at most, up to 100.
        """
        found = await self._app.jobs(state=states or (), task=task, queue=queue, key=key, limit=within(limit))
        return {"jobs": [self._document(job) for job in found]}

    async def job(self, job_id: str) -> dict[str, Any]:
        """Show one job: its state, its key, its times, its errors, and how many requests it absorbed.

        Args:
            job_id: The id of the job, or a unique beginning of it.
        """
        found = await self._app.job(job_id)
        absorbed = (await self._app.absorbed()).get(found.id, 0)
        more = {"absorbed": absorbed, "holds_its_key": self._app.is_holding(found)}
        return self._document(found, tracebacks=True) | more

    async def holds(self, limit: int = 20) -> dict[str, Any]:
        """List the jobs that hold a key, and the jobs that wait behind them, with the requests each absorbed.

        Args:
            limit: How many to list at most, up to 100.
        """
        found, absorbed = await self._app.holds(limit=within(limit)), await self._app.absorbed()
        roles = ("holder", "successor")
        return {
            "holds": [
                self._document(job) | {"role": roles[job.is_successor], "absorbed": absorbed.get(job.id, 0)}
                for job in found
            ]
        }

    async def stats(self) -> dict[str, Any]:
        """Count jobs by queue and state, and absorbed requests by task and outcome."""
        counted: Document = msgspec.to_builtins((await self._app.stats()).as_dict())
        return counted

    async def workers(self, limit: int = 20) -> dict[str, Any]:
        """List workers, those seen last first: whether each is alive, what it serves and what it runs.

        Args:
            limit: How many to list at most, up to 100.
        """
        found = await self._app.activity.workers()
        return {"workers": msgspec.to_builtins(found[: within(limit)])}

    async def doctor(self) -> dict[str, Any]:
        """Examine the store and its jobs: findings of level ok, warn or fail, with advice."""
        return {"findings": [asdict(finding) for finding in await self._app.doctor()]}

    def _answer(self, answer: Why) -> Document:
        explained = answer.explanation
        document: Document = {
            "answer": answer.sentences,
            "job": None if answer.job is None else self._document(answer.job),
            "absorbed": [msgspec.to_builtins(entry) for entry in answer.absorbed],
        }
        if explained is not None:
            document["request"] = {
                "outcome": str(explained.outcome),
                "reason": explained.reason,
                "policy": explained.policy,
                "same_work": self._shown(explained.dimensions),
                "key": explained.key,
                "holder": None if explained.holder is None else self._document(explained.holder),
                "successor": None if explained.successor is None else self._document(explained.successor),
                "absorbed": explained.absorbed,
            }
        if answer.difference is not None:
            document["other"] = self._document(answer.difference.other)
        return document

    def _document(self, job: Job, *, tracebacks: bool = False) -> Document:
        """Return a job as JSON values; without tracebacks, only its last error is shown."""
        document = job.as_dict()
        for name in ("args", "meta", "result"):
            document[name] = self._shown(document[name])
        if not tracebacks:
            document["errors"] = [one | {"traceback": ""} for one in document["errors"][-1:]]
        return document

    def _shown(self, value: Any) -> Any:
        return value if self._show_arguments else hidden(value)


def hidden(value: Any) -> Any:
    """Return nested values without those at the ends of the paths; a missing value stays None."""
    if isinstance(value, Mapping):
        return {name: hidden(inner) for name, inner in value.items()}
    return value if value is None else HIDDEN


def cut_long(value: Any) -> Any:
    """Return JSON values with long texts and long lists cut."""
    match value:
        case str():
            return value if len(value) <= LONGEST else f"{value[:LONGEST]}…"
        case Mapping():
            return {name: cut_long(inner) for name, inner in value.items()}
        case list() | tuple():
            return [cut_long(inner) for inner in value[:MOST]]
        case _:
            return value


def within(limit: int) -> int:
    """Return a limit that is neither too small nor too large."""
    return min(max(limit, 1), MOST)
