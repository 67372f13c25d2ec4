//! Which instruction set is chosen.

use oxidize_kernels::{Isa, Kernels, select};

/// Names one that this machine has, or should have: emulators are told which machine to be, and what
/// they are not is not tested.
#[test]
fn the_set_that_is_named_is_chosen_or_else_the_best() {
    let best = Isa::ALL.into_iter().rev().find_map(Kernels::for_isa);
    let best = best.unwrap().isa().name();
    let wanted = std::env::var("OXIDIZE_ISA");
    assert_eq!(select().isa().name(), wanted.as_deref().unwrap_or(best));
}

#[test]
fn names_are_distinct() {
    for (i, isa) in Isa::ALL.into_iter().enumerate() {
        assert_eq!(
            Isa::ALL.iter().position(|other| other.name() == isa.name()),
            Some(i)
        );
    }
}
