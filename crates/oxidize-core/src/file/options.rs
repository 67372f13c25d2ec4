//! [`OpenOptions`]: how a model is opened.

use std::sync::Arc;

use crate::limits::Limits;

/// Told how many bytes of tensors were handed out so far, and how many there are.
pub type Progress = Arc<dyn Fn(u64, u64) + Send + Sync>;

/// How to open a model.
#[derive(Clone)]
pub struct OpenOptions {
    /// Map files into memory instead of reading them. Off, a file that another process changes
    /// meanwhile cannot harm this one.
    pub mmap: bool,
    /// Move a mapped file to huge pages before it is run, where the system has them and memory for
    /// twice its size: its weights are then read faster, but not shared with other processes.
    pub huge_pages: bool,
    /// How much larger than in the file weights may become for the sake of speed.
    pub spell_out: SpellOut,
    /// Give weights that a directory keeps packed out as F32, with all digits, instead of as what such models are
    /// computed in.
    pub unpack_exactly: bool,
    /// What a file may ask for.
    pub limits: Limits,
    /// Called as tensors are loaded.
    pub progress: Option<Progress>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            mmap: true,
            huge_pages: true,
            spell_out: SpellOut::default(),
            unpack_exactly: false,
            limits: Limits::default(),
            progress: None,
        }
    }
}

impl std::fmt::Debug for OpenOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenOptions")
            .field("mmap", &self.mmap)
            .field("huge_pages", &self.huge_pages)
            .field("spell_out", &self.spell_out)
            .field("unpack_exactly", &self.unpack_exactly)
            .field("limits", &self.limits)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

/// By how much weights may grow when a model is run. Formats that look their weights up in tables (IQ1_S to
/// IQ3_S) are rewritten in memory where that makes them faster, as many as this allows; the rewritten ones take
/// the place of the file's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpellOut {
    /// Bytes in all.
    pub bytes: u64,
}

impl SpellOut {
    /// Nothing is rewritten.
    pub const OFF: SpellOut = SpellOut { bytes: 0 };
    /// Everything that gains from it.
    pub const ALL: SpellOut = SpellOut { bytes: u64::MAX };
    const MIB: u64 = 1 << 20;
}

/// Enough for most of a billion weights, and little enough that a process with them, the buffers of a prompt and all
/// else stays below its file, its KV cache and 200 MiB.
impl Default for SpellOut {
    fn default() -> SpellOut {
        SpellOut {
            bytes: 112 * SpellOut::MIB,
        }
    }
}

impl std::fmt::Display for SpellOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            SpellOut::OFF => f.pad("off"),
            SpellOut::ALL => f.pad("all"),
            SpellOut { bytes } => write!(f, "{}", bytes / SpellOut::MIB),
        }
    }
}

impl std::str::FromStr for SpellOut {
    type Err = String;

    fn from_str(text: &str) -> Result<SpellOut, String> {
        match text {
            "off" => Ok(SpellOut::OFF),
            "all" => Ok(SpellOut::ALL),
            _ => {
                let mib: Option<u64> = text.parse().ok();
                let bytes = mib.and_then(|mib| mib.checked_mul(SpellOut::MIB));
                let bytes = bytes.ok_or("expected a number of MiB, `all` or `off`")?;
                Ok(SpellOut { bytes })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spelling_out_is_a_number_all_or_off() {
        for text in ["off", "all", "112", "1"] {
            let parsed: SpellOut = text.parse().unwrap();
            assert_eq!(parsed.to_string(), text);
        }
        assert_eq!(SpellOut::default().to_string(), "112");
        assert_eq!("0".parse(), Ok(SpellOut::OFF));
        for text in ["", "-1", "none", "99999999999999999999"] {
            assert!(text.parse::<SpellOut>().is_err(), "{text}");
        }
    }
}
