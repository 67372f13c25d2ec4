//! Built-in chat templates, for model files without one, written from the descriptions of the
//! formats. The names are those of llama.cpp.

use super::ChatError;

/// Source of the built-in template `name`.
pub fn builtin_template(name: &str) -> Result<&'static str, ChatError> {
    let normalized = name.trim().to_ascii_lowercase().replace('_', "-");
    BUILTIN
        .iter()
        .find(|(names, _)| names.contains(&normalized.as_str()))
        .map(|&(_, source)| source)
        .ok_or_else(|| ChatError::UnknownBuiltin {
            name: name.chars().take(64).collect(),
            known: builtin_template_names().collect::<Vec<_>>().join(", "),
        })
}

/// Names of the built-in templates.
pub fn builtin_template_names() -> impl Iterator<Item = &'static str> {
    BUILTIN
        .iter()
        .filter_map(|(names, _)| names.first().copied())
}

/// Names (preferred first) and Jinja source.
static BUILTIN: &[(&[&str], &str)] = &[
    (&["chatml", "qwen", "smollm2"], CHATML),
    (&["llama2"], LLAMA2),
    (&["llama2-sys"], LLAMA2),
    (&["llama3", "llama-3"], LLAMA3),
    (&["llama4"], LLAMA4),
    (&["gemma", "gemma2", "gemma3"], GEMMA),
    (&["mistral-v1"], MISTRAL_V1),
    (&["mistral-v3", "mistral"], MISTRAL_V3),
    (&["mistral-v3-tekken"], MISTRAL_V3_TEKKEN),
    (&["mistral-v7"], MISTRAL_V7),
    (&["mistral-v7-tekken"], MISTRAL_V7_TEKKEN),
    (&["phi3", "phi-3"], PHI3),
    (&["phi4", "phi-4"], PHI4),
    (&["zephyr"], ZEPHYR),
    (&["tinyllama"], ZEPHYR),
    (&["monarch"], MONARCH),
    (&["deepseek"], DEEPSEEK),
    (&["deepseek2"], DEEPSEEK),
    (&["deepseek3", "deepseek-r1"], DEEPSEEK3),
    (&["vicuna"], VICUNA),
    (&["vicuna-orca"], VICUNA_ORCA),
    (&["alpaca"], ALPACA),
    (&["command-r"], COMMAND_R),
    (&["openchat"], OPENCHAT),
    (&["orion"], ORION),
    (&["falcon3", "falcon"], FALCON3),
    (&["chatglm3"], CHATGLM3),
    (&["chatglm4", "glm4"], CHATGLM4),
    (&["exaone3"], EXAONE3),
    (&["granite"], GRANITE),
    (&["minicpm"], MINICPM),
    (&["megrez"], MEGREZ),
    (&["rwkv-world"], RWKV_WORLD),
    (&["gigachat"], GIGACHAT),
    (&["gpt-oss"], GPT_OSS),
];

const CHATML: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}";

const LLAMA2: &str = "\
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = '<<SYS>>\n' + message.content + '\n<</SYS>>\n\n' -%}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content | trim + ' ' + eos_token }}
{%- else -%}{{ bos_token + '[INST] ' + ns.system + message.content | trim + ' [/INST]' }}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}";

const LLAMA3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif -%}";

const LLAMA4: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{{ '<|header_start|>' + message.role + '<|header_end|>\n\n' + message.content | trim + '<|eot|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|header_start|>assistant<|header_end|>\n\n' }}{%- endif -%}";

const GEMMA: &str = "\
{{- bos_token -}}
{%- for message in messages if message.role != 'system' -%}
{%- set role = 'model' if message.role == 'assistant' else message.role -%}
{{ '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}";

const MISTRAL_V1: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = message.content + '\n\n' -%}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}
{%- else -%}{{ ' [INST] ' + ns.system + message.content + ' [/INST]' }}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}";

const MISTRAL_V3: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = message.content + '\n\n' -%}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}
{%- else -%}{{ '[INST] ' + ns.system + message.content + '[/INST]' }}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}";

const MISTRAL_V3_TEKKEN: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = message.content + '\n\n' -%}
{%- elif message.role == 'assistant' -%}{{ message.content + eos_token }}
{%- else -%}{{ '[INST]' + ns.system + message.content + '[/INST]' }}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}";

const MISTRAL_V7: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ '[SYSTEM_PROMPT] ' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'assistant' -%}{{ ' ' + message.content + eos_token }}
{%- else -%}{{ '[INST] ' + message.content + '[/INST]' }}
{%- endif -%}
{%- endfor -%}";

const MISTRAL_V7_TEKKEN: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ '[SYSTEM_PROMPT]' + message.content + '[/SYSTEM_PROMPT]' }}
{%- elif message.role == 'assistant' -%}{{ message.content + eos_token }}
{%- else -%}{{ '[INST]' + message.content + '[/INST]' }}
{%- endif -%}
{%- endfor -%}";

const PHI3: &str = "\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}";

const PHI4: &str = "\
{%- for message in messages -%}
{{ '<|im_start|>' + message.role + '<|im_sep|>' + message.content + '<|im_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant<|im_sep|>' }}{%- endif -%}";

const ZEPHYR: &str = "\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}";

const MONARCH: &str = "\
{%- for message in messages -%}
{{ (bos_token if loop.first else '<s>') + message.role + '\n' + message.content + '</s>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<s>assistant\n' }}{%- endif -%}";

const DEEPSEEK: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}
{%- elif message.role == 'assistant' -%}{{ 'Assistant: ' + message.content + eos_token }}
{%- else -%}{{ 'User: ' + message.content + '\n\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}";

const DEEPSEEK3: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}
{%- elif message.role == 'assistant' -%}{{ '<｜Assistant｜>' + message.content + '<｜end▁of▁sentence｜>' }}
{%- else -%}{{ '<｜User｜>' + message.content }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<｜Assistant｜>' }}{%- endif -%}";

const VICUNA: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}
{%- elif message.role == 'assistant' -%}{{ 'ASSISTANT: ' + message.content + eos_token + '\n' }}
{%- else -%}{{ 'USER: ' + message.content + '\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}";

const VICUNA_ORCA: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ 'SYSTEM: ' + message.content + '\n' }}
{%- elif message.role == 'assistant' -%}{{ 'ASSISTANT: ' + message.content + eos_token + '\n' }}
{%- else -%}{{ 'USER: ' + message.content + '\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'ASSISTANT:' }}{%- endif -%}";

const ALPACA: &str = "\
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '\n\n' }}
{%- elif message.role == 'assistant' -%}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}
{%- else -%}{{ '### Instruction:\n' + message.content + '\n\n' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '### Response:\n' }}{%- endif -%}";

const COMMAND_R: &str = "\
{{- bos_token -}}
{%- set names = {'system': 'SYSTEM', 'assistant': 'CHATBOT'} -%}
{%- for message in messages -%}
{{ '<|START_OF_TURN_TOKEN|><|' + names.get(message.role, 'USER') + '_TOKEN|>' + message.content | trim + '<|END_OF_TURN_TOKEN|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' }}{%- endif -%}";

const OPENCHAT: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '<|end_of_turn|>' }}
{%- else -%}{{ 'GPT4 Correct ' + message.role | title + ': ' + message.content + '<|end_of_turn|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'GPT4 Correct Assistant:' }}{%- endif -%}";

const ORION: &str = "\
{{- bos_token -}}
{%- set ns = namespace(system='') -%}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{%- set ns.system = message.content + '\n\n' -%}
{%- elif message.role == 'assistant' -%}{{ message.content + eos_token }}
{%- else -%}{{ 'Human: ' + ns.system + message.content + '\n\nAssistant: ' + eos_token }}{%- set ns.system = '' -%}
{%- endif -%}
{%- endfor -%}";

const FALCON3: &str = "\
{%- for message in messages -%}
{{ '<|' + message.role + '|>\n' + message.content + (eos_token if message.role == 'assistant' else '') + '\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}";

const CHATGLM3: &str = "\
{{- '[gMASK]sop' -}}
{%- for message in messages -%}{{ '<|' + message.role + '|>\n ' + message.content }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}";

const CHATGLM4: &str = "\
{{- '[gMASK]<sop>' -}}
{%- for message in messages -%}{{ '<|' + message.role + '|>\n' + message.content }}{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>\n' }}{%- endif -%}";

const EXAONE3: &str = "\
{%- for message in messages -%}
{{ '[|' + message.role + '|]' + message.content | trim + ('\n' if message.role == 'user' else '[|endofturn|]\n') }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '[|assistant|]' }}{%- endif -%}";

const GRANITE: &str = "\
{%- for message in messages -%}
{{ '<|start_of_role|>' + message.role + '<|end_of_role|>' + message.content + '<|end_of_text|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif -%}";

const MINICPM: &str = "\
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{ '<用户>' + message.content | trim + '<AI>' }}
{%- else -%}{{ message.content | trim }}
{%- endif -%}
{%- endfor -%}";

const MEGREZ: &str = "\
{%- for message in messages -%}
{{ '<|role_start|>' + message.role + '<|role_end|>' + message.content + '<|turn_end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|role_start|>assistant<|role_end|>' }}{%- endif -%}";

const RWKV_WORLD: &str = "\
{%- for message in messages -%}
{{ message.role | title + ': ' + message.content | trim + '\n\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}";

const GIGACHAT: &str = "\
{{- bos_token -}}
{%- for message in messages -%}
{%- if message.role == 'system' -%}{{ message.content + '<|message_sep|>' }}
{%- elif message.role == 'user' -%}
{{ 'user<|role_sep|>' + message.content + '<|message_sep|>available functions<|role_sep|>[]<|message_sep|>' }}
{%- else -%}{{ message.role + '<|role_sep|>' + message.content + '<|message_sep|>' }}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'assistant<|role_sep|>' }}{%- endif -%}";

const GPT_OSS: &str = "\
{%- for message in messages -%}
{%- set channel = '<|channel|>final' if message.role == 'assistant' else '' -%}
{{ '<|start|>' + message.role + channel + '<|message|>' + message.content + '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|start|>assistant' }}{%- endif -%}";

#[cfg(test)]
mod tests {
    use super::super::{ChatInput, ChatOptions, ChatTemplate, Message};
    use super::*;

    fn render(name: &str, generation: bool) -> String {
        let template = ChatTemplate::builtin(name, ChatOptions::default()).unwrap();
        let messages = [
            Message::new("system", "Be brief."),
            Message::new("user", "Hi"),
            Message::new("assistant", "Hello"),
            Message::new("user", "Bye"),
        ];
        let input = ChatInput {
            messages: &messages,
            add_generation_prompt: generation,
            bos_token: "<s>",
            eos_token: "</s>",
            ..Default::default()
        };
        template.render(&input).unwrap()
    }

    #[test]
    fn known_formats_render_as_specified() {
        assert_eq!(
            render("chatml", true),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(
            render("llama2", true),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]"
        );
        assert_eq!(
            render("llama3", true),
            "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
        );
        // Gemma has no system turn: the text is prepended to the first user turn.
        assert_eq!(
            render("gemma", true),
            "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
        );
        assert_eq!(
            render("mistral-v3", true),
            "<s>[INST] Be brief.\n\nHi[/INST] Hello</s>[INST] Bye[/INST]"
        );
        assert_eq!(
            render("mistral-v7", true),
            "<s>[SYSTEM_PROMPT] Be brief.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello</s>[INST] Bye[/INST]"
        );
        assert_eq!(
            render("deepseek3", true),
            "<s>Be brief.\n\n<｜User｜>Hi<｜Assistant｜>Hello<｜end▁of▁sentence｜><｜User｜>Bye<｜Assistant｜>"
        );
        assert_eq!(
            render("vicuna", true),
            "Be brief.\n\nUSER: Hi\nASSISTANT: Hello</s>\nUSER: Bye\nASSISTANT:"
        );
    }

    #[test]
    fn every_template_renders_every_turn_once() {
        for name in builtin_template_names() {
            let text = render(name, true);
            for word in ["Be brief.", "Hi", "Hello", "Bye"] {
                assert_eq!(text.matches(word).count(), 1, "{name}: {word} in {text:?}");
            }
            assert!(
                text.starts_with(&render(name, false)),
                "{name}: the generation prompt comes last"
            );
        }
    }

    #[test]
    fn unknown_name_error_lists_known_names() {
        let error = builtin_template("nope").unwrap_err().to_string();
        assert!(
            error.contains("nope") && error.contains("chatml"),
            "{error}"
        );
        assert_eq!(builtin_template("Mistral_V7").unwrap(), MISTRAL_V7);
    }
}
