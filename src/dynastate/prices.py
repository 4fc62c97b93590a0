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
    """US dollars for a million write units, a million read units, and a GB-month."""

    write: Decimal
    read: Decimal
    storage: Decimal

    @classmethod
    def of(cls, settings: Settings) -> Prices:
        return cls(settings.write_price, settings.read_price, settings.storage_price)

    def nanodollars(self, write_units: int, read_units: int) -> int:
        """Price of units in billionths of a dollar, to the nearest. Deletes take write units."""
        exact = 1000 * (write_units * self.write + read_units * self.read)
        return int(exact.to_integral_value(ROUND_HALF_UP))

    def dollars_a_month(self, stored: StorageSize) -> float:
        """Price of keeping items for a month."""
        return float((stored.bytes + INDEX_BYTES * stored.items) * self.storage / GB)


DEFAULT_PRICES: Final = Prices.of(Settings())
