"""What an engine refuses, and how it ends."""

from __future__ import annotations

import pytest

from dynastate.engine.engine import Engine
from dynastate.errors import ConfigurationError, InternalError
from dynastate.format.keys import NO_ATTEMPT, Attempt, VersionId
from tests.support.engine_driver import begin
from tests.support.samples import A, B


@pytest.mark.parametrize(("base", "by"), [((0, NO_ATTEMPT), NO_ATTEMPT), ((0, A), B), ((1, NO_ATTEMPT), B)])
def test_an_attempt_needs_an_id_and_a_parent(engine: Engine, store: str, base: VersionId, by: Attempt) -> None:
    with pytest.raises(InternalError, match="an attempt needs an id"):
        begin(engine, store, by, base=base)


def test_a_store_name_that_fits_no_key_is_refused(engine: Engine) -> None:
    for name in ("", "a#b", "n" * 1025, "é" * 513):
        with pytest.raises(ConfigurationError, match="a store name must have"):
            begin(engine, name, A)
        with pytest.raises(ConfigurationError, match="a store name must have"):
            engine.open(name, 1, NO_ATTEMPT)
