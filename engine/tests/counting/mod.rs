//! An allocator that counts: how often the program takes something from the heap, for tests that are alone in their programs, and the
//! live bytes of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

/// How often the program has taken something from the heap.
pub static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Bytes that the thread has taken and not given back; negative if it gives back what others took.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn take(n: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let live = LIVE.get() + n as isize;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

fn give_back(n: usize) {
    LIVE.set(LIVE.get() - n as isize);
}

/// Waits until the thread that started this test is asleep: on a busy machine it may still have to take note of the test, for which it allocates.
#[allow(dead_code, reason = "each program has a copy of this file, and only some ask")]
pub fn wait_for_harness() {
    let main = format!("/proc/self/task/{}/stat", std::process::id());
    let is_asleep = |stat: &str| {
        stat.rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
    };
    while std::thread::current().name() != Some("main") {
        match std::fs::read_to_string(&main) {
            Ok(stat) if !is_asleep(&stat) => std::thread::sleep(std::time::Duration::from_millis(1)),
            _ => break,
        }
    }
}

/// What `f` returns, and the most bytes that this thread held meanwhile beyond what it held before.
#[allow(dead_code, reason = "each program has a copy of this file, and only some ask")]
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before) as usize)
}

// SAFETY: every call is passed on to the system's allocator with the arguments it came with.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as required of our caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: as required of our caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: as required of our caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The worst case, in which old and new exist side by side for a moment.
        take(new_size);
        give_back(layout.size());
        // SAFETY: as required of our caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
