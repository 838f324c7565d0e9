//! The tasks of `warmpath-bench speculation`: what is asked, from answers that repeat their prompt to free ones.
//!
//! Every request gets a text of its own, the same sentences in another order, so that no answer has been given before.

use serde_json::json;

use crate::client::Message;

const LIBRARY: &str = include_str!("../../../../demo/src/conversations/library.txt");
const BICYCLES: &str = include_str!("../../../../demo/src/conversations/bicycles.txt");

/// Code that is to be changed.
const CODE: &str = "\
def total_price(items, discount):
    price = 0
    for item in items:
        price += item.price * item.count
    if discount > 0:
        price -= price * discount
    return price


def print_bill(customer, items, discount):
    print('Bill for', customer.name)
    for item in items:
        print(item.name, item.count, item.price)
    print('Total:', total_price(items, discount))
";

/// Kind of task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Task {
    /// A text again, with some words changed.
    Rewrite,
    /// A text again as it is.
    Repeat,
    /// A JSON document again, with one field changed.
    JsonEdit,
    /// The sentences of a text with some property.
    Extraction,
    /// Fields of a text as JSON.
    Fields,
    /// Code again, with a name changed.
    CodeEdit,
    /// Comments for code, which is repeated.
    CodeComment,
    /// The next call of an agent after several similar ones.
    AgentLoop,
    /// The answer to a question about a text.
    Rag,
    /// A short version of a text.
    Summary,
    /// A free answer.
    Chat,
    /// A free text.
    Story,
}

impl Task {
    /// All tasks.
    pub const ALL: [Self; 12] = [
        Self::Rewrite,
        Self::Repeat,
        Self::JsonEdit,
        Self::Extraction,
        Self::Fields,
        Self::CodeEdit,
        Self::CodeComment,
        Self::AgentLoop,
        Self::Rag,
        Self::Summary,
        Self::Chat,
        Self::Story,
    ];

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rewrite => "rewrite",
            Self::Repeat => "repeat",
            Self::JsonEdit => "JSON edit",
            Self::Extraction => "extraction",
            Self::Fields => "fields as JSON",
            Self::CodeEdit => "code edit",
            Self::CodeComment => "code comments",
            Self::AgentLoop => "agent loop",
            Self::Rag => "RAG",
            Self::Summary => "summary",
            Self::Chat => "chat",
            Self::Story => "story",
        }
    }

    /// Returns the conversations of a round's requests, which run at the same time.
    pub fn of_round(self, round: usize, n_streams: u16) -> impl Iterator<Item = Vec<Message>> {
        let n_streams = usize::from(n_streams);
        (round * n_streams..).take(n_streams).map(move |idx| self.messages(idx))
    }

    /// Returns the conversation of the `idx`-th request.
    pub fn messages(self, idx: usize) -> Vec<Message> {
        let (library, bicycles) = (turned(LIBRARY, idx), turned(BICYCLES, idx));
        let question = match self {
            Self::Rewrite => format!("Write this text again, with \"book\" replaced by \"film\":\n\n{library}"),
            Self::Repeat => format!("Repeat this text word for word:\n\n{bicycles}"),
            Self::JsonEdit => {
                let document = document(&library, idx);
                format!("Set \"open\" of section 2 to false and write the whole JSON again:\n\n{document}")
            }
            Self::Extraction => format!("Copy every sentence of this text that has a number:\n\n{library}"),
            Self::Fields => format!("Write the rules of this text as a JSON array of strings:\n\n{library}"),
            Self::CodeEdit => {
                format!("Rename total_price to sum_{idx} and write the whole code again:\n\n```python\n{CODE}```")
            }
            Self::CodeComment => {
                format!(
                    "# Version {idx}\nWrite this code again with a comment for each function:\n\n```python\n{CODE}```"
                )
            }
            Self::AgentLoop => return agent_loop(idx),
            Self::Rag => format!("{library}\n\n{bicycles}\n\nHow many books may I borrow, and for how long?"),
            Self::Summary => format!("Summarise this text in three sentences:\n\n{bicycles}"),
            Self::Chat => format!("Give me {} reasons to learn an instrument.", 3 + idx),
            Self::Story => format!("Tell a story about {} travellers who find a lighthouse.", 2 + idx),
        };
        vec![Message::new("user", question)]
    }
}

/// Returns the sentences of a text, beginning with another one for each request.
fn turned(text: &str, idx: usize) -> String {
    let mut sentences: Vec<&str> = text.split_inclusive(". ").flat_map(|part| part.split_inclusive('\n')).collect();
    let n = sentences.len().max(1);
    sentences.rotate_left(idx % n);
    sentences.concat()
}

fn document(text: &str, idx: usize) -> String {
    let sections = text.lines().filter(|line| !line.trim().is_empty()).take(6).enumerate();
    let section = |(n, line): (usize, &str)| json!({"id": n + 1, "text": line.trim(), "open": true});
    let document = json!({"name": format!("rules {idx}"), "sections": sections.map(section).collect::<Vec<_>>()});
    serde_json::to_string_pretty(&document).unwrap_or_default()
}

/// Returns a conversation in which an agent reads one file after the other.
fn agent_loop(idx: usize) -> Vec<Message> {
    let call = |n: usize| {
        format!(
            "{{\"tool\": \"read_file\", \"arguments\": {{\"path\": \"src/part_{idx}/module_{n}.py\", \
             \"first_line\": 1, \"last_line\": 200}}}}"
        )
    };
    let system = "You read files one after the other. Answer only with the next call, as JSON, in the same form.";
    let mut messages = vec![Message::new("system", system), Message::new("user", "Read module_1 to module_9.")];
    for n in 1..=4 {
        messages.push(Message::new("assistant", call(n)));
        messages.push(Message::new("user", format!("module_{n} has {} lines.", 40 + n)));
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_a_text_of_its_own() {
        for task in Task::ALL {
            let asked: std::collections::BTreeSet<String> =
                (0..8).map(|idx| task.messages(idx).iter().map(|message| message.content.as_str()).collect()).collect();
            assert_eq!(asked.len(), 8, "{task:?}");
            assert!(asked.iter().all(|text| text.len() < 8000), "{task:?}");
        }
    }
}
