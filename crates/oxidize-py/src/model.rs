//! The Python class `Model`.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use oxidize_core::chat::{
    ChatError, ChatInput, ChatOptions, Conversation, MessageDelta, MessageFormat,
    MessageParserOptions,
};
use oxidize_core::file::gguf::Value;
use oxidize_core::file::{ModelFile, OpenOptions};
use oxidize_core::grammar::{Grammar, GrammarError, Grammars};
use oxidize_core::graph::OutputKind;
use oxidize_core::graph::rope::RopeScaling;
use oxidize_core::model::{RopeOverride, ScalingKind};
use oxidize_core::{Adapter, ChatTemplate, MetadataValue};
use oxidize_server::tools::{ToolChoice, Tools};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Map, Value as Json, json};

use crate::error::exception;
use crate::tokenizer::Tokenizer;

/// A value that replaces one of the metadata.
#[derive(FromPyObject)]
pub(crate) enum OverrideArg {
    #[pyo3(transparent)]
    Bool(bool),
    #[pyo3(transparent)]
    Int(i64),
    #[pyo3(transparent)]
    Float(f64),
    #[pyo3(transparent)]
    Str(String),
}

impl From<OverrideArg> for MetadataValue {
    fn from(value: OverrideArg) -> MetadataValue {
        match value {
            OverrideArg::Bool(flag) => MetadataValue::Bool(flag),
            OverrideArg::Int(n) => MetadataValue::Int(n),
            OverrideArg::Float(x) => MetadataValue::Float(x),
            OverrideArg::Str(text) => MetadataValue::Str(text),
        }
    }
}

/// Parameters of RoPE: a dictionary with `freq_base`. Other keys may be missing; None is the file's own value.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct RopeArgs {
    freq_base: Option<f32>,
    #[pyo3(default)]
    freq_scale: Option<f32>,
    /// Number of the kind of scaling in llama.cpp.
    #[pyo3(default)]
    scaling_type: Option<i64>,
    #[pyo3(default)]
    yarn_orig_ctx: Option<f32>,
    #[pyo3(default)]
    yarn_ext_factor: Option<f32>,
    #[pyo3(default)]
    yarn_attn_factor: Option<f32>,
    #[pyo3(default)]
    yarn_beta_fast: Option<f32>,
    #[pyo3(default)]
    yarn_beta_slow: Option<f32>,
    #[pyo3(default)]
    n_ctx: Option<usize>,
}

impl RopeArgs {
    fn parameters(self) -> PyResult<RopeOverride> {
        let kind = match self.scaling_type {
            None => None,
            Some(0) => Some(ScalingKind::None),
            Some(1) => Some(ScalingKind::Linear),
            Some(2) => Some(ScalingKind::Yarn),
            Some(number) => {
                let text = format!(
                    "rope_scaling_type {number}; -1 (the model's), 0 (none), 1 (linear) and 2 (YaRN) are supported"
                );
                return Err(PyValueError::new_err(text));
            }
        };
        Ok(RopeOverride {
            base: self.freq_base,
            scale: self.freq_scale,
            kind,
            original_context: self.yarn_orig_ctx,
            extrapolation: self.yarn_ext_factor,
            beta_fast: self.yarn_beta_fast,
            beta_slow: self.yarn_beta_slow,
            magnitude: self.yarn_attn_factor,
            context: self.n_ctx,
        })
    }
}

/// A loaded model. Its weights stay in the file until they are used.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct Model {
    pub(crate) inner: oxidize_core::Model,
    grammars: OnceLock<Result<Arc<Grammars>, GrammarError>>,
}

#[pymethods]
impl Model {
    /// Loads a model; `adapters` are LoRA files and their scales. `overrides` replace metadata of the file, and `rope`
    /// its parameters of RoPE.
    #[new]
    #[pyo3(signature = (path, *, mmap=true, adapters=Vec::new(), overrides=Vec::new(), rope=None))]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        mmap: bool,
        adapters: Vec<(PathBuf, f32)>,
        overrides: Vec<(String, OverrideArg)>,
        rope: Option<RopeArgs>,
    ) -> PyResult<Model> {
        let rope = match rope {
            Some(rope) => rope.parameters()?,
            None => RopeOverride::default(),
        };
        let overrides = overrides.into_iter();
        let overrides = overrides.map(|(key, value)| (key, value.into())).collect();
        let load = || {
            let options = OpenOptions {
                mmap,
                overrides,
                ..OpenOptions::default()
            };
            let file = ModelFile::open(&path, &options)?;
            let model = oxidize_core::Model::from_file_with_rope(file, rope)?;
            let adapters = adapters.into_iter();
            let options = OpenOptions {
                mmap,
                ..OpenOptions::default()
            };
            let adapters =
                adapters.map(|(path, scale)| Ok((Adapter::open(path, &options)?, scale)));
            match adapters.collect::<oxidize_core::Result<Vec<_>>>()? {
                none if none.is_empty() => Ok(model),
                adapters => model.with_adapters(adapters),
            }
        };
        let inner = py.detach(load).map_err(exception)?;
        Ok(Model {
            inner,
            grammars: OnceLock::new(),
        })
    }

    #[getter]
    fn architecture(&self) -> &'static str {
        self.inner.architecture()
    }

    #[getter]
    fn path(&self) -> PathBuf {
        self.inner.path().to_path_buf()
    }

    #[getter]
    fn n_vocab(&self) -> usize {
        self.inner.n_vocab()
    }

    #[getter]
    fn n_ctx_train(&self) -> usize {
        self.inner.context_length()
    }

    #[getter]
    fn n_embd(&self) -> usize {
        self.inner.hparams().n_embd
    }

    #[getter]
    fn n_layer(&self) -> usize {
        self.inner.hparams().layers.len()
    }

    #[getter]
    fn n_params(&self) -> u64 {
        self.inner.n_params()
    }

    /// Bytes of all tensors in the file.
    #[getter]
    fn n_bytes(&self) -> u64 {
        self.inner.file().files().map(|(_, bytes)| bytes).sum()
    }

    /// Base of RoPE's frequencies in the first layer that has RoPE.
    #[getter]
    fn rope_freq_base(&self) -> Option<f32> {
        self.inner.hparams().ropes.first().map(|rope| rope.base)
    }

    /// Factor of RoPE's frequencies by linear scaling or YaRN.
    #[getter]
    fn rope_freq_scale(&self) -> Option<f32> {
        let rope = self.inner.hparams().ropes.first()?;
        Some(match &rope.scaling {
            RopeScaling::Linear(factor) => 1.0 / factor,
            RopeScaling::Yarn(yarn) => 1.0 / yarn.factor,
            _ => 1.0,
        })
    }

    /// True if the model generates text.
    #[getter]
    fn generates_text(&self) -> bool {
        self.inner.plan().output == OutputKind::Logits
    }

    /// True if layers have recurrent state.
    #[getter]
    fn has_state(&self) -> bool {
        !self.inner.plan().states.is_empty()
    }

    /// True if layers have a KV cache.
    #[getter]
    fn has_cache(&self) -> bool {
        !self.inner.plan().cache_windows().is_empty()
    }

    /// The pooling of embeddings that the file declares, numbered as in GGUF.
    #[getter]
    fn pooling(&self) -> Option<usize> {
        oxidize_core::embedding::Pooling::of(&self.inner).map(|pooling| pooling.gguf_number())
    }

    /// Keys and values of the file as text; arrays are left out.
    fn metadata(&self) -> Vec<(String, String)> {
        let metadata = self.inner.file().metadata();
        let pairs = metadata.iter();
        pairs
            .filter_map(|(key, value)| Some((key.to_owned(), value_text(value)?)))
            .collect()
    }

    fn tokenizer(&self, py: Python<'_>) -> PyResult<Tokenizer> {
        let tokenizer = py.detach(|| self.inner.tokenizer()).map_err(exception)?;
        Ok(Tokenizer(tokenizer.clone()))
    }

    /// Source of the chat template.
    fn chat_template(&self) -> PyResult<Option<String>> {
        self.inner.chat_template_source().map_err(exception)
    }

    /// Sampling settings that the model's authors recommend, where they differ from the defaults, as JSON.
    fn sampling_defaults(&self) -> String {
        let (theirs, ours) = (
            self.inner.sampling_defaults(),
            oxidize_core::SamplingParams::default(),
        );
        let mut settings = Map::new();
        let mut set = |name: &str, theirs: f32, ours: f32| {
            if theirs != ours {
                settings.insert(name.to_owned(), json!(theirs));
            }
        };
        set("temperature", theirs.temperature, ours.temperature);
        set("top_p", theirs.top_p, ours.top_p);
        set("min_p", theirs.min_p, ours.min_p);
        set("repeat_penalty", theirs.repeat_penalty, ours.repeat_penalty);
        if theirs.top_k != ours.top_k {
            settings.insert("top_k".into(), json!(theirs.top_k));
        }
        Json::Object(settings).to_string()
    }

    /// Checks a grammar and compiles it for the vocabulary.
    fn check_grammar(&self, py: Python<'_>, kind: &str, text: &str) -> PyResult<()> {
        let grammar = parse_grammar(kind, text)?;
        py.detach(|| self.compile(&grammar)).map(|_| ())
    }

    /// Renders a conversation (messages, tools and template variables as JSON) with the chat template: its text and its
    /// tokens.
    #[pyo3(signature = (conversation, template=None))]
    fn render(
        &self,
        py: Python<'_>,
        conversation: &str,
        template: Option<&str>,
    ) -> PyResult<(String, Vec<u32>)> {
        let conversation = parse_conversation(conversation)?;
        let prompt = py.detach(|| {
            let template = self.template(template)?;
            Ok::<_, oxidize_core::Error>(conversation.render(&template, self.inner.tokenizer()?)?)
        });
        let prompt = prompt.map_err(exception)?;
        Ok((prompt.text, prompt.tokens))
    }

    /// A parser of an answer to a prompt that `render` returned.
    ///
    /// Without `reasoning`, it stays in the content with its tags.
    #[pyo3(signature = (tools, prompt, template=None, reasoning=true))]
    fn message_parser(
        &self,
        tools: Option<&str>,
        prompt: &str,
        template: Option<&str>,
        reasoning: bool,
    ) -> PyResult<MessageParser> {
        let tools: Option<Json> = match tools {
            Some(tools) => Some(parse_json("tools", tools)?),
            None => None,
        };
        let template = self.template(template).map_err(exception)?;
        let options = MessageParserOptions {
            reasoning,
            tools: tools.as_ref(),
            prompt,
            stream_calls: false,
        };
        let parser =
            oxidize_core::chat::MessageParser::new(&MessageFormat::of(&template), &options);
        Ok(MessageParser(std::sync::Mutex::new(parser)))
    }
}

impl Model {
    /// Compiles a grammar. The compiler is made on first use.
    pub(crate) fn compile(&self, grammar: &Grammar) -> PyResult<oxidize_core::grammar::Constraint> {
        let grammars = self.grammars.get_or_init(|| {
            let tokenizer = self.inner.tokenizer();
            let tokenizer = tokenizer.map_err(|error| GrammarError::Engine(error.to_string()))?;
            Grammars::new(tokenizer, self.inner.n_vocab()).map(Arc::new)
        });
        let compiled = match grammars {
            Ok(grammars) => grammars.compile(grammar),
            Err(error) => Err(error.clone()),
        };
        compiled.map_err(|error| PyValueError::new_err(error.to_string()))
    }

    /// The given template, the model's own, or ChatML.
    fn template(&self, source: Option<&str>) -> oxidize_core::Result<ChatTemplate> {
        let options = ChatOptions::default();
        match source {
            Some(source) => Ok(ChatTemplate::new(source, options)?),
            None => match self.inner.chat_template()? {
                Some(template) => Ok(template),
                None => Ok(ChatTemplate::builtin("chatml", options)?),
            },
        }
    }
}

/// Separates an answer into reasoning, content and tool calls.
#[pyclass(frozen, module = "oxidize._oxidize")]
pub(crate) struct MessageParser(std::sync::Mutex<oxidize_core::chat::MessageParser>);

#[pymethods]
impl MessageParser {
    /// The parts that `text` completes, as JSON: a list of pairs of a kind (`reasoning`, `content`, `tool_call`) and a
    /// value.
    fn push(&self, text: &str) -> String {
        deltas(self.lock().push(text))
    }

    /// The parts that were held back.
    fn finish(&self) -> String {
        deltas(self.lock().finish())
    }
}

impl MessageParser {
    fn lock(&self) -> std::sync::MutexGuard<'_, oxidize_core::chat::MessageParser> {
        self.0
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn deltas(deltas: Vec<MessageDelta>) -> String {
    let parts = deltas.into_iter().filter_map(|delta| match delta {
        MessageDelta::Reasoning(text) => Some(json!(["reasoning", text])),
        MessageDelta::Content(text) => Some(json!(["content", text])),
        MessageDelta::ToolCall(call) => {
            let arguments = call.function.arguments_as_text();
            Some(json!(["tool_call", {
                "id": call.id, "name": call.function.name, "arguments": arguments,
            }]))
        }
        // Only streamed calls come in pieces.
        MessageDelta::CallStart { .. } | MessageDelta::CallArguments(_) => None,
    });
    Json::Array(parts.collect()).to_string()
}

/// Renders a conversation with a template, without a model.
#[pyfunction]
pub(crate) fn render_template(
    template: &str,
    conversation: &str,
    bos_token: &str,
    eos_token: &str,
    add_generation_prompt: bool,
) -> PyResult<String> {
    let conversation = parse_conversation(conversation)?;
    let chat_error = |error: ChatError| PyValueError::new_err(error.to_string());
    let template = ChatTemplate::new(template, ChatOptions::default()).map_err(chat_error)?;
    let input = ChatInput {
        messages: &conversation.messages,
        tools: conversation.tools.as_ref(),
        documents: conversation.documents.as_ref(),
        add_generation_prompt,
        bos_token,
        eos_token,
        extra: conversation.template_args,
        continue_final_message: conversation.continue_final_message.unwrap_or(false),
    };
    template.render(&input).map_err(chat_error)
}

/// JSON schema of an answer that calls a tool, as `tool_choice` requires it; None if it requires none.
#[pyfunction]
pub(crate) fn forced_call_schema(
    tools: &str,
    tool_choice: &str,
    parallel: bool,
) -> PyResult<Option<String>> {
    let list = match parse_json("tools", tools)? {
        Json::Array(list) => list,
        _ => return Err(PyValueError::new_err("tools must be a list")),
    };
    let choice = parse_json("tool_choice", tool_choice)?;
    let api_error = |error: oxidize_server::error::ApiError| PyValueError::new_err(error.message);
    let choice = ToolChoice::parse(Some(&choice)).map_err(api_error)?;
    let tools = Tools::new(list, choice, parallel).map_err(api_error)?;
    match tools.forced() {
        Some(Grammar::JsonSchema(schema)) => Ok(Some(schema.to_string())),
        _ => Ok(None),
    }
}

/// The grammar that a kind and a text describe.
pub(crate) fn parse_grammar(kind: &str, text: &str) -> PyResult<Grammar> {
    Ok(match kind {
        "gbnf" => Grammar::Gbnf(text.to_owned()),
        "json_schema" => Grammar::json_schema(text).map_err(exception)?,
        "json_object" => Grammar::JsonObject,
        "regex" => Grammar::Regex(text.to_owned()),
        "lark" => Grammar::Lark(text.to_owned()),
        _ => {
            return Err(PyValueError::new_err(format!(
                "grammar of kind {kind:?}; gbnf, json_schema, json_object, regex and lark are supported"
            )));
        }
    })
}

fn parse_conversation(text: &str) -> PyResult<Conversation> {
    let mut json: Json = parse_json("conversation", text)?;
    let messages = json.get_mut("messages").map(Json::take).unwrap_or_default();
    let messages = serde_json::from_value(messages)
        .map_err(|error| PyValueError::new_err(format!("messages: {error}")))?;
    let mut part = |name: &str| {
        json.get_mut(name)
            .map(Json::take)
            .filter(|part| !part.is_null())
    };
    let (tools, documents) = (part("tools"), part("documents"));
    let template_args = match part("template_args") {
        Some(Json::Object(arguments)) => arguments,
        _ => Map::new(),
    };
    let continue_final_message = part("continue_final_message").and_then(|value| value.as_bool());
    Ok(Conversation {
        messages,
        tools,
        documents,
        template_args,
        continue_final_message,
        ..Conversation::default()
    })
}

fn parse_json(name: &str, text: &str) -> PyResult<Json> {
    serde_json::from_str(text).map_err(|error| PyValueError::new_err(format!("{name}: {error}")))
}

/// A value as llama.cpp prints it; None for arrays.
fn value_text(value: Value<'_>) -> Option<String> {
    match value {
        Value::Array(_) => None,
        Value::Str(text) => Some(text.to_owned()),
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::Bool(value) => Some(value.to_string()),
        Value::F32(value) => Some(format!("{value:.6}")),
        Value::F64(value) => Some(format!("{value:.6}")),
        Value::U64(value) => Some(value.to_string()),
        other => other.as_i64().map(|value| value.to_string()),
    }
}
