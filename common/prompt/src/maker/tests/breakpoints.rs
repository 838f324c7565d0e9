//! Tests that a breakpoint's position is where a prompt diverges from one that is equal up to the mark.

use warmpath_common::cache_breakpoints::CacheBreakpoint;

use super::*;

fn text(text: &str) -> Json {
    json!({"type": "text", "text": text})
}

/// Returns a chat with instructions in two parts, a question in two parts and an answer.
fn asked(day: &str, question: &str, answer: &str) -> ChatPrompt {
    request(json!({"messages": [
        {"role": "system", "content": [text("You keep the rules of this house in mind."), text(day)]},
        {"role": "user", "content": [text("Here is a document about trees."), text(question)]},
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And then?"},
    ]}))
}

#[test]
fn a_prompt_that_differs_behind_a_mark_is_equal_up_to_the_breakpoint_and_hardly_further() {
    let ends = [(0, 1), (0, 2), (1, 0), (1, 1), (1, usize::MAX), (2, usize::MAX)];
    for (name, maker) in MAKERS.iter() {
        let marked = asked("Today is Monday.", "What is an oak?", "A tree.");
        let Ok(prompt) = maker.chat(&marked) else { continue };
        let mut last = 0;
        for (message, parts) in ends {
            let place = maker.breakpoint(&marked, &prompt.tokens, CacheBreakpoint { message, parts });
            let place = place.expect("the template takes it") as usize;
            assert!(place >= last && place < prompt.tokens.len(), "{name}: {message} {parts}: {place} behind {last}");
            last = place;
            let other = match (message, parts) {
                (0, 1) => asked("This is another day.", "Why?", "So."),
                (0, _) | (1, 0) => asked("Today is Monday.", "Why?", "So."),
                (1, 1) => asked("Today is Monday.", "Why is it?", "So."),
                (1, _) => asked("Today is Monday.", "What is an oak?", "Nothing."),
                _ => continue,
            };
            let n_common = n_common(&prompt.tokens, &maker.chat(&other).expect("it renders").tokens);
            assert!(place <= n_common + 1, "{name}: {message} {parts}: {place} of {n_common}");
        }
        let nowhere = CacheBreakpoint { message: 9, parts: 1 };
        assert_eq!(maker.breakpoint(&marked, &prompt.tokens, nowhere), None);
    }
}
