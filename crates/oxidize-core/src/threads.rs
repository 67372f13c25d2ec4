//! Threads: how they are started, deep stacks, and waiting for a future.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

/// Starts the threads of an engine: those that compute, and the one that writes the prefix cache to disk.
///
/// The default starts threads of the operating system. In a browser there are none, so that one thread does all the
/// work, unless the host has workers for it:
///
/// ```
/// use oxidize::EngineConfig;
/// use oxidize::engine::Spawner;
///
/// let spawner = Spawner::new(|name, work| {
///     // A page would hand `work` to a Web Worker here.
///     std::thread::Builder::new().name(name.into()).spawn(work)?;
///     Ok(())
/// });
/// let config = EngineConfig::default().n_threads(4).spawner(spawner);
/// ```
#[derive(Clone, Default)]
pub struct Spawner(Threads);

#[derive(Clone, Default)]
enum Threads {
    #[default]
    System,
    Host(Arc<HostSpawn>),
    None,
}

type HostSpawn = dyn Fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()> + Send + Sync;

impl Spawner {
    /// A spawner of the host: `spawn` receives the name of a thread and its work, which ends when the engine does. The
    /// work may begin later: until then the other threads do its share. An error means one thread less.
    pub fn new(
        spawn: impl Fn(&str, Box<dyn FnOnce() + Send>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Spawner {
        Spawner(Threads::Host(Arc::new(spawn)))
    }

    /// No threads: everything is computed on the thread that calls, and the prefix cache on disk is off.
    pub fn none() -> Spawner {
        Spawner(Threads::None)
    }

    /// True if threads can be started at all.
    pub(crate) fn has_threads(&self) -> bool {
        match self.0 {
            Threads::System => cfg!(not(target_family = "wasm")),
            Threads::Host(_) => true,
            Threads::None => false,
        }
    }

    /// Starts a thread.
    pub(crate) fn spawn(
        &self,
        name: &str,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Thread> {
        match &self.0 {
            Threads::System => {
                let thread = thread::Builder::new().name(name.into()).spawn(work)?;
                Ok(Thread(Some(thread)))
            }
            Threads::Host(spawn) => spawn(name, Box::new(work)).map(|()| Thread(None)),
            Threads::None => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            Threads::System => "Spawner::default()",
            Threads::Host(_) => "Spawner::new(…)",
            Threads::None => "Spawner::none()",
        })
    }
}

/// A thread that was started.
#[derive(Debug)]
pub(crate) struct Thread(Option<JoinHandle<()>>);

impl Thread {
    /// Waits for the end of the thread. Threads of a host are not waited for, since they may never have begun.
    pub(crate) fn join(self) {
        if let Some(thread) = self.0 {
            // Its panics are passed on in other ways.
            let _ = thread.join();
        }
    }
}

/// Runs `work` on a thread with a stack of `bytes`, for recursion that only limits on its input bound. `Err` if there is
/// no thread, `Ok(None)` after a panic. WebAssembly has no stack of its own for it: the engine that runs the module
/// stops recursion that is too deep.
pub(crate) fn on_deep_stack<T: Send>(
    name: &str,
    bytes: usize,
    work: impl FnOnce() -> T + Send,
) -> io::Result<Option<T>> {
    if cfg!(target_family = "wasm") {
        return Ok(Some(work()));
    }
    thread::scope(|scope| {
        let builder = thread::Builder::new().name(name.into()).stack_size(bytes);
        let thread = builder.spawn_scoped(scope, work)?;
        Ok(thread.join().ok())
    })
}

/// Polls `future` and waits until it is ready. `None` where a thread cannot wait: in WebAssembly, the callbacks that
/// would make the future ready do not run while it does.
pub(crate) fn block_on<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    // Nearly always ready, so no waker is made for the first poll.
    if let Poll::Ready(output) = future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
    {
        return Some(output);
    }
    if cfg!(target_family = "wasm") {
        return None;
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        thread::park();
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Unpark>) {
        self.0.unpark();
    }
}

/// `Send`, except in WebAssembly: objects of JavaScript, such as GPU buffers, stay with the thread that made them, and an
/// engine of the browser stays there too.
#[cfg(not(target_family = "wasm"))]
pub trait MaybeSend: Send {}
#[cfg(not(target_family = "wasm"))]
impl<T: Send + ?Sized> MaybeSend for T {}

/// `Sync`, except in WebAssembly; see [`MaybeSend`].
#[cfg(not(target_family = "wasm"))]
pub trait MaybeSync: Sync {}
#[cfg(not(target_family = "wasm"))]
impl<T: Sync + ?Sized> MaybeSync for T {}

/// `Send`, except in WebAssembly: objects of JavaScript, such as GPU buffers, stay with the thread that made them, and an
/// engine of the browser stays there too.
#[cfg(target_family = "wasm")]
pub trait MaybeSend {}
#[cfg(target_family = "wasm")]
impl<T: ?Sized> MaybeSend for T {}

/// `Sync`, except in WebAssembly; see [`MaybeSend`].
#[cfg(target_family = "wasm")]
pub trait MaybeSync {}
#[cfg(target_family = "wasm")]
impl<T: ?Sized> MaybeSync for T {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_host_gets_the_name_and_the_work() {
        let (sent, received) = channel();
        let spawner = Spawner::new(move |name, work| {
            let stopped = || io::Error::other("nobody receives work");
            sent.send((name.to_owned(), work)).map_err(|_| stopped())
        });
        let (done, result) = channel();
        spawner
            .spawn("worker", move || done.send(7).unwrap())
            .unwrap()
            .join();
        let (name, work) = received.recv().unwrap();
        assert_eq!((name.as_str(), result.try_recv().ok()), ("worker", None));
        work();
        assert_eq!(result.recv(), Ok(7));
    }

    #[test]
    fn no_threads_is_an_error() {
        let error = Spawner::none().spawn("worker", || ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(!Spawner::none().has_threads() && Spawner::default().has_threads());
    }

    #[test]
    fn futures_that_are_woken_by_another_thread_are_waited_for() {
        let (sent, received) = channel::<Waker>();
        let waker_thread = thread::spawn(move || {
            // The first waker belongs to the poll that does not wait.
            for waker in received {
                thread::sleep(Duration::from_millis(1));
                waker.wake();
            }
        });
        let mut polls = 0;
        let ready = block_on(std::future::poll_fn(|context| {
            polls += 1;
            sent.send(context.waker().clone()).unwrap();
            match polls {
                5 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        }));
        assert_eq!((ready, polls), (Some(()), 5));
        drop(sent);
        waker_thread.join().unwrap();
    }

    #[test]
    fn a_deep_stack_survives_deep_recursion_and_reports_panics() {
        fn depth(n: usize) -> usize {
            let frame = std::hint::black_box([n; 64]);
            if n == 0 {
                frame[0]
            } else {
                1 + depth(frame[1] - 1)
            }
        }
        let deep = on_deep_stack("deep", 64 << 20, || depth(20_000));
        assert_eq!(deep.unwrap(), Some(20_000));
        let panicked = on_deep_stack("panic", 1 << 20, || assert!(std::hint::black_box(false)));
        assert!(panicked.unwrap().is_none());
    }
}
