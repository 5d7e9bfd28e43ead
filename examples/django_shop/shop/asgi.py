"""The site with the dashboard beside it: `uvicorn shop.asgi:site`."""

import os

from django.core.asgi import get_asgi_application
from starlette.applications import Starlette
from starlette.routing import Mount

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django = get_asgi_application()

from onejob.http import dashboard  # noqa: E402 - after Django's setup, which imports the tasks
from onejob.integrations.django import get_app  # noqa: E402 - as above
from onejob.integrations.starlette import lifespan  # noqa: E402 - as above

app = get_app()
board = dashboard(app, token=os.environ.get("SHOP_TOKEN"), hosts=["127.0.0.1", "localhost"])
site = Starlette(routes=[Mount("/jobs", board), Mount("/", django)], lifespan=lifespan(app, dashboard=board))
