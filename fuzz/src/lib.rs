//! Checks of the fuzz targets, by kind of input.

mod files;
mod language;
mod text;

pub use files::*;
pub use language::*;
pub use text::*;
