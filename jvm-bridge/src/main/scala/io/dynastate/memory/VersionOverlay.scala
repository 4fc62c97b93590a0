package io.dynastate.memory

/**
 * A version as one open store sees it: the rows of a base version under this attempt's changes.
 *
 * Changes are collected as `fresh` until they are worth sending (`FlushBytes`), so that of several changes to one key only the last is
 * written; then they are sent, and kept as `sent`. Used by one thread at a time; any number may be open on one tree.
 *
 * {{{
 * open -> (put | remove | merge | get | rows | scan)* -> flush, fold, show     then it shows the new version
 *                                                     -> discard               then it shows the base
 * }}}
 */
final class VersionOverlay(private[this] var base: Version, sink: ChangeSink) {
  private[this] var fresh = new RowTables
  private[this] var freshBytes = 0L
  private[this] var sent: RowTables = _

  def version: Version = base

  /** The row of a key, or null. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef =
    rowOf(family, EncodedRow.hash(keyBase, keyOffset, keyLength), keyBase, keyOffset, keyLength)

  /** Put one value, which replaces all values of the key. */
  def put(
      family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    val encoded = EncodedRow.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
    change(family, EncodedRow.hash(keyBase, keyOffset, keyLength), encoded, encoded.length)
  }

  /** Append a value to those of the key. */
  def merge(
      family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      valueBase: AnyRef, valueOffset: Long, valueLength: Int): Unit = {
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    val before = rowOf(family, hash, keyBase, keyOffset, keyLength)
    if (before == null) {
      val encoded = EncodedRow.put(keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength)
      change(family, hash, encoded, encoded.length)
    } else {
      val value = EncodedRow.copyOf(keyLength, valueBase, valueOffset, valueLength)
      change(family, hash, new ValueList(before, value), EncodedRow.HeaderBytes + keyLength + value.length)
    }
  }

  /** Remove a key, if it exists. */
  def remove(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = {
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    if (rowOf(family, hash, keyBase, keyOffset, keyLength) != null) {
      val encoded = EncodedRow.delete(keyBase, keyOffset, keyLength)
      change(family, hash, encoded, encoded.length)
    }
  }

  /** Remove every key of a family. Returns their number. */
  def clear(family: Int): Long = {
    val all = rows(family)
    var removed = 0L
    while (all.advance()) {
      val root = Row.root(all.row)
      remove(family, root, EncodedRow.KeyOffset, EncodedRow.keyLength(root))
      removed += 1
    }
    removed
  }

  /** All rows of a family as of now, without later changes, in no order. */
  def rows(family: Int): RowIterator = {
    var own = List.empty[Slots]
    if (sent != null && sent.existing(family) != null) own ::= sent.existing(family).share()
    if (fresh.existing(family) != null) own ::= fresh.existing(family).share()
    if (base.versions.bucketBits(base) == 0) new SlotIterator((own ++ base.versions.share(base, family, 0)).toArray, showDeletes = false)
    else new BucketwiseIterator(base, family, own)
  }

  /**
   * Rows of a family in the order of their keys' bytes, from a key (null: the first) up to another, exclusive (null: the end), as of
   * now, without later changes.
   */
  def scan(family: Int, from: Array[Byte], to: Array[Byte]): RowIterator =
    new ScanIterator(base, family, probe(from), probe(to), ownRows(family, probe(from), probe(to)))

  /** Send the fresh changes. */
  def flush(): Unit = if (freshBytes > 0) {
    val chunks = new Chunks(sink, freshBytes)
    fresh.foreach(send(_, _, chunks))
    chunks.end()
    if (sent == null) sent = fresh else putAll(fresh, sent)
    fresh = new RowTables
    freshBytes = 0
  }

  /** Make the version of base and changes, after `flush`. This overlay still shows the base with the changes, until `show`. */
  def fold(attempt: Attempt, schema: String): Version =
    base.versions.fold(base, if (sent == null) new RowTables else sent, base.number + 1, attempt, schema)

  /** Show another version, without changes. */
  def show(version: Version): Unit = {
    discard()
    base = version
  }

  /** Discard the changes. */
  def discard(): Unit = {
    fresh = new RowTables
    freshBytes = 0
    sent = null
  }

  /** Bytes of heap of this attempt's changes. */
  def heapBytes: Long = fresh.heapBytes + (if (sent == null) 0L else sent.heapBytes)

  private def rowOf(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    var row = rowIn(fresh, family, hash, keyBase, keyOffset, keyLength)
    if (row == null) row = sentRow(family, hash, keyBase, keyOffset, keyLength)
    if (row == null || !Row.isDelete(row)) row else null
  }

  /** The row of a key as the engine has it: as sent by this attempt, else as in the base. May be a delete marker. */
  private def sentRow(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    val row = if (sent == null) null else rowIn(sent, family, hash, keyBase, keyOffset, keyLength)
    if (row != null) row else base.versions.get(base, family, hash, keyBase, keyOffset, keyLength)
  }

  private def rowIn(in: RowTables, family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): AnyRef = {
    val table = in.existing(family)
    if (table == null) null else table.get(hash, keyBase, keyOffset, keyLength)
  }

  private def change(family: Int, hash: Int, row: AnyRef, bytes: Int): Unit = {
    val replaced = fresh(family).put(hash, row)
    freshBytes += bytes + EncodedRow.TagBytes
    replaced match {
      case encoded: Array[Byte] if row.isInstanceOf[Array[Byte]] => freshBytes -= encoded.length + EncodedRow.TagBytes
      case _ =>
    }
    if (freshBytes >= VersionOverlay.FlushBytes) flush()
  }

  private def putAll(from: RowTables, to: RowTables): Unit = from.foreach { (family, table) =>
    val rows = new SlotIterator(Array(table.share()), showDeletes = true)
    while (rows.advance()) to(family).put(rows.hash, rows.row)
  }

  /** Send every row of a family, keys with near hashes together, so that a reader of one key can skip most parts. */
  private def send(family: Int, table: RowTable, chunks: Chunks): Unit = {
    val ordered = table.slotsByHash()
    val slots = table.share()
    var at = 0
    while (at < ordered.length) {
      val hash = slots.hashAt(ordered(at))
      slots.rowAt(ordered(at)) match {
        case encoded: Array[Byte] => chunks.add(family, hash, encoded)
        case list: ValueList => sendList(family, hash, list, chunks)
      }
      at += 1
    }
    slots.release()
  }

  /** Send a list: if it continues what the engine has, only the new values; else all, the first as a put. */
  private def sendList(family: Int, hash: Int, list: ValueList, chunks: Chunks): Unit = {
    val known = sentRow(family, hash, list.first, EncodedRow.KeyOffset, EncodedRow.keyLength(list.first))
    val isContinued = list.continues(known)
    if (!isContinued) chunks.add(family, hash, list.first)
    list.valuesSince(if (isContinued) known else null).foreach(chunks.addMerge(family, hash, list.first, _))
  }

  /** This attempt's rows in a range, in order, with delete markers; a copy, without later changes. */
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
    if (key == null) null else EncodedRow.delete(key, org.apache.spark.unsafe.Platform.BYTE_ARRAY_OFFSET, key.length)
}

object VersionOverlay {
  /** Changes are sent when they take this much: a small batch is sent once, with the last change to each key only. */
  val FlushBytes: Long = 4L * 1024 * 1024
}
