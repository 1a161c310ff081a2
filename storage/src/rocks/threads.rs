//! The threads of a store, and its close.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::check::Checker;
use super::column_families::Engine;
use super::commit::CommitThread;
use super::housekeeping::{Housekeeping, Stop};
use super::parts::Parts;
use super::read::engine_failed;
use crate::StoreError;
use crate::sync::lock;

/// The running threads. Dropping it closes the store.
pub(crate) struct Threads {
    parts: Arc<Parts>,
    stop: Arc<Stop>,
    running: Mutex<Vec<JoinHandle<()>>>,
    /// Resolves when the engine is closed.
    engine_closed: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Threads {
    /// Starts the commit thread, and the others if the store does `background_work`.
    pub(crate) fn spawn(
        parts: &Arc<Parts>,
        commit: CommitThread,
        background_work: bool,
        engine_closed: oneshot::Receiver<()>,
    ) -> std::io::Result<Self> {
        let threads = Self {
            parts: Arc::clone(parts),
            stop: Arc::new(Stop::default()),
            running: Mutex::new(Vec::new()),
            engine_closed: Mutex::new(Some(engine_closed)),
        };
        threads.start("storage-commit", move || commit.run())?;
        if background_work {
            let (syncs, rest) = (threads.housekeeping(), threads.housekeeping());
            threads.start("storage-sync", move || syncs.run_syncs())?;
            threads.start("storage-house", move || rest.run())?;
            let every = parts.settings.check_every;
            if !every.is_zero() {
                let checker = Checker {
                    parts: Arc::clone(parts),
                    stop: Arc::clone(&threads.stop),
                    every,
                };
                threads.start("storage-check", move || checker.run())?;
            }
        }
        Ok(threads)
    }

    fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        lock(&self.running).push(thread);
        Ok(())
    }

    /// The periodic work, for one round or a thread.
    pub(crate) fn housekeeping(&self) -> Housekeeping {
        Housekeeping {
            parts: Arc::clone(&self.parts),
            stop: Arc::clone(&self.stop),
        }
    }

    /// Accepts no more work; the threads end when they have done what is queued.
    fn stop(&self) {
        self.parts.queue.close();
        self.stop.set();
    }

    /// Waits for the threads to end.
    fn join(&self) {
        let threads = std::mem::take(&mut *lock(&self.running));
        let own = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != own {
                // A panic there has poisoned the store already.
                drop(thread.join());
            }
        }
    }

    /// Ends watches and takes the engine out.
    fn release_engine(&self) -> Option<Arc<Engine>> {
        self.parts.lifecycle.close();
        self.parts.published.end_watches();
        self.parts.lifecycle.take_engine()
    }

    /// Ends everything in order. Blocks.
    pub(crate) fn close(&self) -> Result<(), StoreError> {
        self.stop();
        self.join();
        let was_poisoned = self.parts.lifecycle.is_poisoned();
        let Some(engine) = self.release_engine() else {
            return Ok(());
        };
        let flushed = if was_poisoned { Ok(()) } else { engine.flush() };
        drop(engine);
        flushed.map_err(|error| engine_failed(&error))
    }

    /// Waits until the engine is closed: readers may hold it for a while.
    pub(crate) async fn engine_closed(&self) {
        let closed = lock(&self.engine_closed).take();
        if let Some(closed) = closed {
            // The sender is dropped with the engine; nothing is ever sent.
            drop(closed.await);
        }
    }
}

impl Drop for Threads {
    /// Waits for the threads: one that closed the engine while the process exits would access what RocksDB has torn down.
    /// No caller is left to wait for a write, so a stall is not waited out.
    fn drop(&mut self) {
        self.parts.lifecycle.give_up_on_stalls();
        self.stop();
        self.join();
        drop(self.release_engine());
    }
}
