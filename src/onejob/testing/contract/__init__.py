"""The contract suite: what every store must do, for a store of your own.

One function opens your store, and `certify` makes a test of it that has one case per promise:

    from onejob.testing.contract import certify

    @certify
    def test_my_store(clock, tmp_path):
        return MyStore(tmp_path / "jobs", clock=clock)
"""

import pytest

_MODULES = ("admission", "agreement", "compare", "races", "records", "runs", "transactions")
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _MODULES))  # before they are imported

from onejob.testing.contract.certifying import certify  # noqa: E402 - as said above

__all__ = ["certify"]
