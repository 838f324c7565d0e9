//! Tests of sessions in a closed loop: the file, the times of the requests, the disk, determinism.

use std::io::Write as _;

use super::super::policy::Policy;
use super::super::tests::{self, args, scene};
use super::super::trace::shapes::TraceShape;
use super::super::worker;
use super::super::world::Scene;
use super::*;
use crate::virtual_time::simulated::disk::DiskShape;

/// A worker that computes a token per millisecond, and decodes and restores in no time.
const WORKER: worker::Shape = worker::Shape { restore_ms_per_token: 0.0, ..tests::WORKER };

/// Returns a line with tools of 200 tokens and this system text, in blocks of 100 tokens.
fn line(system: u32, requests: &str) -> String {
    format!(r#"{{"id":"a","tools":200,"system":{system},"block":100,"requests":[{requests}]}}"#)
}

fn read(lines: &[String], n_active: usize) -> anyhow::Result<Sessions> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(lines.join("\n").as_bytes())?;
    reader::read(file.path(), n_active, 1)
}

fn served(lines: &[String], n_active: usize, worker: worker::Shape) -> Vec<(u64, u32)> {
    let sessions = read(lines, n_active).expect("the file is well formed");
    let history = world::run(&sessions.trace, &Scene { workers: vec![worker], ..scene("predicted-ttft", 1) });
    let served = history.served.into_iter().map(|response| response.expect("it was answered"));
    served.map(|response| (response.ttft.as_millis() as u64, response.cached_tokens)).collect()
}

#[test]
fn sessions_of_the_same_tools_and_system_text_share_only_these() {
    let same = |session: u32| line(100, &format!("[0,1,{},9,0,[1,6]]", 510 + session));
    let sessions = read(&[same(0), same(1), line(200, "[0,1,600,9,0,[1,6]]")], 3).unwrap();
    let prompts: Vec<&[u32]> = sessions.trace.requests.iter().map(|request| request.ids()).collect();
    let n_common = |a: usize, b: usize| prompts[a].iter().filter(|id| prompts[b].contains(id)).count();
    let mut n_shared = [n_common(0, 1), n_common(0, 2), n_common(1, 2)];
    n_shared.sort_unstable();
    assert_eq!(n_shared, [0, 0, 3]);
    assert_eq!(sessions.new_tokens.iter().sum::<u32>(), 510 + 511 + 600 - 300);
}

#[test]
fn a_block_that_has_moved_or_follows_another_is_a_new_one() {
    let requests = "[0,1,600,9,0,[1,6]],[5,1,700,9,0,[1,4,7,1,5,2]],[5,1,650,9,1,[1,6]]";
    let sessions = read(&[line(0, requests)], 1).unwrap();
    let ids: Vec<&[u32]> = sessions.trace.requests.iter().map(|request| request.ids()).collect();
    assert_eq!(ids[0][..4], ids[1][..4]);
    assert!(ids[1][4..].iter().all(|id| !ids[0].contains(id)));
    // A partial last block without an id is another one each time.
    assert_eq!((ids[2].len(), &ids[2][..6]), (7, ids[0]));
    assert_eq!(sessions.new_tokens, [600, 300, 50]);
    assert_eq!(sessions.state_blocks(), 7.0);
}

#[test]
fn a_file_that_has_no_sessions_is_refused_with_the_line_and_the_reason() {
    let check = |lines: &[String], reason: &str| {
        let error = format!("{:#}", read(lines, 1).expect_err(reason));
        assert!(error.contains(reason), "{error}");
    };
    let good = || line(0, "[0,1,100,9,0,[1,1]]");
    check(&[], "has no sessions");
    check(&["\n \n".to_owned()], "has no sessions");
    check(&[good(), "{".to_owned()], "line 2 of");
    check(&[line(0, "")], "the session has no requests");
    check(&[line(0, "[0,1,100,9,0]")], "line 1 of");
    check(&[line(0, "[0,1,100,9,0,[1]]")], "1 numbers are no pairs");
    check(&[line(0, "[0,1,0,9,0,[]]")], "the prompt is empty");
    check(&[line(0, "[-1,1,100,9,0,[1,1]]")], "a pause of -1 s");
    check(&[line(0, "[0,1,100,9,0,[1,1]],[0,1,300,9,0,[1,1]]")], "request 2: 300 tokens in blocks of 100 are 3 blocks");
    check(&[line(0, "[0,1,100,9,0,[1,4294967295]]")], "1 blocks, not 4294967295");
    check(&[line(0, "[0,1,200,9,0,[4294967295,2]]")], "an id is larger than 4294967295");
    check(&[good(), good().replace(r#""block":100"#, r#""block":50"#)], "blocks of 50 tokens among those of 100");
    check(&[good().replace(r#""block":100"#, r#""block":0"#)], "at least one token");
    let missing = reader::read(std::path::Path::new("/nowhere/sessions"), 1, 1).expect_err("there is no file");
    assert!(format!("{missing:#}").contains("cannot open /nowhere/sessions"));
}

#[test]
fn a_request_comes_its_pause_after_the_response_before_it() {
    let worker = worker::Shape { decode_step_ms: 100.0, ..WORKER };
    let sessions = read(&[line(0, "[9,1,1000,11,0,[1,10]],[30,1,1100,1,0,[1,11]]")], 1).unwrap();
    let history = world::run(&sessions.trace, &Scene { workers: vec![worker], ..scene("predicted-ttft", 1) });
    // 1 s for the first prompt, 10 more tokens in 0.1 s each, 30 s of pause, 100 new tokens.
    let second = history.served[1].expect("it was answered");
    assert_eq!((second.ttft.as_millis(), second.cached_tokens), (100, 1000));
    assert_eq!(history.ended.as_millis() / 100, (1000 + 1000 + 30_000 + 100) / 100);
}

#[test]
fn as_many_sessions_as_are_active_run_at_once() {
    let lines: Vec<String> = (0..3).map(|n| line(n, "[0,1,90000,1,0,[1,900]]")).collect();
    let ttfts = |n_active| served(&lines, n_active, worker::Shape { n_slots: 1, ..WORKER }).into_iter().map(|s| s.0);
    assert!(ttfts(1).all(|ttft_ms| ttft_ms == 90_000), "each begins when the one before has ended");
    // The second begins after a minute and waits for half a minute; the third begins when the first ends.
    assert_eq!(ttfts(2).collect::<Vec<_>>(), [90_000, 120_000, 180_000]);
}

#[test]
fn what_has_left_ram_is_read_from_disk_unless_there_is_none() {
    let requests = |from: u32| format!("[0,1,1000,1,0,[{from},10]],[100,1,1100,1,0,[{from},11]]");
    let lines = [line(0, &requests(1)), line(1, &requests(1))];
    let small = worker::Shape { n_blocks_max: 12, n_slots: 1, ..WORKER };
    let seconds = |worker| -> Vec<(u64, u32)> { served(&lines, 2, worker).into_iter().skip(1).step_by(2).collect() };
    assert!(seconds(small).iter().any(|(_, cached_tokens)| *cached_tokens < 1000), "{:?}", seconds(small));
    // A block is read in 1 ms, a new one computed in 100.
    let disk = Some(DiskShape { n_blocks_max: 100, ms_per_block: 1.0 });
    let from_disk = seconds(worker::Shape { disk, ..small });
    assert!(from_disk.iter().all(|(_, cached_tokens)| *cached_tokens == 1000), "{from_disk:?}");
    assert!(from_disk.iter().any(|(ttft_ms, _)| (101..=110).contains(ttft_ms)), "{from_disk:?}");
}

#[test]
fn a_model_that_resumes_only_at_checkpoints_computes_the_tokens_after_the_last_one() {
    let lines = [line(0, "[0,1,1000,1,0,[1,10]],[1,1,1100,1,0,[1,10,50,1]],[1,1,1100,1,0,[1,8,60,3]]")];
    let cached = |worker| served(&lines, 1, worker).into_iter().map(|(_, n)| n).collect::<Vec<u32>>();
    assert_eq!(cached(WORKER), [0, 1000, 800]);
    // The second prompt resumes before the first one's last tokens, the third before its last changed text.
    assert_eq!(cached(worker::Shape { checkpoint_blocks: Some(2), ..WORKER }), [0, 900, 700]);
    assert_eq!(cached(worker::Shape { checkpoint_blocks: Some(2000), ..WORKER }), [0, 0, 0], "there is no room");
}

#[test]
fn every_request_is_answered_under_every_policy_and_the_same_for_a_seed() {
    let requests = |n: u32| {
        let request = |turn: u32| format!("[{},1,{},20,0,[1,{}]]", turn * n, 1000 + turn * 300, 10 + turn * 3);
        (0..4).map(request).collect::<Vec<_>>().join(",")
    };
    let lines: Vec<String> = (0..9).map(|n| line(n % 3, &requests(n))).collect();
    let sessions = read(&lines, 6).unwrap();
    let run = |seed| {
        let mut args = SimArgs { workers: 2, routers: 2, seed, ..args(TraceShape::Chat) };
        (args.sessions.active, args.sessions.disk_share) = (6, 0.5);
        let cases = Policy::COMPARED.into_iter().flat_map(|policy| [Eviction::Arc, Eviction::Lru].map(|e| (policy, e)));
        let outcomes = cases.map(|(policy, eviction)| simulate(&args, &sessions, policy, eviction).unwrap());
        outcomes.collect::<Vec<_>>()
    };
    let outcomes = run(1);
    for outcome in &outcomes {
        assert_eq!(outcome.n_answered, 36, "{outcome:?}");
        assert!(outcome.computed_per_new >= 1.0 && outcome.slowdown_p50 >= 0.9, "{outcome:?}");
        assert!(outcome.ttft_ms_p50 <= outcome.ttft_ms_p95 && outcome.restored_bytes > 0, "{outcome:?}");
    }
    assert_eq!(outcomes, run(1));
    assert_ne!(outcomes, run(2));
}
