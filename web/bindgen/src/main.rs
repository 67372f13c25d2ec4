//! Writes the JavaScript of a WebAssembly module: web-bindgen MODULE.wasm DIRECTORY

use std::process::ExitCode;

use wasm_bindgen_cli_support::Bindgen;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [module, directory] = arguments.as_slice() else {
        eprintln!("usage: web-bindgen MODULE.wasm DIRECTORY");
        return ExitCode::from(2);
    };
    let mut bindgen = Bindgen::new();
    let written = bindgen
        .input_path(module)
        .out_name("oxidize")
        .web(true)
        // The package names the module itself, so that bundlers find it.
        .and_then(|bindgen| {
            bindgen
                .omit_default_module_path(true)
                .typescript(false)
                .generate(directory)
        });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
