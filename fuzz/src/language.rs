//! Checks of the fuzz targets for grammars, chat templates and answers. The test `fuzz_corpus` of
//! oxidize-core runs the same functions on the stored corpus.

use oxidize_core::chat::{
    ChatInput, ChatOptions, ChatTemplate, Message, MessageFormat, MessageParser,
    MessageParserOptions, ParsedMessage,
};
use oxidize_core::grammar::{Grammar, Grammars};
use oxidize_core::tokenizer::{ModelSpec, StringTable, TokenKind, Tokenizer, VocabSpec};
use std::sync::OnceLock;

/// Compiles a GBNF grammar and generates tokens with it.
pub fn gbnf(data: &[u8]) {
    let (choices, source) = split(data);
    generate(&Grammar::Gbnf(source), choices);
}

/// Compiles a JSON schema and generates tokens with it.
pub fn json_schema(data: &[u8]) {
    let (choices, source) = split(data);
    if let Ok(schema) = serde_json::from_str(&source) {
        generate(&Grammar::JsonSchema(schema), choices);
    }
}

/// Renders a conversation with a chat template, within the limits of fuel and size.
pub fn template(data: &[u8]) {
    const MAX_OUTPUT: usize = 1 << 20;
    let source = String::from_utf8_lossy(data);
    let options = ChatOptions {
        now: Some(std::time::UNIX_EPOCH),
        max_output: MAX_OUTPUT,
    };
    let Ok(template) = ChatTemplate::new(&source, options) else {
        return;
    };
    let tools = serde_json::json!([{"type": "function", "function": {
        "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}
    }}]);
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", "Hello, wörld"),
        Message::new("assistant", "Hi."),
        Message::new("user", "And?"),
    ];
    let rendered = template.render(&ChatInput {
        messages: &messages,
        tools: Some(&tools),
        add_generation_prompt: true,
        bos_token: "<s>",
        eos_token: "</s>",
        ..ChatInput::default()
    });
    // A template that exceeds the limits is an error.
    if let Ok(text) = rendered {
        assert!(text.len() <= MAX_OUTPUT);
        MessageFormat::of(&template);
    }
}

/// Parses an answer in the format of some family at once and in pieces, with the same result.
pub fn answer(data: &[u8]) {
    static FORMATS: OnceLock<Vec<MessageFormat>> = OnceLock::new();
    let formats = FORMATS.get_or_init(|| {
        let sources = [
            "<tool_call>{}</tool_call><think></think>",
            "[TOOL_CALLS][ARGS]",
            "<|python_tag|>",
            "<|channel|><|message|><|start|><|end|><|call|>",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜><｜tool▁sep｜>",
            "```tool_code\n```",
            "<function=name><parameter=x></parameter></function>",
            "",
        ];
        let format = |source: &&str| {
            let template = ChatTemplate::new(source, ChatOptions::default());
            MessageFormat::of(&template.expect("a text is a template"))
        };
        sources.iter().map(format).collect()
    });
    let Some((&choice, data)) = data.split_first() else {
        return;
    };
    let Some(format) = formats.get(usize::from(choice) % formats.len()) else {
        return;
    };
    let text = String::from_utf8_lossy(data);
    let tools = serde_json::json!([{"type": "function", "function": {
        "name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}
    }}]);
    let options = MessageParserOptions {
        reasoning: choice & 1 == 0,
        tools: Some(&tools).filter(|_| choice & 2 == 0),
        prompt: "",
        stream_calls: choice & 4 != 0,
    };
    let whole = ParsedMessage::parse(format, &options, &text);
    assert!(whole.content.len() + whole.reasoning.len() <= text.len());
    let mut parser = MessageParser::new(format, &options);
    let mut pieces = ParsedMessage::default();
    for character in text.chars() {
        let mut piece = [0; 4];
        pieces.extend(parser.push(character.encode_utf8(&mut piece)));
    }
    pieces.extend(parser.finish());
    assert_eq!(pieces, whole);
}

/// Splits the input into bytes that make choices, and text.
fn split(data: &[u8]) -> (&[u8], String) {
    let (choices, source) = data.split_at(data.len().min(32));
    (choices, String::from_utf8_lossy(source).into_owned())
}

/// Compiles a grammar and generates allowed tokens.
fn generate(grammar: &Grammar, choices: &[u8]) {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    let grammars = GRAMMARS.get_or_init(|| {
        let tokenizer = bytes_and_words();
        Grammars::new(&tokenizer, tokenizer.vocab_size()).expect("a valid vocabulary")
    });
    let Ok(mut constraint) = grammars.compile(grammar) else {
        return;
    };
    for &choice in choices {
        if constraint.is_complete() {
            return;
        }
        // An error means that the grammar exceeds a limit of the engine.
        let Ok(mask) = constraint.mask() else { return };
        let allowed: Vec<u32> = (0..mask.len() as u32)
            .filter(|&token| mask.allows(token))
            .collect();
        assert!(!allowed.is_empty(), "no token is allowed, not even the end");
        let token = allowed[usize::from(choice) % allowed.len()];
        if token == 0 {
            return;
        }
        constraint.accept(token).expect("the token is allowed");
    }
}

/// Vocabulary of an end token, every byte, and a few longer tokens.
fn bytes_and_words() -> Tokenizer {
    let words = ["</s>", "{\"", "\":", "null", "true", "ab", "abc", " ", "\n"];
    let bytes: Vec<String> = (0..=255).map(|byte| format!("<0x{byte:02X}>")).collect();
    let all = words
        .iter()
        .copied()
        .chain(bytes.iter().map(String::as_str));
    let tokens: StringTable = all.collect();
    let scores = vec![0.0; words.len() + bytes.len()];
    let model = ModelSpec::Unigram {
        pre: None,
        scores,
        byte_fallback: true,
    };
    let mut spec = VocabSpec::new(model, tokens);
    spec.special.eos = Some(0);
    spec.special.unk = Some(0);
    spec.kinds = (0..words.len() + bytes.len())
        .map(|token| match token {
            0 => TokenKind::Control,
            token if token < words.len() => TokenKind::Normal,
            _ => TokenKind::Byte,
        })
        .collect();
    Tokenizer::new(spec).expect("a valid vocabulary")
}
