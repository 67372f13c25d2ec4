//! [`Text`]: what models read while they are measured.

use std::path::{Path, PathBuf};

use crate::error::Result;

/// A text and the file that it is from, which is named where the text does not do.
#[derive(Clone, Debug, Default)]
pub struct Text {
    /// The file.
    pub file: PathBuf,
    /// What is in it.
    pub content: String,
}

impl Text {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Text> {
        let content = std::fs::read_to_string(path).map_err(oxidize_core::Error::io(path))?;
        let file = path.to_path_buf();
        Ok(Text { file, content })
    }

    /// A little of everything: prose, talk, code, tables and many languages. For calibrating where there is no
    /// text that is more like what the model is for.
    pub fn built_in() -> Text {
        Text {
            file: "built-in text".into(),
            content: include_str!("calibration.txt").to_owned(),
        }
    }

    /// What the text is called where only a name is kept.
    pub fn name(&self) -> String {
        let name = self.file.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// A number that another text hardly has.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fingerprint::default();
        hash.add(self.content.as_bytes());
        hash.0
    }
}

/// A number that other bytes hardly have (FNV-1a).
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
