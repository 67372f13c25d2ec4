//! What the fuzz targets check, by the kind of their input.

mod files;
mod language;
mod text;

pub use files::*;
pub use language::*;
pub use text::*;
