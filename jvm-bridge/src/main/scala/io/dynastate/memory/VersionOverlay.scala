package io.dynastate.memory

import java.nio.ByteBuffer

/** A version as one open store sees it: the rows of a base version under this attempt's changes.
 *
 * Changes are collected as `fresh` until they are worth sending (`FlushBytes`), so that of several changes to one key
 * only the last is written; then they are sent, and kept as `sentRows`. Of a family with `keepEveryWrite` all changes
 * are written, in their order (docs/decisions/0014). Used by one thread at a time; any number may be open on one tree.
 *
 * {{{
 * open -> (put | remove | merge | get | rows | scan)* -> flush, fold, show     then it shows the new version
 *                                                     -> discard               then it shows the base
 * }}}
 */
final class VersionOverlay(private[this] var base: Version, sink: ChangeSink) {
  private[this] var fresh = new RowTables
  private[this] var freshBytes = 0L
  private[this] var sentRows: RowTables = _
  private[this] val everyWrite, inOrder = new java.util.BitSet
  /** The last iterator of each family; null: none. */
  private[this] var iterators = new Array[RowIterator](1)
  /** Rows of the base that were read from disk one by one, the last ones; null: none. */
  private[this] var readRows: RowTables = _
  /** Rows of the base changed after they were read: the fold does not read them from disk again. Null: none. */
  private[this] var replacedRows: RowTables = _
  /** Of families that keep every write: the earlier fresh changes of a key, by family and key; null: there are none. */
  private[this] var batches: java.util.HashMap[(Int, ByteBuffer), RowBatch] = _
  private[this] val target, previous = new Row

  def version: Version = base

  /** Write every change of a family from now on, not only the last one of a key: for lists. */
  def keepEveryWrite(family: Int): Unit = everyWrite.set(family)

  /** Let rows of a family be neighbours where their keys are: it is scanned. */
  def keepInOrder(family: Int): Unit = inOrder.set(family)

  /** The row of a key, or null. */
  def get(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Row = {
    val row = new Row
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    val isOwn = isIn(fresh, family, hash, keyBase, keyOffset, keyLength, row) ||
      sentRows != null && isIn(sentRows, family, hash, keyBase, keyOffset, keyLength, row)
    if (if (isOwn) !row.isDelete else base.versions.get(base, family, hash, keyBase, keyOffset, keyLength, row)) {
      if (!isOwn && row.isCopy) keepRead(family, hash, row)
      if (row.segmentCount > 0) findSegments(family, hash, row)
      row
    } else null
  }

  /** Put one value, which replaces all values of the key. */
  def put(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long,
      valueLength: Int): Unit = {
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    keepReplaced(family, hash, keyBase, keyOffset, keyLength)
    val hadRow = fresh(family).put(hash, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, previous)
    changed(family, hadRow, EncodedRow.HeaderBytes + keyLength + valueLength)
  }

  /** Append a value to those of the key. */
  def merge(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long,
      valueLength: Int): Unit = {
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    val table = fresh(family)
    val isFresh = table.get(hash, keyBase, keyOffset, keyLength, previous)
    val below =
      if (!isFresh && isSent(family, hash, keyBase, keyOffset, keyLength, target) && !target.isDelete) target else null
    table.append(hash, keyBase, keyOffset, keyLength, valueBase, valueOffset, valueLength, below)
    // What it appends to here is sent with it.
    changed(family, isFresh && previous.isDelete, EncodedRow.HeaderBytes + keyLength + valueLength)
  }

  /** Remove a key, if it exists. */
  def remove(family: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = {
    val hash = EncodedRow.hash(keyBase, keyOffset, keyLength)
    if (mayBeThere(family, hash, keyBase, keyOffset, keyLength)) {
      keepReplaced(family, hash, keyBase, keyOffset, keyLength)
      val hadRow = fresh(family).putDelete(hash, keyBase, keyOffset, keyLength, previous)
      changed(family, hadRow, EncodedRow.HeaderBytes + keyLength)
    }
  }

  /** Remove every key of a family. Returns their number. */
  def clear(family: Int): Long = {
    val all = rows(family)
    var count = 0L
    while (all.advance()) {
      remove(family, all.row.bytes, all.row.keyOffset, all.row.keyLength)
      count += 1
    }
    count
  }

  /** All rows of a family as of now, without later changes, in no order. */
  def rows(family: Int): RowIterator = {
    var layers = List.empty[Slots]
    if (sentRows != null && sentRows.existing(family) != null) layers ::= sentRows.existing(family).share()
    if (fresh.existing(family) != null) layers ::= fresh.existing(family).share()
    begun[RowIterator](family) {
      if (base.versions.bucketBits(base) == 0) FallbackIterator(base, family, layers)
      else new BucketwiseIterator(base, family, layers)
    }
  }

  /** Rows of a family in the order of their keys' bytes, from a key (null: the first) up to another, exclusive (null:
   * the end), as of now, without later changes.
   */
  def scan(family: Int, from: Array[Byte], to: Array[Byte]): RowIterator =
    begun(family) {
      new ScanIterator(base, family, probe(from), probe(to), ownRows(family, probe(from), probe(to)).iterator)
    }

  /** The same up to the end, of a family of single values. It takes no time for each change of this attempt, but makes
   * the next changes take more: for what is read only at its beginning.
   *
   * @param earlier the last such scan, which is moved, and reads again only what it has not; null: none
   */
  def scanFrom(family: Int, from: Array[Byte], earlier: ScanIterator = null): ScanIterator = {
    val own = new MergedLayers(probe(from), inclusive = true, null, RowTable.BlockRows)
    Seq(fresh, sentRows).filter(_ != null).map(_.existing(family)).filter(_ != null).foreach { table =>
      own.add(table.inOrder.view)
    }
    begun(family) {
      if (earlier != null && earlier.isOf(base, family)) {
        earlier.moveTo(probe(from), own)
        earlier
      } else new ScanIterator(base, family, probe(from), null, own, VersionOverlay.FewRows)
    }
  }

  private def begun[A <: RowIterator](family: Int)(rows: A): A = {
    if (family >= iterators.length) iterators = java.util.Arrays.copyOf(iterators, family + 1)
    iterators(family) = rows
    rows
  }

  private def keepRead(family: Int, hash: Int, row: Row): Unit = {
    if (readRows == null || readRows.heapBytes > VersionOverlay.ReadBytes) readRows = new RowTables
    readRows(family).put(hash, row)
    ()
  }

  /** Keep the base's row of a key that is changed, if an iterator is at it, or it was read. */
  private def keepReplaced(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Unit = {
    val row = if (family < iterators.length && iterators(family) != null) iterators(family).baseRow else null
    val old =
      if (row != null && EncodedRow.hasKey(row.bytes, row.at, keyBase, keyOffset, keyLength)) row
      else if (readRows != null && isIn(readRows, family, hash, keyBase, keyOffset, keyLength, target)) target
      else null
    // A list may be another one where it is durable.
    if (old != null && !old.isList) {
      if (replacedRows == null) replacedRows = new RowTables
      replacedRows(family).put(hash, old)
    }
  }

  /** Send the fresh changes. */
  def flush(): Unit = if (freshBytes > 0) {
    val chunks = new Chunks(sink, freshBytes)
    fresh.foreach(send(_, _, chunks))
    chunks.end()
    if (sentRows == null) sentRows = fresh else putAll(fresh, sentRows)
    forgetFresh()
  }

  /** Make the version of base and changes, after `flush`. Until `show`, this overlay is the base with the changes. */
  def fold(attempt: Attempt, schema: String): Version = {
    val changes = if (sentRows == null) new RowTables else sentRows
    changes.replaced = replacedRows
    inOrder.stream.forEach(changes.keepInOrder(_))
    base.versions.fold(base, changes, base.number + 1, attempt, schema)
  }

  /** Show another version, without changes. */
  def show(version: Version): Unit = {
    discard()
    base = version
  }

  /** Discard the changes. */
  def discard(): Unit = {
    forgetFresh()
    sentRows = null
    readRows = null
    replacedRows = null
    java.util.Arrays.fill(iterators.asInstanceOf[Array[AnyRef]], null)
  }

  private def forgetFresh(): Unit = {
    fresh = new RowTables
    freshBytes = 0
    batches = null
  }

  /** Bytes of heap of this attempt's changes. */
  def heapBytes: Long = Seq(fresh, sentRows, readRows, replacedRows).filter(_ != null).map(_.heapBytes).sum

  /** Point a cursor to the row of a key; false: there is none. */
  private def isThere(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, into: Row): Boolean =
    (isIn(fresh, family, hash, keyBase, keyOffset, keyLength, into) ||
      isSent(family, hash, keyBase, keyOffset, keyLength, into)) && !into.isDelete

  /** Whether there is a row of a key; what is on disk is not read, so it may be wrongly true. A remove of no row
   * changes nothing.
   */
  private def mayBeThere(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Boolean =
    if (isIn(fresh, family, hash, keyBase, keyOffset, keyLength, target) ||
      sentRows != null && isIn(sentRows, family, hash, keyBase, keyOffset, keyLength, target)) !target.isDelete
    else base.versions.mayHave(base, family, hash, keyBase, keyOffset, keyLength)

  /** Point a cursor to the row of a key as the engine has it: as sent by this attempt, else as in the base. May be a
   * delete marker.
   */
  private def isSent(family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, into: Row): Boolean =
    sentRows != null && isIn(sentRows, family, hash, keyBase, keyOffset, keyLength, into) ||
      base.versions.get(base, family, hash, keyBase, keyOffset, keyLength, into)

  private def findSegments(family: Int, hash: Int, row: Row): Unit = row.findSegments(
    hash,
    isThere(family, _, _, _, _, _),
    { (hash, keyBase, keyOffset, keyLength, into) =>
      val durable = base.versions.durable(base)
      durable.versions.get(durable, family, hash, keyBase, keyOffset, keyLength, into)
    })

  private def isIn(in: RowTables, family: Int, hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int,
      into: Row): Boolean = {
    val table = in.existing(family)
    table != null && table.get(hash, keyBase, keyOffset, keyLength, into)
  }

  /** Count a change, which replaced another one, if `hasReplaced`. */
  private def changed(family: Int, hasReplaced: Boolean, bytes: Int): Unit = {
    freshBytes += bytes + EncodedRow.TagBytes
    if (hasReplaced) {
      if (everyWrite.get(family)) {
        if (batches == null) batches = new java.util.HashMap
        batches.computeIfAbsent((family, keyOf(previous)), _ => new RowBatch).add(previous)
      } else if (!previous.isList) freshBytes -= previous.length + EncodedRow.TagBytes
    }
    if (freshBytes >= VersionOverlay.FlushBytes) flush()
  }

  private def putAll(from: RowTables, to: RowTables): Unit = from.foreach { (family, table) =>
    val rows = new SlotIterator(Array(table.share()), showAll = true)
    while (rows.advance()) to(family).put(rows.hash, rows.row)
  }

  /** Send every row of a family, keys with near hashes together, so that a reader of one key can skip most parts. */
  private def send(family: Int, table: RowTable, chunks: Chunks): Unit = {
    val isLastOnly = !everyWrite.get(family)
    val positions = table.slotsByHash()
    val slots = table.share()
    val row, previousRow = new Row
    var at = 0
    while (at < positions.length) {
      slots.read(positions(at), row)
      val hash = slots.hashAt(positions(at))
      if (!row.isSegment) {
        val batch = if (isLastOnly || batches == null) null else batches.get((family, keyOf(row)))
        if (batch != null) (0 until batch.size).foreach { number =>
          batch.read(number, previousRow)
          sendChange(family, hash, previousRow, chunks)
        }
        sendChange(family, hash, row, chunks)
      }
      at += 1
    }
    slots.release()
  }

  /** Send one change: of a list that continues what the engine has, the new values; else all values. */
  private def sendChange(family: Int, hash: Int, row: Row, chunks: Chunks): Unit =
    // What is in segments was there before.
    if (row.isList) chunks.addValues(family, hash, row, row.newestValues, math.max(0, row.known - row.countInSegments),
      beginsWithPut = row.known == 0)
    else chunks.add(family, hash, row)

  private def keyOf(row: Row): ByteBuffer = ByteBuffer.wrap(row.bytes, row.at + EncodedRow.HeaderBytes, row.keyLength)

  /** This attempt's rows in a range, in order, with delete markers; a copy, without later changes. */
  private def ownRows(family: Int, from: Row, to: Row): RowBatch = {
    val layers = new MergedLayers(from, inclusive = true, to, RowTable.BlockRows)
    layers.add(fresh.existing(family))
    if (sentRows != null) layers.add(sentRows.existing(family))
    val rows = new RowBatch
    while (layers.advance()) {
      if (layers.row.segmentCount > 0)
        findSegments(family, EncodedRow.hash(layers.row.bytes, layers.row.at), layers.row)
      rows.add(layers.row)
    }
    rows
  }

  private def probe(key: Array[Byte]): Row = if (key == null) null else Row.probe(key)
}

object VersionOverlay {
  /** Changes are sent when they take this much: a small batch is sent once, with the last change to each key only. */
  val FlushBytes: Long = 4L * 1024 * 1024
  /** Rows that an iterator that is moved reads first: often none is due. */
  private val FewRows = 8
  /** Rows that were read and may be changed next take about this much. */
  private val ReadBytes = 2L * 1024 * 1024
}
