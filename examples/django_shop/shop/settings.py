"""Settings: SQLite in this folder, or the PostgreSQL that DATABASE_URL names."""

import os
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

BASE_DIR = Path(os.environ.get("SHOP_FOLDER", Path(__file__).parent.parent))
SECRET_KEY = "only for this example"  # noqa: S105 - it protects nothing
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "onejob.integrations.django",
    "shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shop.urls"

STORE_URL = os.environ.get("DATABASE_URL", f"sqlite:///{BASE_DIR}/shop.db")
if STORE_URL.startswith("sqlite"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": BASE_DIR / "shop.db",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},  # so that a transaction may read before it enqueues
            "TEST": {"NAME": BASE_DIR / "shop.db"},
        }
    }
else:
    url = urlsplit(STORE_URL)
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": url.path.strip("/"),
            "USER": unquote(url.username or ""),
            "PASSWORD": unquote(url.password or ""),
            "HOST": unquote(url.hostname or ""),
            "PORT": str(url.port or ""),
            "OPTIONS": dict(parse_qsl(url.query)),
        }
    }

ONEJOB_APP = "shop.jobs:app"
ONEJOB_DASHBOARD_URL = "/jobs/"
TASKS = {
    "default": {
        "BACKEND": "onejob.integrations.django.backend.OnejobBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"database": "default"},
    }
}
