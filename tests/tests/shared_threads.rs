//! Contexts that share a thread pool. A separate test binary, because it counts the threads of the process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::backend::ThreadPool;
use tests::{context, decode_last, decode_one, model, tokens};

/// Returns the number of threads started by CPU pools.
fn pool_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("/proc lists the threads");
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("cpu-")).count()
}

/// Waits until there are `n` pool threads. Linux wakes the joining thread shortly before the thread
/// disappears from the list, and new threads have no name yet.
fn assert_pool_threads(n: usize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while pool_threads() != n && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool_threads(), n);
}

/// Two contexts on different threads decode at the same time on a pool of three threads. Results match
/// separate runs, and no threads are started.
#[test]
fn two_contexts_share_thread_pool() {
    let name = "qwen3-dense";
    let (model, tokens) = (model(name), tokens(name));
    let decode = |pool: Option<Arc<ThreadPool>>, first: usize| {
        let mut ctx = context(&model, |p| {
            p.n_threads = 3;
            p.n_threads_batch = 3;
            p.thread_pool = pool;
        });
        let mut logits = vec![decode_last(&mut ctx, &tokens[first..first + 8], 0, 0)];
        logits.extend((8..24).map(|pos| decode_one(&mut ctx, tokens[pos], pos, 0)));
        logits
    };
    let alone = [0, 1].map(|first| decode(None, first));
    assert_ne!(alone[0], alone[1]);
    // Dropping a context ends its threads.
    assert_pool_threads(0);

    let pool = Arc::new(ThreadPool::new(3).expect("starting threads succeeds"));
    for _ in 0..4 {
        let together = std::thread::scope(|scope| {
            let decode = &decode;
            let running = [0, 1].map(|first| {
                let pool = pool.clone();
                scope.spawn(move || decode(Some(pool), first))
            });
            running.map(|thread| thread.join().expect("the batch is decoded"))
        });
        assert_pool_threads(2);
        assert!(together == alone);
    }
    drop(pool);
    assert_pool_threads(0);
}
