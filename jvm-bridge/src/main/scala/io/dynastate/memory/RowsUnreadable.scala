package io.dynastate.memory

import io.dynastate.{DynastateException, ErrorKind}

/** Rows on local disk cannot be read, or an error has left rows half changed: they are still where they are durable. */
final class RowsUnreadable(message: String, cause: Throwable = null)
  extends DynastateException(ErrorKind.Unavailable, message, cause)
