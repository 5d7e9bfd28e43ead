"""What the pages share: the app, the rules, the sampler, advice, and notes about what was done."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from onejob import App
from onejob.http.guard import Rules
from onejob.http.pages.advice import Advisor
from onejob.http.pages.figures import Figures
from onejob.http.pages.readiness import Readiness
from onejob.http.pages.samples import Sampler

NOTES = 100  # kept at most


@dataclass(frozen=True)
class Note:
    """What an action did, or why it was refused."""

    text: str
    good: bool = True


@dataclass
class Dashboard:
    """What the pages share."""

    app: App
    rules: Rules
    sampler: Sampler
    advisor: Advisor
    readiness: Readiness
    figures: Figures
    notes: OrderedDict[str, Note] = field(default_factory=OrderedDict)

    def keep(self, note: Note) -> str:
        """Keep a note for the page that is shown next; return its name for the URL."""
        name = secrets.token_urlsafe(6)
        self.notes[name] = note
        while len(self.notes) > NOTES:
            self.notes.popitem(last=False)
        return name


def state_of(request: Request) -> Dashboard:
    """Return what the pages share."""
    return cast("Dashboard", request.app.state.dashboard)


def app_of(request: Request) -> App:
    """Return the app whose jobs are shown."""
    return state_of(request).app
