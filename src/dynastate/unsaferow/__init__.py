"""Spark's row format: schemas, and rows of bytes (`UnsafeRow`) converted to Python values and back. No I/O.

    row      := nulls  slot:8 * fields  variable*      nulls: a bit for each field, low bits first, in words of 8 bytes
    array    := elements:u64  nulls  slot:width * elements, padded to 8  variable*
    map      := bytes of the key array:u64  key array  value array
    variable := bytes, padded with zeros to 8; its slot: offset:u32 << 32 | bytes:u32, from the start of row or array

Everything is little-endian but the bytes of a decimal with more than 18 digits, which are big-endian.

| Spark | Python |
|---|---|
| boolean, byte, short, integer, long, float, double | bool, int, float |
| decimal | Decimal, with the scale of its type |
| string, char, varchar | str; bytes that are not UTF-8 as surrogates (PEP 383) |
| binary | bytes |
| date, time, timestamp_ntz | date, time, datetime without a zone; RawNumber, where these cannot hold it |
| timestamp | datetime in UTC; RawNumber, where it cannot hold it |
| interval of days and seconds; of years and months | timedelta; int, in months |
| interval | CalendarInterval |
| struct | dict; repeated field names become name#2, name#3 |
| array | list |
| map | dict; a struct or array as its key is a tuple |
| variant | Variant, its two parts as bytes |
| void | None |
"""
