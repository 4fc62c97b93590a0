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
 * open -> (put | remove | merge | get | rows | scan)* -> flush, fold, show     after which it shows the new version
 *                                                     -> drop                  after which it shows the base
 * }}}
 */
final class OpenVersion(private[this] var base: Version, sink: ChangeSink) {
  private[this] var fresh = new Families
  private[this] var freshBytes = 0L
  private[this] var sent: Families = _

  def version: Version = base

  /** The row of a key, or null. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef =
    find(family, Entry.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)

  /** Put one value in place of all the key has. */
  def put(
      family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    val entry = Entry.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    change(family, Entry.hash(keyBase, keyOffset, keyLength), entry, entry.length)
  }

  /** Append a value to those the key has, or make it the first. */
  def merge(
      family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    val hash = Entry.hash(keyBase, keyOffset, keyLength)
    val before = find(family, hash, keyBase, keyOffset, keyLength)
    if (before == null) {
      val entry = Entry.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      change(family, hash, entry, entry.length)
    } else {
      val value = Entry.copyOf(keyLength, valueBase, valueOffset, valueLength)
      change(family, hash, new ValueList(before, value), Entry.HeaderBytes + keyLength + value.length)
    }
  }

  /** Remove a key; nothing happens if it is not there. */
  def remove(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = {
    val hash = Entry.hash(keyBase, keyOffset, keyLength)
    if (find(family, hash, keyBase, keyOffset, keyLength) != null) {
      val entry = Entry.delete(keyBase, keyOffset, keyLength)
      change(family, hash, entry, entry.length)
    }
  }

  /** Remove every key of a family. Returns how many there were. */
  def clear(family: Int): Long = {
    val all = rows(family)
    var removed = 0L
    while (all.advance()) {
      val root = Row.root(all.row)
      remove(family, root, Entry.KeyOffset, Entry.keyLength(root))
      removed += 1
    }
    removed
  }

  /** All rows of a family as of now; later changes do not show. In no order. */
  def rows(family: Int): RowIterator = {
    var own = List.empty[Slots]
    if (sent != null && sent.existing(family) != null) own ::= sent.existing(family).share()
    if (fresh.existing(family) != null) own ::= fresh.existing(family).share()
    if (base.tree.bucketBits(base) == 0) new SlotIterator((own ++ base.tree.share(base, family, 0)).toArray, showDeletes = false)
    else new BucketwiseIterator(base, family, own)
  }

  /**
   * Rows of a family in the order of their keys' bytes, from a key to another, exclusive; null: to the edge. As of now: later
   * changes do not show.
   */
  def scan(family: Int, from: Array[Byte], to: Array[Byte]): RowIterator =
    new ScanIterator(base, family, probe(from), probe(to), ownRows(family, probe(from), probe(to)))

  /** Send what has not been sent. */
  def flush(): Unit = if (freshBytes > 0) {
    val chunks = new Chunks(sink, freshBytes)
    var family = 0
    while (family < fresh.bound) {
      val table = fresh.existing(family)
      if (table != null) send(family, table, chunks)
      family += 1
    }
    chunks.end()
    if (sent == null) sent = fresh else merge(fresh, sent)
    fresh = new Families
    freshBytes = 0
  }

  /** The version that the changes lead to; after `flush`. This still shows the base with the changes, until `show`. */
  def fold(attempt: Attempt, schema: String): Version =
    base.tree.fold(base, if (sent == null) new Families else sent, base.number + 1, attempt, schema)

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

  private def find(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    var row = findIn(fresh, family, hash, keyBase, keyOffset, keyLength)
    if (row == null) row = findSent(family, hash, keyBase, keyOffset, keyLength)
    if (row == null || !Row.isDelete(row)) row else null
  }

  /** What the engine knows of a key: as sent by this attempt, else as in the base. May be a delete marker. */
  private def findSent(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    val row = if (sent == null) null else findIn(sent, family, hash, keyBase, keyOffset, keyLength)
    if (row != null) row else base.tree.find(base, family, hash, keyBase, keyOffset, keyLength)
  }

  private def findIn(in: Families, family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    val table = in.existing(family)
    if (table == null) null else table.find(hash, keyBase, keyOffset, keyLength)
  }

  private def change(family: Int, hash: Int, row: AnyRef, bytes: Int): Unit = {
    val replaced = fresh(family).put(hash, row)
    freshBytes += bytes + Entry.TagBytes
    replaced match {
      case entry: Array[Byte] if row.isInstanceOf[Array[Byte]] => freshBytes -= entry.length + Entry.TagBytes
      case _ =>
    }
    if (freshBytes >= OpenVersion.FlushBytes) flush()
  }

  private def merge(from: Families, to: Families): Unit = {
    var family = 0
    while (family < from.bound) {
      val table = from.existing(family)
      if (table != null) {
        val rows = new SlotIterator(Array(table.share()), showDeletes = true)
        while (rows.advance()) to(family).put(rows.hash, rows.row)
      }
      family += 1
    }
  }

  /** Send every row of a family, keys with near hashes together, so that a reader of one key can pass over most parts. */
  private def send(family: Int, table: RowTable, chunks: Chunks): Unit = {
    val ordered = table.slotsByHash()
    val slots = table.share()
    var at = 0
    while (at < ordered.length) {
      val hash = slots.hashAt(ordered(at))
      slots.rowAt(ordered(at)) match {
        case entry: Array[Byte] => chunks.add(family, hash, entry)
        case list: ValueList => sendList(family, hash, list, chunks)
      }
      at += 1
    }
    slots.release()
  }

  /** Of a list that continues what the engine knows, only the values after it; else the whole list, the first as a put. */
  private def sendList(family: Int, hash: Int, list: ValueList, chunks: Chunks): Unit = {
    val known = findSent(family, hash, list.first, Entry.KeyOffset, Entry.keyLength(list.first))
    val isContinued = list.continues(known)
    if (!isContinued) chunks.add(family, hash, list.first)
    list.valuesSince(if (isContinued) known else null).foreach(chunks.addMerge(family, hash, list.first, _))
  }

  /** This attempt's rows in a range, in order, with delete markers; a copy, so that later changes do not show. */
  private def ownRows(family: Int, from: Array[Byte], to: Array[Byte]): java.util.ArrayList[AnyRef] = {
    val layers = new java.util.ArrayList[java.util.Iterator[AnyRef]]
    RangeOf.add(fresh.existing(family), from, inclusive = true, to, layers)
    if (sent != null) RangeOf.add(sent.existing(family), from, inclusive = true, to, layers)
    val merged = new MergedLayers(layers)
    val rows = new java.util.ArrayList[AnyRef]
    while (merged.advance()) rows.add(merged.row)
    rows
  }

  private def probe(key: Array[Byte]): Array[Byte] =
    if (key == null) null else Entry.delete(key, org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET, key.length)
}

object OpenVersion {
  /** A chunk holds at most this much, unless it is one record (docs/storage-format.md). */
  val ChunkBytes: Int = 256 * 1024
  /** Changes are sent when they take this much: small batches go out once, with the last change to each key only. */
  val FlushBytes: Long = 4L * 1024 * 1024
}

/** Collects records into chunks, and sends each when it is full. A record that is larger than a chunk is one of its own. */
private[core] final class Chunks(sink: ChangeSink, expectedBytes: Long) {
  private[this] val PutOrRemove = 0
  private[this] val Merge = 1
  private[this] var chunk = new Array[Byte](math.min(expectedBytes, OpenVersion.ChunkBytes).toInt)
  private[this] var length, records, hashMin, hashMax = 0

  /** A put or remove: the entry is the record, after its tag. */
  def add(family: Int, hash: Int, entry: Array[Byte]): Unit = {
    begin(PutOrRemove, family, hash, entry.length)
    System.arraycopy(entry, 0, chunk, length, entry.length)
    length += entry.length
  }

  /** A value appended to the list of the key of `first`. */
  def addMerge(family: Int, hash: Int, first: Array[Byte], value: Array[Byte]): Unit = {
    val keyLength = Entry.keyLength(first)
    begin(Merge, family, hash, Entry.HeaderBytes + keyLength + value.length)
    Entry.writeHeader(chunk, length, keyLength, value.length)
    System.arraycopy(first, Entry.HeaderBytes, chunk, length + Entry.HeaderBytes, keyLength)
    System.arraycopy(value, 0, chunk, length + Entry.HeaderBytes + keyLength, value.length)
    length += Entry.HeaderBytes + keyLength + value.length
  }

  /** A whole row: of a list the first value as a put, which replaces what was there, and the others as merges. */
  def addWhole(family: Int, hash: Int, row: AnyRef): Unit = row match {
    case entry: Array[Byte] => add(family, hash, entry)
    case list: ValueList =>
      add(family, hash, list.first)
      list.valuesSince(null).foreach(addMerge(family, hash, list.first, _))
  }

  /** Send what is left. */
  def end(): Unit = if (records > 0) {
    sink.append(records, hashMin, hashMax, chunk, length)
    length = 0
    records = 0
  }

  /** Make room for a record, and write its tag: operation << 12 | family. */
  private def begin(operation: Int, family: Int, hash: Int, bytes: Int): Unit = {
    val needed = bytes + Entry.TagBytes
    if (length + needed > OpenVersion.ChunkBytes) {
      end()
      // The array that a large record needed is not kept for the small ones after it.
      if (chunk.length > OpenVersion.ChunkBytes) chunk = new Array[Byte](OpenVersion.ChunkBytes)
    }
    if (length + needed > chunk.length) chunk = java.util.Arrays.copyOf(chunk, math.max(length + needed, OpenVersion.ChunkBytes))
    val tag = operation << 12 | family
    chunk(length) = tag.toByte
    chunk(length + 1) = (tag >>> 8).toByte
    length += Entry.TagBytes
    if (records == 0 || Integer.compareUnsigned(hash, hashMin) < 0) hashMin = hash
    if (records == 0 || Integer.compareUnsigned(hash, hashMax) > 0) hashMax = hash
    records += 1
  }
}

/** Rows one after the other: `advance`, then `row`. */
trait RowIterator {
  /** Go to the next row; false at the end. */
  def advance(): Boolean

  def row: AnyRef

  /** Give up what it holds. Called at the end by the iterator itself. */
  def close(): Unit
}

/**
 * Rows of layers laid over each other, topmost first: a row counts unless a higher layer has its key. Delete markers
 * hide rows of lower layers, and are shown themselves only if asked for. Layers above `firstLayer` only hide. Releases the layers at the end, or at `close`.
 */
final class SlotIterator(layers: Array[Slots], showDeletes: Boolean, firstLayer: Int = 0) extends RowIterator {
  private[this] var layer = firstLayer
  private[this] var slot = -1
  private[this] var closed = false
  private[this] var currentRow: AnyRef = _
  private[this] var currentHash = 0

  override def row: AnyRef = currentRow

  def hash: Int = currentHash

  override def advance(): Boolean = {
    while (!closed && layer < layers.length) {
      val slots = layers(layer)
      slot += 1
      while (slot < slots.capacity) {
        val candidate = slots.rowAt(slot)
        if (candidate != null && (showDeletes || !Row.isDelete(candidate)) && !isHidden(candidate, slots.hashAt(slot))) {
          currentRow = candidate
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

  override def close(): Unit = if (!closed) {
    closed = true
    currentRow = null
    layers.foreach(_.release())
  }

  private def isHidden(row: AnyRef, hash: Int): Boolean = {
    val root = Row.root(row)
    var above = 0
    while (above < layer) {
      if (layers(above).find(hash, root, Entry.KeyOffset, Entry.keyLength(root)) != null) return true
      above += 1
    }
    false
  }
}

/** All rows of a version, bucket by bucket, under an attempt's own layers, which it releases at the end, or at `close`. */
final class BucketwiseIterator(base: Version, family: Int, own: List[Slots]) extends RowIterator {
  private[this] val buckets = 1 << base.tree.bucketBits(base)
  private[this] var bucket = -1
  private[this] var closed = false
  own.foreach(_.retain())
  private[this] var current = new SlotIterator(own.toArray, showDeletes = false)

  override def row: AnyRef = current.row

  override def advance(): Boolean = {
    while (!closed) {
      if (current.advance()) return true
      bucket += 1
      if (bucket < buckets) {
        val theirs = base.tree.share(base, family, bucket)
        own.foreach(_.retain())
        current = new SlotIterator((own ++ theirs).toArray, showDeletes = false, firstLayer = own.length)
      } else close()
    }
    false
  }

  override def close(): Unit = if (!closed) {
    closed = true
    current.close()
    own.foreach(_.release())
  }
}

/**
 * Rows of a range in order: an attempt's own, merged with those of its base, which are read a batch at a time, since a version
 * never changes, whatever becomes of the tree meanwhile.
 */
final class ScanIterator(base: Version, family: Int, from: Array[Byte], to: Array[Byte], own: java.util.List[AnyRef]) extends RowIterator {
  private[this] var ownAt = 0
  private[this] var batch: java.util.List[AnyRef] = _
  private[this] var batchAt = 0
  private[this] var batchLimit = base.tree.scanBatch(isFirst = true)
  private[this] var currentRow: AnyRef = _

  override def row: AnyRef = currentRow

  override def advance(): Boolean = {
    while (true) {
      val mine = if (ownAt < own.size) own.get(ownAt) else null
      val theirs = peekBase()
      if (mine == null && theirs == null) return false
      val order = if (mine == null) 1 else if (theirs == null) -1 else Row.byKey.compare(mine, theirs)
      if (order <= 0) ownAt += 1
      if (order >= 0) batchAt += 1
      currentRow = if (order <= 0) mine else theirs
      if (!Row.isDelete(currentRow)) return true
    }
    false
  }

  override def close(): Unit = {
    ownAt = own.size
    batch = java.util.Collections.emptyList[AnyRef]
    batchAt = 0
  }

  private def peekBase(): AnyRef = {
    if (batch == null) batch = base.tree.scan(base, family, from, inclusive = true, to, batchLimit)
    else if (batchAt == batch.size && batch.size == batchLimit) {
      val last = Row.root(batch.get(batch.size - 1))
      batchLimit = base.tree.scanBatch(isFirst = false)
      batch = base.tree.scan(base, family, last, inclusive = false, to, batchLimit)
      batchAt = 0
    }
    if (batchAt < batch.size) batch.get(batchAt) else null
  }
}
