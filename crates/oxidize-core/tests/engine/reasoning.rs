//! Reasoning before an answer: its budget, and grammars that apply to the answer alone.

use crate::{ask, config, greedy, start, tiny};
use oxidize_core::chat::{
    ChatOptions, ChatTemplate, Conversation, MessageParserOptions, ParsedMessage,
};
use oxidize_core::engine::{FinishReason, Request};
use oxidize_core::grammar::Grammar;
use oxidize_core::tokenizer::EncodeOptions;

/// A template whose generation prompt ends with `opening`.
fn template(opening: &str) -> ChatTemplate {
    let source = format!(
        "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content }}}}{{% endfor %}}\
         <assistant>{opening}{{# </think> #}}"
    );
    ChatTemplate::new(&source, ChatOptions::default()).unwrap()
}

/// A request with this reasoning; the second part is the prompt as text.
fn request(template: &ChatTemplate, budget: Option<usize>) -> (Request, String) {
    let mut conversation = Conversation::from("Which number?");
    conversation.thinking_budget = budget;
    let model = tiny::model();
    let prompt = conversation
        .render(template, model.tokenizer().unwrap())
        .unwrap();
    let request = Request {
        reasoning: prompt.reasoning,
        ..greedy(prompt.tokens, 60)
    };
    (request, prompt.text)
}

fn parse(template: &ChatTemplate, prompt: &str, text: &str) -> ParsedMessage {
    let options = MessageParserOptions {
        reasoning: true,
        prompt,
        ..MessageParserOptions::default()
    };
    ParsedMessage::parse(template.format(), &options, text)
}

/// Makes greedy sampling choose the first token of `text` wherever it is allowed.
fn prefer(request: Request, text: &str) -> Request {
    let model = tiny::model();
    let tokens = model
        .tokenizer()
        .unwrap()
        .encode(text, EncodeOptions::PLAIN);
    request.with_sampling(|sampling| sampling.logit_bias.push((tokens[0], 1e4)))
}

fn three_digits() -> Grammar {
    Grammar::Regex("[0-9]{3}".into())
}

fn is_three_digits(text: &str) -> bool {
    text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[test]
fn a_grammar_applies_after_the_reasoning() {
    let engine = start(&config());
    let template = template("<think>\n");
    let (request, prompt) = request(&template, Some(6));
    let answer = ask(&engine, request.grammar(three_digits())).unwrap();
    let parsed = parse(&template, &prompt, &answer.text);
    assert!(is_three_digits(&parsed.content), "{:?}", answer.text);
    assert_eq!(answer.completion.reasoning_tokens, 6);
    assert_eq!(answer.completion.finish_reason, FinishReason::EndOfText);
}

#[test]
fn a_budget_ends_the_reasoning_without_a_grammar() {
    let engine = start(&config());
    let [free, limited] = [None, Some(5)].map(|budget| {
        let (request, _) = request(&template("<think>"), budget);
        ask(&engine, request).unwrap()
    });
    assert_eq!(free.completion.reasoning_tokens, 60);
    assert_eq!(limited.completion.reasoning_tokens, 5);
    assert_eq!(limited.ids()[..5], free.ids()[..5]);
    assert_eq!(limited.tokens.len(), 60);
    let closed = limited.tokens[5..].iter().map(|token| token.text.as_str());
    assert!(closed.collect::<String>().contains("\n</think>\n\n"));
}

#[test]
fn an_end_of_text_inside_the_reasoning_is_followed_by_the_answer() {
    let engine = start(&config());
    let template = template("<think>");
    let (request, prompt) = request(&template, None);
    let model = tiny::model();
    let end = model.tokenizer().unwrap().eos().unwrap();
    let eager = request
        .grammar(three_digits())
        .with_sampling(|sampling| sampling.logit_bias.push((end, 1e4)));
    let answer = ask(&engine, eager).unwrap();
    let parsed = parse(&template, &prompt, &answer.text);
    assert_eq!(parsed.reasoning, "");
    assert!(is_three_digits(&parsed.content), "{:?}", answer.text);
}

#[test]
fn a_model_may_open_reasoning_before_a_constrained_answer() {
    let engine = start(&config());
    let template = template("");
    let (request, prompt) = request(&template, Some(4));
    let request = request.grammar(three_digits());
    // A model that answers at once.
    let answer = ask(&engine, prefer(request.clone(), "7")).unwrap();
    assert_eq!(answer.text, "777");
    // A model that writes "<", which only opens the reasoning.
    let answer = ask(&engine, prefer(request, "<")).unwrap();
    assert!(answer.text.starts_with("<think><<<<\n</think>\n\n"));
    let parsed = parse(&template, &prompt, &answer.text);
    assert_eq!(parsed.reasoning.trim(), "<<<<");
    assert!(is_three_digits(&parsed.content), "{:?}", answer.text);
    assert_eq!(answer.completion.reasoning_tokens, 4);
}
