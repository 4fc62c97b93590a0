package org.apache.spark.sql.dynastate

import io.dynastate.{DynastateException, ErrorKind}

import org.apache.spark.sql.catalyst.expressions.XXH64

/** Content of a store: values, their bytes with those of keys, and a digest that the order of keys does not change. */
private[dynastate] final class Content(var rows: Long = 0, var bytes: Long = 0, var digest: Long = 0) {

  def add(family: String, entry: StateEntry): Unit = {
    val key = entry.key
    entry.values.zipWithIndex.foreach { case (value, place) =>
      rows += 1
      bytes += key.getSizeInBytes + value.getSizeInBytes
      val ofKey = XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
        family.hashCode.toLong << 32 | place)
      digest += XXH64.hashUnsafeBytes(value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, ofKey)
    }
  }

  def add(other: Content): Unit = {
    rows += other.rows
    bytes += other.bytes
    digest += other.digest
  }

  def mustBe(other: Content, store: StoreAt, step: String): Unit =
    if ((rows, bytes, digest) != (other.rows, other.bytes, other.digest))
      throw new DynastateException(ErrorKind.Corrupt,
        s"$step is not what was written; nothing was moved $store written=$rows found=${other.rows}")
}
