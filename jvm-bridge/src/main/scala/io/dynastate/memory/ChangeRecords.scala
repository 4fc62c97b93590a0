package io.dynastate.memory

import java.nio.ByteBuffer

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.unsafe.Platform

/** A cursor over encoded changes (docs/storage-format.md, "Changes"), little-endian: `advance`, then read one. */
final class ChangeRecords(changes: ByteBuffer) {
  private[this] var tag = 0
  private[this] var at, keyLength, length = 0
  private[this] val current = new Row

  def isMerge: Boolean = tag >>> 12 == 1

  def family: Int = tag & 0xfff

  /** Hash of the key. */
  def hash: Int = EncodedRow.hash(changes.array,
    Platform.BYTE_ARRAY_OFFSET + changes.arrayOffset + at + EncodedRow.HeaderBytes, keyLength)

  /** The record without its tag: a cursor, which moves with `advance`. It lies in the buffer. */
  def row: Row = {
    current.pointTo(changes.array, changes.arrayOffset + at)
    current
  }

  /** Write the record, with its tag. */
  def writeTo(out: java.io.ByteArrayOutputStream): Unit =
    out.write(changes.array, changes.arrayOffset + at - EncodedRow.TagBytes, EncodedRow.TagBytes + length)

  def advance(): Boolean = changes.hasRemaining && {
    if (changes.remaining < EncodedRow.TagBytes + EncodedRow.HeaderBytes)
      throw new DynastateException(ErrorKind.Corrupt,
        s"changes end within the head of a change left=${changes.remaining}")
    tag = changes.getShort & 0xffff
    at = changes.position()
    keyLength = changes.getInt(at)
    val valueLength = changes.getInt(at + 4)
    if (tag >>> 12 > 1 || keyLength < 0 || valueLength < EncodedRow.DeleteMarker)
      throw new DynastateException(ErrorKind.Corrupt,
        s"a change of an unknown kind tag=$tag keyLength=$keyLength valueLength=$valueLength")
    val whole = EncodedRow.HeaderBytes + keyLength.toLong + math.max(valueLength, 0)
    if (whole > changes.remaining) throw new DynastateException(ErrorKind.Corrupt,
      s"a change is longer than what is left length=$whole left=${changes.remaining}")
    length = whole.toInt
    changes.position(at + length)
    true
  }
}
