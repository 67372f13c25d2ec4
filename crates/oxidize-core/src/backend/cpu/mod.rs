//! The CPU backend: a plan lowered to fused steps, run by a thread pool on the kernels of the best
//! instruction set that the machine has.
//!
//! [`lower`] fuses, [`memory`] places values in buffers, [`run`] executes, [`pool`] shares out.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes come from the plan, which the compiler checked"
)]

mod attention;
mod cache;
mod experts;
mod lower;
mod memory;
pub mod pool;
mod products;
mod recurrent;
mod run;
mod shares;

use super::{Backend, BackendError, Device, Session, SessionConfig};
use crate::graph::Plan;
use crate::model::Weights;
use oxidize_kernels::Kernels;

/// Runs plans on the processor.
pub struct Cpu {
    kernels: &'static Kernels,
}

impl Default for Cpu {
    fn default() -> Cpu {
        Cpu {
            kernels: oxidize_kernels::select(),
        }
    }
}

impl Cpu {
    /// The backend on the kernels of a given instruction set, for comparing them.
    pub fn with_kernels(kernels: &'static Kernels) -> Cpu {
        Cpu { kernels }
    }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn devices(&self) -> Vec<Device> {
        let name = format!("{} threads, {}", default_threads(), self.kernels.isa());
        vec![Device {
            name,
            memory: crate::model::available_memory(),
        }]
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(run::CpuSession::new(
            self.kernels,
            plan,
            weights,
            config,
        )?))
    }
}

/// The most threads of a session: more than machines have cores, and few enough for any system to start.
pub const MAX_THREADS: usize = 1024;

/// One thread a core that this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The instruction set that the backend uses here.
pub fn isa_name() -> &'static str {
    oxidize_kernels::select().isa().name()
}
