//! Names of the files of a split model: `NAME-00002-of-00005.gguf`.

use std::path::{Path, PathBuf};

/// Parsed name of a file of a split model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartName {
    /// Path before the number.
    pub stem: PathBuf,
    /// Number of the part, from 1.
    pub number: u64,
    /// Number of parts.
    pub count: u64,
}

impl PartName {
    /// Parses the name of a part; `None` if it has another form.
    pub fn parse(path: &Path) -> Option<PartName> {
        let name = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = name.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let digits = |text: &str| {
            let plain = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            if plain { text.parse().ok() } else { None }
        };
        let (number, count) = (digits(number)?, digits(count)?);
        let valid = (1..=count).contains(&number);
        valid.then(|| PartName {
            stem: path.with_file_name(stem),
            number,
            count,
        })
    }

    /// Path of part `number`, from 1.
    pub fn path(&self, number: u64) -> PathBuf {
        let mut path = self.stem.clone().into_os_string();
        path.push(format!("-{number:05}-of-{:05}.gguf", self.count));
        PathBuf::from(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let path = Path::new("models/Big-Model-00002-of-00005.gguf");
        let part = PartName::parse(path).unwrap();
        assert_eq!((part.number, part.count), (2, 5));
        assert_eq!(part.path(2), path);
        assert_eq!(
            part.path(5),
            Path::new("models/Big-Model-00005-of-00005.gguf")
        );
    }

    #[test]
    fn other_names_are_not_parts() {
        for name in [
            "model.gguf",
            "model-1-of-2.gguf",
            "model-00003-of-00002.gguf",
            "model-00000-of-00002.gguf",
            "model-+0001-of-00002.gguf",
            "model-00001-of-00002.bin",
        ] {
            assert_eq!(PartName::parse(Path::new(name)), None, "{name}");
        }
    }
}
