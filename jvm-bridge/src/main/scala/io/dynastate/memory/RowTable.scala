package io.dynastate.memory

import java.lang.invoke.VarHandle
import java.lang.ref.WeakReference

import org.apache.spark.unsafe.Platform

/** A hash map from key bytes to rows: open addressing with linear probing, at most three quarters full, no tombstones.
 * The slots are an array of longs and the rows bytes in pages, so that the garbage collector has nothing to trace. It
 * shrinks when removals leave less than an eighth, because every iterator walks all slots.
 *
 * The home of a hash is its product with a number that differs by capacity. With the same number for all, filling a
 * growing table in the order of another table's slots, or in the order of hashes, as parts are stored, would put all
 * keys into one corner of it, and take time quadratic in their number (measured: 1.4 µs a row instead of 0.3 for 20,000
 * rows).
 *
 * Rows that were replaced are garbage in their page. `evacuate` moves the live rows of the page with the most garbage
 * to the end; a change does so itself when a third of all is garbage. A load may leave more, where there is room: rows
 * that it moved would be replaced next. A load of which rows are on disk does not read those that it replaces: until
 * `endLoad`, each slot has the mark of its row.
 *
 * Iterators work on shared slots: `share` marks them, and the next change copies them first if a reader still has them.
 * Not safe for threads; the owner of the table guards it. `get` neither fails nor blocks beside a change, but may be
 * wrong.
 */
final class RowTable private (private[this] var slots: Slots, private[this] val arena: RowArena) {
  import RowTable._

  /** Slots that are not free, and those of segments. */
  private[this] var count, segments = 0
  private[this] var listAddress = 0
  /** The rows in the order of their keys; made at the first ordered read, and maintained from then on. */
  private[this] var order: KeyOrder = _
  private[this] var countedOrder = 0L
  /** Somebody reads rows: lists do not grow where they are. */
  private[this] var isSeen = false
  private[this] val row, old, target, ignored = new Row
  private[this] var isLoading = false
  /** The share of garbage from which on a change evacuates pages; after a load it falls with the garbage. */
  private[this] var garbageMax = GarbageShareMax
  /** Slots that were replaced while somebody read them, and pages on disk: free as soon as these have no reader. */
  private[this] var loans = List.empty[WeakReference[Slots]]
  private[this] var unused = List.empty[DiskPage]
  count(slots.capacity)

  /** @param share of the storage of the executor's rows; null: all rows stay on the heap
   * @param isLoad the rows of a version are put into it first, with those that replace them, until `endLoad`
   */
  private[memory] def this(expectedRows: Int, share: StorageShare, isLoad: Boolean) = {
    this(new Slots(RowTable.capacityFor(expectedRows)), new RowArena(share))
    isLoading = isLoad
    if (isLoad) garbageMax = RowTable.GarbageShareOfLoadMax
    publish()
  }

  def this(expectedRows: Int = 0) = this(expectedRows, null, isLoad = false)

  /** The number of keys. */
  def size: Int = count - segments

  def isEmpty: Boolean = count == 0

  /** Bytes of rows on the heap and on disk, with slots and order. */
  def bytes: Long = arena.bytes - arena.deadBytes + 8L * slots.capacity + (if (order == null) 0L else order.heapBytes)

  /** Bytes of heap: rows, slots and order. */
  def heapBytes: Long = arena.heapBytes + 8L * slots.capacity + (if (order == null) 0L else order.heapBytes)

  /** Point a cursor to the row of a key; false: there is none. */
  def get(hash: Int, base: AnyRef, offset: Long, length: Int, into: Row): Boolean =
    slots.get(hash, base, offset, length, into)

  /** Whether a row has a hash; nothing is read from disk. */
  private[memory] def hasHash(hash: Int): Boolean = slots.hasHash(hash)

  /** The rows in the order of their keys, as unsigned bytes. Valid until the next change. */
  def inOrder: KeyOrder = {
    isSeen = true
    if (order == null) order = KeyOrder.of(slots, arena)
    order
  }

  /** Put a row of one value. Points `previous` to the row that it replaces; false: there was none. */
  def put(hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long,
      valueLength: Int, previous: Row): Boolean = {
    val address = begin(EncodedRow.lengthOfPut(keyLength, valueLength), valueLength, keyBase, keyOffset, keyLength)
    Platform.copyMemory(valueBase, valueOffset, row.bytes, row.keyOffset + keyLength, valueLength)
    set(hash, address, previous, null)
  }

  /** Put a delete marker of a key. */
  def putDelete(hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, previous: Row): Boolean = {
    val length = EncodedRow.HeaderBytes + (keyLength & ~EncodedRow.SegmentBit)
    set(hash, begin(length, EncodedRow.DeleteMarker, keyBase, keyOffset, keyLength), previous, null)
  }

  def put(hash: Int, copied: Row): Boolean = put(hash, copied, old, null)

  /** Put a copy of a row. Segments that the row does not have are removed, and put into `undo`, if it is not null.
   * `replaced` has rows that are in this table, and need not be read from disk; null: none.
   */
  def put(hash: Int, copied: Row, previous: Row, undo: RowTable, replaced: RowTable = null): Boolean = {
    val length = copied.length
    val address = begin(length)
    System.arraycopy(copied.bytes, copied.at, row.bytes, row.at, length)
    set(hash, address, previous, undo, replaced)
  }

  /** Append a value to those that a key has here, or else to those of `below`, the row of another table; null: it has
   * none there.
   */
  def append(hash: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int, valueBase: AnyRef, valueOffset: Long,
      valueLength: Int, below: Row): Unit = {
    EncodedRow.lengthOfPut(keyLength, valueLength)
    val entry = EncodedRow.EntryHeaderBytes + valueLength
    val slot = slots.indexOf(hash, keyBase, keyOffset, keyLength, old)
    val isFree = slots.isFree(slot)
    val isHere = !isFree && !old.isDelete
    if (isHere && old.isList && !isSeen && old.space - old.used >= entry &&
      !slots.isOnDisk(slot)) old.addEntry(valueBase, valueOffset, valueLength)
    else {
      val source = if (isHere) old else if (isFree) below else null
      val total =
        if (source == null) EncodedRow.Begun
        else if (!isHere) source.valueCount
        else if (source.isList) source.known
        else 0
      if (source != null && !isHere && source.isList && source.used > EncodedRow.SegmentBytesMin) {
        putSegment(hash, source)
        beginList(entry, total, source.segmentCount + 1, source.valueCount, keyBase, keyOffset, keyLength)
      } else {
        val bytes = (if (source == null) 0L else source.entriesLength.toLong) + entry
        // Room for more, where several come one after the other.
        val space =
          if (isHere && old.isList) math.max(bytes, math.min(bytes + bytes / 2, EncodedRow.ListBytesMax / 2)) else bytes
        val (segments, count) = if (source == null) (0, 0) else (source.segmentCount, source.countInSegments)
        beginList(space, total, segments, count, keyBase, keyOffset, keyLength)
        if (source != null) row.addEntries(source)
      }
      row.addEntry(valueBase, valueOffset, valueLength)
      set(hash, listAddress, ignored, null)
      ()
    }
  }

  /** Put a list, whose segments are known, with all its values in one row. */
  def putWhole(hash: Int, list: Row): Unit = {
    val space = list.segments.iterator.map(_.valueLength.toLong).sum + list.used
    beginList(space, total = 0, segments = 0, countInSegments = 0, list.bytes, list.keyOffset, list.keyLength)
    row.addSegments(list)
    row.addEntries(list)
    set(hash, listAddress, ignored, null)
    ()
  }

  /** Make a list, to which `row` points then; its address is `listAddress`. */
  private def beginList(space: Long, total: Int, segments: Int, countInSegments: Int, keyBase: AnyRef, keyOffset: Long,
      keyLength: Int): Unit = {
    listAddress = begin(EncodedRow.lengthOfList(keyLength, space), EncodedRow.ListMarker, keyBase, keyOffset, keyLength)
    row.beginList(space.toInt, total, segments, countInSegments)
  }

  /** Put the values that a list has itself into its next segment. */
  private def putSegment(hash: Int, list: Row): Unit = {
    val key = list.segmentKey(list.segmentCount)
    val address = begin(EncodedRow.HeaderBytes + key.length + list.used, list.used, key, Platform.BYTE_ARRAY_OFFSET,
      key.length | EncodedRow.SegmentBit)
    list.copyEntries(row.bytes, row.valueAt)
    set(EncodedRow.segmentHash(hash, list.segmentCount), address, ignored, null)
    ()
  }

  /** Remove the row of a key, with its segments, which are put into `undo`, if it is not null. Points `previous` to the
   * row, unless this is a load; false: there was none.
   */
  def remove(hash: Int, base: AnyRef, offset: Long, length: Int, previous: Row, undo: RowTable = null,
      replaced: RowTable = null): Boolean = {
    val slot =
      if (slots.marks == null) indexOf(hash, base, offset, length, previous, replaced)
      else slots.indexOf(hash, RowMark.ofKey(base, offset, length))
    !slots.isFree(slot) && {
      own()
      arena.free(slots.addressAt(slot), lengthAt(slot, previous))
      if (previous.isSegment) segments -= 1 else if (order != null) order.remove(previous, slots.addressAt(slot))
      slots.close(slot)
      count -= 1
      if (count < slots.capacity / 8 && slots.capacity > CapacityMin) resize(slots.capacity / 2)
      evacuate()
      if (previous.segmentCount > 0) removeSegments(hash, previous, 0, undo)
      true
    }
  }

  private def removeSegments(hash: Int, list: Row, from: Int, undo: RowTable): Unit = {
    val segment = new Row
    (from until list.segmentCount).foreach { number =>
      val key = list.segmentKey(number)
      val segmentHash = EncodedRow.segmentHash(hash, number)
      val isThere = remove(segmentHash, key, Platform.BYTE_ARRAY_OFFSET, key.length | EncodedRow.SegmentBit, segment)
      if (isThere && undo != null) undo.put(segmentHash, segment)
    }
  }

  /** The slots as they are now. They do not change until `Slots.release`: a change before it copies them. */
  def share(): Slots = {
    isSeen = true
    slots.readers.incrementAndGet()
    slots
  }

  /** An independent table with the same rows. */
  def copy(): RowTable =
    // Each copy begins a page.
    if (arena.pages.length > CopiesMax || arena.share != null) {
      val copy = new RowTable(count)
      eachSlot { slot =>
        slots.read(slot, row)
        copy.put(slots.hashAt(slot), row)
      }
      copy
    } else {
      val copy = new RowTable(slots.copyTo(slots.capacity), arena.copy())
      copy.take(count, segments)
      copy
    }

  private def take(newCount: Int, newSegments: Int): Unit = {
    count = newCount
    segments = newSegments
    publish()
  }

  /** Slots that hold rows, ordered by the highest byte of their hashes (a counting sort). */
  def slotsByHash(): Array[Int] = {
    val ends = new Array[Int](256)
    eachSlot(slot => ends(slots.hashAt(slot) >>> 24) += 1)
    var byte = 1
    while (byte < 256) {
      ends(byte) += ends(byte - 1)
      byte += 1
    }
    val result = new Array[Int](count)
    var slot = slots.capacity - 1
    while (slot >= 0) {
      if (!slots.isFree(slot)) {
        val byte = slots.hashAt(slot) >>> 24
        ends(byte) -= 1
        result(ends(byte)) = slot
      }
      slot -= 1
    }
    result
  }

  private def eachSlot(use: Int => Unit): Unit = {
    var slot = 0
    while (slot < slots.capacity) {
      if (!slots.isFree(slot)) use(slot)
      slot += 1
    }
  }

  /** Make room for a row, to which `row` points then. */
  private def begin(length: Int): Int = {
    own()
    val address = arena.allocate(length)
    publish()
    arena.read(address, row)
    address
  }

  private def begin(length: Int, valueLength: Int, keyBase: AnyRef, keyOffset: Long, keyLength: Int): Int = {
    val address = begin(length)
    EncodedRow.writeKey(row.bytes, row.at, valueLength, keyBase, keyOffset, keyLength)
    address
  }

  /** The slot that holds the key, to whose row (or a copy, in `replaced`) the cursor points; or a free slot for it. */
  private def indexOf(hash: Int, base: AnyRef, offset: Long, length: Int, into: Row, replaced: RowTable): Int = {
    val onlySlot = if (replaced != null && replaced.get(hash, base, offset, length, into)) slots.onlyWith(hash) else -1
    if (onlySlot >= 0) onlySlot else slots.indexOf(hash, base, offset, length, into)
  }

  /** The length of the row of a slot. `into` points to the row, as it does already without marks; to no row, where the
   * mark tells the length.
   */
  private def lengthAt(slot: Int, into: Row): Int = {
    val marked = if (slots.marks == null) 0 else RowMark.length(slots.marks(slot))
    if (marked > 0) into.pointTo(NoRow, 0) else if (slots.marks != null) slots.read(slot, into)
    if (marked > 0) marked else into.length
  }

  /** Begin to have the marks of the rows. */
  private def markRows(): Unit = {
    slots.marks = new Array(slots.capacity)
    arena.share.add(8L * slots.capacity)
    eachSlot { slot =>
      slots.read(slot, target)
      slots.marks(slot) = RowMark.of(target)
    }
  }

  /** End a load. */
  private[memory] def endLoad(): Unit = {
    isLoading = false
    if (slots.marks != null) arena.share.add(-8L * slots.capacity)
    slots.marks = null
  }

  /** Let a slot have the row that was begun. */
  private def set(hash: Int, address: Int, previous: Row, undo: RowTable, replaced: RowTable = null): Boolean = {
    if (isLoading && arena.diskPages != null && slots.marks == null) markRows()
    val mark = if (slots.marks == null) 0L else RowMark.of(row)
    val slot =
      if (slots.marks == null) indexOf(hash, row.bytes, row.keyOffset, row.keyLengthAndKind, previous, replaced)
      else slots.indexOf(hash, mark)
    val entry = slots.entries(slot)
    // Who sees the slot sees the row.
    VarHandle.releaseFence()
    val oldLength = if (entry == 0) 0 else lengthAt(slot, previous)
    if (slots.marks != null) slots.marks(slot) = mark
    if (entry == 0) {
      slots.entries(slot) = Slots.entry(hash, address)
      count += 1
      if (row.isSegment) segments += 1 else if (order != null) order.add(row, address)
      if (count > slots.capacity - slots.capacity / 4) resize(Math.multiplyExact(slots.capacity, 2))
    } else {
      slots.entries(slot) = Slots.entry(hash, address)
      if (order != null && !row.isSegment) order.replace(row, Slots.addressOf(entry), address)
      arena.free(Slots.addressOf(entry), oldLength)
      val count = row.segmentCount
      evacuate()
      if (previous.segmentCount > count) removeSegments(hash, previous, count, undo)
    }
    entry != 0
  }

  /** Move live rows out of the page with most garbage, if more than a share of all is garbage; false: it was not. */
  def evacuate(share: Double): Boolean = {
    val isDue = arena.deadBytes > GarbageMin && arena.deadBytes > arena.bytes * share
    if (isDue) {
      own()
      evacuatePage(arena.mostGarbage())
      garbageMax = math.max(GarbageShareMax, math.min(garbageMax, arena.deadBytes.toDouble / arena.bytes))
    }
    isDue
  }

  /** Evacuate a page, if a change has made too much garbage. */
  private def evacuate(): Unit = {
    evacuate(if (garbageMax > GarbageShareMax && hasRoomForGarbage) garbageMax else GarbageShareMax)
    ()
  }

  private def hasRoomForGarbage: Boolean =
    if (arena.share == null) arena.bytes < UnboundedLoadBytesMax
    else arena.diskPages == null && arena.share.hasSpareHeap

  private def evacuatePage(page: Int): Unit = {
    val live = new LiveRows(slots, page, arena.bytesOf(page), arena.endOf(page))
    while (live.advance()) {
      val from = live.row
      val to = arena.allocate(from.length, isMoved = true)
      publish()
      arena.read(to, target)
      System.arraycopy(from.bytes, from.at, target.bytes, target.at, from.length)
      VarHandle.releaseFence()
      slots.entries(live.slot) = Slots.entry(live.hash, to)
      if (order != null && !target.isSegment) order.replace(target, live.address, to)
      arena.free(live.address, from.length)
    }
    val onDisk = arena.freePage(page)
    publish()
    if (onDisk != null) unused ::= onDisk
    if (unused.nonEmpty) releaseUnused()
  }

  /** Release pages on disk without readers. */
  private def releaseUnused(): Unit = {
    loans = loans.filter { each =>
      val slots = each.get
      slots != null && slots.readers.get > 0
    }
    if (loans.isEmpty) {
      unused.foreach(arena.share.release(_))
      unused = Nil
    }
  }

  /** Bring the slots and rows of hashes into the processor's cache: it waits for many at once, not one by one. */
  private[memory] def touch(hashes: Array[Int], count: Int): Unit = {
    slots.touch(hashes, count)
    slots.touchRows(hashes, count)
  }

  private def own(): Unit = if (slots.readers.get > 0) {
    if (arena.diskPages != null) loans ::= new WeakReference(slots)
    slots = slots.copyTo(slots.capacity)
  }

  private def resize(capacity: Int): Unit = {
    count(capacity - slots.capacity)
    slots = slots.copyTo(capacity)
  }

  /** Count slots for the storage. */
  private def count(more: Int): Unit = if (arena.share != null) {
    arena.share.addIndex(8L * more)
    if (slots.marks != null) arena.share.add(8L * more)
  }

  /** Count the order of the keys for the storage. */
  private[memory] def countOrder(): Unit = if (order != null && arena.share != null) {
    arena.share.addIndex(order.heapBytes - countedOrder)
    countedOrder = order.heapBytes
  }

  private def publish(): Unit = if (slots.pages ne arena.pages) {
    slots.pages = arena.pages
    slots.diskPages = arena.diskPages
    slots.share = arena.share
  }
}

object RowTable {
  private val CapacityMin = 16
  private val CapacityMax = 1 << 30
  /** Rows that are touched at once: they fit into the processor's cache. */
  private[memory] val BlockRows = 256
  private val GarbageShareMax = 1.0 / 3
  /** The same within a load: as much as the changes since a snapshot are, with the default `snapshotThreshold` and
   * somewhat more.
   */
  private val GarbageShareOfLoadMax = 0.6
  /** Without a limit of heap, a larger table is loaded with as little garbage as it has later. */
  private val UnboundedLoadBytesMax = Runtime.getRuntime.maxMemory / 4
  /** Less garbage is left. */
  private val GarbageMin = 16L * 1024
  /** What points to it points to no list, and no segment. */
  private val NoRow = new Array[Byte](EncodedRow.HeaderBytes)
  /** Pages of a table that is copied once more: then its rows are copied. */
  private val CopiesMax = 16

  private def capacityFor(rows: Int): Int = {
    var capacity = CapacityMin
    while (rows > capacity - capacity / 4 && capacity < CapacityMax) capacity *= 2
    capacity
  }
}
