//! The installed library, and programs that are compiled with it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use oxidize_testing::skip;
use tempfile::TempDir;

/// Libraries of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Shared,
    Static,
    /// The shared library, and a program that AddressSanitizer watches.
    AddressSanitizer,
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The directory of the library, with everything that `make ffi` installs, until the tests have ended.
static PREFIX: Mutex<Option<TempDir>> = Mutex::new(None);

/// Directory of the installed library.
pub(crate) fn prefix() -> PathBuf {
    if !cfg!(any(target_os = "linux", target_os = "macos")) {
        skip("the C tests run on Linux and macOS");
    }
    tool("cc");
    let mut prefix = PREFIX.lock().unwrap_or_else(PoisonError::into_inner);
    prefix.get_or_insert_with(install).path().to_path_buf()
}

fn install() -> TempDir {
    let archive = archive();
    let prefix = tempfile::tempdir().unwrap();
    let mut install = Command::new(repository().join("scripts/ffi"));
    install.arg("--prefix").arg(prefix.path());
    output(install.arg("--archive").arg(archive));
    prefix
}

/// The static library that cargo built before this test, beside it in target/debug/deps. With other features or
/// profiles it has another hash in its name.
fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = std::fs::read_dir(test.parent().unwrap()).unwrap();
    let archives = files.map(|file| file.unwrap()).filter(|file| {
        let name = file.file_name().into_string().unwrap_or_default();
        name.starts_with("liboxidize_ffi") && name.ends_with(".a")
    });
    let newest = archives.max_by_key(|file| file.metadata().unwrap().modified().unwrap());
    newest.expect("cargo builds a static library").path()
}

/// Removes the installed library: nothing drops a static variable.
pub(crate) fn remove_prefix() {
    let prefix = PREFIX.lock().unwrap_or_else(PoisonError::into_inner).take();
    drop(prefix);
}

pub(crate) fn shared_library() -> PathBuf {
    let name = if cfg!(target_os = "macos") {
        "liboxidize.dylib"
    } else {
        "liboxidize.so"
    };
    prefix().join("lib").join(name)
}

/// Compiles a C program as strictly as compilers can, once for all tests.
pub(crate) fn compile(source: &Path, link: Link) -> PathBuf {
    static COMPILING: Mutex<()> = Mutex::new(());
    let prefix = prefix();
    let lib = prefix.join("lib");
    let _one = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
    let stem = source.file_stem().unwrap().to_string_lossy();
    let program = prefix.join(format!("{stem}-{link:?}"));
    if program.exists() {
        return program;
    }
    let mut command = Command::new(tool("cc"));
    command.args(["-std=c11", "-D_GNU_SOURCE", "-g", "-O1", "-pthread"]);
    command.args(["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror"]);
    command
        .arg("-I")
        .arg(prefix.join("include"))
        .arg("-o")
        .arg(&program)
        .arg(source);
    match link {
        Link::Static => {
            command.arg(lib.join("liboxidize.a"));
            let system: &[&str] = match cfg!(target_os = "macos") {
                true => &["-liconv", "-lm"],
                false => &["-ldl", "-lm", "-lrt", "-lutil", "-lgcc_s"],
            };
            command.args(system);
        }
        Link::Shared | Link::AddressSanitizer => {
            let run_path = format!("-Wl,-rpath,{}", lib.display());
            command
                .arg("-L")
                .arg(&lib)
                .args(["-loxidize", "-lm", &run_path]);
        }
    }
    if link == Link::AddressSanitizer {
        command.args([
            "-fsanitize=address,undefined",
            "-fno-sanitize-recover=undefined",
        ]);
        command.arg("-fno-omit-frame-pointer");
    }
    output(&mut command);
    program
}

/// A program of the system. Without it, the running test is skipped, or fails with `OXIDIZE_REQUIRE_TOOLS=1`.
pub(crate) fn tool(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| not_installed(name))
}

pub(crate) fn not_installed(name: &str) -> ! {
    let reason = format!("{name} is not installed; run make test-ffi");
    let required = std::env::var_os("OXIDIZE_REQUIRE_TOOLS").is_some_and(|value| value == "1");
    assert!(!required, "{reason}");
    skip(reason)
}

pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|program| program.is_file())
}

/// Runs a program that must succeed, and returns its standard output.
pub(crate) fn output(command: &mut Command) -> String {
    run_with_input(command, "")
}

pub(crate) fn run_with_input(command: &mut Command, input: &str) -> String {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // A program that has ended reads nothing; its status says why.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    let (text, errors) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8(text.clone()).unwrap()
}
