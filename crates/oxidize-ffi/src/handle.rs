//! The table of handles: a handle is an index and a generation, looked up at each call and never followed as a pointer.

use std::any::Any;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::status::{Failure, Status};

/// A handle of a model, engine, …: never 0 and never reused. 0 is no handle.
pub type Handle = u64;

/// A kind of thing that handles stand for.
pub(crate) trait Kind: Any + Send + Sync {
    /// Name in messages.
    const NAME: &'static str;
}

type Object = (Arc<dyn Any + Send + Sync>, &'static str);

struct Slot {
    /// Upper half of the handle. Each object of the slot has a generation of its own, from 1.
    generation: u32,
    object: Option<Object>,
}

struct Table {
    slots: Vec<Slot>,
    /// Slots without an object.
    free: Vec<u32>,
}

static TABLE: RwLock<Table> = RwLock::new(Table::new());

/// The process that made the first handle; 0 before.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Makes a handle of `object`.
pub(crate) fn insert<T: Kind>(object: T) -> Result<Handle, Failure> {
    let process = std::process::id();
    let first = PROCESS.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_err() {
        check_process()?;
    }
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.insert((Arc::new(object), T::NAME))
}

/// The object of a handle. It lives as long as the caller keeps it, even if another thread frees the handle.
pub(crate) fn get<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    check_process()?;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    table.get(handle)
}

/// Makes a handle invalid, and returns its object.
pub(crate) fn remove<T: Kind>(handle: Handle) -> Result<Arc<T>, Failure> {
    check_process()?;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    table.remove(handle)
}

/// Fails in a forked process: the engines' threads stayed in the parent, and another thread may have held the lock of
/// the table.
pub(crate) fn check_process() -> Result<(), Failure> {
    let process = PROCESS.load(Ordering::Relaxed);
    if process == 0 || process == std::process::id() {
        return Ok(());
    }
    Err(Failure::new(
        Status::Forked,
        "this process was forked from one that uses oxidize; load models after the fork, or execute a new program",
    ))
}

impl Table {
    const fn new() -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    fn insert(&mut self, object: Object) -> Result<Handle, Failure> {
        let reused = self.free.pop();
        let index = match reused {
            Some(index) => index,
            None => u32::try_from(self.slots.len())
                .map_err(|_| Failure::new(Status::Internal, "4294967296 handles exist"))?,
        };
        let slot = match self.slots.get_mut(index as usize) {
            Some(slot) => slot,
            None => {
                self.slots.push(Slot {
                    generation: 1,
                    object: None,
                });
                let last = self.slots.len() - 1;
                &mut self.slots[last]
            }
        };
        slot.object = Some(object);
        Ok(u64::from(slot.generation) << 32 | u64::from(index))
    }

    fn get<T: Kind>(&self, handle: Handle) -> Result<Arc<T>, Failure> {
        let (index, generation) = parts(handle);
        let slot = self.slots.get(index as usize);
        let object = slot
            .filter(|slot| slot.generation == generation)
            .and_then(|slot| slot.object.as_ref());
        let Some((object, name)) = object else {
            return Err(invalid::<T>(handle, "was freed or never issued"));
        };
        let object = Arc::clone(object).downcast::<T>();
        object.map_err(|_| invalid::<T>(handle, &format!("is a handle of {name}")))
    }

    fn remove<T: Kind>(&mut self, handle: Handle) -> Result<Arc<T>, Failure> {
        let object = self.get(handle)?;
        let (index, _) = parts(handle);
        if let Some(slot) = self.slots.get_mut(index as usize) {
            slot.object = None;
            // A slot whose generations are used up is left alone, so that no handle comes twice.
            if let Some(next) = slot.generation.checked_add(1) {
                slot.generation = next;
                self.free.push(index);
            }
        }
        Ok(object)
    }
}

fn parts(handle: Handle) -> (u32, u32) {
    (handle as u32, (handle >> 32) as u32)
}

fn invalid<T: Kind>(handle: Handle, problem: &str) -> Failure {
    let message = match handle {
        0 => format!("the handle of {} is 0", T::NAME),
        _ => format!("{handle:#x} {problem}, not a handle of {}", T::NAME),
    };
    Failure::new(Status::InvalidHandle, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    struct Apple(u32);
    #[derive(Debug)]
    struct Pear;

    impl Kind for Apple {
        const NAME: &'static str = "an apple";
    }
    impl Kind for Pear {
        const NAME: &'static str = "a pear";
    }

    fn apple(number: u32) -> Object {
        (Arc::new(Apple(number)), Apple::NAME)
    }

    #[test]
    fn a_freed_handle_is_refused_after_its_slot_is_reused() {
        let mut table = Table::new();
        let first = table.insert(apple(1)).unwrap();
        assert_eq!(*table.get::<Apple>(first).unwrap(), Apple(1));
        assert_eq!(*table.remove::<Apple>(first).unwrap(), Apple(1));
        let second = table.insert(apple(2)).unwrap();
        assert_eq!((table.slots.len(), parts(second)), (1, (0, 2)));
        for _ in 0..2 {
            let failure = table.remove::<Apple>(first).unwrap_err();
            assert_eq!(failure.status, Status::InvalidHandle);
        }
        assert_eq!(*table.get::<Apple>(second).unwrap(), Apple(2));
    }

    #[test]
    fn other_kinds_and_made_up_handles_are_refused() {
        let mut table = Table::new();
        let handle = table.insert(apple(1)).unwrap();
        let failure = table.get::<Pear>(handle).unwrap_err();
        assert_eq!(
            failure.message,
            "0x100000000 is a handle of an apple, not a handle of a pear"
        );
        assert!(table.remove::<Pear>(handle).is_err());
        for wrong in [0, 1, handle + 1, handle << 1, u64::MAX] {
            assert!(table.get::<Apple>(wrong).is_err(), "{wrong:#x}");
        }
        assert!(table.get::<Apple>(handle).is_ok());
    }

    #[test]
    fn a_slot_without_further_generations_is_not_reused() {
        let mut table = Table::new();
        let first = table.insert(apple(1)).unwrap();
        table.slots[0].generation = u32::MAX;
        let last = first | u64::from(u32::MAX) << 32;
        table.remove::<Apple>(last).unwrap();
        assert!(table.get::<Apple>(last).is_err());
        assert_eq!(parts(table.insert(apple(2)).unwrap()), (1, 1));
    }
}
