"""A link to the dashboard in Django's admin, if the setting ONEJOB_DASHBOARD_URL says where that is."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseRedirect

from onejob.integrations.django.models import Dashboard


class DashboardAdmin(admin.ModelAdmin):
    """Leads to the dashboard; adds, changes and deletes nothing."""

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponseRedirect:  # noqa: ARG002 - as Django calls it
        """Redirect to the dashboard."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return HttpResponseRedirect(settings.ONEJOB_DASHBOARD_URL)

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002 - as Django calls it
        """Return False: there is nothing to add."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - as above
        """Return False: the dashboard has its own rules."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002 - as above
        """Return False: there is nothing to delete."""
        return False


if getattr(settings, "ONEJOB_DASHBOARD_URL", None):
    admin.site.register(Dashboard, DashboardAdmin)
