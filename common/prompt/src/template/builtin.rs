//! Chat templates that users can select by name: llama.cpp's built-in ones, as Jinja.
//!
//! llama.cpp renders these with special code (`llama_chat_apply_template`). As Jinja they pass through the same
//! renderer as every other template, in router and worker. A test compares each with llama.cpp's code.

/// Template of a model that has none: ChatML.
///
/// Source: `CHATML_TEMPLATE_SRC` of llama.cpp's `common/chat.cpp`, byte for byte, as `/props` shows it.
pub const CHATML: &str = "{%- for message in messages -%}\n  \
     {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}\n\
     {%- endfor -%}\n\
     {%- if add_generation_prompt -%}\n  \
     {{- '<|im_start|>assistant\n' -}}\n\
     {%- endif -%}";

/// Built-in templates, each with its name.
///
/// Source: llama.cpp's `src/llama-chat.cpp`.
const BUILTIN: &[(&str, &str)] = &[
    ("chatml", CHATML),
    ("llama2", include_str!("builtin/llama2.jinja")),
    ("llama2-sys", include_str!("builtin/llama2-sys.jinja")),
    ("llama2-sys-bos", include_str!("builtin/llama2-sys-bos.jinja")),
    ("llama2-sys-strip", include_str!("builtin/llama2-sys-strip.jinja")),
    ("mistral-v1", include_str!("builtin/mistral-v1.jinja")),
    ("mistral-v3", include_str!("builtin/mistral-v3.jinja")),
    ("mistral-v3-tekken", include_str!("builtin/mistral-v3-tekken.jinja")),
    ("mistral-v7", include_str!("builtin/mistral-v7.jinja")),
    ("mistral-v7-tekken", include_str!("builtin/mistral-v7-tekken.jinja")),
    ("phi3", include_str!("builtin/phi3.jinja")),
    ("phi4", include_str!("builtin/phi4.jinja")),
    ("falcon3", include_str!("builtin/falcon3.jinja")),
    ("zephyr", include_str!("builtin/zephyr.jinja")),
    ("monarch", include_str!("builtin/monarch.jinja")),
    ("gemma", include_str!("builtin/gemma.jinja")),
    ("orion", include_str!("builtin/orion.jinja")),
    ("openchat", include_str!("builtin/openchat.jinja")),
    ("vicuna", include_str!("builtin/vicuna.jinja")),
    ("vicuna-orca", include_str!("builtin/vicuna-orca.jinja")),
    ("deepseek", include_str!("builtin/deepseek.jinja")),
    ("deepseek2", include_str!("builtin/deepseek2.jinja")),
    ("deepseek3", include_str!("builtin/deepseek3.jinja")),
    ("deepseek-ocr", include_str!("builtin/deepseek-ocr.jinja")),
    ("command-r", include_str!("builtin/command-r.jinja")),
    ("llama3", include_str!("builtin/llama3.jinja")),
    ("chatglm3", include_str!("builtin/chatglm3.jinja")),
    ("chatglm4", include_str!("builtin/chatglm4.jinja")),
    ("glmedge", include_str!("builtin/glmedge.jinja")),
    ("minicpm", include_str!("builtin/minicpm.jinja")),
    ("exaone3", include_str!("builtin/exaone3.jinja")),
    ("exaone4", include_str!("builtin/exaone4.jinja")),
    ("exaone-moe", include_str!("builtin/exaone-moe.jinja")),
    ("rwkv-world", include_str!("builtin/rwkv-world.jinja")),
    ("granite", include_str!("builtin/granite.jinja")),
    ("granite-4.0", include_str!("builtin/granite-4.0.jinja")),
    ("granite-4.1", include_str!("builtin/granite-4.0.jinja")),
    ("gigachat", include_str!("builtin/gigachat.jinja")),
    ("megrez", include_str!("builtin/megrez.jinja")),
    ("yandex", include_str!("builtin/yandex.jinja")),
    ("bailing", include_str!("builtin/bailing.jinja")),
    ("bailing-think", include_str!("builtin/bailing-think.jinja")),
    ("bailing2", include_str!("builtin/bailing2.jinja")),
    ("llama4", include_str!("builtin/llama4.jinja")),
    ("smolvlm", include_str!("builtin/smolvlm.jinja")),
    ("hunyuan-moe", include_str!("builtin/hunyuan-moe.jinja")),
    ("gpt-oss", include_str!("builtin/gpt-oss.jinja")),
    ("hunyuan-dense", include_str!("builtin/hunyuan-dense.jinja")),
    ("hunyuan-vl", include_str!("builtin/hunyuan-vl.jinja")),
    ("kimi-k2", include_str!("builtin/kimi-k2.jinja")),
    ("seed_oss", include_str!("builtin/seed_oss.jinja")),
    ("grok-2", include_str!("builtin/grok-2.jinja")),
    ("pangu-embedded", include_str!("builtin/pangu-embedded.jinja")),
    ("solar-open", include_str!("builtin/solar-open.jinja")),
];

/// Returns the source of a built-in chat template.
pub fn builtin_chat_template(name: &str) -> Option<&'static str> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, source)| *source)
}

/// Returns the names of the built-in chat templates.
pub fn builtin_chat_template_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use std::ffi::{CStr, CString};
    use std::sync::Arc;

    use llama_cpp_sys_2 as sys;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::template::ChatTemplate;

    /// Roles and texts, and whether the start of a response follows.
    type Conversation<'a> = (&'a [(&'a str, String)], bool);

    /// Returns the text that llama.cpp's own code renders.
    fn by_llama_cpp(name: &str, (messages, add_generation_prompt): Conversation<'_>) -> String {
        let c = |text: &str| CString::new(text).expect("no NUL");
        let texts: Vec<_> = messages.iter().map(|(role, content)| (c(role), c(content))).collect();
        let chat: Vec<_> = texts
            .iter()
            .map(|(role, content)| sys::llama_chat_message { role: role.as_ptr(), content: content.as_ptr() })
            .collect();
        let name = c(name);
        let mut rendered = vec![0_u8; 64 << 10];
        // SAFETY: the texts end with NUL and live until the call returns; the buffer has the length that is given.
        let n = unsafe {
            sys::llama_chat_apply_template(
                name.as_ptr(),
                chat.as_ptr(),
                chat.len(),
                add_generation_prompt,
                rendered.as_mut_ptr().cast(),
                i32::try_from(rendered.len()).expect("a small buffer"),
            )
        };
        rendered.truncate(usize::try_from(n).expect("llama.cpp knows the name"));
        String::from_utf8(rendered).expect("UTF-8")
    }

    fn by_jinja(source: &str, (messages, add_generation_prompt): Conversation<'_>) -> String {
        let template = ChatTemplate::compile(source, Arc::new(jiff::Zoned::now)).expect("it compiles");
        let messages: Vec<_> =
            messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect();
        let variables = json!({"messages": messages, "add_generation_prompt": add_generation_prompt});
        template.render_json(&variables).expect("it renders")
    }

    #[test]
    fn every_name_of_llama_cpp_is_there_and_no_other() {
        // SAFETY: with a length of zero the call writes nothing and counts the names.
        let n_names = unsafe { sys::llama_chat_builtin_templates(std::ptr::null_mut(), 0) };
        let mut names = vec![std::ptr::null(); n_names as usize];
        // SAFETY: there is room for as many names as were counted.
        unsafe { sys::llama_chat_builtin_templates(names.as_mut_ptr(), names.len()) };
        let owned = |name| {
            // SAFETY: the names are static texts that end in a zero byte.
            let name = unsafe { CStr::from_ptr(name) };
            name.to_str().expect("ASCII").to_owned()
        };
        let mut expected: Vec<_> = names.into_iter().map(owned).collect();
        expected.sort_unstable();
        let mut got: Vec<_> = builtin_chat_template_names().map(str::to_owned).collect();
        got.sort_unstable();
        assert_eq!(got, expected);
    }

    fn role() -> impl Strategy<Value = &'static str> {
        prop::sample::select(vec!["system", "user", "assistant", "user", "assistant", "tool", "function", "critic"])
    }

    proptest! {
        #[test]
        fn a_built_in_template_renders_what_llama_cpp_s_code_renders(
            messages in prop::collection::vec((role(), "[ \n\t]{0,2}[a-zé'{%}<|>-]{0,8}[ \n]{0,2}"), 1..6),
            add_generation_prompt in any::<bool>(),
        ) {
            for (name, source) in BUILTIN {
                prop_assert_eq!(
                    by_jinja(source, (&messages, add_generation_prompt)),
                    by_llama_cpp(name, (&messages, add_generation_prompt)),
                    "{}", name
                );
            }
        }
    }
}
