"""`onejob metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from onejob.cli.apps import app_command
from onejob.cli.output import emit

if TYPE_CHECKING:
    from onejob import App


@app_command(example="onejob metrics shop:app")
async def metrics(app: App, *, as_json: bool) -> None:
    """Print the figures of the store in the text format of Prometheus."""
    from onejob import render_metrics

    text = await render_metrics(app)
    if as_json:
        from prometheus_client.parser import text_string_to_metric_families

        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        emit([{"name": one.name, "labels": one.labels, "value": one.value} for one in samples])
    else:
        click.echo(text, nl=False)
