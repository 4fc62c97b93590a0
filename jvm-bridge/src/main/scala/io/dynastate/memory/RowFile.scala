package io.dynastate.memory

import java.io.{IOException, RandomAccessFile}
import java.nio.file.{Files, Path}
import java.nio.file.attribute.PosixFilePermissions
import java.security.SecureRandom
import java.util.concurrent.atomic.AtomicLong
import java.util.zip.CRC32C

import javax.crypto.Cipher
import javax.crypto.spec.{IvParameterSpec, SecretKeySpec}

import io.dynastate.{DynastateException, ErrorKind}
import org.slf4j.LoggerFactory

/** Pages of rows on local disk, of all stores of this executor. The file has no name: it is deleted from its folder as
 * soon as it is open. So only this process can reach it, and it goes with the process, however that ends
 * (docs/decisions/0017).
 *
 * A page is divided into blocks. Their checksums, and the key if they are encrypted, are in memory only: what another
 * process wrote is never read. After the first error of the disk no page is written any more, and after the first of a
 * read none is read. While the disk is full none is written; a minute later, and after each further time twice as long,
 * it is looked at again.
 *
 * Safe for threads. It is read by `RandomAccessFile`, since a `FileChannel` is closed for all when one thread is
 * interrupted.
 */
final class RowFile(folder: Path, limitBytes: Long, isEncrypted: Boolean) {
  import RowFile._

  private[this] val handles: Array[RandomAccessFile] = RowFile.open(folder)
  private[this] val key = if (isEncrypted) new SecretKeySpec(random(KeyBytes), "AES") else null
  private[this] val pagesWritten = new AtomicLong
  /** Extents of the file that are free, and the number of all that were ever used. */
  private[this] val free = new java.util.BitSet
  private[this] var usedExtents, extents = 0
  /** So many extents are known to fit on the disk. */
  private[this] var checkedExtents = 0
  @volatile private[this] var writes = true
  /** No page is written, but only for lack of room. */
  @volatile private[this] var isFull = false
  private[this] var looksAt, timesFull = 0L
  /** The first error of a read; null: none has come so far. */
  @volatile private[this] var failure: RowsUnreadable = _

  /** Bytes of the disk that pages take. */
  def bytes: Long = synchronized(usedExtents.toLong) * ExtentBytes

  /** Whether pages can be written: no error has come so far, and there is room. */
  def isWritable: Boolean = writes || isFull && hasRoomAgain

  /** Bytes of pages that there is room for. */
  def roomBytes: Long = synchronized {
    val more = math.min(limitBytes - extents.toLong * ExtentBytes, diskBytesFree)
    (extents - usedExtents).toLong * ExtentBytes + math.max(0, more)
  }

  /** Whether pages can be read: no error has come so far. */
  def isReadable: Boolean = failure == null

  /** Write a page. Returns null if there is no room for it, or the disk failed. */
  private[memory] def write(page: Array[Byte], length: Int): DiskPage = {
    val numbers = if (!writes) null else allocate((length + ExtentBytes - 1) / ExtentBytes)
    if (numbers == null) null
    else {
      val number = pagesWritten.incrementAndGet()
      try {
        val bytes = if (key == null) page else encrypted(page, length, number)
        numbers.indices.foreach { each =>
          val from = each * ExtentBytes
          handle { file =>
            file.seek(numbers(each).toLong * ExtentBytes)
            file.write(bytes, from, math.min(ExtentBytes, length - from))
          }
        }
        new DiskPage(this, number, numbers, length, checksumsOf(bytes, length))
      } catch {
        case e: IOException =>
          stopWriting(s"rows stay in memory, since they could not be written to local disk folder=$folder: $e")
          null
      }
    }
  }

  /** Read whole blocks of a page, in one extent, into an array. */
  private[memory] def read(page: DiskPage, firstBlock: Int, lastBlock: Int, into: Array[Byte], offset: Int): Unit = {
    if (failure != null) throw failure
    val from = firstBlock * BlockBytes
    val length = math.min(page.length, (lastBlock + 1) * BlockBytes) - from
    val at = page.extents(from / ExtentBytes).toLong * ExtentBytes + from % ExtentBytes
    try handle { file =>
        file.seek(at)
        file.readFully(into, offset, length)
      }
    catch { case e: IOException => throw unreadable(page, firstBlock, e.toString) }
    var block = firstBlock
    while (block <= lastBlock) {
      val begin = block * BlockBytes - from
      if (checksum(into, offset + begin, math.min(BlockBytes, length - begin)) != page.checksums(block))
        throw unreadable(page, block, "it has changed")
      block += 1
    }
    if (key != null) crypt(Cipher.DECRYPT_MODE, into, offset, length, into, page.number, firstBlock)
  }

  private[memory] def release(page: DiskPage): Unit = synchronized {
    page.extents.foreach(free.set)
    usedExtents -= page.extents.length
    if (usedExtents == 0) giveBack()
  }

  /** Give the disk back what no page takes. */
  private def giveBack(): Unit = {
    try handle(_.setLength(0))
    catch {
      case e: IOException =>
        stopWriting(s"rows stay in memory, since the file for them cannot be made shorter folder=$folder: $e")
    }
    free.clear()
    extents = 0
    checkedExtents = 0
  }

  /** Stop writing pages, and log why, once. */
  private def stopWriting(why: String): Unit = {
    val isFirst = synchronized {
      val previous = writes
      writes = false
      previous
    }
    if (isFirst) log.warn(why)
  }

  /** The error for a page that cannot be read. It may only have been released beside a read without a lock. */
  private def unreadable(page: DiskPage, block: Int, why: String): RowsUnreadable = {
    val error =
      new RowsUnreadable(s"rows on local disk cannot be read folder=$folder page=${page.number} block=$block: $why")
    val isFirst = !page.isReleased && synchronized {
      val previous = failure
      if (previous == null) failure = error
      writes = false
      isFull = false
      previous == null
    }
    if (isFirst) log.warn("rows on local disk cannot be read; they come from DynamoDB from now on, and no page is " +
      s"written folder=$folder: $why")
    error
  }

  private def handle[A](use: RandomAccessFile => A): A = {
    val file = handles((Thread.currentThread.getId % handles.length).toInt)
    file.synchronized(use(file))
  }

  private def allocate(count: Int): Array[Int] = synchronized {
    val numbers = new Array[Int](count)
    var number = 0
    while (number < count) {
      var extent = free.nextSetBit(0)
      if (extent < 0) {
        if (!hasRoom) {
          (0 until number).foreach(each => free.set(numbers(each)))
          stopWriting(s"rows stay in memory: the local disk, or what diskMb leaves of it, is full folder=$folder " +
            s"bytes=${usedExtents.toLong * ExtentBytes}")
          if (failure == null) {
            isFull = true
            looksAt = System.nanoTime() + (RowFile.lookAgainNanos << math.min(timesFull, 20))
            timesFull += 1
          }
          return null
        }
        extent = extents
        extents += 1
      } else free.clear(extent)
      numbers(number) = extent
      number += 1
    }
    usedExtents += count
    numbers
  }

  /** Whether the file may become longer. The disk is asked for its free space from time to time. */
  private def hasRoom: Boolean = (extents + 1L) * ExtentBytes <= limitBytes && {
    if (extents >= checkedExtents && diskBytesFree > CheckedExtents.toLong * ExtentBytes)
      checkedExtents = extents + CheckedExtents
    extents < checkedExtents
  }

  /** Bytes of the disk that are free beside the reserve. */
  private def diskBytesFree: Long = {
    // Spark may have deleted the folder at its end.
    val disk = Iterator.iterate(folder)(_.getParent).find(Files.exists(_)).get.toFile
    disk.getUsableSpace - disk.getTotalSpace / ReservedPart
  }

  /** Look at a full disk, once in a while, and write pages again if there is room for more than a few. */
  private def hasRoomAgain: Boolean = synchronized {
    val nanos = System.nanoTime()
    if (isFull && nanos - looksAt >= 0) {
      looksAt = nanos + RowFile.lookAgainNanos
      if (roomBytes > math.min(limitBytes / 8, CheckedExtents.toLong * ExtentBytes)) {
        isFull = false
        writes = true
        log.warn(s"the local disk has room again, and rows go there folder=$folder bytes=$roomBytes")
      }
    }
    writes
  }

  private def encrypted(page: Array[Byte], length: Int, number: Long): Array[Byte] = {
    val bytes = new Array[Byte](length)
    crypt(Cipher.ENCRYPT_MODE, page, 0, length, bytes, number, 0)
    bytes
  }

  /** A page's number is never used twice, so that no part of the key stream is. */
  private def crypt(mode: Int, from: Array[Byte], at: Int, length: Int, to: Array[Byte], number: Long,
      firstBlock: Int): Unit = {
    val counter = java.nio.ByteBuffer.allocate(16).putLong(number).putLong(firstBlock.toLong * BlockBytes / 16)
    val cipher = ciphers.get
    cipher.init(mode, key, new IvParameterSpec(counter.array))
    cipher.doFinal(from, at, length, to, at)
  }
}

object RowFile {
  private val log = LoggerFactory.getLogger("io.dynastate.Provider")
  /** What is read and verified at once. */
  private[memory] val BlockBytes = 1024
  /** The file is divided into these; a page takes one, unless it is one large row. */
  private val ExtentBytes = 256 * 1024
  private val KeyBytes = 16
  /** A tenth of the disk stays free: with less, YARN and Kubernetes take a node out of use. */
  private val ReservedPart = 10
  private val CheckedExtents = 256
  /** How long a disk is left alone that was full. */
  @volatile private[dynastate] var lookAgainNanos: Long = 60L * 1000 * 1000 * 1000
  private val ciphers: ThreadLocal[Cipher] = ThreadLocal.withInitial(() => Cipher.getInstance("AES/CTR/NoPadding"))

  /** Open a new file several times, so that threads do not wait for each other, and delete its name. */
  private def open(folder: Path): Array[RandomAccessFile] =
    try {
      Files.createDirectories(folder)
      val ownerOnly = PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------"))
      val path = Files.createTempFile(folder, "dynastate-", ".rows", ownerOnly)
      try Array.fill(math.max(4, Runtime.getRuntime.availableProcessors))(new RandomAccessFile(path.toFile, "rw"))
      finally Files.delete(path)
    } catch {
      case e: IOException => throw new DynastateException(ErrorKind.Configuration,
          "no file for rows can be made on local disk; set diskPath to a folder that can be written, or diskMb to " +
            s"0 folder=$folder: $e")
    }

  private def random(length: Int): Array[Byte] = {
    val bytes = new Array[Byte](length)
    new SecureRandom().nextBytes(bytes)
    bytes
  }

  private def checksumsOf(bytes: Array[Byte], length: Int): Array[Int] =
    Array.tabulate((length + BlockBytes - 1) / BlockBytes)(block =>
      checksum(bytes, block * BlockBytes, math.min(BlockBytes, length - block * BlockBytes)))

  private def checksum(bytes: Array[Byte], at: Int, length: Int): Int = {
    val sum = new CRC32C
    sum.update(bytes, at, length)
    sum.getValue.toInt
  }
}
