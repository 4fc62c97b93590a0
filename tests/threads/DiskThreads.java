package io.dynastate.memory;

import java.io.RandomAccessFile;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.HashSet;
import java.util.Set;

/** Pages of one file, which the tasks of an executor share. */
final class DiskThreads {
    private static final int EXTENT_BYTES = 256 * 1024;
    /** A block of AES. */
    private static final int BLOCK_BYTES = 16;
    private static final int PAGE_BYTES = 4 * BLOCK_BYTES;

    /** Of the schedule before. */
    private static RowFile lastFile;

    private DiskThreads() { }

    /** A file of its own for each schedule, one after the other. */
    static RowFile file(boolean isEncrypted) throws Exception {
        return Schedules.unseen(() -> {
            if (lastFile != null) for (RandomAccessFile each : handlesOf(lastFile)) each.close();
            RowFile file = new RowFile(Path.of(System.getProperty("java.io.tmpdir")), Long.MAX_VALUE, isEncrypted);
            // With its first page it asks for the room on the disk.
            file.write(new byte[BLOCK_BYTES], BLOCK_BYTES);
            lastFile = file;
            return file;
        });
    }

    /** Pages that are alike, written at once, have no 16 bytes in common, and each is read as it was written. */
    static void writeAtOnce() throws Exception {
        RowFile file = file(true);
        DiskPage[] pages = new DiskPage[2];
        Schedules.together(
            () -> pages[0] = file.write(new byte[PAGE_BYTES], PAGE_BYTES),
            () -> pages[1] = file.write(new byte[PAGE_BYTES], PAGE_BYTES));
        for (DiskPage each : pages) {
            for (byte value : each.readAll()) if (value != 0) throw new AssertionError("a page is read otherwise than it was written");
        }
        int blocks = Schedules.unseen(() -> blocksOf(file, pages));
        if (blocks < pages.length * PAGE_BYTES / BLOCK_BYTES) throw new AssertionError("a part of the key stream is used twice");
    }

    /** The number of different blocks that pages have in the file. */
    private static int blocksOf(RowFile file, DiskPage[] pages) throws Exception {
        RandomAccessFile bytes = handlesOf(file)[0];
        Set<ByteBuffer> blocks = new HashSet<>();
        for (DiskPage each : pages) {
            for (int at = 0; at < PAGE_BYTES; at += BLOCK_BYTES) {
                byte[] block = new byte[BLOCK_BYTES];
                bytes.seek((long) each.extents()[0] * EXTENT_BYTES + at);
                bytes.readFully(block);
                blocks.add(ByteBuffer.wrap(block));
            }
        }
        return blocks.size();
    }

    private static RandomAccessFile[] handlesOf(RowFile file) throws ReflectiveOperationException {
        Field handles = RowFile.class.getDeclaredField("handles");
        handles.setAccessible(true);
        return (RandomAccessFile[]) handles.get(file);
    }
}
