//! [`find_model`]: the path of a model argument, which is a path, the name of a model in the cache, or a name such as
//! `hf:user/repo`, whose files are fetched.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use oxidize_hub::quantization::{bits, split_part, split_quantization};
use oxidize_hub::{Library, ModelRef, touch};

use crate::console::status;
use crate::{hub, style};

/// The model used if none is given, without quantization and extension.
const DEFAULT_MODEL: &str = "SmolLM2-135M-Instruct";

/// Maximum number of names that an error lists.
const MAX_LISTED: usize = 5;

/// Jaro-Winkler similarity from which a name counts as close.
const CLOSE: f64 = 0.8;

/// Resolves a model argument to a path. Without an argument, it is the default model.
///
/// The name of a model in the cache may leave out the extension and the quantization. Where that leaves
/// several files, Q4_K_M is preferred as in llama.cpp, then the smallest type of at least 4 bits; a message
/// names the choice. A name such as `hf:user/repo` is fetched if it is not in the cache.
pub(crate) fn find_model(argument: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let path = find(argument)?;
    // `oxidize rm --unused` reads this; file systems often do not record reads.
    if path.is_file() {
        touch(&path);
    }
    Ok(path)
}

fn find(argument: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    let dim = style::for_stderr().dim;
    let Some(path) = argument else {
        let cache = Cache::open();
        let found = cache.as_ref().and_then(|cache| cache.find(DEFAULT_MODEL));
        let found = found.with_context(|| {
            let place = match &cache {
                Some(cache) => format!("not in {}", cache.directory.display()),
                None => "no cache directory is known; set HOME or XDG_CACHE_HOME".to_owned(),
            };
            format!(
                "no model given, and the default model {DEFAULT_MODEL} was not found: {place}; pass a path with -m"
            )
        })?;
        status!("{dim}using {}{dim:#}", found.path.display());
        return Ok(found.path);
    };
    if path.exists() {
        return Ok(path);
    }
    if let Some(model) = path.to_str().and_then(ModelRef::parse) {
        return Ok(hub::open(&model?)?.path);
    }
    let name = path
        .to_str()
        .filter(|_| path.components().count() == 1)
        .with_context(|| format!("{}: no such file or directory", path.display()))?;
    let Some(cache) = Cache::open() else {
        bail!("{name}: no such file or directory");
    };
    let Some(found) = cache.find(name) else {
        // The name of a file that another tool, or a pull, has put into the hub's cache.
        let matches = Library::new(&hub::settings()).matching(name);
        match matches.as_slice() {
            [] => bail!(cache.not_found(name)),
            [model] => return Ok(model.path.clone()),
            models => {
                let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
                bail!(
                    "{name}: several models match; name one: {}",
                    names.join(", ")
                );
            }
        }
    };
    if !found.others.is_empty() {
        let others = found.others.join(", ");
        status!(
            "{dim}using {}; also in the cache: {others}{dim:#}",
            found.path.display()
        );
    }
    Ok(found.path)
}

/// The model of a subcommand that accepts it with `-m` and as its first argument.
pub(crate) fn flag_or_argument(
    flag: Option<PathBuf>,
    argument: Option<PathBuf>,
) -> anyhow::Result<Option<PathBuf>> {
    match (flag, argument) {
        (Some(flag), Some(argument)) if !is_from_environment(&flag) => bail!(
            "two models: -m {} and {}; give one of them",
            flag.display(),
            argument.display()
        ),
        (flag, argument) => Ok(argument.or(flag)),
    }
}

/// True if the value of `-m` is the default that `OXIDIZE_MODEL` sets.
pub(crate) fn is_from_environment(flag: &Path) -> bool {
    std::env::var_os("OXIDIZE_MODEL").is_some_and(|value| value == flag.as_os_str())
}

/// Directory of models with a name of their own.
fn cache_directory() -> Option<PathBuf> {
    Library::new(&hub::settings()).names_directory()
}

/// The models in the cache directory.
struct Cache {
    directory: PathBuf,
    models: Vec<CachedModel>,
}

/// A model in the cache.
struct CachedModel {
    /// Name of the file or directory.
    file_name: String,
    /// Name without extension and part number.
    stem: String,
    /// Stem without quantization.
    base: String,
    /// Quantization, such as `Q4_K_M`; empty if the name has none.
    quantization: String,
    size: u64,
}

/// A model found by name.
struct Found {
    path: PathBuf,
    /// Names of the other models that match.
    others: Vec<String>,
}

impl Cache {
    /// Reads the cache directory, which may not exist yet; `None` if no directory is known.
    fn open() -> Option<Cache> {
        let directory = cache_directory()?;
        let entries = std::fs::read_dir(&directory).into_iter().flatten();
        let mut models: Vec<CachedModel> = entries
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let data = std::fs::metadata(entry.path()).ok()?;
                CachedModel::new(name, data.is_dir(), data.len())
            })
            .collect();
        models.sort_by(|a, b| a.file_name.cmp(&b.file_name));
        Some(Cache { directory, models })
    }

    /// Finds a model by its file name, by its stem, or by its stem without quantization, in this order; case
    /// matters only between names that differ in nothing else.
    fn find(&self, name: &str) -> Option<Found> {
        // Files without a known extension are found by their whole name only.
        let whole = self.directory.join(name);
        if whole.exists() {
            let others = Vec::new();
            return Some(Found {
                path: whole,
                others,
            });
        }
        let keys: [fn(&CachedModel) -> &str; 3] = [
            |model| &model.file_name,
            |model| &model.stem,
            |model| &model.base,
        ];
        let equal: [fn(&str, &str) -> bool; 2] =
            [|a, b| a == b, |a, b| a.to_lowercase() == b.to_lowercase()];
        let mut tiers = keys
            .iter()
            .flat_map(|key| equal.iter().map(move |equal| (key, equal)));
        let mut matches: Vec<&CachedModel> = tiers.find_map(|(key, equal)| {
            let models = self.models.iter();
            let matches: Vec<_> = models.filter(|model| equal(key(model), name)).collect();
            (!matches.is_empty()).then_some(matches)
        })?;
        matches.sort_by_key(|model| model.rank());
        let (first, others) = matches.split_first()?;
        Some(Found {
            path: self.directory.join(&first.file_name),
            others: others.iter().map(|m| m.file_name.clone()).collect(),
        })
    }

    /// The error for a name that no model has.
    fn not_found(&self, name: &str) -> String {
        let mut error = format!(
            "{name}: no such file or directory, and no model of this name in {}",
            self.directory.display()
        );
        let similarity = |model: &&CachedModel| {
            let name = name.to_lowercase();
            [&model.stem, &model.base]
                .map(|key| strsim::jaro_winkler(&name, &key.to_lowercase()))
                .into_iter()
                .fold(0.0, f64::max)
        };
        let mut close: Vec<&CachedModel> = self
            .models
            .iter()
            .filter(|m| similarity(m) >= CLOSE)
            .collect();
        close.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)));
        let (title, listed) = match (close.is_empty(), self.models.is_empty()) {
            (false, _) => ("similar names", close),
            (true, false) => ("it has", self.models.iter().collect()),
            (true, true) => return error + ", which has no models",
        };
        let names: Vec<&str> = listed
            .iter()
            .map(|m| m.stem.as_str())
            .take(MAX_LISTED)
            .collect();
        let more = match listed.len() - names.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        error.push_str(&format!("; {title}: {}{more}", names.join(", ")));
        error
    }
}

impl CachedModel {
    /// The model of a directory entry; `None` if it is none, or a further part of a split model.
    fn new(file_name: String, is_directory: bool, size: u64) -> Option<CachedModel> {
        let stem = if is_directory {
            file_name.as_str()
        } else {
            let stem = ["gguf", "safetensors"].iter().find_map(|ending| {
                let (stem, extension) = file_name.rsplit_once('.')?;
                extension.eq_ignore_ascii_case(ending).then_some(stem)
            })?;
            match split_part(stem) {
                Some((stem, 1, _)) => stem,
                Some(_) => return None,
                None => stem,
            }
        };
        let (base, quantization) = split_quantization(stem).unwrap_or((stem, ""));
        Some(CachedModel {
            stem: stem.to_owned(),
            base: base.to_owned(),
            quantization: quantization.to_uppercase(),
            file_name,
            size,
        })
    }

    /// Order of preference, the smallest first.
    fn rank(&self) -> (bool, bool, Reverse<u64>, u64) {
        // Below 4 bits, the largest file is the best one.
        let low = bits(&self.quantization).is_some_and(|bits| bits < 4);
        let (large_first, small_first) = if low { (self.size, 0) } else { (0, self.size) };
        let is_preferred = self.quantization == "Q4_K_M";
        (!is_preferred, low, Reverse(large_first), small_first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cache with these files, as name and size.
    fn cache(files: &[(&str, u64)]) -> Cache {
        let models = files
            .iter()
            .filter_map(|&(name, size)| CachedModel::new(name.to_owned(), false, size))
            .collect();
        Cache {
            directory: "/no/such/cache".into(),
            models,
        }
    }

    fn found(cache: &Cache, name: &str) -> Option<String> {
        let path = cache.find(name)?.path;
        Some(path.file_name()?.to_string_lossy().into_owned())
    }

    #[test]
    fn names_without_quantization_and_extension_are_found() {
        let cache = cache(&[
            ("SmolLM2-135M-Instruct.Q4_1.gguf", 90),
            ("stories15M-f32.gguf", 60),
            ("Qwen3-0.6B-UD-Q4_K_XL.gguf", 50),
            ("big-Q8_0-00001-of-00002.gguf", 10),
            ("big-Q8_0-00002-of-00002.gguf", 10),
            ("notes.txt", 1),
        ]);
        for name in [
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "SmolLM2-135M-Instruct.Q4_1",
            "SmolLM2-135M-Instruct",
            "smollm2-135m-instruct",
        ] {
            let expected = Some("SmolLM2-135M-Instruct.Q4_1.gguf");
            assert_eq!(found(&cache, name).as_deref(), expected, "{name}");
        }
        assert!(found(&cache, "stories15M").is_some_and(|file| file == "stories15M-f32.gguf"));
        assert!(found(&cache, "Qwen3-0.6B").is_some_and(|file| file.ends_with("XL.gguf")));
        let whole = cache.find("big").unwrap();
        assert!(whole.path.ends_with("big-Q8_0-00001-of-00002.gguf") && whole.others.is_empty());
        for name in ["SmolLM2", "notes", "Instruct", ""] {
            assert_eq!(found(&cache, name), None, "{name}");
        }
    }

    #[test]
    fn among_quantizations_the_preferred_one_is_chosen() {
        let mut files = vec![
            ("m.Q4_K_M.gguf", 45),
            ("m-Q8_0.gguf", 80),
            ("m.F16.gguf", 160),
            ("m-IQ3_M.gguf", 30),
            ("m-Q2_K.gguf", 20),
        ];
        assert_eq!(cache(&files).find("m").unwrap().others.len(), 4);
        while let Some(&(best, _)) = files.first() {
            let reversed: Vec<_> = files.iter().rev().copied().collect();
            assert_eq!(found(&cache(&reversed), "m").as_deref(), Some(best));
            files.remove(0);
        }
    }

    #[test]
    fn unknown_names_get_suggestions() {
        let cache = cache(&[("SmolLM2-135M-Instruct.Q4_1.gguf", 9), ("zebra.gguf", 1)]);
        let error = cache.not_found("SmolLM-135M");
        assert!(error.contains("/no/such/cache; similar names: SmolLM2-135M-Instruct.Q4_1"));
        assert!(!error.contains("zebra"), "{error}");
        assert!(cache.not_found("gpt").contains("it has: Smol"));
        let empty = super::tests::cache(&[]).not_found("gpt");
        assert!(empty.ends_with("has no models"), "{empty}");
    }
}
