package io.dynastate.memory;

import java.util.Arrays;

import org.apache.spark.unsafe.Platform;

/**
 * Versions of one tree. A version is shown as one letter a key: the one that its value consists of, `-` without a row, `?` for a value of
 * several letters, `2` for a key that an iterator shows twice.
 */
final class ThreadedVersions {
    /** Of a value: three that were replaced are so much garbage that their pages are evacuated. */
    private static final int BYTES = 8_000;
    private static final int KEYS = 4;
    private static final ChangeSink IGNORED = (records, hashMin, hashMax, chunk, length) -> { };
    static final Attempt ATTEMPT = new Attempt(1, 1);

    private ThreadedVersions() { }

    /** Whoever cannot read rows here reads on where they are durable, which would hide why. */
    static Version empty(RowStorage storage) {
        return VersionTree.empty("", 0, storage, version -> {
            throw new AssertionError("rows of version " + version + " cannot be read here");
        });
    }

    static Version fold(VersionOverlay changes) {
        return changes.fold(ATTEMPT, "");
    }

    /** A base with changes: a letter puts a row, `-` removes it. */
    static VersionOverlay changed(Version base, String changes) {
        VersionOverlay open = new VersionOverlay(base, IGNORED);
        for (int key = 0; key < changes.length(); key++) {
            if (changes.charAt(key) == '-') open.remove(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1);
            else if (changes.charAt(key) != ' ') {
                byte[] value = valueOf((byte) changes.charAt(key));
                open.put(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1, value, Platform.BYTE_ARRAY_OFFSET, BYTES);
            }
        }
        open.flush();
        return open;
    }

    static String get(Version version) {
        VersionOverlay open = new VersionOverlay(version, IGNORED);
        char[] shown = new char[KEYS];
        for (int key = 0; key < KEYS; key++) shown[key] = letterOf(open.get(0, keyOf(key), Platform.BYTE_ARRAY_OFFSET, 1));
        return new String(shown);
    }

    static String iterate(Version version) {
        RowIterator rows = new VersionOverlay(version, IGNORED).rows(0);
        char[] shown = new char[KEYS];
        Arrays.fill(shown, '-');
        while (rows.advance()) {
            byte key = rows.row().key()[0];
            shown[key] = shown[key] == '-' ? letterOf(rows.row()) : '2';
        }
        return new String(shown);
    }

    static void expect(String expected, String shown) {
        if (!expected.equals(shown)) throw new AssertionError("expected " + expected + ", shown " + shown);
    }

    static byte[] keyOf(int key) {
        return new byte[] {(byte) key};
    }

    static byte[] valueOf(byte letter) {
        byte[] value = new byte[BYTES];
        Arrays.fill(value, letter);
        return value;
    }

    private static char letterOf(Row row) {
        if (row == null) return '-';
        int at = row.valueAt();
        byte letter = row.bytes()[at];
        boolean isWhole = Arrays.equals(valueOf(letter), 0, BYTES, row.bytes(), at, at + row.valueLength());
        return isWhole ? (char) letter : '?';
    }
}
