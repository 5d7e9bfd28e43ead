"""What is decided at run time is read back by whoever opens the same store."""

from __future__ import annotations

from onejob import App


async def test_a_setting_is_written_read_changed_and_taken_back(app: App) -> None:
    assert await app._engine.store.settings("", "queue") == {}
    await app._engine.store.put_setting("", "queue", "mail", b"\x00paused")
    await app._engine.store.put_setting("", "queue", "bulk", b"1")
    await app._engine.store.put_setting("", "queue", "bulk", b"2")
    assert await app._engine.store.settings("", "queue") == {"mail": b"\x00paused", "bulk": b"2"}
    await app._engine.store.put_setting("", "queue", "mail", None)
    await app._engine.store.put_setting("", "queue", "never there", None)
    assert await app._engine.store.settings("", "queue") == {"bulk": b"2"}


async def test_settings_of_other_kinds_and_namespaces_are_apart(app: App) -> None:
    await app._engine.store.put_setting("", "queue", "mail", b"1")
    assert await app._engine.store.settings("tenant", "queue") == {}
    assert await app._engine.store.settings("", "cron") == {}


async def test_a_setting_wakes_waiting_callers(app: App) -> None:
    seen = app._engine.store.position()
    await app._engine.store.put_setting("", "queue", "mail", b"1")
    await app._engine.store.wait(60, seen)
