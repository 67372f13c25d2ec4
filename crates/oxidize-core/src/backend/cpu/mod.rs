//! The CPU backend: a plan is lowered to fused steps, which a thread pool runs with the kernels of the best
//! instruction set of this machine.
//!
//! [`lower`] fuses ops, [`repack`] prepares weights, [`memory`] assigns values to buffers, [`session`] runs the steps
//! and [`pool`] distributes their work over threads.

#![allow(
    clippy::indexing_slicing,
    reason = "indexes come from the plan, which was checked when it was built, and from batches, which the \
              validator has checked"
)]

mod attention;
mod cache;
mod experts;
mod lower;
mod matmul;
mod memory;
pub mod pool;
mod recurrent;
mod repack;
mod row_ops;
mod session;
mod work_stealing;

use super::{Backend, BackendError, Device, Session, SessionConfig};
use crate::graph::Plan;
use crate::weights::Weights;
use oxidize_kernels::Kernels;

/// Runs plans on the CPU. All sessions share its one device.
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
    /// The backend with the kernels of a given instruction set, for comparing instruction sets.
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
            memory: crate::io::available_memory(),
        }]
    }

    fn weight_growth(&self, plan: &Plan, weights: &Weights, config: &SessionConfig) -> u64 {
        repack::growth(plan, weights, config.repack, self.kernels)
    }

    fn compile(
        &self,
        plan: &Plan,
        weights: &Weights,
        config: &SessionConfig,
    ) -> Result<Box<dyn Session>, BackendError> {
        config.check_device(self)?;
        Ok(Box::new(session::CpuSession::new(
            self.kernels,
            plan,
            weights,
            config,
        )?))
    }
}

/// Maximum number of threads of a session: more than machines have cores, and few enough that any system can
/// start them.
pub const MAX_THREADS: usize = 1024;

/// Number of cores that this process may use.
pub fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Checks that `OXIDIZE_ISA` is unset, empty or an instruction set of this machine. Programs call this when they start;
/// afterwards the backend panics for any other value.
pub fn check_isa() -> Result<(), oxidize_kernels::IsaError> {
    oxidize_kernels::try_select().map(|_| ())
}

/// Name of the instruction set that the backend uses on this machine.
pub fn isa_name() -> &'static str {
    oxidize_kernels::select().isa().name()
}
