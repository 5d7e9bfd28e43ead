"""Creates the permission of the admin entry, and no table."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first."""

    initial = True
    dependencies: ClassVar = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="Dashboard",
            fields=[("id", models.AutoField(primary_key=True, serialize=False))],
            options={
                "verbose_name": "dashboard",
                "verbose_name_plural": "dashboard",
                "managed": False,
                "default_permissions": ("view",),
            },
        )
    ]
