"""Which rows have a key: by the columns of each family's keys, also as a part or a field of them."""

from __future__ import annotations

import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest

from dynastate.errors import ConfigurationError, CorruptStateError
from dynastate.operations.erase.keys import GivenKeys, KeyMatcher
from dynastate.operations.erase.scan import refuse_unmatched
from dynastate.unsaferow.key_encoders import make_encoder
from dynastate.unsaferow.schema import parse_schema
from tests.support.store_builder import family, struct

STORE = "ns/0/0/default"
USER_AND_TIME = (("user", "string"), ("time", "long"))
PREFIX = {"keyStateEncoderType": "PrefixKeyScanStateEncoderSpec", "numColsPrefixKey": 1}
RANGE = {"keyStateEncoderType": "RangeKeyScanStateEncoderSpec", "orderingOrdinals": [1]}
FAMILIES = [
    family(),
    family(1, "sessions", USER_AND_TIME, key_encoder=PREFIX),
    family(
        2,
        "timers",
        (("time", "long"), ("key", struct((("user", "string"),)))),
        key_encoder=RANGE | {"orderingOrdinals": [0]},
    ),
    family(3, "scores", (("score", "double"),)),
    family(4, "gone", USER_AND_TIME, key_encoder=RANGE, dropped=True),
]
SCHEMA = json.dumps({"families": FAMILIES})


def encode(number: int, key: dict[str, Any]) -> bytes:
    described = FAMILIES[number]
    return make_encoder(parse_schema(described["key"]), described["key_encoder"], "default").encode(key)


def matcher(*keys: dict[str, Any]) -> KeyMatcher:
    return KeyMatcher(GivenKeys(keys), STORE, [SCHEMA])


def test_a_key_a_prefix_and_a_field_of_a_composite_key() -> None:
    """The column is found wherever it is in the key, also of a family that was removed."""
    of_a = matcher({"user": "a"})
    for number, key in (
        (0, {"user": "{}"}),
        (1, {"user": "{}", "time": 1}),
        (2, {"time": 5, "key": {"user": "{}"}}),
        (4, {"user": "{}", "time": -1}),
    ):
        for name, is_wanted in (("a", True), ("b", False)):
            filled = json.loads(json.dumps(key).replace("{}", name))
            assert of_a.matches(number, encode(number, filled)) == is_wanted
    assert not of_a.matches(3, encode(3, {"score": 1.0}))
    assert of_a.without_columns == {"scores"}


def test_each_key_needs_a_family_of_its_columns() -> None:
    """One good key does not hide another with a wrong column, which would match nothing."""
    given = GivenKeys([{"user": "a"}, {"usr": "b"}, {"score": 1.0}])
    of_users = KeyMatcher(given, STORE, [json.dumps({"families": [family()]})])
    of_all = KeyMatcher(given, STORE, [SCHEMA])
    with pytest.raises(ConfigurationError, match=r"no key of this state has these columns.*columns=score; usr"):
        refuse_unmatched(given, {STORE: of_users})
    with pytest.raises(ConfigurationError, match=r"no key of this state has these columns.*columns=usr"):
        refuse_unmatched(given, {STORE: of_users, "ns/1/0/default": of_all})
    refuse_unmatched(
        GivenKeys([{"user": "a"}, {"user": "b", "time": 1}]), {STORE: matcher({"user": "b", "time": 1}, {"user": "a"})}
    )


def test_a_family_whose_column_has_another_type_is_named() -> None:
    """As some of transformWithState in Python, whose keys are pickled: their rows cannot be recognised."""
    timers = family(1, "$eventTimers_keyToTimestamp", (("user", "binary"), ("time", "long")))
    with pytest.raises(ConfigurationError, match=r"must be of type binary.* family=\$eventTimers_keyToTimestamp"):
        KeyMatcher(GivenKeys([{"user": "not base64"}]), STORE, [json.dumps({"families": [family(), timers]})])


def test_a_family_with_another_form() -> None:
    """Of a family that was removed and made again, one form with the columns suffices."""
    schemas = [
        json.dumps({"families": [family(0, "f", (("score", "double"),))]}),
        json.dumps({"families": [family(0, "f")]}),
    ]
    assert KeyMatcher(GivenKeys([{"user": "a"}]), STORE, schemas).without_columns == set()


def test_a_field_of_a_column_of_the_same_name() -> None:
    """Timers of `transformWithState` have such keys, if the query groups by a column `key`."""
    described = family(0, "timers", (("key", struct((("key", "string"),))), ("time", "long")))
    of_a = KeyMatcher(GivenKeys([{"key": "a"}]), STORE, [json.dumps({"families": [described]})])
    keys = make_encoder(parse_schema(described["key"]), described["key_encoder"], "default")
    assert [of_a.matches(0, keys.encode({"key": {"key": name}, "time": 1})) for name in "ab"] == [True, False]


def test_all_columns_of_a_given_key_count() -> None:
    of_one = matcher({"user": "a", "time": 1}, {"user": "b", "time": 2})
    keys = [{"user": user, "time": time} for user in "ab" for time in (1, 2)]
    assert [of_one.matches(1, encode(1, key)) for key in keys] == [True, False, False, True]
    assert not of_one.matches(0, encode(0, {"user": "a"}))


@pytest.mark.parametrize(("given", "stored"), [(0.0, -0.0), ("NaN", float("nan")), (None, None), (2, 2.0)])
def test_values_that_spark_groups_as_equal(given: Any, stored: float | None) -> None:
    assert matcher({"score": given}).matches(3, encode(3, {"score": stored}))
    assert not matcher({"score": given}).matches(3, encode(3, {"score": 1.5}))


@pytest.mark.parametrize(
    ("kind", "given", "stored"),
    [
        ("decimal(10,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(10,2)", "1.5", Decimal("1.50")),
        ("decimal(10,2)", 5, Decimal("5.00")),
        ("float", Decimal("0.1"), 0.1),
        ("double", Decimal("0.1"), 0.1),
        ("long", 5, 5),
    ],
)
def test_values_in_other_spellings(kind: str, given: Any, stored: Any) -> None:
    """As `get` takes them: a row is found by each spelling of its key's value, also within a struct."""
    for column, key in (("value", {"value": stored}), ("place", {"place": {"value": stored}})):
        columns = ("value", kind) if column == "value" else ("place", struct((("value", kind),)))
        described = family(0, "default", (columns,))
        keys = make_encoder(parse_schema(described["key"]), described["key_encoder"], "default")
        of_value = KeyMatcher(GivenKeys([{"value": given}]), STORE, [json.dumps({"families": [described]})])
        assert of_value.matches(0, keys.encode(key))


@pytest.mark.parametrize(("kind", "given"), [("decimal(10,2)", Decimal("1.234")), ("integer", 2**31)])
def test_values_that_no_row_can_have_are_refused(kind: str, given: Any) -> None:
    described = family(0, "default", (("value", kind),))
    with pytest.raises(ConfigurationError, match="column value of the key must be of type"):
        KeyMatcher(GivenKeys([{"value": given}]), STORE, [json.dumps({"families": [described]})])


def test_wrong_keys_are_refused() -> None:
    """A value of another type would match nothing, without an error."""
    with pytest.raises(ConfigurationError, match="column user of the key must be of type string"):
        matcher({"user": 5})
    wrong_keys: list[Any] = [[], [{}], ["a"]]
    for wrong in wrong_keys:
        with pytest.raises(ConfigurationError, match="at least one"):
            GivenKeys(wrong)


def test_a_row_of_no_family_is_refused() -> None:
    with pytest.raises(CorruptStateError, match="a row is of a column family that no schema has"):
        matcher({"user": "a"}).matches(9, b"")
    with pytest.raises(CorruptStateError):
        matcher({"user": "a"}).matches(0, b"short")


def test_a_digest_names_the_keys_in_any_order() -> None:
    one, two = {"user": "a", "time": 1}, {"user": "b"}
    assert GivenKeys([one, two]).digest == GivenKeys([two, dict(reversed(one.items()))]).digest
    assert GivenKeys([one, two, one]).digest == GivenKeys([one, two]).digest
    assert GivenKeys([one]).digest != GivenKeys([two]).digest
    assert GivenKeys([two]).hashes() == [hashlib.sha256(b'{"user":"b"}').hexdigest()]
