"""DynamoDB's limits, checked before a request is sent: engines for tests do not enforce all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from dynastate.errors import InternalError
from dynastate.format.items import Item, item_bytes, text_bytes
from dynastate.format.keys import SORT_KEY_BYTES_MAX, Key

KEYS_MAX: Final = 100
#: 25 such items are 13.4 MB in base64, so no write can be larger than the 16 MB that BatchWriteItem takes on the wire.
ITEM_BYTES_MAX: Final = 400_000
#: DynamoDB's own limit: 400 KB of names and values, as `item_bytes` counts them. Updates may reach it.
STORED_BYTES_MAX: Final = 400 * 1024
ITEM_FULL: Final = (
    "an item is as large as DynamoDB allows, 400 KB, so nothing can be added to it: drop forks that are no longer "
    "needed. After hundreds of adoptions or of locations for objects, move to another namespace with 'dynastate "
    "repartition'"
)
#: The most bytes in an answer of BatchGetItem, and of one partition key in it. Further keys are left unprocessed.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
PARTITION_ANSWER_BYTES_MAX: Final = 1024 * 1024
PARTITION_KEY_BYTES_MAX: Final = 2_048


def refuse_keys(keys: Sequence[Key], most: int) -> None:
    """Refuse the keys of a request that DynamoDB refuses: none, too many, a key twice, a key empty or too long."""
    if not 1 <= len(keys) <= most:
        raise InternalError("a request has no or too many items", items=len(keys), most=most)
    if len(set(keys)) != len(keys):
        raise InternalError("a request has one key twice", keys=len(keys), distinct=len(set(keys)))
    for key in keys:
        lengths = text_bytes(key.store_shard), text_bytes(key.sort)
        if not (1 <= lengths[0] <= PARTITION_KEY_BYTES_MAX and 1 <= lengths[1] <= SORT_KEY_BYTES_MAX):
            raise InternalError("a key is empty or too long", partition_key_bytes=lengths[0], sort_key_bytes=lengths[1])


def refuse_items(puts: Sequence[tuple[Key, Item]]) -> list[int]:
    """The sizes of items. Refuse an item that is too large for DynamoDB."""
    sizes = [item_bytes(item) for _, item in puts]
    if max(sizes, default=0) > ITEM_BYTES_MAX:
        key, size = next((key, size) for (key, _), size in zip(puts, sizes, strict=True) if size > ITEM_BYTES_MAX)
        raise InternalError("an item is too large for DynamoDB", item=key.sort, item_bytes=size, most=ITEM_BYTES_MAX)
    return sizes
