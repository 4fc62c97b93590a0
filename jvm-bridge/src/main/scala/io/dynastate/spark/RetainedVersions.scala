package io.dynastate.spark

import scala.collection.mutable

import io.dynastate.memory.{Attempt, Version}

/** The versions of a store kept in memory: at most `limit`, at least the newest. Safe for threads; I/O has no lock. */
private[spark] final class RetainedVersions(limit: Int) {
  /** Newest use first. */
  private[this] val versions = mutable.ListBuffer.empty[Version]
  /** Spark's state reader never commits, and has nothing to maintain. */
  private[this] var hasCommitted = false
  private[this] var isClosed = false

  def all: List[Version] = synchronized(versions.toList)

  /** Bytes of heap that they take beside the newest one. */
  def undoBytes: Long =
    all.groupBy(each => (each.number, each.attempt)).values.map(_.head).map(each => each.versions.undoBytes(each)).sum

  /** Retain a version, and discard the one that was not used for longest. */
  def retain(version: Version): Unit = synchronized {
    versions -= version
    versions.prepend(version)
    // Without the newest, every batch would load the whole state.
    while (versions.size > math.max(1, limit)) discard(versions.last)
  }

  /** Retain a version that was committed here, and its base. */
  def retainCommitted(base: Version, next: Version): Unit = {
    next.versions.committed(next)
    synchronized {
      if (base.number > 0) retain(base)
      retain(next)
      hasCommitted = true
      versions.toList.groupBy(_.versions).foreach { case (tree, some) =>
        tree.countUndo(some.map(tree.undoBytes(_)).sum)
      }
    }
  }

  def discard(version: Version): Unit = synchronized {
    versions -= version
    if (!versions.exists(_.versions eq version.versions)) version.versions.close()
  }

  /** The newest version, if there is anything to maintain; of several with its number the one used last. */
  def newestToMaintain: Option[Version] =
    synchronized(if (isClosed || !hasCommitted) None else versions.sortBy(-_.number).headOption)

  def close(): Unit = synchronized {
    isClosed = true
    versions.map(_.versions).distinct.foreach(_.close())
    versions.clear()
  }
}

private[spark] object RetainedVersions {
  def byId(versions: List[Version], number: Long, attempt: Attempt): Option[Version] =
    versions.find(each => each.number == number && each.attempt == attempt)
}
