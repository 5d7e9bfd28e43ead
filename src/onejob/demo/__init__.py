"""A live demo: a thousand requests in five scenarios become a few runs, and every number is checked."""

from onejob.demo.play import main

__all__ = ["main"]
