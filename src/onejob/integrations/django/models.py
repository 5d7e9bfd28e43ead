"""An entry of Django's admin that leads to the dashboard; it has no table."""

from __future__ import annotations

from django.db import models


class Dashboard(models.Model):
    """What the admin lists as "Dashboard"; the permission to view it is the permission to see the link."""

    id = models.AutoField(primary_key=True)

    class Meta:
        """No table, and no permission but one."""

        managed = False
        app_label = "onejob"
        default_permissions = ("view",)
        verbose_name = "dashboard"
        verbose_name_plural = "dashboard"
