//! An allocator that counts: how often the program takes something from the heap, for tests that are alone in their programs, and the
//! live bytes of each thread. The thread of the harness that started a test is not counted: it has a say whenever it has a core.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

/// How often the program has taken something from the heap.
pub static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The process' first thread runs the harness and not a test.
static HARNESS_IS_FIRST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Bytes that the thread has taken and not given back; negative if it gives back what others took.
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn take(n: usize) {
    if !(HARNESS_IS_FIRST.load(Ordering::Relaxed) && is_first_thread()) {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    }
    let live = LIVE.get() + n as isize;
    LIVE.set(live);
    PEAK.set(PEAK.get().max(live));
}

fn give_back(n: usize) {
    LIVE.set(LIVE.get() - n as isize);
}

/// Leaves out the thread of the harness from now on, which takes notes of a test while it starts and when it takes long. With one thread for all
/// tests the harness runs them itself and does nothing meanwhile.
#[allow(dead_code, reason = "each program has a copy of this file, and only some ask")]
pub fn ignore_harness() {
    HARNESS_IS_FIRST.store(!is_first_thread(), Ordering::Relaxed);
}

/// Takes nothing from the heap.
#[cfg(target_os = "linux")]
fn is_first_thread() -> bool {
    // SAFETY: both calls take nothing and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

#[cfg(not(target_os = "linux"))]
fn is_first_thread() -> bool {
    false
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
