//! [`Summary`]: main facts about a model, from GGUF metadata or `config.json`.

use std::collections::BTreeMap;

use oxidize_kernels::quant::TensorType;
use serde_json::Value as Json;

use super::gguf::Value;
use super::{Format, ModelFile};

/// Main facts about a model. Facts that the file does not contain are `None`.
#[derive(Clone, Debug)]
pub struct Summary {
    /// Name of the model.
    pub name: Option<String>,
    /// Architecture: `general.architecture`, or `model_type` of `config.json`.
    pub architecture: Option<String>,
    /// Number of parameters.
    pub parameters: u64,
    /// Size of all files in bytes.
    pub file_bytes: u64,
    /// Size of all tensors in bytes when loaded.
    pub weight_bytes: u64,
    /// Name of the quantization type, such as `Q4_K_M`.
    pub file_type: Option<String>,
    /// Types in use, ordered by bytes, largest first.
    pub types: Vec<TypeCount>,
    /// Context length that the model was trained for.
    pub context_length: Option<u64>,
    /// Layers.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub embedding_length: Option<u64>,
    /// Width of the feed-forward layers.
    pub feed_forward_length: Option<u64>,
    /// Attention heads.
    pub heads: Option<u64>,
    /// Key and value heads; the maximum if layers differ.
    pub kv_heads: Option<u64>,
    /// Number of experts, and of those used per token.
    pub experts: Option<(u64, u64)>,
    /// Vocabulary size.
    pub vocabulary: Option<u64>,
    /// Kind of tokenizer, or name of its file.
    pub tokenizer: Option<String>,
    /// True if the model has a chat template.
    pub chat_template: bool,
}

/// Use of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TypeCount {
    /// Type.
    pub ty: TensorType,
    /// Number of tensors of the type.
    pub tensors: u64,
    /// Bytes of these tensors.
    pub bytes: u64,
}

impl Summary {
    /// Reads the summary without reading tensor data.
    pub fn of(model: &ModelFile) -> Summary {
        let facts = match model.config() {
            Some(config) => Facts::Config(config),
            None => Facts::Gguf(model),
        };
        let types = count_types(model);
        let sum = |numbers: &mut dyn Iterator<Item = u64>| numbers.fold(0, u64::saturating_add);
        let heads = facts.number(&HEADS);
        let kv_heads = facts.numbers(&KV_HEADS);
        let (name, tokenizer) = (facts.name(), facts.tokenizer(model));
        Summary {
            name,
            architecture: facts.architecture(),
            parameters: sum(&mut model.tensors().iter().map(|tensor| tensor.elements())),
            file_bytes: sum(&mut model.files().map(|(_, len)| len)),
            weight_bytes: sum(&mut types.iter().map(|count| count.bytes)),
            file_type: file_type(model, &types),
            types,
            context_length: facts.number(&CONTEXT),
            layers: facts.number(&LAYERS),
            embedding_length: facts.number(&EMBEDDING),
            feed_forward_length: facts.numbers(&FEED_FORWARD).into_iter().max(),
            heads,
            kv_heads: kv_heads.iter().copied().max().or(heads),
            experts: facts.number(&EXPERTS).zip(facts.number(&EXPERTS_USED)),
            vocabulary: facts.vocabulary(),
            tokenizer,
            chat_template: facts.chat_template(model),
        }
    }
}

/// Hyper-parameter: GGUF key after the architecture's name, and names in `config.json`.
struct Parameter {
    gguf: &'static str,
    config: &'static [&'static str],
}

const CONTEXT: Parameter = Parameter {
    gguf: "context_length",
    config: &[
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "seq_length",
        "max_seq_len",
    ],
};
const LAYERS: Parameter = Parameter {
    gguf: "block_count",
    config: &["num_hidden_layers", "n_layer", "n_layers", "num_layers"],
};
const EMBEDDING: Parameter = Parameter {
    gguf: "embedding_length",
    config: &["hidden_size", "n_embd", "d_model", "dim"],
};
const FEED_FORWARD: Parameter = Parameter {
    gguf: "feed_forward_length",
    config: &["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"],
};
const HEADS: Parameter = Parameter {
    gguf: "attention.head_count",
    config: &["num_attention_heads", "n_head", "n_heads"],
};
const KV_HEADS: Parameter = Parameter {
    gguf: "attention.head_count_kv",
    config: &[
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
    ],
};
const EXPERTS: Parameter = Parameter {
    gguf: "expert_count",
    config: &[
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_num_experts",
    ],
};
const EXPERTS_USED: Parameter = Parameter {
    gguf: "expert_used_count",
    config: &[
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_top_k",
        "top_k_experts",
    ],
};

/// Source of the facts.
enum Facts<'a> {
    Gguf(&'a ModelFile),
    Config(&'a Json),
}

impl Facts<'_> {
    fn architecture(&self) -> Option<String> {
        match self {
            Facts::Gguf(model) => model
                .metadata()
                .str("general.architecture")
                .map(str::to_owned),
            Facts::Config(config) => config.get("model_type")?.as_str().map(str::to_owned),
        }
    }

    fn name(&self) -> Option<String> {
        match self {
            Facts::Gguf(model) => model.metadata().str("general.name").map(str::to_owned),
            Facts::Config(config) => {
                let name = config.get("_name_or_path")?.as_str()?;
                let last = name.trim_end_matches('/').rsplit('/').next()?;
                (!last.is_empty()).then(|| last.to_owned())
            }
        }
    }

    fn number(&self, parameter: &Parameter) -> Option<u64> {
        match self {
            Facts::Gguf(model) => model.metadata().u64(&self.key(parameter)?),
            Facts::Config(_) => self.json(parameter)?.as_u64(),
        }
    }

    /// Value for all layers, or one per layer; empty if the file contains none.
    fn numbers(&self, parameter: &Parameter) -> Vec<u64> {
        let listed: Option<Vec<u64>> = match self {
            Facts::Gguf(model) => self.key(parameter).and_then(|key| {
                let numbers = model.metadata().array(&key)?.iter_i64()?;
                Some(numbers.map(|n| u64::try_from(n).unwrap_or(0)).collect())
            }),
            Facts::Config(_) => self
                .json(parameter)
                .and_then(Json::as_array)
                .map(|array| array.iter().map(|n| n.as_u64().unwrap_or(0)).collect()),
        };
        listed.unwrap_or_else(|| self.number(parameter).into_iter().collect())
    }

    fn key(&self, parameter: &Parameter) -> Option<String> {
        Some(format!("{}.{}", self.architecture()?, parameter.gguf))
    }

    /// Value in `config.json`, or in the nested configuration of a multimodal model's language
    /// model.
    fn json(&self, parameter: &Parameter) -> Option<&Json> {
        parameter
            .config
            .iter()
            .find_map(|name| self.json_named(name))
    }

    fn json_named(&self, name: &str) -> Option<&Json> {
        let Facts::Config(config) = self else {
            return None;
        };
        let text = ["text_config", "llm_config"]
            .iter()
            .find_map(|part| config.get(part));
        text.and_then(|text| text.get(name))
            .or_else(|| config.get(name))
            .filter(|v| !v.is_null())
    }

    fn vocabulary(&self) -> Option<u64> {
        match self {
            Facts::Gguf(model) => {
                let tokens = model.metadata().array("tokenizer.ggml.tokens");
                let listed = tokens.map(|tokens| tokens.len() as u64);
                listed.or_else(|| {
                    model
                        .metadata()
                        .u64(&format!("{}.vocab_size", self.architecture()?))
                })
            }
            Facts::Config(_) => self.json_named("vocab_size")?.as_u64(),
        }
    }

    fn tokenizer(&self, model: &ModelFile) -> Option<String> {
        match self {
            Facts::Gguf(model) => {
                let kind = model.metadata().str("tokenizer.ggml.model")?;
                match model.metadata().str("tokenizer.ggml.pre") {
                    Some(pre) => Some(format!("{kind} ({pre})")),
                    None => Some(kind.to_owned()),
                }
            }
            Facts::Config(_) => ["tokenizer.json", "tokenizer.model", "vocab.txt"]
                .into_iter()
                .find(|name| model.sidecar(name).is_some())
                .map(str::to_owned),
        }
    }

    fn chat_template(&self, model: &ModelFile) -> bool {
        match self {
            Facts::Gguf(model) => model.metadata().get("tokenizer.chat_template").is_some(),
            Facts::Config(_) => {
                let in_config = || {
                    const MAX_BYTES: u64 = 16 << 20;
                    let path = model.sidecar("tokenizer_config.json")?;
                    path.metadata()
                        .ok()
                        .filter(|info| info.len() <= MAX_BYTES)?;
                    let config: Json = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
                    Some(!config.get("chat_template")?.is_null())
                };
                model.sidecar("chat_template.jinja").is_some() || in_config() == Some(true)
            }
        }
    }
}

fn count_types(model: &ModelFile) -> Vec<TypeCount> {
    let mut counts: BTreeMap<TensorType, TypeCount> = BTreeMap::new();
    for tensor in model.tensors() {
        let ty = tensor.ty;
        let count = counts.entry(ty).or_insert(TypeCount {
            ty,
            tensors: 0,
            bytes: 0,
        });
        count.tensors += 1;
        count.bytes = count.bytes.saturating_add(tensor.bytes);
    }
    let mut counts: Vec<_> = counts.into_values().collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.bytes));
    counts
}

/// Name of the quantization type: from the file, else the type with the most bytes.
fn file_type(model: &ModelFile, types: &[TypeCount]) -> Option<String> {
    if let (Format::Mlx, Some(config)) = (model.format(), model.config()) {
        let bits = config.get("quantization")?.get("bits")?.as_u64()?;
        return Some(format!("MLX {bits}-bit"));
    }
    // Flag of types that a converter guessed.
    const GUESSED: u64 = 1024;
    let id = model
        .metadata()
        .get("general.file_type")
        .as_ref()
        .and_then(Value::as_u64);
    let named = id.and_then(|id| {
        FILE_TYPES
            .iter()
            .find(|(known, _)| *known == id & !GUESSED)
            .map(|(_, name)| *name)
    });
    let most = types.first().map(|count| count.ty.name());
    named.or(most).map(str::to_owned)
}

/// Ids of `general.file_type`, as in llama.cpp's `llama_ftype`.
const FILE_TYPES: &[(u64, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
];
