package io.dynastate.bridge

import java.nio.{ByteBuffer, ByteOrder}

import com.github.luben.zstd.{Zstd, ZstdException}
import io.dynastate.{DynastateException, ErrorKind}
import net.jpountz.lz4.{LZ4Exception, LZ4Factory}

/** Blocks as they are stored (docs/storage-format.md), decompressed here: the sidecar would take longer, send more. */
private[bridge] object Codec {
  private val lz4 = LZ4Factory.fastestInstance().safeDecompressor()

  /** The changes in a block, which is the rest of a buffer, in an array of at least so many bytes; `item` names where
   * it is stored, for errors.
   */
  def unpack(codec: String, rawBytes: Int, item: String, block: ByteBuffer, array: Int => Array[Byte]): ByteBuffer = {
    def corrupt(what: String, cause: Throwable = null) =
      new DynastateException(ErrorKind.Corrupt, s"$what $item", cause)
    if (rawBytes < 0 || rawBytes > Protocol.FrameBytesMax)
      throw corrupt(s"a block cannot have this length expected=$rawBytes packed=${block.remaining}")
    val changes = array(rawBytes)
    val from = block.arrayOffset + block.position()
    val length =
      try codec match {
          case "lz4" => lz4.decompress(block.array, from, block.remaining, changes, 0, rawBytes)
          case "zstd" => Zstd.decompressByteArray(changes, 0, rawBytes, block.array, from, block.remaining)
          case _ => throw new DynastateException(
              ErrorKind.Mismatch, s"the sidecar sends an unknown codec: jar and Python package may differ codec=$codec")
        }
      catch {
        case e @ (_: LZ4Exception | _: ZstdException) =>
          throw corrupt(s"a block cannot be decompressed: ${e.getMessage}", e)
      }
    if (length != rawBytes) throw corrupt(s"a block has the wrong length expected=$rawBytes got=$length")
    ByteBuffer.wrap(changes, 0, rawBytes).order(ByteOrder.LITTLE_ENDIAN)
  }
}
