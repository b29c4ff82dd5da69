//! CPUs on which the calling thread may run. Without effect on systems other than Linux.

pub(super) use system::{Affinity, current_cpu};

#[cfg(target_os = "linux")]
mod system {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

    /// A set of CPUs.
    #[derive(Clone, Copy)]
    pub(in crate::backend::cpu) struct Affinity(CpuSet);

    impl Affinity {
        /// Returns the CPUs of the calling thread, or `None` on failure.
        pub(in crate::backend::cpu) fn current() -> Option<Affinity> {
            sched_getaffinity(None).ok().map(Affinity)
        }

        /// Creates a set of CPUs. CPU numbers that Linux does not accept are omitted.
        pub(in crate::backend::cpu) fn new(cpus: impl IntoIterator<Item = usize>) -> Affinity {
            let mut set = CpuSet::new();
            cpus.into_iter()
                .filter(|&cpu| cpu < CpuSet::MAX_CPU)
                .for_each(|cpu| set.set(cpu));
            Affinity(set)
        }

        /// Restricts the calling thread to these CPUs. On failure, the thread keeps its previous CPUs; this only
        /// affects speed.
        pub(in crate::backend::cpu) fn apply(self) {
            let _ = sched_setaffinity(None, &self.0);
        }
    }

    /// Returns the CPU of the calling thread.
    pub(in crate::backend::cpu) fn current_cpu() -> Option<usize> {
        Some(sched_getcpu())
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// A set of CPUs.
    #[derive(Clone, Copy)]
    pub(in crate::backend::cpu) struct Affinity;

    impl Affinity {
        /// Returns the CPUs of the calling thread.
        pub(in crate::backend::cpu) fn current() -> Option<Affinity> {
            None
        }

        /// Creates a set of CPUs.
        pub(in crate::backend::cpu) fn new(_: impl IntoIterator<Item = usize>) -> Affinity {
            Affinity
        }

        /// Has no effect.
        pub(in crate::backend::cpu) fn apply(self) {}
    }

    /// Returns the CPU of the calling thread.
    pub(in crate::backend::cpu) fn current_cpu() -> Option<usize> {
        None
    }
}
