//! Versions of the library and of its binary interface.

use std::ffi::{CStr, c_char};

/// Version of the binary interface that this header describes. `oxidize_abi_version` has that of the library.
pub const ABI_VERSION: u32 = 1;

/// The version of the package, with a NUL.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Version of the library, such as "0.1.0". Never null; the text is static.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_version() -> *const c_char {
    let version = CStr::from_bytes_with_nul(VERSION.as_bytes());
    version.unwrap_or(c"").as_ptr()
}

/// Version of the binary interface of the library. It changes when a program that was compiled for another one would not
/// run; functions and fields at the end of structs of options may be added without a change.
#[unsafe(no_mangle)]
pub extern "C" fn oxidize_abi_version() -> u32 {
    ABI_VERSION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_that_of_the_package() {
        // SAFETY: the text is static and ends with NUL.
        let version = unsafe { CStr::from_ptr(oxidize_version()) };
        assert_eq!(version.to_str(), Ok(env!("CARGO_PKG_VERSION")));
    }
}
