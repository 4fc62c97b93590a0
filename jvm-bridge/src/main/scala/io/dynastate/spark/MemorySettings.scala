package io.dynastate.spark

import java.nio.file.{InvalidPathException, Path}

import org.apache.spark.SparkEnv

/** The places of the rows of all stores of this executor.
 *
 * @param heapBytes   rows beyond it go to the disk; 0: no limit
 * @param isHeapGiven whether a user set it; else it is half of the heap
 * @param disk        the disk tier, or None if the user turned it off, or set no limit on memory
 */
final case class MemorySettings(heapBytes: Long, isHeapGiven: Boolean, disk: Option[DiskSettings])

/** @param folders     the folders in which the file may be, absolute; Spark's local directories if it is empty
 * @param limitBytes  the bytes that the file may take; Long.MaxValue: what the disk has, less a reserve
 * @param isEncrypted whether Spark encrypts what it writes to local disk
 */
final case class DiskSettings(folders: Seq[Path], limitBytes: Long, isEncrypted: Boolean)

object MemorySettings {
  import ProviderSettings.{refuse, wholeNumber}

  private[spark] val Names: Seq[String] = Seq("memoryMb", "diskMb", "diskPath")
  private val MemoryMbMax = 1048576L
  private val DiskMbMax = 16777216L

  /** @param configured settings of dynastate, without their prefix */
  private[spark] def of(options: Map[String, String]): MemorySettings = {
    val heap = options.get("memoryMb").map(wholeNumber("memoryMb", _, 0, MemoryMbMax) << 20)
    val limit = options.get("diskMb").map(wholeNumber("diskMb", _, 0, DiskMbMax) << 20).getOrElse(Long.MaxValue)
    val folders = options.get("diskPath").filter(_.nonEmpty).map(foldersOf).getOrElse(Nil)
    val hasDisk = limit > 0 && !heap.contains(0L)
    MemorySettings(
      heapBytes = heap.getOrElse(Runtime.getRuntime.maxMemory / 2), isHeapGiven = heap.isDefined,
      disk = if (hasDisk) Some(DiskSettings(folders, limit, isEncrypted)) else None)
  }

  private def foldersOf(text: String): Seq[Path] = {
    val folders =
      try text.split(",", -1).toSeq.map(Path.of(_))
      catch { case _: InvalidPathException => Nil }
    if (folders.nonEmpty && folders.forall(_.isAbsolute)) folders
    else refuse("diskPath", "absolute folders with commas between them", text)
  }

  private def isEncrypted: Boolean =
    Option(SparkEnv.get).exists(_.conf.getBoolean("spark.io.encryption.enabled", false))
}
