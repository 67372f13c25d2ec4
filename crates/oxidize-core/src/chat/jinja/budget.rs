//! The memory a rendering may take. The engine counts instructions (fuel), yet a handful of instructions can
//! double a string forty times; so everything that makes strings or lists asks here first.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use minijinja::{Error, ErrorKind, Value};

/// Nesting of lists and maps that may be printed, compared or built.
const MAX_DEPTH: usize = 64;

/// What an entry of a list that is built or copied costs, in bytes, and a call that takes longer than an
/// instruction should: the budget bounds time, too.
pub(super) const ITEM: usize = 64;
pub(super) const CALL: usize = 1024;

/// Bytes and list entries left to one rendering; clones share the count.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    left: Arc<AtomicU64>,
    max_nodes: usize,
}

impl Budget {
    /// `bytes` may be allocated in all; one list or map that the template builds may hold `max_nodes` values.
    pub(super) fn new(bytes: u64, max_nodes: usize) -> Self {
        Self {
            left: Arc::new(AtomicU64::new(bytes)),
            max_nodes,
        }
    }

    /// Takes bytes, or says that they are spent.
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

    /// Refuses a value that nests deeper or spreads wider than can be walked in reasonable time.
    ///
    /// Shared parts count each time they occur: a list that holds the same list twice, forty deep, is small in
    /// memory and endless to print or compare.
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

    /// A writer that charges what it takes.
    pub(super) fn writer(&self) -> BudgetWriter<'_> {
        BudgetWriter {
            budget: self,
            text: String::new(),
            depth: 0,
        }
    }
}

/// Collects text until the budget ends.
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
