//! The texts of the demo: two tenants, each with its own system prompt, and their users' questions.
//!
//! Texts of everyday length, about which even a small model says something sensible.

/// A tenant: its system prompt, and its users' questions, turn by turn.
#[derive(Debug)]
pub struct Tenant {
    /// Name in the output.
    pub name: &'static str,
    system: &'static str,
    /// Questions of each user, in order.
    pub users: [[&'static str; N_TURNS]; N_USERS],
}

/// Turns of each user's conversation.
pub const N_TURNS: usize = 3;
/// Users of each tenant.
pub const N_USERS: usize = 2;

/// The tenants.
pub const TENANTS: [Tenant; 2] = [
    Tenant {
        name: "library",
        system: include_str!("library.txt"),
        users: [
            ["How many books may I borrow?", "For how long?", "And what does it cost if I bring one back late?"],
            ["Where are the children's books?", "When are stories read to children?", "Does that cost anything?"],
        ],
    },
    Tenant {
        name: "bicycles",
        system: include_str!("bicycles.txt"),
        users: [
            ["What does a new chain cost?", "How long does a repair take?", "On which days is the shop closed?"],
            ["I want to rent a mountain bicycle. What is the price?", "Is a helmet included?", "What must I show you?"],
        ],
    },
];

impl Tenant {
    /// Returns the system prompt on `day`, which begins with the day, so that no cache has state from another day's
    /// prompt.
    pub fn system(&self, day: &str) -> String {
        format!("Today is {day}. {}", self.system.trim_end())
    }
}
