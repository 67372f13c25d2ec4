//! What the fuzz targets check, by the kind of their input.

mod files;
mod text;

pub use files::*;
pub use text::*;
