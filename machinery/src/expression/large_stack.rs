//! Pools of a few threads with large stacks, started with the first expression and kept as long as the process lives: a
//! thread for each evaluation costs more than the evaluation.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// How many more may wait in the queue of a pool before callers wait for a place in it.
const QUEUE_CAPACITY: usize = 16;
/// Only pages that are touched use memory.
const STACK_BYTES: usize = 64 * 1024 * 1024;

type Job = Box<dyn FnOnce() + Send>;

/// Threads of one use, so that it does not hold up others.
pub(crate) struct Pool {
    name: &'static str,
    threads: usize,
    jobs: OnceLock<SyncSender<Job>>,
}

thread_local! {
    /// Whether this thread is one of those with a large stack.
    static IS_LARGE: Cell<bool> = const { Cell::new(false) };
}

/// Runs jobs until their senders are gone.
fn run_jobs(queued: &Mutex<Receiver<Job>>) {
    IS_LARGE.set(true);
    loop {
        let job = queued.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        // A panic of the library ends its job, which drops the sender of the result.
        drop(catch_unwind(AssertUnwindSafe(job)));
    }
}

impl Pool {
    /// A pool of `threads` threads with the name `name`, of which none is started yet.
    pub(crate) const fn new(name: &'static str, threads: usize) -> Self {
        Self {
            name,
            threads,
            jobs: OnceLock::new(),
        }
    }

    fn start(&self) -> SyncSender<Job> {
        let (jobs, queued) = sync_channel::<Job>(QUEUE_CAPACITY);
        let queued = Arc::new(Mutex::new(queued));
        for _ in 0..self.threads {
            let queued = Arc::clone(&queued);
            let thread = std::thread::Builder::new()
                .name(self.name.to_owned())
                .stack_size(STACK_BYTES);
            // With fewer threads, expressions wait longer; without any, every one of them fails.
            if thread.spawn(move || run_jobs(&queued)).is_err() {
                break;
            }
        }
        jobs
    }

    /// Runs `work` on a thread with a large stack and waits for it; `None` if there is no thread or the work panicked. Work
    /// may call this again, for any pool: it then runs on the same thread, since all the others may be waiting too.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        if IS_LARGE.get() {
            return catch_unwind(AssertUnwindSafe(work)).ok();
        }
        let (result, done) = sync_channel(1);
        let job = move || {
            // The receiver waits for it.
            drop(result.send(work()));
        };
        self.jobs.get_or_init(|| self.start()).send(Box::new(job)).ok()?;
        done.recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::sync::Barrier;

    const THREADS: usize = 2;

    #[test]
    fn few_threads_do_all_the_work_and_survive_its_panics() {
        static POOL: Pool = Pool::new("test", THREADS);
        let threads: HashSet<_> = (0..100)
            .map(|_| POOL.run(|| std::thread::current().id()).unwrap())
            .collect();
        assert!(threads.len() <= THREADS, "{threads:?}");
        for _ in 0..10 {
            assert_eq!(POOL.run(|| panic!("a test panics")), None::<()>);
        }
        assert_eq!(POOL.run(|| 7), Some(7));
    }

    #[test]
    fn work_that_needs_a_large_stack_itself_waits_for_no_other_thread() {
        static POOL: Pool = Pool::new("test", THREADS);
        let all_busy = Arc::new(Barrier::new(THREADS));
        let compiled: Arc<OnceLock<Option<u8>>> = Arc::default();
        let jobs: Vec<_> = (0..THREADS)
            .map(|_| {
                let (all_busy, compiled) = (Arc::clone(&all_busy), Arc::clone(&compiled));
                std::thread::spawn(move || {
                    POOL.run(move || {
                        all_busy.wait();
                        *compiled.get_or_init(|| POOL.run(|| 7))
                    })
                })
            })
            .collect();
        for job in jobs {
            assert_eq!(job.join().unwrap(), Some(Some(7)));
        }
    }

    #[test]
    fn a_busy_pool_holds_up_no_other() {
        static BUSY: Pool = Pool::new("busy", THREADS);
        static FREE: Pool = Pool::new("free", THREADS);
        let (end, told) = sync_channel::<()>(1);
        let told = Arc::new(Mutex::new(told));
        let jobs: Vec<_> = (0..THREADS + QUEUE_CAPACITY)
            .map(|_| {
                let told = Arc::clone(&told);
                std::thread::spawn(move || BUSY.run(move || told.lock().unwrap().recv().is_err()))
            })
            .collect();
        assert_eq!(FREE.run(|| 7), Some(7));
        drop(end);
        for job in jobs {
            assert_eq!(job.join().unwrap(), Some(true));
        }
    }
}
