package io.dynastate.bridge

/** A file or folder of a checkpoint, by its name in the folder that has it; `time` is in ms since 1970. */
final case class FileEntry(name: String, isFolder: Boolean, bytes: Long, time: Long)

/** A file of a checkpoint, by its path in it, with its data where one item has them all. */
final case class StoredFile(path: String, bytes: Long, time: Long, data: Option[Array[Byte]])

/** The content of a file of a checkpoint. */
final case class FileContent(data: Array[Byte], time: Long)
