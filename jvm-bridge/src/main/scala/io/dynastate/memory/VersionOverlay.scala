package io.dynastate.memory

import java.nio.ByteBuffer

/**
 * A version as one open store sees it: the rows of a base version under this attempt's changes.
 *
 * Changes are collected as `fresh` until they are worth sending (`FlushBytes`), so that of several changes to one key only the last is
 * written; then they are sent, and kept as `sent`. Of a family with `keepEveryWrite` all changes are written, in their order
 * (docs/decisions/0014). Used by one thread at a time; any number may be open on one tree.
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
  private[this] val everyWrite = new java.util.BitSet
  /** Of families that keep every write: the earlier fresh changes of a key, by family and key; null: there are none. */
  private[this] var earlier: java.util.HashMap[(Int, ByteBuffer), java.util.ArrayList[AnyRef]] = _
  /** Fresh rows that an append began, where there was none; null: there are none. */
  private[this] var begun: java.util.IdentityHashMap[AnyRef, AnyRef] = _

  def version: Version = base

  /** Write every change of a family from now on, not only the last one of a key: for lists. */
  def keepEveryWrite(family: Int): Unit = everyWrite.set(family)

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
      if (begun == null) begun = new java.util.IdentityHashMap
      begun.put(encoded, encoded)
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
    forgetFresh()
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
    forgetFresh()
    sent = null
  }

  private def forgetFresh(): Unit = {
    fresh = new RowTables
    freshBytes = 0
    earlier = null
    begun = null
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
    // A list is what it replaces with one more value.
    if (replaced != null && row.isInstanceOf[Array[Byte]]) {
      if (everyWrite.get(family)) {
        if (earlier == null) earlier = new java.util.HashMap
        earlier.computeIfAbsent((family, keyOf(replaced)), _ => new java.util.ArrayList).add(replaced)
      } else replaced match {
        case encoded: Array[Byte] => freshBytes -= encoded.length + EncodedRow.TagBytes
        case _ =>
      }
    }
    if (freshBytes >= VersionOverlay.FlushBytes) flush()
  }

  private def putAll(from: RowTables, to: RowTables): Unit = from.foreach { (family, table) =>
    val rows = new SlotIterator(Array(table.share()), showDeletes = true)
    while (rows.advance()) to(family).put(rows.hash, rows.row)
  }

  /** Send every row of a family, keys with near hashes together, so that a reader of one key can skip most parts. */
  private def send(family: Int, table: RowTable, chunks: Chunks): Unit = {
    val isLastOnly = !everyWrite.get(family)
    val ordered = table.slotsByHash()
    val slots = table.share()
    var at = 0
    while (at < ordered.length) {
      val hash = slots.hashAt(ordered(at))
      slots.rowAt(ordered(at)) match {
        case encoded: Array[Byte] if isLastOnly => chunks.add(family, hash, encoded)
        case row => sendWrites(family, hash, row, chunks)
      }
      at += 1
    }
    slots.release()
  }

  /** Send the fresh changes of a key: the earlier ones, where they are kept, and the last. */
  private def sendWrites(family: Int, hash: Int, row: AnyRef, chunks: Chunks): Unit = {
    val root = Row.root(row)
    var known = sentRow(family, hash, root, EncodedRow.KeyOffset, EncodedRow.keyLength(root))
    val before = if (earlier == null) null else earlier.get((family, keyOf(row)))
    if (before != null) before.forEach { each =>
      sendWrite(family, hash, known, each, chunks)
      known = each
    }
    sendWrite(family, hash, known, row, chunks)
  }

  /** Send one change: of a list that continues what the engine has, the new values; else all values. */
  private def sendWrite(family: Int, hash: Int, known: AnyRef, row: AnyRef, chunks: Chunks): Unit = row match {
    case encoded: Array[Byte] =>
      // An append begins a list only where there is none; else the row replaces what the engine has.
      if (begun != null && begun.containsKey(encoded) && (known == null || Row.isDelete(known))) chunks.addMerge(family, hash, encoded, EncodedRow.value(encoded))
      else chunks.add(family, hash, encoded)
    case list: ValueList =>
      val isContinued = list.continues(known)
      if (!isContinued) sendWrite(family, hash, known, list.first, chunks)
      list.valuesSince(if (isContinued) known else null).foreach(chunks.addMerge(family, hash, list.first, _))
  }

  private def keyOf(row: AnyRef): ByteBuffer = {
    val root = Row.root(row)
    ByteBuffer.wrap(root, EncodedRow.HeaderBytes, EncodedRow.keyLength(root))
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
