package io.dynastate.tests

import java.net.URI

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{DelegateToFileSystem, FileStatus, Path, RawLocalFileSystem}
import org.apache.hadoop.fs.permission.FsPermission

/** The local file system without permissions and links, for `fs.AbstractFileSystem.file.impl`, through which Spark
 * writes checkpoints. Without its native library, which pyspark does not have, Hadoop starts a `chmod` for every file
 * it makes and a `readlink` for every file it renames: half of the time of these tests.
 */
class PlainLocalFs(uri: URI, conf: Configuration)
  extends DelegateToFileSystem(uri, new PlainRawLocalFileSystem, conf, "file", false)

class PlainRawLocalFileSystem extends RawLocalFileSystem {
  override def setPermission(file: Path, permission: FsPermission): Unit = ()

  override def getFileLinkStatus(file: Path): FileStatus = getFileStatus(file)
}
