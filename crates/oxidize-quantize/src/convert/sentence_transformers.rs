//! Files of sentence-transformers for embedding and classifier models: pooling, projections and labels.

use oxidize_core::embedding::Pooling;
use oxidize_core::file::ModelFile;
use serde_json::{Map, Value, json};

use crate::tensor::Tensor;

/// The directory of a projection's tensor, such as `2_Dense`.
pub(super) fn module_directory<'t>(tensor: &'t Tensor<'_>) -> Option<&'t str> {
    let (directory, _) = tensor.name.split_once('.')?;
    directory.ends_with("_Dense").then_some(directory)
}

/// The `config.json` of a projection.
pub(super) fn projection(tensor: &Tensor<'_>) -> Value {
    json!({
        "in_features": tensor.columns(),
        "out_features": tensor.rows(),
        "bias": false,
        "activation_function": "torch.nn.modules.linear.Identity",
    })
}

/// The pooling configuration and the list of modules, as file names and contents.
pub(super) fn modules(
    file: &ModelFile,
    arch: &str,
    projections: &[String],
) -> Vec<(String, Value)> {
    let pooling = match Pooling::of_file(file, arch) {
        Some(pooling @ (Pooling::Mean | Pooling::Cls | Pooling::Last)) => pooling,
        _ => return Vec::new(),
    };
    let width = file.metadata().u64(&format!("{arch}.embedding_length"));
    let config = json!({
        "word_embedding_dimension": width,
        "pooling_mode_cls_token": pooling == Pooling::Cls,
        "pooling_mode_mean_tokens": pooling == Pooling::Mean,
        "pooling_mode_lasttoken": pooling == Pooling::Last,
    });
    let first = [("", "Transformer"), ("1_Pooling", "Pooling")];
    let rest = projections.iter().map(|path| (path.as_str(), "Dense"));
    let list = first.into_iter().chain(rest).enumerate();
    let list = list.map(|(i, (path, kind))| {
        let kind = format!("sentence_transformers.models.{kind}");
        json!({ "idx": i, "name": i.to_string(), "path": path, "type": kind })
    });
    vec![
        ("1_Pooling/config.json".into(), config),
        ("modules.json".into(), list.collect()),
    ]
}

/// Adds the labels of a classifier to a configuration.
pub(super) fn labels(file: &ModelFile, arch: &str, config: &mut Value) {
    let key = format!("{arch}.classifier.output_labels");
    let Some(labels) = file.metadata().get(&key).and_then(|list| list.as_array()) else {
        return;
    };
    let (mut names, mut numbers) = (Map::new(), Map::new());
    for (i, label) in labels.iter().enumerate() {
        if let Some(label) = label.as_str() {
            names.insert(i.to_string(), Value::from(label));
            numbers.insert(label.to_owned(), Value::from(i));
        }
    }
    if let Value::Object(config) = config {
        config.insert("id2label".into(), Value::Object(names));
        config.insert("label2id".into(), Value::Object(numbers));
    }
}
