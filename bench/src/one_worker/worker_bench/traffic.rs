//! The reuse scenarios: which requests are sent, in which order, and how many at once.
//!
//! Texts are in `shapes`, summaries of the responses in `measured`. A pass is one run of a scenario on one new server.
//! Prompts that the server sees for the first time are cold; the others are warm and sent in rounds, whose order
//! matters.

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::scenario::Scenario;
use super::shapes::{Growth, Texts};
use crate::client::{Answer, ChatClient, Message};

/// Responses of one run of a scenario on one server.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// Responses to prompts that the server had never seen.
    pub cold: Vec<Answer>,
    /// Responses to prompts that the server had seen in part, by round.
    pub rounds: Vec<Vec<Answer>>,
}

impl Pass {
    fn warm_in_one_round(cold_answers: Vec<Answer>, warm: Vec<Answer>) -> Self {
        Self { cold: cold_answers, rounds: vec![warm] }
    }
}

/// Length of a user's question after a shared system prompt. Units: tokens.
const QUESTION_TOKENS: u32 = 24;
/// Length of a response whose text does not matter. Units: tokens.
const ANSWER_TOKENS: u32 = 8;
/// Number of times that a short scenario is repeated in a pass, with other texts.
const N_SERIES: u64 = 3;
/// Number of unrelated prompts of a flood.
pub const FLOOD_PROMPTS: u32 = 16;
/// Length of each of them. Units: tokens.
pub const FLOOD_PROMPT_TOKENS: u32 = 1000;
/// Number of slots of the servers in the reuse scenarios.
pub const N_SLOTS: u16 = 4;

/// Sender of one scenario's requests to one server.
#[derive(Debug, Clone, Copy)]
pub struct Traffic<'a> {
    /// Client of the server.
    pub client: &'a ChatClient,
    /// Source of the texts.
    pub texts: Texts,
}

impl Traffic<'_> {
    /// Runs a reuse scenario; other scenarios give an empty pass.
    ///
    /// Errors: the first request that fails.
    pub async fn run(&self, scenario: Scenario) -> anyhow::Result<Pass> {
        match scenario {
            Scenario::ExactRepeat => self.exact_repeat().await,
            Scenario::GrownPrompt => self.grown_prompt().await,
            Scenario::SixTurnChat => {
                self.chats(Chats { n_chats: 1, n_turns: 6, user_tokens: 45, answer_tokens: 96 }).await
            }
            Scenario::SharedSystem8 => self.shared_system().await,
            Scenario::Interleaved12 => {
                self.chats(Chats { n_chats: 12, n_turns: 3, user_tokens: 24, answer_tokens: 24 }).await
            }
            Scenario::Shared4k => self.shared_context().await,
            Scenario::HotAfterFlood | Scenario::HotAfterFloodTight => self.hot_after_flood().await,
            Scenario::Tenants6x4 => self.tenants().await,
            _ => Ok(Pass::default()),
        }
    }

    async fn ask(&self, messages: &[Message]) -> anyhow::Result<Answer> {
        self.client.ask_exactly(messages, ANSWER_TOKENS).await
    }

    async fn ask_at_once(&self, conversations: Vec<Vec<Message>>, n_at_once: usize) -> anyhow::Result<Vec<Answer>> {
        let requests = conversations.into_iter().map(|messages| async move { self.ask(&messages).await });
        stream::iter(requests).buffer_unordered(n_at_once).try_collect().await
    }

    async fn exact_repeat(&self) -> anyhow::Result<Pass> {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for series in 0..N_SERIES {
            let messages = self.texts.user(series, 890);
            cold.push(self.ask(&messages).await?);
            for _ in 0..4 {
                warm.push(self.ask(&messages).await?);
            }
        }
        Ok(Pass::warm_in_one_round(cold, warm))
    }

    async fn grown_prompt(&self) -> anyhow::Result<Pass> {
        let growth = Growth { n_rounds: 4, n_words: 3 };
        let mut pass = Pass { cold: Vec::new(), rounds: vec![Vec::new(); 4] };
        for series in 0..N_SERIES {
            let conversations = self.texts.grown(series * 100, 890, growth);
            pass.cold.push(self.ask(&conversations[0]).await?);
            for (round, messages) in pass.rounds.iter_mut().zip(&conversations[1..]) {
                round.push(self.ask(messages).await?);
            }
        }
        Ok(pass)
    }

    /// Runs chats turn by turn: the first turn of every chat, then the second turn of every chat, and so on.
    async fn chats(&self, chats: Chats) -> anyhow::Result<Pass> {
        let mut conversations = vec![Vec::new(); chats.n_chats];
        let mut pass = Pass::default();
        for turn in 0..chats.n_turns {
            let mut round = Vec::new();
            for (chat_idx, messages) in conversations.iter_mut().enumerate() {
                let text_idx = (chat_idx * chats.n_turns + turn) as u64;
                messages.push(Message::new("user", self.texts.text(text_idx, chats.user_tokens)));
                let answer = self.client.ask_exactly(messages, chats.answer_tokens).await?;
                messages.push(Message::new("assistant", answer.text.clone()));
                round.push(answer);
            }
            pass.rounds.push(round);
        }
        Ok(pass)
    }

    async fn shared_system(&self) -> anyhow::Result<Pass> {
        let (mut cold, mut warm) = (Vec::new(), Vec::new());
        for series in 0..N_SERIES {
            let system = self.texts.text(series * 100, 1200);
            cold.push(self.ask(&self.texts.under(&system, series * 100 + 1, QUESTION_TOKENS)).await?);
            let users = (0..8).map(|user| self.texts.under(&system, series * 100 + 10 + user, QUESTION_TOKENS));
            warm.extend(self.ask_at_once(users.collect(), 8).await?);
        }
        Ok(Pass::warm_in_one_round(cold, warm))
    }

    async fn shared_context(&self) -> anyhow::Result<Pass> {
        let context = self.texts.text(0, 4000);
        let cold_answers = vec![self.ask(&self.texts.under(&context, 1, QUESTION_TOKENS)).await?];
        let questions = (0..12).map(|question| self.texts.under(&context, 10 + question, QUESTION_TOKENS));
        Ok(Pass::warm_in_one_round(cold_answers, self.ask_at_once(questions.collect(), 1).await?))
    }

    /// Uses a system prompt three times, sends the flood, and uses the system prompt once more.
    async fn hot_after_flood(&self) -> anyhow::Result<Pass> {
        let system = self.texts.text(0, 1200);
        let users = (10..13).map(|user| self.texts.under(&system, user, QUESTION_TOKENS)).collect();
        let before = self.ask_at_once(users, 1).await?;
        let flood = (0..FLOOD_PROMPTS).map(|prompt| self.texts.user(100 + u64::from(prompt), FLOOD_PROMPT_TOKENS));
        self.ask_at_once(flood.collect(), 1).await?;
        let after = self.ask(&self.texts.under(&system, 20, QUESTION_TOKENS)).await?;
        Ok(Pass::warm_in_one_round(before.into_iter().take(1).collect(), vec![after]))
    }

    async fn tenants(&self) -> anyhow::Result<Pass> {
        let systems: Vec<String> = (0..6).map(|tenant| self.texts.text(tenant * 100, 500)).collect();
        let under = |tenant: usize, user: u64| {
            self.texts.under(&systems[tenant], tenant as u64 * 100 + 10 + user, QUESTION_TOKENS)
        };
        let first = (0..systems.len()).map(|tenant| under(tenant, 99)).collect();
        let cold_answers = self.ask_at_once(first, 1).await?;
        let order = self.texts.shuffled((1..5).flat_map(|user| (0..systems.len()).map(move |tenant| (tenant, user))));
        let users = order.into_iter().map(|(tenant, user)| under(tenant, user)).collect();
        Ok(Pass::warm_in_one_round(cold_answers, self.ask_at_once(users, usize::from(N_SLOTS)).await?))
    }
}

/// Number and size of chats.
#[derive(Debug, Clone, Copy)]
struct Chats {
    n_chats: usize,
    n_turns: usize,
    user_tokens: u32,
    answer_tokens: u32,
}
