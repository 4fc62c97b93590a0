"""The price of units and storage: the one place where money is computed. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

from dynastate.format.items import StorageSize
from dynastate.settings import Settings

#: DynamoDB keeps an index entry beside each item, and takes money for it.
INDEX_BYTES: Final = 100
GB: Final = 1024**3


@dataclass(frozen=True)
class Prices:
    """US dollars for a million write units, a million read units, a GB-month; for S3's PUTs, GETs and GB-month."""

    write: Decimal
    read: Decimal
    storage: Decimal
    put: Decimal
    get: Decimal
    object_storage: Decimal

    @classmethod
    def of(cls, settings: Settings) -> Prices:
        return cls(
            write=settings.write_price,
            read=settings.read_price,
            storage=settings.storage_price,
            put=settings.put_price,
            get=settings.get_price,
            object_storage=settings.objects_storage_price,
        )

    def nanodollars(self, write_units: int, read_units: int, puts: int = 0, gets: int = 0) -> int:
        """Price of requests in billionths of a dollar, to the nearest. Deletes take write units; in S3 nothing."""
        units = write_units * self.write + read_units * self.read
        return int((1000 * (units + puts * self.put + gets * self.get)).to_integral_value(ROUND_HALF_UP))

    def dollars_a_month(self, stored: StorageSize) -> float:
        """Price of keeping items and objects for a month."""
        in_tables = (stored.bytes + INDEX_BYTES * stored.items) * self.storage
        return float((in_tables + stored.object_bytes * self.object_storage) / GB)


DEFAULT_PRICES: Final = Prices.of(Settings())
