//! Built-in chat templates, with llama.cpp's names.

/// The ChatML template.
pub const CHATML: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const LLAMA_3: &str = "{% for m in messages %}\
    {{ '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}";

const LLAMA_4: &str = "{% for m in messages %}\
    {{ '<|header_start|>' + m.role + '<|header_end|>\\n\\n' + m.content | trim + '<|eot|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|header_start|>assistant<|header_end|>\\n\\n' }}{% endif %}";

/// System messages are merged into the next user message.
const GEMMA: &str = "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}\
    {% set ns.system = ns.system + m.content | trim %}{% else %}\
    {{ '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' }}\
    {% if ns.system and m.role != 'assistant' %}{{ ns.system + '\\n\\n' }}{% set ns.system = '' %}{% endif %}\
    {{ m.content | trim + '<end_of_turn>\\n' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}";

const PHI_3: &str = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const PHI_4: &str = "{% for m in messages %}{{ '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}";

const FALCON_3: &str = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const ZEPHYR: &str = "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|endoftext|>\\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}";

const VICUNA: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ m.content + '\\n\\n' }}\
    {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}\
    {% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + '</s>\\n' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";

const VICUNA_ORCA: &str = "{% for m in messages %}{% if m.role == 'system' %}{{ 'SYSTEM: ' + m.content + '\\n' }}\
    {% elif m.role == 'user' %}{{ 'USER: ' + m.content + '\\n' }}\
    {% elif m.role == 'assistant' %}{{ 'ASSISTANT: ' + m.content + '</s>\\n' }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";

const ALL: &[(&str, &str)] = &[
    ("chatml", CHATML),
    ("falcon3", FALCON_3),
    ("gemma", GEMMA),
    ("llama3", LLAMA_3),
    ("llama4", LLAMA_4),
    ("phi3", PHI_3),
    ("phi4", PHI_4),
    ("vicuna", VICUNA),
    ("vicuna-orca", VICUNA_ORCA),
    ("zephyr", ZEPHYR),
];

/// Returns the Jinja source of a built-in template.
pub fn source(name: &str) -> Option<&'static str> {
    ALL.iter().find(|(other, _)| *other == name).map(|(_, source)| *source)
}

/// Returns the names of the built-in templates.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use engine::chat::{ChatTemplate, Message};
    use serde_json::Map;

    use super::*;

    /// The expected texts come from llama.cpp's function for built-in templates.
    #[test]
    fn builtin_templates_render_llama_cpp_formats() {
        let messages = [
            Message::system("S "),
            Message::user(" U"),
            Message::assistant("A"),
            Message::user("V"),
        ];
        let expected = [
            (
                "chatml",
                "<|im_start|>system\nS <|im_end|>\n<|im_start|>user\n U<|im_end|>\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\nV<|im_end|>\n<|im_start|>assistant\n",
            ),
            (
                "falcon3",
                "<|system|>\nS \n<|user|>\n U\n<|assistant|>\nA\n<|user|>\nV\n<|assistant|>\n",
            ),
            (
                "gemma",
                "<start_of_turn>user\nS\n\nU<end_of_turn>\n<start_of_turn>model\nA<end_of_turn>\n<start_of_turn>user\nV<end_of_turn>\n<start_of_turn>model\n",
            ),
            (
                "llama3",
                "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nU<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nA<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nV<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
            ),
            (
                "llama4",
                "<|header_start|>system<|header_end|>\n\nS<|eot|><|header_start|>user<|header_end|>\n\nU<|eot|><|header_start|>assistant<|header_end|>\n\nA<|eot|><|header_start|>user<|header_end|>\n\nV<|eot|><|header_start|>assistant<|header_end|>\n\n",
            ),
            (
                "phi3",
                "<|system|>\nS <|end|>\n<|user|>\n U<|end|>\n<|assistant|>\nA<|end|>\n<|user|>\nV<|end|>\n<|assistant|>\n",
            ),
            (
                "phi4",
                "<|im_start|>system<|im_sep|>S <|im_end|><|im_start|>user<|im_sep|> U<|im_end|><|im_start|>assistant<|im_sep|>A<|im_end|><|im_start|>user<|im_sep|>V<|im_end|><|im_start|>assistant<|im_sep|>",
            ),
            ("vicuna", "S \n\nUSER:  U\nASSISTANT: A</s>\nUSER: V\nASSISTANT:"),
            (
                "vicuna-orca",
                "SYSTEM: S \nUSER:  U\nASSISTANT: A</s>\nUSER: V\nASSISTANT:",
            ),
            (
                "zephyr",
                "<|system|>\nS <|endoftext|>\n<|user|>\n U<|endoftext|>\n<|assistant|>\nA<|endoftext|>\n<|user|>\nV<|endoftext|>\n<|assistant|>\n",
            ),
        ];
        assert_eq!(names().collect::<Vec<_>>(), expected.map(|(name, _)| name));
        for (name, text) in expected {
            let template = ChatTemplate::new(source(name).unwrap_or_default(), "<s>", "</s>").expect(name);
            assert_eq!(
                template.render(&messages, true, &Map::new()).as_deref(),
                Ok(text),
                "{name}"
            );
        }
    }
}
