package io.dynastate.memory;

import java.lang.reflect.Field;
import java.util.ArrayDeque;
import java.util.List;
import java.util.Set;
import java.util.concurrent.AbstractExecutorService;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.TimeUnit;

import sun.misc.Unsafe;

/** What the evacuator's own thread would do, for a thread of a scenario: the scheduler must have begun each thread. */
final class Evacuations extends AbstractExecutorService {
    private static final Evacuations ALL = new Evacuations();

    private final ArrayDeque<Runnable> waiting = new ArrayDeque<>();
    private final Set<?> submitted;

    private Evacuations() {
        try {
            Field field = Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            Unsafe memory = (Unsafe) field.get(null);
            Class.forName(Evacuator$.class.getName());
            Field thread = Evacuator$.class.getDeclaredField("thread");
            Field trees = Evacuator$.class.getDeclaredField("submitted");
            submitted = (Set<?>) memory.getObject(memory.staticFieldBase(trees), memory.staticFieldOffset(trees));
            ((ExecutorService) memory.getObject(memory.staticFieldBase(thread), memory.staticFieldOffset(thread))).shutdown();
            memory.putObject(memory.staticFieldBase(thread), memory.staticFieldOffset(thread), this);
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /** Take the place of the evacuator's thread, and forget what came before. */
    static void begin() {
        ALL.waiting.clear();
        ALL.submitted.clear();
    }

    /** Evacuate the trees that were folded up to now. */
    static void run() {
        for (Runnable each = ALL.take(); each != null; each = ALL.take()) each.run();
    }

    private synchronized Runnable take() {
        return waiting.poll();
    }

    @Override
    public synchronized void execute(Runnable each) {
        waiting.add(each);
    }

    @Override
    public void shutdown() { }

    @Override
    public List<Runnable> shutdownNow() {
        return List.of();
    }

    @Override
    public boolean isShutdown() {
        return false;
    }

    @Override
    public boolean isTerminated() {
        return false;
    }

    @Override
    public boolean awaitTermination(long timeout, TimeUnit unit) {
        return true;
    }
}
