"""The installed app: import the modules that declare tasks, and register the Tasks backends."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.module_loading import autodiscover_modules

from onejob.integrations.django import get_app

MODULES = ("tasks", "jobs")


class OnejobConfig(AppConfig):
    """`onejob.integrations.django` in INSTALLED_APPS."""

    name = "onejob.integrations.django"
    label = "onejob"
    verbose_name = "Background jobs"

    def ready(self) -> None:
        """Import `tasks` and `jobs` of all installed apps, so that a worker knows their tasks."""
        from onejob.integrations.django.backend import register_backends

        app = get_app()
        register_backends(app)
        autodiscover_modules(*MODULES)
        post_migrate.connect(make_tables, sender=self)


def make_tables(**_signal: Any) -> None:
    """Create or upgrade the tables of onejob after `manage.py migrate`.

    On SQLite this cannot happen later, inside a transaction of the project that has the only write lock.
    """
    get_app().maintenance.migrate()
