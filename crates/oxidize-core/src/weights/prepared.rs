//! Weights in the form that a backend computes with, kept for all sessions of a model.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Weights as a backend has prepared them for a device: uploaded, or stored in another form.
///
/// [`Weights::prepared`](super::Weights::prepared) keeps one value of each type and device with the weights of a model,
/// so that all sessions share it, and drops it with the model. The type is private to its backend, which locks inside
/// it what sessions change.
pub trait PreparedWeights: Any + Default + Send + Sync {
    /// Bytes in memory of this process; 0 for weights in the memory of a device.
    fn own_size(&self) -> u64;
}

/// The prepared weights of all backends, by type and device.
#[derive(Clone, Default)]
pub(super) struct PreparedMap(Arc<Mutex<BTreeMap<(TypeId, usize), Entry>>>);

#[derive(Clone)]
struct Entry {
    prepared: Arc<dyn Any + Send + Sync>,
    own_size: fn(&(dyn Any + Send + Sync)) -> u64,
}

impl PreparedMap {
    /// The value of a type for a device, which is created empty.
    pub(super) fn get<T: PreparedWeights>(&self, device: usize) -> Arc<T> {
        let mut map = self.lock();
        let entry = map
            .entry((TypeId::of::<T>(), device))
            .or_insert_with(|| Entry {
                prepared: Arc::new(T::default()),
                own_size: |prepared| prepared.downcast_ref::<T>().map_or(0, T::own_size),
            });
        // The key names the type, so the value has it.
        entry.prepared.clone().downcast().unwrap_or_default()
    }

    /// Bytes in memory of this process.
    pub(super) fn own_size(&self) -> u64 {
        // Not locked meanwhile: a value may be locked while a session prepares weights.
        let entries: Vec<Entry> = self.lock().values().cloned().collect();
        let sizes = entries
            .iter()
            .map(|entry| (entry.own_size)(entry.prepared.as_ref()));
        sizes.sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(TypeId, usize), Entry>> {
        // Nothing that is done under the lock leaves the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for PreparedMap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("PreparedMap")
            .field(&self.lock().len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Weights;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[derive(Default)]
    struct Uploaded(AtomicU64);

    #[derive(Default)]
    struct Repacked(AtomicU64);

    impl PreparedWeights for Uploaded {
        fn own_size(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    impl PreparedWeights for Repacked {
        fn own_size(&self) -> u64 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[test]
    fn each_backend_and_device_has_its_own() {
        let weights = Weights::default();
        weights
            .prepared::<Uploaded>(0)
            .0
            .store(1, Ordering::Relaxed);
        weights
            .prepared::<Uploaded>(1)
            .0
            .store(20, Ordering::Relaxed);
        weights
            .prepared::<Repacked>(0)
            .0
            .store(300, Ordering::Relaxed);
        // Clones share them: a model with adapters has the weights of its base.
        let clone = weights.clone();
        assert_eq!(clone.prepared::<Uploaded>(0).own_size(), 1);
        assert_eq!(clone.prepared::<Uploaded>(1).own_size(), 20);
        assert_eq!(clone.own_size(), 321);
        assert_eq!(Weights::default().own_size(), 0);
    }
}
