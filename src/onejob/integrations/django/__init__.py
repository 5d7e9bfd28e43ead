"""Django: an installed app with one setting, `ONEJOB_APP = "shop.jobs:app"`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec

if TYPE_CHECKING:
    from onejob import App, Task

P = ParamSpec("P")


def get_app() -> App:
    """Return the onejob App that the setting `ONEJOB_APP` names.

    Raises:
        ImproperlyConfigured: The setting is missing, or names something else.
    """
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.utils.module_loading import import_string

    from onejob import App

    place = getattr(settings, "ONEJOB_APP", None)
    if not isinstance(place, str) or place.count(":") != 1:
        raise ImproperlyConfigured('Set ONEJOB_APP to module:attribute, as in ONEJOB_APP = "shop.jobs:app".')
    found = import_string(place.replace(":", "."))
    if not isinstance(found, App):
        raise ImproperlyConfigured(
            f"ONEJOB_APP names {place}, which is of type {type(found).__name__}, not an onejob App."
        )
    return found


def enqueue_on_commit(task: Task[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
    """Enqueue after the commit of Django's transaction, at once outside of one; a rollback enqueues nothing.

    It is for stores that are not Django's own database, such as Redis. A process that is killed between the
    commit and the enqueue loses the request; `options(connection=…)` on Django's own database does not.

    Examples:
        >>> enqueue_on_commit(send_invoice, order.id)
    """
    from django.db import transaction

    task.call(*args, **kwargs).check()  # arguments that do not fit are refused here, not after the commit
    transaction.on_commit(lambda: task.enqueue_sync(*args, **kwargs))
