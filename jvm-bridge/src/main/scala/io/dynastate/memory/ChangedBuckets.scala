package io.dynastate.memory

/** The hashes that changed in each version, back to version `floor`, so that a snapshot sends only the buckets that
 * changed since the one before it. A hash is reduced to its first 12 bits.
 *
 * It belongs to a version tree, which adds every change that is folded. It is a superset: failed and abandoned attempts
 * only add to it. Safe for threads.
 */
final class ChangedBuckets(startsAt: Long) {
  import ChangedBuckets._

  private[this] var floor = startsAt
  /** The changes of each version, oldest first, whatever their parents. */
  private[this] val steps = new java.util.ArrayDeque[Step]

  /** Add the changes of a version. */
  def add(version: Long, bits: Array[Long]): Unit = synchronized {
    if (version > floor) {
      steps.addLast(new Step(version, bits.clone()))
      if (steps.size > StepsMax) {
        val oldest = steps.pollFirst()
        val next = steps.pollFirst()
        union(next.bits, oldest.bits)
        steps.addFirst(new Step(math.max(oldest.version, next.version), next.bits))
      }
    }
  }

  /** What changed after a version, in any descendant; null: not known. */
  def since(base: Long): Array[Long] = synchronized {
    if (base < floor) null
    else {
      val bits = new Array[Long](Words)
      steps.forEach(step => if (step.version > base) union(bits, step.bits))
      bits
    }
  }

  /** Discard the changes up to this version: it has a snapshot. */
  def forget(upTo: Long): Unit = synchronized {
    floor = math.max(floor, upTo)
    steps.removeIf(_.version <= floor)
  }
}

object ChangedBuckets {
  /** Bits of a hash that are kept; no snapshot has more buckets (docs/protocol.md). */
  val HashBits = 12
  val Words: Int = (1 << HashBits) / 64
  /** At 512 bytes each. Older ones are merged. */
  private[memory] val StepsMax = 64

  private final class Step(val version: Long, val bits: Array[Long])

  def mark(bits: Array[Long], hash: Int): Unit = {
    val cell = cellOf(hash)
    bits(cell >>> 6) |= 1L << cell
  }

  /** The hashes of all changes. */
  def of(changes: RowTables): Array[Long] = {
    val bits = new Array[Long](Words)
    changes.foreach { (_, table) =>
      val slots = table.share()
      var slot = 0
      while (slot < slots.capacity) {
        if (!slots.isFree(slot)) mark(bits, slots.hashAt(slot))
        slot += 1
      }
      slots.release()
    }
    bits
  }

  /** Whether one of 2^bucketBits buckets holds a marked hash. */
  def touches(bits: Array[Long], bucket: Int, bucketBits: Int): Boolean = {
    val shift = HashBits - bucketBits
    (bucket << shift until (bucket + 1) << shift).exists(cell => (bits(cell >>> 6) & 1L << cell) != 0)
  }

  /** Which of 2^bucketBits buckets a hash lies in. */
  def bucketOf(hash: Int, bucketBits: Int): Int = cellOf(hash) >>> HashBits - bucketBits

  private[memory] def cellOf(hash: Int): Int = hash >>> 32 - HashBits

  private def union(into: Array[Long], bits: Array[Long]): Unit = {
    var word = 0
    while (word < Words) {
      into(word) |= bits(word)
      word += 1
    }
  }
}
