//! Memory budget of a rendering. minijinja counts instructions (fuel), but a few instructions can
//! double a string forty times, so every operation that creates strings or lists charges this
//! budget.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::{Error, ErrorKind, Value};

/// Limit on the nesting of lists and maps that are printed, compared or built.
const MAX_DEPTH: usize = 64;

/// Cost in bytes of a list entry that is built or copied, and of a call that takes longer than one
/// instruction: the budget also bounds time.
pub(super) const ITEM: usize = 64;
pub(super) const CALL: usize = 1024;

/// Remaining budget of one rendering, shared by all clones.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    left: Arc<AtomicU64>,
    max_nodes: usize,
}

impl Budget {
    /// Creates a budget of `bytes` in total. A list or map built by the template may contain
    /// `max_nodes` values.
    pub(super) fn new(bytes: u64, max_nodes: usize) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(bytes)),
            max_nodes,
        }
    }

    /// Charges `bytes`. Fails if the budget is exhausted.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(bytes as u64)
            });
        taken
            .map(|_| ())
            .map_err(|_| Error::new(ErrorKind::OutOfFuel, "the template makes too much text"))
    }

    /// Rejects a value that is too deep or too large to traverse.
    ///
    /// Shared parts count at each occurrence: a list that contains the same list twice, forty
    /// levels deep, is small in memory but takes exponential time to print or compare.
    pub(super) fn check_shape(&self, value: &Value) -> Result<(), Error> {
        let mut nodes = 0;
        self.walk(value, 0, &mut nodes)?;
        self.charge(nodes.saturating_mul(ITEM))
    }

    fn walk(&self, value: &Value, depth: usize, nodes: &mut usize) -> Result<(), Error> {
        use minijinja::value::ValueKind;
        *nodes += 1;
        if depth > MAX_DEPTH || *nodes > self.max_nodes {
            return Err(Error::new(
                ErrorKind::OutOfFuel,
                "the template builds too large a value",
            ));
        }
        match value.kind() {
            ValueKind::Seq => {
                for item in value.try_iter()? {
                    self.walk(&item, depth + 1, nodes)?;
                }
            }
            ValueKind::Map => {
                if let Some(pairs) = value.as_object().and_then(|object| object.try_iter_pairs()) {
                    for (_, item) in pairs {
                        self.walk(&item, depth + 1, nodes)?;
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Returns a writer that charges this budget.
    pub(super) fn writer(&self) -> BudgetWriter<'_> {
        BudgetWriter {
            budget: self,
            text: String::new(),
            depth: 0,
        }
    }
}

/// String writer that charges a budget.
pub(super) struct BudgetWriter<'a> {
    budget: &'a Budget,
    text: String,
    depth: usize,
}

impl BudgetWriter<'_> {
    pub(super) fn push(&mut self, text: &str) -> Result<(), Error> {
        self.budget.charge(text.len())?;
        self.text.push_str(text);
        Ok(())
    }

    /// Enters a list or map.
    pub(super) fn enter(&mut self) -> Result<(), Error> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Error::new(
                ErrorKind::OutOfFuel,
                "the value nests too deeply to print",
            ));
        }
        Ok(())
    }

    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}

impl fmt::Write for BudgetWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text).map_err(|_| fmt::Error)
    }
}
