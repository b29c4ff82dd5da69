//! A counting allocator. It counts the heap allocations of the program, for tests that run alone in their process, and
//! the live bytes of each thread. The harness thread is not counted, since it may allocate at any time.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

struct Counting;

/// Number of heap allocations of the program.
pub static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// True if the first thread of the process runs the harness and not a test.
static HARNESS_IS_FIRST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Bytes allocated minus bytes freed by this thread. Negative if it frees memory of other threads.
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

/// Stops counting the harness thread, which allocates when a test starts or takes long. With a single test
/// thread, the harness runs the test itself and allocates nothing in between.
#[allow(dead_code, reason = "shared by several test binaries, not all of which call this")]
pub fn ignore_harness() {
    HARNESS_IS_FIRST.store(!is_first_thread(), Ordering::Relaxed);
}

/// Returns true on the first thread of the process. Does not allocate.
#[cfg(target_os = "linux")]
fn is_first_thread() -> bool {
    // SAFETY: both calls take no arguments and cannot fail.
    unsafe { libc::gettid() == libc::getpid() }
}

#[cfg(not(target_os = "linux"))]
fn is_first_thread() -> bool {
    false
}

/// Runs `f` and returns its result together with the peak number of bytes that this thread allocated in
/// addition to those before.
#[allow(dead_code, reason = "shared by several test binaries, not all of which call this")]
pub fn peak_of<T>(f: impl FnOnce() -> T) -> (T, usize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = f();
    (result, (PEAK.get() - before) as usize)
}

// SAFETY: every call is forwarded to the system allocator with unchanged arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: `layout` satisfies the contract of `alloc`, passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        take(layout.size());
        // SAFETY: `layout` satisfies the contract of `alloc_zeroed`, passed on from the caller.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        give_back(layout.size());
        // SAFETY: `ptr` was allocated with `layout` by `System`, passed on from the caller.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The worst case: the old and new blocks exist at the same time.
        take(new_size);
        give_back(layout.size());
        // SAFETY: `ptr` was allocated with `layout` by `System`, passed on from the caller.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
