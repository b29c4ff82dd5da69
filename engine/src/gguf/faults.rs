//! Reads of mapped files that fail, because the file was truncated or its disk has an error. The kernel reports
//! them by SIGBUS, which would end the process. The handler here replaces the rest of the map by zeros and marks
//! the map as damaged.

use std::ffi::c_int;
use std::ops::Range;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// Entry for a mapped range, which the signal handler reads.
#[derive(Debug)]
pub struct Guarded(&'static Entry);

#[derive(Debug)]
struct Entry {
    /// First address; 0 if the entry is free.
    start: AtomicUsize,
    end: AtomicUsize,
    is_damaged: AtomicBool,
    next: AtomicPtr<Entry>,
}

/// List of all entries. Entries are reused and never freed, so that the handler can read them at any time.
static ENTRIES: AtomicPtr<Entry> = AtomicPtr::new(std::ptr::null_mut());

/// Signal action before the handler was installed: function and flags.
static PREVIOUS: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(libc::SIG_DFL), AtomicUsize::new(0));

impl Guarded {
    /// Guards a map. Its addresses must stay mapped until the guard is dropped.
    pub fn new(map: &[u8]) -> Guarded {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(install);
        let start = map.as_ptr() as usize;
        let entry = free_entry(start);
        entry.is_damaged.store(false, Ordering::Relaxed);
        entry.end.store(start + map.len(), Ordering::Release);
        Guarded(entry)
    }

    /// Returns true if a read of the map failed. Bytes that were read since then may be zeros.
    pub fn is_damaged(&self) -> bool {
        self.0.is_damaged.load(Ordering::Acquire)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.start.store(0, Ordering::Release);
    }
}

/// Takes a free entry or adds one to the list.
fn free_entry(start: usize) -> &'static Entry {
    let taken = entries().find(|entry| {
        let taken = entry
            .start
            .compare_exchange(0, start, Ordering::AcqRel, Ordering::Relaxed);
        taken.is_ok()
    });
    if let Some(entry) = taken {
        return entry;
    }
    let entry = Box::leak(Box::new(Entry {
        start: AtomicUsize::new(start),
        end: AtomicUsize::new(0),
        is_damaged: AtomicBool::new(false),
        next: AtomicPtr::new(std::ptr::null_mut()),
    }));
    let mut first = ENTRIES.load(Ordering::Acquire);
    loop {
        entry.next.store(first, Ordering::Relaxed);
        match ENTRIES.compare_exchange_weak(first, entry, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return entry,
            Err(now) => first = now,
        }
    }
}

fn entries() -> impl Iterator<Item = &'static Entry> {
    // SAFETY: the pointers of the list are null or come from `Box::leak`, so they are valid for ever.
    let at = |pointer: &AtomicPtr<Entry>| unsafe { pointer.load(Ordering::Acquire).as_ref() };
    std::iter::successors(at(&ENTRIES), move |entry| at(&entry.next))
}

fn install() {
    // SAFETY: all fields of `sigaction` may be zero.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_fault as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
    // SAFETY: `action` is a valid action, whose handler only calls functions that are safe in signal handlers.
    unsafe {
        let mut previous: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut previous) == 0 {
            PREVIOUS.0.store(previous.sa_sigaction, Ordering::Release);
            PREVIOUS.1.store(previous.sa_flags as usize, Ordering::Release);
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t`, whose address is set for SIGBUS.
    let address = unsafe { (*info).si_addr() } as usize;
    for entry in entries() {
        let range = entry.start.load(Ordering::Acquire)..entry.end.load(Ordering::Acquire);
        if range.contains(&address) && replace_by_zeros(address, &range) {
            entry.is_damaged.store(true, Ordering::Release);
            return;
        }
    }
    pass_on(signal, info, context);
}

/// Maps zeros from the page of `address` to the end of the map. Returns false on failure.
fn replace_by_zeros(address: usize, range: &Range<usize>) -> bool {
    // SAFETY: `sysconf` has no preconditions; it only reads a constant of the C library.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let first = address & !(page - 1);
    // SAFETY: the pages belong to a map that is alive, because its guard is. Nobody writes to the map, and its
    // owner unmaps the whole range, regardless of the current mapping.
    let mapped = unsafe {
        libc::mmap(
            first as *mut libc::c_void,
            range.end - first,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    mapped != libc::MAP_FAILED
}

/// Passes a signal for an address outside of all guarded maps to the previous handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let (function, flags) = (PREVIOUS.0.load(Ordering::Acquire), PREVIOUS.1.load(Ordering::Acquire));
    if function == libc::SIG_DFL || function == libc::SIG_IGN {
        // SAFETY: restores the default action, so that the repeated access ends the process.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    } else if flags & libc::SA_SIGINFO as usize != 0 {
        // SAFETY: with this flag, the previous action was a function of this type.
        let previous: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            unsafe { std::mem::transmute(function) };
        previous(signal, info, context);
    } else {
        // SAFETY: without the flag, the previous action was a function of this type.
        let previous: extern "C" fn(c_int) = unsafe { std::mem::transmute(function) };
        previous(signal);
    }
}
