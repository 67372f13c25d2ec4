//! [`Text`]: an evaluation or calibration text.

use std::path::{Path, PathBuf};

use crate::error::Result;

/// A text and the path of its file, for error messages.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The file.
    pub file: PathBuf,
    /// The contents of the file.
    pub content: String,
}

impl Text {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Text> {
        let content = std::fs::read_to_string(path).map_err(oxidize_core::Error::io(path))?;
        let file = path.to_path_buf();
        Ok(Text { file, content })
    }

    /// A mixed calibration text of prose, dialog, code, tables and many languages, for use when no text of
    /// the model's domain is available.
    pub fn built_in() -> Text {
        Text {
            file: "built-in text".into(),
            content: include_str!("calibration.txt").to_owned(),
        }
    }

    /// The file name without directories.
    pub fn name(&self) -> String {
        let name = self.file.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// Hash of the contents.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        hash.add(self.content.as_bytes());
        hash.0
    }
}

/// FNV-1a hash.
pub(crate) struct Fingerprint(pub(crate) u64);

impl Default for Fingerprint {
    fn default() -> Fingerprint {
        Fingerprint(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        self.0 = bytes.iter().fold(self.0, add);
    }
}
