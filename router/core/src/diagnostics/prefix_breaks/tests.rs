//! Tests of where conversations broke their own prefixes.

use super::*;

/// Returns a prompt in which each message has two blocks of its own; a block's key depends on all blocks before it.
fn spoken(messages: &[(Role, u64)]) -> PromptFingerprint {
    let mut chain = 0u64;
    let mut keys = Vec::new();
    for &(_, hash) in messages {
        for block in 0..2 {
            chain = chain.wrapping_mul(31).wrapping_add(hash * 2 + block + 1);
            keys.push(BlockKey(chain));
        }
    }
    // The opening of the response.
    keys.push(BlockKey(chain ^ u64::MAX));
    // Hashes below a hundred are texts with the same start and end.
    let ends = |hash: u64| [hash / 100, hash / 100];
    let messages =
        messages.iter().map(|&(role, hash)| MessageHash { hash, text: hash, ends: ends(hash), role }).collect();
    PromptFingerprint { root: ROOT, chat: ChatHashes { messages, ..ChatHashes::default() }, keys }
}

/// Returns the same prompt under another root: another tenant's.
fn under(root: u8, mut spoken: PromptFingerprint) -> PromptFingerprint {
    spoken.root = BlockHash([root; 32]);
    spoken.keys.iter_mut().for_each(|key| key.0 ^= u64::from(root));
    spoken
}

const ROOT: BlockHash = BlockHash([0; 32]);
const FIRST: [(Role, u64); 2] = [(Role::System, 1), (Role::User, 2)];
const SECOND: [(Role, u64); 4] = [FIRST[0], FIRST[1], (Role::Assistant, 3), (Role::User, 4)];

fn check(second: &[(Role, u64)], expected: PrefixContinuity) {
    let mut conversations = Conversations::default();
    assert_eq!(conversations.observe(spoken(&FIRST)), PrefixContinuity::New);
    assert_eq!(conversations.observe(spoken(&SECOND)), PrefixContinuity::Intact);
    assert_eq!(conversations.observe(spoken(second)), expected);
}

fn broken(block: u32, message: u32, role: Role) -> PrefixContinuity {
    PrefixContinuity::Broken(PrefixBreak { block, tools: None, message: Some(message), role: Some(role) })
}

#[test]
fn reports_the_block_and_message_at_which_a_conversation_broke() {
    let third = |change: fn(&mut Vec<(Role, u64)>)| {
        let mut messages = SECOND.to_vec();
        messages.extend([(Role::Assistant, 5), (Role::User, 6)]);
        change(&mut messages);
        messages
    };
    check(&third(|_| {}), PrefixContinuity::Intact);
    check(&third(|messages| messages[0].1 = 9), broken(0, 0, Role::System));
    check(&third(|messages| messages[2].1 = 9), broken(4, 2, Role::Assistant));
    check(&third(|messages| drop(messages.drain(1..3))), broken(2, 1, Role::User));
    check(&[(Role::System, 1), (Role::User, 8)], PrefixContinuity::New);
    check(&[(Role::System, 7), (Role::User, 2)], PrefixContinuity::New);
    check(&third(|messages| messages[0].1 = 900), PrefixContinuity::New);
}

#[test]
fn branches_are_separate_conversations_and_break_no_prefix() {
    let mut conversations = Conversations::default();
    let mut observe = |messages: &[(Role, u64)]| conversations.observe(spoken(messages));
    observe(&FIRST);
    observe(&SECOND);
    // Sub-agents with system prompts of their own: of the users' messages, of the whole transcript.
    let memory = [(Role::System, 500), FIRST[1], SECOND[3], (Role::User, 50)];
    let title = [(Role::System, 600), FIRST[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 60)];
    let first_turn = [(Role::System, 1), (Role::User, 2), (Role::User, 51)];
    for branch in [&memory[..], &title, &first_turn] {
        assert!(!matches!(observe(branch), PrefixContinuity::Broken(_)), "{branch:?}");
    }
    // Questions asked again in other words, and the same one again.
    let again = |n: usize, question: u64| [&SECOND[..n], &[(Role::User, question)]].concat();
    for branch in [again(3, 70), again(3, 71), again(1, 72), SECOND.to_vec(), FIRST.to_vec()] {
        assert!(!matches!(observe(&branch), PrefixContinuity::Broken(_)), "{branch:?}");
    }
    // Each branch is continued.
    for branch in [&SECOND[..], &memory, &title, &again(3, 70), &again(3, 71)] {
        let longer = [branch, &[(Role::Assistant, 80), (Role::User, 81)]].concat();
        assert_eq!(observe(&longer), PrefixContinuity::Intact, "{branch:?}");
    }
}

#[test]
fn a_system_prompt_that_changes_at_every_turn_is_reported_also_with_branches() {
    let mut conversations = Conversations::default();
    let mut turns = FIRST.to_vec();
    for turn in 0..10 {
        turns[0].1 = 10 + turn;
        let told = conversations.observe(spoken(&turns));
        assert_eq!(told, if turn == 0 { PrefixContinuity::New } else { broken(0, 0, Role::System) });
        let sub_agent = [(Role::System, 500), turns[1], (Role::User, 1000 + turn)];
        assert!(!matches!(conversations.observe(spoken(&sub_agent)), PrefixContinuity::Broken(_)));
        turns.extend([(Role::Assistant, 20 + turn), (Role::User, 40 + turn)]);
    }
}

#[test]
fn nothing_is_reported_about_a_conversation_under_another_root() {
    let mut conversations = Conversations::default();
    conversations.observe(spoken(&FIRST));
    conversations.observe(spoken(&SECOND));
    let third = [SECOND[0], SECOND[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 6)];
    let mut changed = third;
    changed[0].1 = 9;
    for asked in [&third[..], &changed, &SECOND, &FIRST] {
        let mut conversations = Conversations::default();
        conversations.observe(spoken(&SECOND));
        assert_eq!(conversations.observe(under(1, spoken(asked))), PrefixContinuity::New, "{asked:?}");
        // Not even if the keys are the same.
        let same_keys = PromptFingerprint { root: BlockHash([1; 32]), ..spoken(asked) };
        let mut conversations = Conversations::default();
        conversations.observe(spoken(&SECOND));
        assert_eq!(conversations.observe(same_keys), PrefixContinuity::New, "{asked:?}");
    }
    assert_eq!(conversations.observe(under(1, spoken(&SECOND))), PrefixContinuity::New);
    assert_eq!(conversations.observe(spoken(&third)), PrefixContinuity::Intact, "both branches continue");
    assert_eq!(conversations.observe(under(1, spoken(&third))), PrefixContinuity::Intact);
}

#[test]
fn a_prompt_that_changed_without_its_messages_was_changed_by_the_template() {
    let mut conversations = Conversations::default();
    conversations.observe(spoken(&SECOND));
    let mut other = spoken(&[SECOND[0], SECOND[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 6)]);
    other.keys[1..].iter_mut().for_each(|key| key.0 += 1);
    let expected = PrefixBreak { block: 1, tools: None, message: None, role: None };
    assert_eq!(expected.label(), "template");
    assert_eq!(conversations.observe(other), PrefixContinuity::Broken(expected));
}

/// Returns a later prompt of a conversation of one turn whose first question has changed.
fn resumed(hash: u64, text: u64, end: u64) -> PromptFingerprint {
    let mut now = spoken(&[FIRST[0], (Role::User, hash), (Role::Assistant, 3), (Role::User, 4)]);
    now.chat.messages[1].text = text;
    now.chat.messages[1].ends = [hash + 1000, end];
    now
}

#[test]
fn a_question_that_lost_a_reminder_is_still_the_same_question() {
    let observe = |now: PromptFingerprint| {
        let mut conversations = Conversations::default();
        conversations.observe(spoken(&FIRST));
        conversations.observe(now)
    };
    assert_eq!(observe(resumed(200, 2, 200)), broken(2, 1, Role::User));
    assert_eq!(observe(resumed(200, 5, 200)), PrefixContinuity::New, "another question");
}

#[test]
fn a_session_s_changed_message_is_recognized_within_its_root_only() {
    let in_session = |mut prompt: PromptFingerprint, session| {
        prompt.chat.session = Some(session);
        prompt
    };
    let observe = |now: PromptFingerprint| {
        let mut conversations = Conversations::default();
        conversations.observe(in_session(spoken(&FIRST), 7));
        conversations.observe(now)
    };
    let end = spoken(&FIRST).chat.messages[1].ends[1];
    let changed = resumed(200, 5, end);
    assert_eq!(observe(in_session(changed.clone(), 7)), broken(2, 1, Role::User));
    assert_eq!(observe(in_session(changed.clone(), 8)), PrefixContinuity::New, "another session");
    assert_eq!(observe(changed.clone()), PrefixContinuity::New, "no session");
    assert_eq!(observe(in_session(under(1, changed.clone()), 7)), PrefixContinuity::New, "another tenant");
    // Requests beside the conversation: of another agent, with a question that only begins otherwise, unanswered.
    let sub_agent = spoken(&[(Role::System, 500), (Role::User, 2), (Role::Assistant, 3), (Role::User, 50)]);
    assert_eq!(observe(in_session(sub_agent, 7)), PrefixContinuity::New);
    assert_eq!(observe(in_session(resumed(200, 5, 201), 7)), PrefixContinuity::New);
    let mut unanswered = changed;
    unanswered.chat.messages[2].role = Role::User;
    assert_eq!(observe(in_session(unanswered, 7)), PrefixContinuity::New);
}

#[test]
fn a_change_of_the_tools_is_named() {
    let with_tools = |messages: &[(Role, u64)], sent, keys_sorted, all_sorted| {
        let mut prompt = spoken(messages);
        prompt.chat.tools = Some(ToolHashes { sent, keys_sorted, all_sorted });
        prompt.keys[1..].iter_mut().for_each(|key| key.0 += sent);
        prompt
    };
    let longer = [SECOND[0], SECOND[1], SECOND[2], SECOND[3], (Role::Assistant, 5), (Role::User, 6)];
    for (hashes, expected) in [
        ([1, 1, 1], None),
        ([2, 1, 1], Some(ToolsChange::KeyOrder)),
        ([2, 2, 1], Some(ToolsChange::ListOrder)),
        ([2, 2, 2], Some(ToolsChange::Content)),
    ] {
        let mut conversations = Conversations::default();
        conversations.observe(with_tools(&SECOND, 1, 1, 1));
        let told = conversations.observe(with_tools(&longer, hashes[0], hashes[1], hashes[2]));
        let broken = |change| PrefixBreak { block: 1, tools: Some(change), message: None, role: None };
        assert_eq!(told, expected.map_or(PrefixContinuity::Intact, |change| PrefixContinuity::Broken(broken(change))));
        expected.into_iter().for_each(|change| assert_eq!(broken(change).label(), "tools"));
    }
}

#[test]
fn the_remembered_conversations_are_bounded() {
    let mut conversations = Conversations::default();
    for n in 0..3 * CONVERSATIONS_MAX as u64 {
        let hash = 1000 + 2 * n;
        conversations.observe(spoken(&[(Role::System, 1), (Role::User, hash)]));
        // Each is continued once, so that old ids remain.
        conversations.observe(spoken(&[(Role::System, 1), (Role::User, hash), (Role::User, hash + 1)]));
    }
    assert_eq!(conversations.by_id.len(), CONVERSATIONS_MAX);
    assert!(conversations.order.len() <= 2 * CONVERSATIONS_MAX);
    assert!(conversations.by_question.len() <= 2 * CONVERSATIONS_MAX);
    assert!(conversations.by_question.values().all(|same| (1..=SAME_QUESTION_MAX).contains(&same.len())));
    assert!(conversations.by_end.len() <= CONVERSATIONS_MAX);
    let long = |seed: u64| PromptFingerprint {
        root: ROOT,
        chat: ChatHashes {
            messages: vec![MessageHash { hash: seed, text: seed, ends: [seed; 2], role: Role::User }; MESSAGES_MAX + 1],
            ..ChatHashes::default()
        },
        keys: (0..KEYS_MAX as u64 / 2).map(|n| BlockKey(seed + n)).collect(),
    };
    for seed in 1..5 {
        conversations.observe(long(seed << 40));
    }
    assert!(conversations.n_keys <= KEYS_MAX);
    assert!(conversations.by_question.is_empty(), "a prompt with too many messages is not indexed by its questions");
}
