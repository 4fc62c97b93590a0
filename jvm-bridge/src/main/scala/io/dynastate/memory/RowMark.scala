package io.dynastate.memory

import java.lang.Long.rotateLeft
import java.security.SecureRandom

import org.apache.spark.unsafe.Platform

/** What a load has to know of a row that it replaces, without the row, which may be on disk: 56 bits that tell its key
 * from others of the same hash, and its length in units of 8 bytes; 0: the row must be read.
 *
 * The bits are those of a keyed hash (SipHash-1-3: J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input
 * PRF", 2012), and the key is this process's own: whoever chooses keys of state cannot choose two with the same mark.
 */
private[dynastate] object RowMark {
  private val LengthBits = 8
  private val UnitsMax = (1 << LengthBits) - 1
  private val UnitBits = 3
  private val (secret0, secret1) = {
    val random = new SecureRandom
    (random.nextLong(), random.nextLong())
  }

  /** The mark of a row. A list or segment is always read. */
  private[memory] def of(row: Row): Long = {
    val units = RowArena.padded(row.length) >>> UnitBits
    val isRead = row.isList || row.isSegment || units > UnitsMax
    ofKey(row.bytes, row.keyOffset, row.keyLengthAndKind) | (if (isRead) 0 else units)
  }

  /** The mark of a key, without the length of its row. */
  def ofKey(base: AnyRef, offset: Long, lengthAndKind: Int): Long = {
    val hash = sipHash(secret0, secret1, base, offset, lengthAndKind & ~EncodedRow.SegmentBit)
    (if ((lengthAndKind & EncodedRow.SegmentBit) == 0) hash else ~hash) & -1L << LengthBits
  }

  def isOfSameKey(mark: Long, other: Long): Boolean = (mark ^ other) >>> LengthBits == 0

  /** The length of a row, padded; 0: the mark does not tell. */
  def length(mark: Long): Int = (mark & UnitsMax).toInt << UnitBits

  def sipHash(key0: Long, key1: Long, base: AnyRef, offset: Long, length: Int): Long = {
    var v0 = key0 ^ 0x736f6d6570736575L
    var v1 = key1 ^ 0x646f72616e646f6dL
    var v2 = key0 ^ 0x6c7967656e657261L
    var v3 = key1 ^ 0x7465646279746573L
    val words = length >>> 3
    // After the words one with the rest and the length; then three rounds without a word.
    var step = 0
    while (step < words + 4) {
      val word =
        if (step < words) Platform.getLong(base, offset + (step << 3))
        else if (step == words) length.toLong << 56 | rest(base, offset + (words << 3), length & 7)
        else 0L
      if (step == words + 1) v2 ^= 0xff
      v3 ^= word
      v0 += v1
      v2 += v3
      v1 = rotateLeft(v1, 13) ^ v0
      v3 = rotateLeft(v3, 16) ^ v2
      v0 = rotateLeft(v0, 32) + v3
      v2 += v1
      v3 = rotateLeft(v3, 21) ^ v0
      v1 = rotateLeft(v1, 17) ^ v2
      v2 = rotateLeft(v2, 32)
      v0 ^= word
      step += 1
    }
    v0 ^ v1 ^ v2 ^ v3
  }

  private def rest(base: AnyRef, offset: Long, length: Int): Long = {
    var word = 0L
    var each = length - 1
    while (each >= 0) {
      word = word << 8 | Platform.getByte(base, offset + each) & 0xffL
      each -= 1
    }
    word
  }
}
