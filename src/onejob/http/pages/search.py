"""The search box of the Jobs page: a small grammar, read into a query, and jobs found page by page.

`state:retryable queue:mail task:send_invoice args.order.id:7 "some text" 01a1`: terms are joined by "and"; a
list `state:active,retryable` means any of them. State, queue, task and key are looked up by the store;
arguments and text are compared here. A page compares jobs for a short time, and says so if it ends before
the page is full.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onejob import App, Job, State
from onejob.http.pages.errors import BadRequest
from onejob.http.pages.text import arguments, plain

FIELDS = ("task", "queue", "state", "key", "id", "is", "args.…")
GROUPS = {
    "waiting": {State.SCHEDULED, State.AVAILABLE, State.PENDING},
    "incomplete": {State.SCHEDULED, State.AVAILABLE, State.PENDING, State.ACTIVE, State.RETRYABLE},
    "ended": {State.COMPLETED, State.CANCELLED, State.DISCARDED},
}
FACTS: dict[str, Callable[[Job], bool]] = {
    "holder": lambda job: job.is_holder,
    "successor": lambda job: job.is_successor,
    "superseded": lambda job: job.is_superseded,
    "unique": lambda job: job.key is not None,
    "failed": lambda job: bool(job.failures),
}
ID_PART = re.compile(r"([0-9a-f]{4,}[0-9a-f-]*)(?:(?:…|\.\.\.)([0-9a-f]{4}))?", re.IGNORECASE)
KEY = re.compile(r"[0-9a-f]{64}", re.IGNORECASE)
TERM = re.compile(r"""(?:[^\s"']|"[^"]*"|'[^']*')+""")
LONGEST = 1000  # characters


@dataclass(frozen=True)
class Search:
    """A search that has been read."""

    text: str = ""
    states: frozenset[State] = frozenset()
    queue: str | None = None
    task: str | None = None
    key: str | None = None
    prefix: str | None = None
    tests: tuple[Callable[[Job], bool], ...] = field(default=(), repr=False)

    @property
    def digest(self) -> str:
        """A short name of the search, by which a cursor is bound to it."""
        return hashlib.sha256(" ".join(self.text.split()).encode()).hexdigest()[:8]

    def matches(self, job: Job) -> bool:
        """Return whether a job passes what the store does not check."""
        return all(test(job) for test in self.tests)


@dataclass(frozen=True)
class Found:
    """A page of jobs."""

    jobs: list[Job]
    cursor: str | None  # of the next page
    looked_at: int
    cut_short: bool  # whether the page ended because enough jobs had been compared


def read_search(text: str) -> Search:
    """Read a search; raise BadRequest with a sentence that says what to write instead."""
    if len(text) > LONGEST:
        raise BadRequest(f"The search is longer than {LONGEST} characters.")
    try:
        terms = shlex.split(text.replace("\\", "\\\\"))
    except ValueError:
        raise BadRequest("A quotation mark is not closed: write the second one, or none.") from None
    chosen: dict[str, Any] = {}
    tests: list[Callable[[Job], bool]] = []
    for term in terms:
        name, colon, value = term.partition(":")
        if not colon or not re.fullmatch(r"[a-z][\w.]*", name):
            read_word(term, chosen, tests)
        elif name.startswith("args."):
            tests.append(argument_test(name[5:], value))
        else:
            read_field(name, value, chosen, tests)
    return Search(text=text, tests=tuple(tests), **chosen)


def read_word(word: str, chosen: dict[str, Any], tests: list[Callable[[Job], bool]]) -> None:
    """Read a word without a field: an id or its beginning, a key, or text of the arguments."""
    if KEY.fullmatch(word):
        chosen["key"] = word.lower()
    elif ID_PART.fullmatch(word):
        read_id(word, chosen, tests)
    else:
        wanted = word.casefold()
        tests.append(lambda job: wanted in f"{job.task} {plain(arguments(job))}".casefold())


def read_id(word: str, chosen: dict[str, Any], tests: list[Callable[[Job], bool]]) -> None:
    """Read the beginning of an id, or an id as pages show it: 01a1…491c."""
    form = ID_PART.fullmatch(word.lower())
    assert form is not None  # the callers have looked
    chosen["prefix"], digits = form.groups()
    if digits is not None:
        tests.append(lambda job: job.id[-8:-4] == digits)


def read_field(  # noqa: C901 - one case per field
    name: str, value: str, chosen: dict[str, Any], tests: list[Callable[[Job], bool]]
) -> None:
    """Read a term such as queue:mail."""
    if not value:
        raise BadRequest(f"{name}: has no value: write it behind the colon, without a space.")
    match name:
        case "task" | "queue":
            if name in chosen:
                raise BadRequest(f"{name}: appears twice, and a job has only one: leave one of them out.")
            chosen[name] = value
        case "state":
            chosen["states"] = read_states(value)
        case "key":
            if not KEY.fullmatch(value):
                raise BadRequest("key: needs the 64 hexadecimal digits of a key.")
            chosen["key"] = value.lower()
        case "id":
            if not ID_PART.fullmatch(value):
                raise BadRequest("id: needs at least the first four digits of an id.")
            read_id(value, chosen, tests)
        case "is":
            if value not in FACTS:
                raise BadRequest(f"is:{value} is not known: write is: and one of {', '.join(FACTS)}.")
            tests.append(FACTS[value])
        case _:
            raise BadRequest(
                f"There is no field {name!r}: write one of {', '.join(FIELDS)}, or quote the text."
            )


def read_states(value: str) -> frozenset[State]:
    """Return the states that a list names; groups such as `waiting` name several."""
    found: set[State] = set()
    for name in value.split(","):
        if name in GROUPS:
            found |= GROUPS[name]
        elif name in set(State):
            found.add(State(name))
        else:
            known = ", ".join((*State, *GROUPS))
            raise BadRequest(f"{name!r} is no state: write one of {known}.")
    return frozenset(found)


def with_state(text: str, state: str | None) -> str:
    """Return a search with another state, or without any."""
    others = [term for term in TERM.findall(text) if not term.startswith("state:")]
    return " ".join([*others, *([f"state:{state}"] if state else [])])


def argument_test(path: str, value: str) -> Callable[[Job], bool]:
    """Return a test for one argument, given by its path: args.order.id:7."""

    def test(job: Job) -> bool:
        found: Any = arguments(job)
        for name in path.split("."):
            if not isinstance(found, dict) or name not in found:
                return False
            found = found[name]
        return value == found if isinstance(found, str) else value == plain(found)

    return test


async def find(
    app: App, search: Search, cursor: str | None, *, limit: int, seconds: float, most: int
) -> Found:
    """Return a page of the jobs that a search finds, newest first."""
    before = read_cursor(search, cursor)
    prefix = search.prefix or ""
    if search.prefix is not None:  # ids are ordered, so those with one beginning lie together
        before = before or f"{prefix}g"
    page = await app.activity.search(
        state=search.states,
        queue=search.queue,
        task=search.task,
        key=search.key,
        test=search.matches if search.tests else None,
        before=before,
        limit=limit,
        seconds=seconds,
        most=most,
    )
    jobs = [job for job in page.jobs if job.id.startswith(prefix)]
    after = page.cursor
    if after is None or len(jobs) < len(page.jobs) or not after.startswith(prefix):
        return Found(jobs, None, page.compared, cut_short=False)
    return Found(jobs, f"{after}.{search.digest}", page.compared, cut_short=page.is_cut_short)


def read_cursor(search: Search, cursor: str | None) -> str | None:
    """Return the id at which a page begins; raise BadRequest for a cursor of another search."""
    if not cursor:
        return None
    job_id, _, digest = cursor.partition(".")
    if digest != search.digest or not ID_PART.fullmatch(job_id):
        raise BadRequest("This page belongs to another search: start again at its first page.")
    return job_id
