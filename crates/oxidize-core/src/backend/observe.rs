//! [`Observer`]: someone who looks at the inputs of matrices while a model reads, as an importance
//! matrix does. Without one, nothing is done and nothing is computed.

use std::fmt;
use std::sync::Arc;

/// Called with the inputs of matrices as they are computed. Cloning shares it.
#[derive(Clone)]
pub struct Observer(Arc<Look>);

type Look = dyn Fn(&Observation<'_>) + Send + Sync;

/// Rows that some matrices are about to be multiplied with.
#[derive(Clone, Copy, Debug)]
pub struct Observation<'a> {
    /// The names of the matrices, each once.
    pub weights: &'a [&'a str],
    /// Which of a stack of matrices, and how many it has: experts see only their own tokens.
    pub expert: usize,
    /// How many matrices the stacks have; one where they are none.
    pub n_experts: usize,
    /// The rows, one after the other.
    pub rows: &'a [f32],
    /// Elements of a row.
    pub width: usize,
}

impl Observer {
    /// An observer that calls `look`, from whichever thread runs the session.
    pub fn new(look: impl Fn(&Observation<'_>) + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(look))
    }

    /// Shows it something.
    pub fn look(&self, observation: &Observation<'_>) {
        (self.0)(observation);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
