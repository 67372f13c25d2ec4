//! [`Stepper`]: an engine without a thread of its own, which its host steps.

use super::request::EngineError;
use super::worker::Worker;
use crate::error::Result;
use crate::threads::block_on;
use std::future::poll_fn;

/// An engine that computes when its host says so: in a browser, in an event loop, in a test.
///
/// [`Engine::stepped`](super::Engine::stepped) returns it with the [`Engine`](super::Engine) that requests are submitted
/// to. Tokens appear in the streams while the host calls [`step`](Stepper::step); a program with one thread reads them
/// by [`TokenStream::try_recv`](super::TokenStream::try_recv) or [`recv`](super::TokenStream::recv), and never by
/// iterating, which would wait for a step that nobody makes.
///
/// ```no_run
/// use oxidize::engine::EngineState;
/// use oxidize::{Engine, EngineConfig, Model};
/// use std::task::Poll;
///
/// # fn main() -> Result<(), oxidize::Error> {
/// let model = Model::load("model.gguf")?;
/// let (engine, mut stepper) = Engine::stepped(model, &EngineConfig::default())?;
/// let mut stream = engine.chat("Why is the sky blue?")?;
/// while stepper.step_blocking()? == EngineState::Working {
///     while let Poll::Ready(Some(token)) = stream.try_recv() {
///         print!("{}", token?.text);
///     }
/// }
/// # Ok(())
/// # }
/// ```
///
/// A host with an event loop lets a future run until the last handle is dropped:
///
/// ```no_run
/// # use oxidize::engine::Stepper;
/// # async fn next_turn_of_the_event_loop() {}
/// async fn drive(mut stepper: Stepper) -> Result<(), oxidize::Error> {
///     while stepper.ready().await {
///         stepper.step().await?;
///         next_turn_of_the_event_loop().await;
///     }
///     Ok(())
/// }
/// ```
///
/// Dropping the stepper ends the engine and fails the requests that are open.
pub struct Stepper {
    worker: Worker,
    ended: bool,
}

/// State of an engine after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EngineState {
    /// There is more to compute.
    Working,
    /// Nothing to compute until a request is submitted.
    Idle,
    /// The last handle and the last stream were dropped: nothing will be computed any more.
    Ended,
}

impl Stepper {
    pub(super) fn new(worker: Worker) -> Stepper {
        Stepper {
            worker,
            ended: false,
        }
    }

    /// Accepts and cancels requests, and computes one step for those that run: a part of a prompt, or a token of each.
    ///
    /// The future is ready at once on the CPU; a device that cannot be waited for makes it pending. It may be dropped:
    /// the next call completes the step. An error means that the session could not be replaced after a fault. The engine
    /// has ended then, and its requests have failed.
    pub async fn step(&mut self) -> Result<EngineState> {
        let Some(commands) = self.take_commands() else {
            self.end();
            return Ok(EngineState::Ended);
        };
        if let Err(error) = self.worker.advance(commands).await {
            self.end();
            return Err(error);
        }
        Ok(match self.worker.is_idle() {
            true => EngineState::Idle,
            false => EngineState::Working,
        })
    }

    /// [`step`](Stepper::step) for a thread that may wait for the device. Fails in WebAssembly if the step is not complete
    /// at once.
    pub fn step_blocking(&mut self) -> Result<EngineState> {
        block_on(self.step()).unwrap_or(Err(EngineError::WouldBlock.into()))
    }

    /// Waits until there is something to do. False when the engine has ended.
    pub async fn ready(&mut self) -> bool {
        !self.ended && poll_fn(|context| self.worker.poll_ready(context)).await
    }

    /// Steps until the engine has ended, as the thread of an [`Engine`](super::Engine) does.
    #[cfg(not(target_family = "wasm"))]
    pub(super) fn run(mut self) {
        while let Some(commands) = self.worker.wait_for_commands() {
            let advanced = block_on(self.worker.advance(commands));
            if let Err(error) = advanced.unwrap_or(Err(EngineError::WouldBlock.into())) {
                tracing::error!(%error, "the engine could not be restarted");
                return;
            }
        }
    }

    fn take_commands(&self) -> Option<Vec<super::handle::Command>> {
        match self.ended {
            true => None,
            false => self.worker.take_commands(),
        }
    }

    fn end(&mut self) {
        self.ended = true;
        self.worker.end();
    }
}

impl std::fmt::Debug for Stepper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stepper")
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
