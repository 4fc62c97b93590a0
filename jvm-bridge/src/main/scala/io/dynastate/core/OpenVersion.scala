package io.dynastate.core

/** Takes an attempt's changes on their way to the engine, one chunk of whole records at a time. The array is reused. */
trait ChangeSink {
  def append(records: Int, hashMin: Int, hashMax: Int, run: Array[Byte], length: Int): Unit
}

/**
 * A version as one open store sees it: the rows of a base version, with this attempt's changes laid over them.
 *
 * Changes are kept until they are worth sending (`FlushBytes`), so that of several changes to one key only the last is
 * written; then they are sent, and kept as `sent`. Used by one thread at a time; any number may be open on one tree.
 *
 * {{{
 * open -> (put | remove | get | entries)* -> flush, fold, show     after which it shows the new version
 *                                         -> drop                  after which it shows the base
 * }}}
 */
final class OpenVersion(private[this] var base: Version, sink: ChangeSink) {
  private[this] var fresh = new Families
  private[this] var freshBytes = 0L
  private[this] var sent: Families = _
  private[this] var chunk: Array[Byte] = _

  def version: Version = base

  /** The entry of a key, or null. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val hash = Entry.hash(keyBase, keyOffset, keyLength)
    var entry = find(fresh, family, hash, keyBase, keyOffset, keyLength)
    if (entry == null && sent != null) entry = find(sent, family, hash, keyBase, keyOffset, keyLength)
    if (entry == null) base.tree.find(base, family, hash, keyBase, keyOffset, keyLength)
    else if (Entry.isDelete(entry)) null
    else entry
  }

  def put(
      family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    val entry = Entry.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    change(family, Entry.hash(keyBase, keyOffset, keyLength), entry)
  }

  /** Remove a key; nothing happens if it is not there. */
  def remove(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit =
    if (get(family, keyBase, keyOffset, keyLength) != null) {
      change(family, Entry.hash(keyBase, keyOffset, keyLength), Entry.delete(keyBase, keyOffset, keyLength))
    }

  /** All entries of a family as of now; later changes do not show. In no order. */
  def entries(family: Int): EntryIterator = {
    var layers = base.tree.share(base, family)
    if (sent != null && sent.existing(family) != null) layers ::= sent.existing(family).share()
    if (fresh.existing(family) != null) layers ::= fresh.existing(family).share()
    new EntryIterator(layers.toArray, showDeletes = false)
  }

  /** Send what has not been sent. */
  def flush(): Unit = if (freshBytes > 0) {
    send(fresh)
    if (sent == null) sent = fresh else merge(fresh, sent)
    fresh = new Families
    freshBytes = 0
  }

  /** The version that the changes lead to; after `flush`. This still shows the base with the changes, until `show`. */
  def fold(attempt: Attempt): Version = base.tree.fold(base, if (sent == null) new Families else sent, base.number + 1, attempt)

  /** Show another version, without changes. */
  def show(version: Version): Unit = {
    drop()
    base = version
  }

  /** Forget the changes. */
  def drop(): Unit = {
    fresh = new Families
    freshBytes = 0
    sent = null
  }

  /** Bytes of heap of this attempt's changes. */
  def heapBytes: Long = fresh.heapBytes + (if (sent == null) 0L else sent.heapBytes)

  private def find(in: Families, family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Array[Byte] = {
    val table = in.existing(family)
    if (table == null) null else table.find(hash, keyBase, keyOffset, keyLength)
  }

  private def change(family: Int, hash: Int, entry: Array[Byte]): Unit = {
    val replaced = fresh(family).put(hash, entry)
    freshBytes += entry.length + Entry.TagBytes
    if (replaced != null) freshBytes -= replaced.length + Entry.TagBytes
    if (freshBytes >= OpenVersion.FlushBytes) flush()
  }

  private def merge(from: Families, to: Families): Unit = {
    var family = 0
    while (family < from.bound) {
      val table = from.existing(family)
      if (table != null) {
        val entries = new EntryIterator(Array(table.share()), showDeletes = true)
        while (entries.advance()) to(family).put(entries.hash, entries.entry)
      }
      family += 1
    }
  }

  /** Send every entry of every family, in chunks of at most `ChunkBytes`; an entry that is larger is a chunk of its own. */
  private def send(changes: Families): Unit = {
    if (chunk == null) chunk = new Array[Byte](math.min(freshBytes, OpenVersion.ChunkBytes).toInt)
    var family = 0
    while (family < changes.bound) {
      val table = changes.existing(family)
      if (table != null) sendFamily(family, table)
      family += 1
    }
  }

  private def sendFamily(family: Int, table: RowTable): Unit = {
    // Keys with near hashes go into one part, so that a reader of one key can pass over most parts.
    val ordered = table.slotsByHash()
    val slots = table.share()
    var length, records, hashMin, hashMax = 0
    var at = 0
    while (at < ordered.length) {
      val entry = slots.entryAt(ordered(at))
      val hash = slots.hashAt(ordered(at))
      val needed = entry.length + Entry.TagBytes
      if (records > 0 && length + needed > OpenVersion.ChunkBytes) {
        sink.append(records, hashMin, hashMax, chunk, length)
        length = 0
        records = 0
      }
      if (length + needed > chunk.length) chunk = java.util.Arrays.copyOf(chunk, math.max(length + needed, OpenVersion.ChunkBytes))
      // tag := operation << 12 | family, and operation 0 is put or remove
      chunk(length) = family.toByte
      chunk(length + 1) = (family >>> 8).toByte
      System.arraycopy(entry, 0, chunk, length + Entry.TagBytes, entry.length)
      length += needed
      if (records == 0 || Integer.compareUnsigned(hash, hashMin) < 0) hashMin = hash
      if (records == 0 || Integer.compareUnsigned(hash, hashMax) > 0) hashMax = hash
      records += 1
      at += 1
    }
    slots.release()
    if (records > 0) sink.append(records, hashMin, hashMax, chunk, length)
    if (chunk.length > OpenVersion.ChunkBytes) chunk = new Array[Byte](OpenVersion.ChunkBytes)
  }
}

object OpenVersion {
  /** A chunk holds at most this much, unless it is one record (docs/storage-format.md). */
  val ChunkBytes: Int = 256 * 1024
  /** Changes are sent when they take this much: small batches go out once, with the last change to each key only. */
  val FlushBytes: Long = 4L * 1024 * 1024
}

/**
 * Entries of layers laid over each other, topmost first: an entry counts unless a higher layer has its key. Delete markers
 * hide entries of lower layers, and are shown themselves only if asked for. Releases the layers at the end, or at `close`.
 */
final class EntryIterator(layers: Array[Slots], showDeletes: Boolean) {
  private[this] var layer = 0
  private[this] var slot = -1
  private[this] var closed = false
  private[this] var currentEntry: Array[Byte] = _
  private[this] var currentHash = 0

  def entry: Array[Byte] = currentEntry

  def hash: Int = currentHash

  /** Go to the next entry; false at the end. */
  def advance(): Boolean = {
    while (!closed && layer < layers.length) {
      val slots = layers(layer)
      slot += 1
      while (slot < slots.capacity) {
        val candidate = slots.entryAt(slot)
        if (candidate != null && (showDeletes || !Entry.isDelete(candidate)) && !isHidden(candidate, slots.hashAt(slot))) {
          currentEntry = candidate
          currentHash = slots.hashAt(slot)
          return true
        }
        slot += 1
      }
      layer += 1
      slot = -1
    }
    close()
    false
  }

  def close(): Unit = if (!closed) {
    closed = true
    currentEntry = null
    layers.foreach(_.release())
  }

  private def isHidden(entry: Array[Byte], hash: Int): Boolean = {
    var above = 0
    while (above < layer) {
      if (layers(above).find(hash, entry, Entry.KeyOffset, Entry.keyLength(entry)) != null) return true
      above += 1
    }
    false
  }
}
