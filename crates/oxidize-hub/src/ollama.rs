//! Ollama's registry: a manifest of layers, each of which is a blob with its SHA-256.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::client::{Answer, Request};
use crate::disk;
use crate::download::{Checksum, Download, remove_state};
use crate::error::{Error, Result, printable};
use crate::hub::{Hub, PullOptions, Pulled};
use crate::progress::Tally;
use crate::reference::OllamaRef;
use crate::url::Url;

/// Type of the manifest.
const MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";

/// Start of the types of layers.
const LAYER: &str = "application/vnd.ollama.image.";

/// Bytes of a GGUF file in which its chat template is looked for.
const TEMPLATE_BYTES: u64 = 32 << 20;

#[derive(Serialize, Deserialize)]
struct Manifest {
    layers: Vec<Layer>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

impl Layer {
    fn kind(&self) -> &str {
        self.media_type.strip_prefix(LAYER).unwrap_or("")
    }

    /// SHA-256 of the layer.
    fn sha256(&self) -> Option<&str> {
        let hex = self.digest.strip_prefix("sha256:")?;
        (hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(hex)
    }
}

/// Directory of the models of Ollama's registry.
pub(crate) fn root(hub: &Hub) -> Result<PathBuf> {
    Ok(hub.own_cache()?.join("ollama"))
}

/// The GGUF file of a model: a link to its blob.
fn file(root: &Path, model: &OllamaRef) -> PathBuf {
    root.join("models")
        .join(&model.namespace)
        .join(&model.name)
        .join(format!("{}.gguf", model.tag))
}

/// Fetches a model of the registry.
pub(crate) fn pull(
    hub: &Hub,
    name: &str,
    model: &OllamaRef,
    options: &PullOptions<'_>,
) -> Result<Pulled> {
    let client = &hub.client;
    let root = root(hub)?;
    let address = &client.settings.ollama_registry;
    let registry = Url::parse(address).map_err(|problem| Error::BadName {
        name: address.clone(),
        problem: format!("OXIDIZE_OLLAMA_REGISTRY: {problem}"),
    })?;
    let host = registry.origin.host.clone();
    let base = registry.below(&format!("v2/{}/{}", model.namespace, model.name));
    let failure = |answer: Answer| match answer.status {
        401 | 404 => Error::NotFound {
            name: name.into(),
            host: host.clone(),
            with_token: true,
        },
        _ => client.failure(name, answer),
    };
    let request = Request {
        accept: Some(MANIFEST),
        ..Request::get(name, base.below(&format!("manifests/{}", model.tag)))
    };
    let answer = client.send(&request)?;
    if !answer.is_success() {
        return Err(failure(answer));
    }
    let manifest: Manifest = client.json(name, answer)?;
    let layer = |kind: &str| manifest.layers.iter().find(|layer| layer.kind() == kind);
    let not_supported = |problem: &str| Error::NotSupported {
        name: name.into(),
        problem: problem.into(),
    };
    if layer("adapter").is_some() {
        return Err(not_supported(
            "the model is an adapter on another one, which is not supported; use --lora",
        ));
    }
    let Some(weights) = layer("model") else {
        return Err(match layer("tensor") {
            Some(_) => not_supported(
                "the model is in safetensors layers, which are not supported; use its GGUF version",
            ),
            None => not_supported("the manifest has no layer with weights"),
        });
    };
    let sha256 = weights.sha256().ok_or_else(|| Error::BadAnswer {
        name: name.into(),
        host: host.clone(),
        problem: format!("{:?} is not a digest", printable(&weights.digest)),
    })?;
    let blob = root.join("blobs").join(format!("sha256-{sha256}"));
    disk::create_directory(&root.join("blobs"))?;
    let tally = Tally::new(options.observer, weights.size);
    let lock = root.join("locks").join(format!("{sha256}.lock"));
    let _lock = disk::lock(client, name, &lock, options.observer)?;
    if std::fs::metadata(&blob).is_ok_and(|data| data.len() == weights.size) {
        remove_state(&blob)?;
        tally.add(name, sha256, weights.size);
    } else {
        Download {
            client,
            name,
            file: &weights.digest,
            url: base.below(&format!("blobs/{}", weights.digest)),
            token: None,
            size: weights.size,
            checksum: Some(Checksum::Sha256(sha256.to_owned())),
            identity: sha256.to_owned(),
            validator: None,
            failure: &failure,
            tally: &tally,
        }
        .run(&blob, &blob)?;
    }
    let path = file(&root, model);
    disk::link(&blob, &path)?;
    let ignored: Vec<&str> = ["system", "params", "messages", "projector"]
        .into_iter()
        .filter(|kind| layer(kind).is_some())
        .collect();
    if !ignored.is_empty() {
        options
            .observer
            .note(&format!("{name}: its {} are not used", ignored.join(", ")));
    }
    if layer("template").is_some() && !has_template(&path) {
        options.observer.note(&format!(
            "{name}: the file has no chat template, and the one of the registry, in Go's language, is not used; see --chat-template"
        ));
    }
    Ok(Pulled {
        files: vec![path.clone()],
        path,
    })
}

/// True if the GGUF file has a chat template of its own.
fn has_template(path: &Path) -> bool {
    const KEY: &[u8] = b"tokenizer.chat_template";
    let mut start = Vec::new();
    let read = std::fs::File::open(path)
        .and_then(|file| file.take(TEMPLATE_BYTES).read_to_end(&mut start));
    read.is_ok() && start.windows(KEY.len()).any(|window| window == KEY)
}

/// The model in the cache.
pub(crate) fn find(hub: &Hub, model: &OllamaRef) -> Result<Option<Pulled>> {
    let path = file(&root(hub)?, model);
    Ok(path.is_file().then(|| Pulled {
        files: vec![path.clone()],
        path,
    }))
}
