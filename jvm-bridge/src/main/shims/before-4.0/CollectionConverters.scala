package io.dynastate

import scala.collection.convert.DecorateAsScala

/** Views of Java's collections, `asScala`, as Scala 2.12 has them. */
private[dynastate] object CollectionConverters extends DecorateAsScala
