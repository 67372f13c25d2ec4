//! The C API as C programs see it: the header is current, the libraries export it and nothing else, and programs in C,
//! C++ and Go compile and run with them. With valgrind and AddressSanitizer, which watch the memory.

mod build;
mod lora;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use build::{Link, compile, output, prefix, repository, run_with_input, shared_library, tool};
use oxidize_core::{Engine, EngineConfig, KvType, Model, Request};
use oxidize_testing::{cached, skip};

fn main() -> ExitCode {
    macro_rules! tests {
        ($($test:ident),* $(,)?) => { &[$((stringify!($test), $test as fn())),*] };
    }
    let tests = tests![
        header_is_current,
        header_is_c_and_cplusplus,
        shared_library_exports_the_header,
        answers_are_those_of_rust,
        bad_input_is_refused,
        bad_input_leaves_no_trace_in_valgrind,
        behavior_is_clean_in_valgrind,
        bad_input_is_clean_with_address_sanitizer,
        behavior_is_clean_with_address_sanitizer,
        completion_example_runs,
        completion_example_runs_with_the_static_library,
        chat_example_runs,
        embeddings_example_runs,
        threads_example_runs,
        go_example_runs,
        installed_library_is_found_by_pkg_config,
    ];
    let code = oxidize_testing::run(tests, &[]);
    build::remove_prefix();
    code
}

/// The checked-in model: 82 thousand parameters and 256 tokens of context.
fn tiny() -> PathBuf {
    repository().join("fixtures/tiny/model.gguf")
}

fn smollm2() -> PathBuf {
    cached("models/SmolLM2-135M-Instruct.Q4_1.gguf")
}

fn header() -> String {
    let path = repository().join("crates/oxidize-ffi/include/oxidize.h");
    // Checkouts on Windows may have other ends of lines.
    std::fs::read_to_string(path).unwrap().replace('\r', "")
}

/// Names of the functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = header();
    let code = header
        .split("*/")
        .map(|part| part.split("/*").next().unwrap());
    let code: String = code.collect();
    let names = code.match_indices('(').filter_map(|(at, _)| {
        let name = code[..at]
            .rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .next()?;
        name.starts_with("oxidize_").then(|| name.to_owned())
    });
    names.collect()
}

/// Modules in the order of the header.
const MODULES: &[&str] = &[
    "version",
    "status",
    "model",
    "lora",
    "tokenizer",
    "engine",
    "request",
    "stream",
    "embedder",
];

/// `make ffi-header` writes the header by running this test with `OXIDIZE_WRITE_HEADER=1`.
fn header_is_current() {
    let package = repository().join("crates/oxidize-ffi");
    let config = cbindgen::Config::from_file(package.join("cbindgen.toml")).unwrap();
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = MODULES.iter().fold(builder, |builder, module| {
        builder.with_src(package.join(format!("src/{module}.rs")))
    });
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    let text = lines.join("\n").trim_start().to_owned() + "\n";
    // Rust's heading for the obligations of a caller says little in C.
    let text = text.replace(" * # Safety\n *\n * ", " * The caller promises: ");
    if std::env::var_os("OXIDIZE_WRITE_HEADER").is_some() {
        std::fs::write(package.join("include/oxidize.h"), &text).unwrap();
    }
    assert!(
        text == header(),
        "include/oxidize.h is not current: run make ffi-header"
    );
}

fn header_is_c_and_cplusplus() {
    let directory = tempfile::tempdir().unwrap();
    for (compiler, name, flags) in [
        ("cc", "header.c", &["-std=c99", "-Wstrict-prototypes"][..]),
        ("c++", "header.cpp", &["-std=c++11"]),
    ] {
        let source = directory.path().join(name);
        std::fs::write(&source, "#include <oxidize.h>\n").unwrap();
        let mut command = Command::new(tool(compiler));
        command
            .args(flags)
            .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]);
        command
            .arg("-I")
            .arg(repository().join("crates/oxidize-ffi/include"));
        output(command.arg(&source));
    }
}

fn shared_library_exports_the_header() {
    if !cfg!(target_os = "linux") {
        skip("nm lists symbols in other ways elsewhere");
    }
    let mut command = Command::new(tool("nm"));
    let symbols = output(
        command
            .args(["--dynamic", "--defined-only"])
            .arg(shared_library()),
    );
    // Lines such as: 0000000000748310 T oxidize_version@@OXIDIZE_1. The version itself is an absolute symbol, A.
    let exported = symbols
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let exported = exported.filter(|line| line.get(1) != Some(&"A"));
    let names: BTreeSet<String> = exported
        .map(|line| line.last().unwrap().split('@').next().unwrap().to_owned())
        .collect();
    assert!(declared().len() > 40);
    assert_eq!(names, declared());
}

/// Greedy answers of `behavior.c` to its prompts, as the Rust API gives them.
fn answers_are_those_of_rust() {
    let adapter = lora::write();
    let program = compile(&test_source("behavior.c"), Link::Shared);
    let text = output(&mut command(&program, &[&tiny(), adapter.path()]));
    let from_c: Vec<Vec<u32>> = text
        .lines()
        .filter_map(|line| line.strip_prefix("greedy"))
        .map(|ids| {
            ids.split_whitespace()
                .map(|id| id.parse().unwrap())
                .collect()
        })
        .collect();

    let config = EngineConfig::default().kv_types(KvType::F32, KvType::F32);
    let engine = Engine::with_config(Model::load(tiny()).unwrap(), &config).unwrap();
    let from_rust = ["Once upon a time", "The", "In the morning, "].map(|prompt| {
        let request = Request::new(prompt).temperature(0.0).max_tokens(24);
        let tokens = engine.submit(request).unwrap();
        tokens.map(|token| token.unwrap().id).collect::<Vec<u32>>()
    });
    assert_eq!(from_c, from_rust);
}

fn bad_input_is_refused() {
    let program = compile(&test_source("bad_input.c"), Link::Shared);
    assert_eq!(output(&mut command(&program, &[&tiny()])), "ok\n");
}

fn bad_input_leaves_no_trace_in_valgrind() {
    let program = compile(&test_source("bad_input.c"), Link::Shared);
    assert!(output(&mut valgrind(&program, &[&tiny()])).ends_with("ok\n"));
}

fn behavior_is_clean_in_valgrind() {
    let adapter = lora::write();
    let program = compile(&test_source("behavior.c"), Link::Shared);
    output(&mut valgrind(&program, &[&tiny(), adapter.path()]));
}

fn bad_input_is_clean_with_address_sanitizer() {
    let program = compile(&test_source("bad_input.c"), Link::AddressSanitizer);
    assert_eq!(output(&mut command(&program, &[&tiny()])), "ok\n");
}

fn behavior_is_clean_with_address_sanitizer() {
    let adapter = lora::write();
    let program = compile(&test_source("behavior.c"), Link::AddressSanitizer);
    output(&mut command(&program, &[&tiny(), adapter.path()]));
}

fn completion_example_runs() {
    let program = compile(&example("completion.c"), Link::Shared);
    let text = output(&mut command(&program, &[&tiny(), Path::new("Hello")]));
    assert!(text.starts_with("Hello") && text.len() > 10, "{text}");
}

fn completion_example_runs_with_the_static_library() {
    let program = compile(&example("completion.c"), Link::Static);
    let text = output(&mut command(&program, &[&tiny(), Path::new("Hello")]));
    assert!(text.starts_with("Hello") && text.len() > 10, "{text}");
}

fn chat_example_runs() {
    let program = compile(&example("chat.c"), Link::Shared);
    let questions = "What is the capital of France?\nAnd of Italy?\n";
    let text = run_with_input(&mut command(&program, &[&smollm2()]), questions);
    assert!(text.lines().count() >= 2, "{text}");
}

fn embeddings_example_runs() {
    let program = compile(&example("embeddings.c"), Link::Shared);
    let texts = ["a cat", "a cat", "something else"].map(Path::new);
    let text = output(&mut command(
        &program,
        &[&tiny(), texts[0], texts[1], texts[2]],
    ));
    let scores: Vec<f32> = text
        .lines()
        .map(|line| line.split_whitespace().next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(scores[..2], [1.0, 1.0]);
    assert!(scores[2] < 0.999, "{text}");
}

/// Eight threads on one engine: each prompt has the answer that it has alone.
fn threads_example_runs() {
    let program = compile(&example("threads.c"), Link::Shared);
    let text = output(&mut command(&program, &[&smollm2(), Path::new("8")]));
    let answers: BTreeSet<&str> = text
        .lines()
        .filter(|line| line.contains(" 32 tokens:"))
        .collect();
    assert_eq!(answers.len(), 8, "{text}");
}

/// The answer that the Rust API gives.
fn go_example_runs() {
    let go = go().unwrap_or_else(|| build::not_installed("go"));
    let source = tempfile::tempdir().unwrap();
    for name in ["go.mod", "main.go"] {
        std::fs::copy(example_directory("go").join(name), source.path().join(name)).unwrap();
    }
    let program = source.path().join("example");
    let mut command = Command::new(go);
    command
        .current_dir(source.path())
        .args(["build", "-o"])
        .arg(&program)
        .arg(".");
    // No other compiler from the network. The first build compiles the runtime of Go, which takes a minute.
    command.envs([
        ("GOTOOLCHAIN", "local"),
        ("GOFLAGS", "-mod=mod"),
        ("CGO_ENABLED", "1"),
    ]);
    command
        .env("GOCACHE", oxidize_testing::cache().join("go-build"))
        .env("GOPATH", source.path().join("path"));
    command.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    tool("pkg-config");
    output(&mut command);
    let (model, question) = (smollm2(), "What is the capital of France?");
    let mut program = Command::new(&program);
    program
        .arg(&model)
        .arg(question)
        .env("LD_LIBRARY_PATH", prefix().join("lib"));
    let engine = Engine::new(Model::load(&model).unwrap()).unwrap();
    let request = Request::chat(question).temperature(0.0).max_tokens(32);
    let answer = engine.submit(request).unwrap().text().unwrap();
    assert_eq!(output(&mut program), format!("{question}\n{answer}\n"));
}

/// A program outside of the repository, as users build it.
fn installed_library_is_found_by_pkg_config() {
    let pkg_config = tool("pkg-config");
    let program = prefix().join("completion-by-pkg-config");
    let mut flags = Command::new(&pkg_config);
    flags.env("PKG_CONFIG_PATH", prefix().join("lib/pkgconfig"));
    let flags = output(flags.args(["--cflags", "--libs", "oxidize"]));
    let mut command = Command::new(tool("cc"));
    command
        .arg(example("completion.c"))
        .arg("-o")
        .arg(&program)
        .args(flags.split_whitespace());
    output(&mut command);
    let mut program = Command::new(&program);
    program
        .arg(tiny())
        .arg("Hello")
        .env("LD_LIBRARY_PATH", prefix().join("lib"));
    let text = output(&mut program);
    assert!(text.starts_with("Hello"), "{text}");
}

fn test_source(name: &str) -> PathBuf {
    repository()
        .join("crates/oxidize-ffi/tests/c_api")
        .join(name)
}

fn example(name: &str) -> PathBuf {
    example_directory("c").join(name)
}

fn example_directory(language: &str) -> PathBuf {
    repository().join("examples").join(language)
}

fn command(program: &Path, arguments: &[&Path]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    command
}

/// The program below valgrind, which knows no AVX-512.
fn valgrind(program: &Path, arguments: &[&Path]) -> Command {
    let mut command = Command::new(tool("valgrind"));
    command.args([
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--show-leak-kinds=definite,indirect",
    ]);
    command.args([
        "--errors-for-leak-kinds=definite,indirect",
        "--fair-sched=yes",
    ]);
    if cfg!(target_arch = "x86_64") {
        command.env("OXIDIZE_ISA", "avx2");
    }
    command.arg(program).args(arguments);
    command
}

/// The Go compiler on the path, or the one that `make test-ffi` installs.
fn go() -> Option<PathBuf> {
    let installed = oxidize_testing::cache().join("go-venv/bin/go");
    if installed.exists() {
        return Some(installed);
    }
    build::find("go")
}
