package io.dynastate.memory;

/** Readers of versions beside writers, the evacuator, and the end of a store. */
final class VersionThreads {
    private VersionThreads() { }

    /** Rows on local disk. Each has a page of its own. */
    private static RowStorage disk() throws Exception {
        RowFile file = DiskThreads.file(false);
        return new RowStorage(0, file, 128);
    }

    /** A version on disk. Its pages are in sets by their identity, which is another one in what Lincheck does not see. */
    private static Version first(RowStorage storage) throws Exception {
        VersionOverlay rows = Schedules.atOnce(() -> ThreadedVersions.changed(ThreadedVersions.empty(storage), "aaaa"));
        Version first = ThreadedVersions.fold(rows);
        Evacuations.run();
        return first;
    }

    private static VersionOverlay changed(Version base, String changes) throws Exception {
        return Schedules.atOnce(() -> ThreadedVersions.changed(base, changes));
    }

    /** Folds replace rows and free their pages, the evacuator moves rows, and both write pages in their places. */
    static void iterateBesideFolds() throws Exception {
        Version first = first(disk());
        VersionOverlay changes = changed(first, "bbb ");
        Schedules.together(
            () -> ThreadedVersions.expect("aaaa", ThreadedVersions.iterate(first)),
            () -> {
                Version second = ThreadedVersions.fold(changes);
                Version third = ThreadedVersions.fold(changed(second, "cc  "));
                Evacuations.run();
                ThreadedVersions.expect("ccba", ThreadedVersions.iterate(third));
            });
    }

    static void getBesideFolds() throws Exception {
        Version first = first(disk());
        VersionOverlay changes = changed(first, "bbb ");
        Schedules.together(
            () -> ThreadedVersions.expect("aaaa", ThreadedVersions.get(first)),
            () -> {
                Version second = ThreadedVersions.fold(changes);
                Evacuations.run();
                ThreadedVersions.expect("bbba", ThreadedVersions.get(second));
            });
    }
}
