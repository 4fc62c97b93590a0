package io.dynastate.memory;

import java.util.Arrays;

import org.apache.spark.unsafe.Platform;
import org.openjdk.jcstress.infra.results.LLL_Result;

/**
 * Two versions of one tree, and the folds of a third and of a retry, which moves the head back to the first. A version is shown as one
 * letter a key: the one that its value consists of, `-` without a row, `?` for a value of several letters, `2` for a key that an
 * iterator shows twice.
 */
final class RacedVersions {
    private static final ChangeSink IGNORED = (records, hashMin, hashMax, chunk, length) -> { };
    private static final Attempt ATTEMPT = new Attempt(1, 1);

    private final Version first;
    private final Version second;
    /** Null: not made yet. */
    private volatile Version third;
    private final int valueBytes;
    private final VersionOverlay thirdChanges;
    private final VersionOverlay retriedChanges;

    RacedVersions(RowStorage storage, int valueBytes) {
        this.valueBytes = valueBytes;
        first = changed(VersionTree.empty("", 0, storage, null), "aaaa-").fold(ATTEMPT, "");
        second = changed(first, " b   ").fold(ATTEMPT, "");
        thirdChanges = changed(second, "  c-c");
        retriedChanges = changed(first, "d-d  ");
    }

    void fold() {
        third = thirdChanges.fold(ATTEMPT, "");
        retriedChanges.fold(ATTEMPT, "");
    }

    void get(LLL_Result seen) {
        seen.r1 = get(first);
        seen.r2 = get(second);
        seen.r3 = get(third);
    }

    void iterate(LLL_Result seen) {
        seen.r1 = iterate(first);
        seen.r2 = iterate(second);
        seen.r3 = iterate(third);
    }

    private String get(Version version) {
        if (version == null) return "none";
        VersionOverlay open = new VersionOverlay(version, IGNORED);
        char[] seen = new char[5];
        for (int key = 0; key < seen.length; key++) seen[key] = letterOf(open.get(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1));
        return new String(seen);
    }

    private String iterate(Version version) {
        if (version == null) return "none";
        RowIterator rows = new VersionOverlay(version, IGNORED).rows(0);
        char[] seen = "-----".toCharArray();
        while (rows.advance()) {
            byte key = rows.row().key()[0];
            seen[key] = seen[key] == '-' ? letterOf(rows.row()) : '2';
        }
        return new String(seen);
    }

    /** A base with changes: a letter puts a row, `-` removes it. */
    private VersionOverlay changed(Version base, String changes) {
        VersionOverlay open = new VersionOverlay(base, IGNORED);
        for (int key = 0; key < changes.length(); key++) {
            byte[] value = new byte[valueBytes];
            Arrays.fill(value, (byte) changes.charAt(key));
            if (changes.charAt(key) == '-') open.remove(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1);
            else if (changes.charAt(key) != ' ') {
                open.put(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1, value, Platform.BYTE_ARRAY_OFFSET, value.length);
            }
        }
        open.flush();
        return open;
    }

    private static byte[] keyOf(int key) {
        return new byte[] {(byte) key};
    }

    private char letterOf(Row row) {
        if (row == null) return '-';
        byte letter = row.bytes()[row.valueAt()];
        boolean isWhole = row.valueLength() == valueBytes;
        for (int at = 0; isWhole && at < valueBytes; at++) isWhole = row.bytes()[row.valueAt() + at] == letter;
        return isWhole ? (char) letter : '?';
    }
}
