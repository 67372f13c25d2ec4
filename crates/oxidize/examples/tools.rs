//! A tool call and its result: `cargo run --release --example tools -- MODEL`.

use oxidize::chat::ToolCall;
use oxidize::{Conversation, Engine, Message, Model, Request};
use serde_json::json;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: tools MODEL")?;
    let engine = Engine::new(Model::load(path)?)?;
    let mut conversation = Conversation::from("What is 17 times 23? Use the tool.").tools(json!([{
        "type": "function",
        "function": {
            "name": "multiply",
            "description": "Multiply two numbers",
            "parameters": {
                "type": "object",
                "properties": { "a": { "type": "number" }, "b": { "type": "number" } },
                "required": ["a", "b"]
            }
        }
    }]));

    // At most three rounds of calls.
    for _ in 0..3 {
        // Some families mark calls by control tokens, so the text includes them.
        let request = Request::chat(conversation.clone())
            .temperature(0.0)
            .max_tokens(128);
        let text = engine.submit(request.render_special())?.text()?;
        let answer = engine.model().parse_message(&conversation, &text)?;
        if answer.tool_calls.is_empty() {
            println!("{}", answer.content);
            return Ok(());
        }
        let mut message = Message::new("assistant", answer.content);
        message.tool_calls = Some(answer.tool_calls.clone());
        conversation = conversation.push(message);
        for call in &answer.tool_calls {
            let mut result = Message::new("tool", run(call));
            result.tool_call_id = call.id.clone();
            conversation = conversation.push(result);
        }
    }
    println!("no answer after three rounds of calls");
    Ok(())
}

/// Runs a call. What a model writes is untrusted input: check it.
fn run(call: &ToolCall) -> String {
    let arguments: serde_json::Value =
        serde_json::from_str(&call.function.arguments_as_text()).unwrap_or_default();
    println!("call: {} {arguments}", call.function.name);
    match (
        call.function.name.as_str(),
        arguments["a"].as_f64(),
        arguments["b"].as_f64(),
    ) {
        ("multiply", Some(a), Some(b)) => (a * b).to_string(),
        ("multiply", ..) => "error: a and b must be numbers".into(),
        (other, ..) => format!("error: there is no tool {other}"),
    }
}
