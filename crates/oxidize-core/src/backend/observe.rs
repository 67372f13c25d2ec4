//! [`Observer`]: receives the inputs of matrices while a model runs, as the computation of an importance
//! matrix needs. A session without an observer does no work for it.

use std::fmt;
use std::sync::Arc;

/// A function that is called with the inputs of matrices before they are multiplied. Clones share it.
#[derive(Clone)]
pub struct Observer(Arc<Callback>);

type Callback = dyn Fn(&Observation<'_>) + Send + Sync;

/// Rows that one or several matrices are about to be multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// Names of the matrices, each once.
    pub weights: &'a [&'a str],
    /// Index of the matrix in its stack. The rows of an expert are only those routed to it.
    pub expert: usize,
    /// Number of matrices in the stack; 1 for a single matrix.
    pub n_experts: usize,
    /// The rows, one after the other.
    pub rows: &'a [f32],
    /// Elements of a row.
    pub width: usize,
}

impl Observer {
    /// An observer that calls `callback` on the thread that runs the session.
    pub fn new(callback: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(callback))
    }

    /// Passes an observation to the callback.
    pub fn observe(&self, observation: &Observation<'_>) {
        (self.0)(observation);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
