package io.dynastate.core

/** One version of a store in memory, and its keys by column family. It never changes, and neither does any row that it ever showed. */
abstract class Version private[core] (
    val number: Long, val attempt: Attempt, val schema: String, val tree: Versions, val keys: Array[Long]) {
  override def toString: String = s"$number/$attempt"
}

/**
 * Rows of one store at several versions, side by side. All rows are in memory (`VersionTree`), or as many as there is room for
 * (`BucketedVersions`). Safe for threads.
 */
trait Versions {
  /** What changed on the way to each version. */
  def changed: ChangedBuckets

  /** The row of a key at a version, or null. Never a delete marker. */
  def find(version: Version, family: Int, hash: Int, base: AnyRef, offset: Long, length: Int): AnyRef

  /** A version's rows lie in 2^bits buckets, by the first bits of their hashes. */
  def bucketBits(version: Version): Int

  /** The layers that make up a family's rows in a bucket, topmost first; whoever reads them must release them. */
  def share(version: Version, family: Int, bucket: Int): List[Slots]

  /** The same for every family of a version, by its id. */
  def share(version: Version, bucket: Int): Array[List[Slots]]

  /** How many rows of a scan are best asked for at once. */
  def scanBatch(isFirst: Boolean): Int

  /**
   * Rows of a family at a version in the order of their keys, from a key (or its beginning: null) up to another, exclusive
   * (or its end: null): at most `limit`. A version never changes, so a scan goes on after the last row it was given.
   */
  def scan(version: Version, family: Int, from: Array[Byte], inclusive: Boolean, to: Array[Byte], limit: Int): java.util.ArrayList[AnyRef]

  /**
   * Make the version that changes lead to from its base, and count its keys. The changes belong to the versions from then on.
   * Nobody need hold the new version: if its commit fails, it is garbage, and the base is as readable as before.
   */
  def fold(base: Version, changes: Families, number: Long, attempt: Attempt, schema: String): Version

  /** A version that was folded from another is durable. */
  def committed(base: Version, next: Version): Unit = ()

  /** Bytes of heap of a version's rows. */
  def heapBytes(version: Version): Long

  /** Bytes that a version's rows would take in memory, about, whether they are there or not. */
  def stateBytes(version: Version): Long

  /** Nobody will ask for any of the versions again. */
  def close(): Unit = ()
}
