package io.dynastate.memory;

import java.nio.charset.StandardCharsets;
import java.util.Random;

import org.apache.spark.unsafe.Platform;

/** Rows of the size of the provider's benchmark: keys of 40 bytes in random order, end to end in an array, and values of 72. */
final class Keys {
    static final int KEY_BYTES = 40;
    static final int VALUE_BYTES = 72;

    final byte[] bytes;
    final byte[] value = new byte[VALUE_BYTES];
    private final int count;
    private int next;

    Keys(int count, Random random) {
        this.count = count;
        bytes = new byte[count * KEY_BYTES];
        random.nextBytes(value);
        int[] order = random.ints().distinct().limit(count).toArray();
        for (int at = 0; at < count; at++) {
            byte[] key = String.format("%040d", (long) order[at]).getBytes(StandardCharsets.US_ASCII);
            System.arraycopy(key, 0, bytes, at * KEY_BYTES, KEY_BYTES);
        }
    }

    /** Where the next key begins: one after the other, and from the first again. */
    long next() {
        next = next + 1 == count ? 0 : next + 1;
        return offset(next);
    }

    long offset(int row) {
        return Platform.BYTE_ARRAY_OFFSET + (long) row * KEY_BYTES;
    }
}
