package io.dynastate.memory

import java.lang.ref.Cleaner
import java.nio.file.Path
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.{AtomicBoolean, AtomicInteger, AtomicLong, LongAdder}

import org.slf4j.LoggerFactory

/** Where the rows of this executor's stores are: on the heap, up to a limit, and beyond it in a file on local disk.
 * Safe for threads.
 *
 * @param pageBytes of a page of rows
 */
final class RowStorage(val heapLimit: Long, file: RowFile, private[memory] val pageBytes: Int = RowArena.PageBytes) {
  private[this] val heap, index = new AtomicLong
  private[this] val hasWarned = new AtomicBoolean
  private[this] val shares = new AtomicInteger

  /** Bytes of heap of all shares. */
  def heapBytes: Long = heap.get

  def diskBytes: Long = file.bytes

  /** Whether rows can stay where they are: those on disk can be read, and the heap has few more than it may. */
  def isUsable: Boolean = file.isReadable && fits

  /** Whether rows on the heap are not many more than there may be. */
  private[memory] def fits: Boolean = file.isWritable || heap.get <= heapLimit / 4 * 5

  /** Whether more rows can go to the disk. */
  def hasRoom: Boolean = file.isWritable

  /** Whether rows that are in no page, with as much garbage as there may be, can go to the disk. */
  def hasRoomFor(bytes: Long): Boolean = hasRoom && bytes < file.roomBytes / 3 * 2

  /** Whether a share that begins a page, and has spilled some for it, should spill another. All shares may have as much
   * heap: one that has more gives back, and one that has less may take a little more than there is, until the others
   * have given it back.
   */
  private[memory] def shouldSpill(ownBytes: Long, spilled: Int): Boolean = {
    val all = heap.get
    val equal = heapLimit / math.max(1, shares.get)
    all > heapLimit && hasRoom && (all > heapLimit / 16 * 17 ||
      (if (ownBytes > equal / 4 * 5) spilled < 2 else ownBytes >= equal && spilled < 1))
  }

  /** Whether much of the heap that rows may have is free. */
  private[memory] def hasSpareHeap: Boolean = heap.get < heapLimit / 2

  private[memory] def add(bytes: Long): Unit = heap.addAndGet(bytes)

  /** Count bytes of heap that no page can give back, beside `add`. */
  private[memory] def addIndex(bytes: Long): Unit = {
    val all = index.addAndGet(bytes)
    if (all > heapLimit && heapLimit > 0 && hasWarned.compareAndSet(false, true)) {
      val megabytes = (all / 4 * 5 + shares.get * 4L * pageBytes >> 20) + 1
      RowStorage.log.warn(
        "memoryMb is too small for so many rows, whose index alone takes more, and nearly all rows are on local " +
          s"disk; set it to $megabytes or more memoryMb=${heapLimit >> 20} indexMb=${all >> 20}")
    }
  }

  private[memory] def addShares(more: Int): Unit = shares.addAndGet(more)

  private[memory] def write(page: Array[Byte], length: Int): DiskPage = file.write(page, length)
}

object RowStorage {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  private val storages = new ConcurrentHashMap[(Long, Seq[Path], Long, Boolean), RowStorage]

  /** The one storage of this process with these settings: all stores of an executor share it. Its file is in the folder
   * whose disk has the most room, of those given, or else of the others.
   */
  def of(heapLimit: Long, folders: Seq[Path], others: => Seq[Path], diskLimit: Long, isEncrypted: Boolean): RowStorage =
    storages.computeIfAbsent((heapLimit, folders, diskLimit, isEncrypted),
      { _ =>
        val folder = (if (folders.isEmpty) others else folders).maxBy(_.toFile.getUsableSpace)
        new RowStorage(heapLimit, new RowFile(folder, diskLimit, isEncrypted))
      })
}

/** What the rows of one version tree take of a storage. It is released when they have no reader any more. */
private[memory] final class StorageShare(storage: RowStorage) {
  private[this] val use = new StorageShare.Taken(storage)
  StorageShare.releaseAfter(this, use)

  def heapBytes: Long = use.heap.get

  def disk: DiskUse = DiskUse(use.disk.get, use.reads.sum, use.spilled.get)

  def isUsable: Boolean = if (use.pages.isEmpty) storage.fits else storage.isUsable

  def pageBytes: Int = storage.pageBytes

  /** Whether another page should be spilled before one begins, and can be. */
  def shouldSpill(spilled: Int): Boolean = storage.shouldSpill(use.heap.get, spilled)

  def hasSpareHeap: Boolean = storage.hasSpareHeap

  /** Count bytes of heap. */
  def add(bytes: Long): Unit = use.add(bytes)

  /** Count heap that no page can give back: slots, checksums, the order of keys, and links to earlier versions. */
  def addIndex(bytes: Long): Unit = use.addIndex(bytes)

  /** Write a page to disk. Returns null if there is no room. */
  def write(page: Array[Byte], length: Int): DiskPage = {
    val diskPage = storage.write(page, length)
    if (diskPage != null) {
      use.pages.add(diskPage)
      use.disk.addAndGet(length)
      use.spilled.incrementAndGet()
      use.addIndex(diskPage.heapBytes)
    }
    diskPage
  }

  /** Point a cursor to a copy of a row on disk; false: there is none, since it was read beside a change. */
  def read(page: DiskPage, position: Int, into: Row): Boolean = {
    use.reads.increment()
    page.read(position, into)
  }

  /** Point a cursor to a copy of a row on disk that is there. */
  def readLive(page: DiskPage, position: Int, into: Row): Unit =
    if (!read(page, position, into)) throw new IllegalStateException(s"no row is at $position of page ${page.number}")

  /** The same for some of several positions, which are in order: near ones are read together. */
  def readLive(page: DiskPage, positions: Array[Int], into: Array[Row], from: Int, until: Int,
      last: LastBlocks): Unit = {
    var each = from
    while (each < until) {
      val previous = last.bytes
      val end = page.readNear(positions, into, each, until, last)
      if (last.bytes ne previous) use.reads.increment()
      if (end == each) readLive(page, positions(each), into(each))
      each = math.max(end, each + 1)
    }
  }

  /** All bytes of a page. */
  def readAll(page: DiskPage): Array[Byte] = {
    use.reads.increment()
    page.readAll()
  }

  /** Release a page without readers. */
  def release(page: DiskPage): Unit = use.release(page)

  /** Leave the heap to others: the rows are garbage as soon as the last task has read them. */
  def close(): Unit = use.close()
}

private object StorageShare {
  private val cleaner = Cleaner.create()

  /** Release what a share has taken as soon as the share is garbage, of which `use` therefore must not know. */
  private def releaseAfter(share: StorageShare, use: Taken): Unit =
    cleaner.register(share, () => use.releaseAll())

  private final class Taken(storage: RowStorage) {
    val pages: java.util.Set[DiskPage] = ConcurrentHashMap.newKeySet[DiskPage]()
    val heap, index, disk, spilled = new AtomicLong
    val reads = new LongAdder

    private[this] val isClosed = new AtomicBoolean
    storage.addShares(1)

    def add(bytes: Long): Unit = if (!isClosed.get) {
      heap.addAndGet(bytes)
      storage.add(bytes)
    }

    def addIndex(bytes: Long): Unit = if (!isClosed.get) {
      add(bytes)
      index.addAndGet(bytes)
      storage.addIndex(bytes)
    }

    def release(page: DiskPage): Unit = if (pages.remove(page)) {
      disk.addAndGet(-page.length.toLong)
      addIndex(-page.heapBytes)
      page.release()
    }

    def close(): Unit = if (isClosed.compareAndSet(false, true)) {
      storage.add(-heap.getAndSet(0))
      storage.addIndex(-index.getAndSet(0))
      storage.addShares(-1)
    }

    def releaseAll(): Unit = {
      pages.forEach(release(_))
      close()
      // A page that began while the share was closed.
      storage.add(-heap.getAndSet(0))
      storage.addIndex(-index.getAndSet(0))
    }
  }
}
