//! Selection of the instruction set.

use oxidize_kernels::{Isa, IsaError, Kernels, select, try_select};

fn best() -> Isa {
    let best = Isa::ALL.into_iter().rev().find_map(Kernels::for_isa);
    best.unwrap().isa()
}

/// `OXIDIZE_ISA` must name an instruction set of this machine: emulators are told which machine to be, and must be it.
#[test]
fn select_follows_the_environment() {
    let name = std::env::var("OXIDIZE_ISA").unwrap_or_default();
    let want = if name.is_empty() {
        best().name()
    } else {
        &name
    };
    assert_eq!(select().isa().name(), want);
    assert_eq!(try_select().unwrap().isa().name(), want);
}

#[test]
fn empty_name_selects_the_best() {
    assert_eq!(Kernels::for_name("").unwrap().isa(), best());
}

#[test]
fn every_available_name_selects_its_isa() {
    for isa in Isa::ALL {
        match Kernels::for_name(isa.name()) {
            Ok(kernels) => assert_eq!(kernels.isa(), isa),
            Err(error) => {
                assert!(Kernels::for_isa(isa).is_none());
                assert_eq!(error, IsaError::Unavailable(isa));
                let text = error.to_string();
                assert!(text.starts_with(&format!("OXIDIZE_ISA: this machine lacks `{isa}`")));
                assert!(text.contains("it has: scalar"), "{text}");
            }
        }
    }
}

#[test]
fn unknown_name_is_an_error_that_lists_known_and_available_names() {
    for name in ["sse9", "AVX2", "avx2 "] {
        let error = Kernels::for_name(name).err().unwrap();
        assert_eq!(error, IsaError::Unknown(name.to_owned()));
        let text = error.to_string();
        assert!(
            text.contains(&format!("unknown instruction set `{name}`")),
            "{text}"
        );
        for isa in Isa::ALL {
            assert!(text.contains(isa.name()), "{text}");
        }
        let (_, available) = text.split_once("this machine has: ").unwrap();
        let names: Vec<&str> = available.split(", ").collect();
        for isa in Isa::ALL {
            let has = Kernels::for_isa(isa).is_some();
            assert_eq!(names.contains(&isa.name()), has, "{text}");
        }
    }
}

/// A program with an unusable `OXIDIZE_ISA` does not run on another instruction set.
#[cfg(not(target_family = "wasm"))]
#[test]
fn environment_errors_reach_the_program() {
    const CHILD: &str = "OXIDIZE_TEST_ISA_CHILD";
    if std::env::var_os(CHILD).is_some() {
        let error = try_select().err().unwrap();
        assert_eq!(error, IsaError::Unknown("sse9".to_owned()));
        return;
    }
    let Ok(this) = std::env::current_exe() else {
        return;
    };
    let child = std::process::Command::new(this)
        .args(["--exact", "environment_errors_reach_the_program"])
        .env("OXIDIZE_ISA", "sse9")
        .env(CHILD, "1")
        .output();
    // Emulators may be unable to start a program.
    if let Ok(child) = child {
        assert!(child.status.success(), "{child:?}");
    }
}

#[test]
fn names_are_distinct() {
    for (i, isa) in Isa::ALL.into_iter().enumerate() {
        let first = Isa::ALL.iter().position(|other| other.name() == isa.name());
        assert_eq!(first, Some(i));
    }
}
