//! Sessions of a [`Model`].

use super::{Backend, BackendError, Session, SessionConfig};
use crate::error::Result;
use crate::graph::Plan;
use crate::model::{Model, ModelError};

impl Model {
    /// Compiles the plan for `backend`.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn session(
        &self,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        self.compile(self.plan(), backend, config)
    }

    /// Compiles the plan for `backend` with hidden states as output instead of logits.
    #[cfg_attr(feature = "unstable", visibility::make(pub))]
    pub(crate) fn embedding_session(
        &self,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        let plan = self.plan().for_embeddings();
        let plan = plan.ok_or_else(|| ModelError::NoHiddenStates {
            file: self.file().path().to_path_buf(),
        })?;
        self.compile(&plan, backend, config)
    }

    fn compile(
        &self,
        plan: &Plan,
        backend: &dyn Backend,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>> {
        if let Some(op) = plan.ops.iter().find(|op| !backend.supports(op)) {
            return Err(BackendError::Unsupported {
                backend: backend.name(),
                op: format!("{op:?}"),
            }
            .into());
        }
        Ok(backend.compile(plan, self.weights(), config)?)
    }
}
