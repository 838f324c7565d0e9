//! Reading bodies, and the division of their memory.

use std::convert::Infallible;
use std::pin::pin;

use futures::stream;
use proptest::prelude::*;

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn limits(bytes_max: usize, room: usize) -> BodyLimits {
    BodyLimits { bytes_max, timeout: TIMEOUT, room: BodyRoom::new(room) }
}

fn sender(n: u8) -> Sender {
    Sender::Address(IpAddr::from([10, 0, 0, n]))
}

/// Returns a body of these pieces.
fn pieces(pieces: impl IntoIterator<Item = &'static str, IntoIter: Send + 'static>) -> Body {
    Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
}

/// Returns a body of this piece that never ends.
fn unfinished(piece: &'static str) -> Body {
    Body::from_stream(futures::StreamExt::chain(stream::iter([Ok::<_, Infallible>(piece)]), stream::pending()))
}

#[tokio::test(start_paused = true)]
async fn a_byte_order_mark_is_no_part_of_a_body() {
    let limits = limits(10, 100);
    for (body, expected) in [
        (Body::from("\u{feff}{}"), "{}"),
        (pieces(["\u{feff}", "{}"]), "{}"),
        (Body::from("\u{feff}"), ""),
        (Body::from("{}\u{feff}"), "{}\u{feff}"),
    ] {
        assert_eq!(limits.read(&mut HeaderMap::new(), body, sender(1)).await.expect("it fits"), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_is_read_whole() {
    let limits = limits(10, 100);
    for (body, expected) in
        [(Body::empty(), ""), (Body::from("0123456789"), "0123456789"), (pieces(["01234", "", "56789"]), "0123456789")]
    {
        assert_eq!(limits.read(&mut HeaderMap::new(), body, sender(1)).await.expect("it fits"), expected);
    }
    assert_eq!(limits.room.n_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_takes_memory_until_its_last_copy_is_dropped() {
    let limits = limits(10, 100);
    for body in [Body::from("0123456789"), pieces(["01234", "56789"])] {
        let body = limits.read(&mut HeaderMap::new(), body, sender(1)).await.expect("it fits");
        let part = body.slice(2..4);
        drop(body);
        assert_eq!((limits.room.n_bytes(), &part[..]), (10, &b"23"[..]));
        drop(part);
        assert_eq!(limits.room.n_bytes(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_over_its_length_is_refused_once_the_rest_is_read() {
    let limits = limits(10, 100);
    for body in [Body::from("01234567890"), pieces(["0123456789", "0"])] {
        assert_eq!(
            limits.read(&mut HeaderMap::new(), body, sender(1)).await,
            Err(BodyError::TooLong { bytes_max: 10 })
        );
    }
    let endless = Body::from_stream(stream::unfold((), async |()| {
        tokio::time::sleep(Duration::from_millis(1)).await;
        Some((Ok::<_, Infallible>("0123456789"), ()))
    }));
    let mut headers = HeaderMap::new();
    let read = tokio::select! {
        read = limits.read(&mut headers, endless, sender(1)) => read,
        () = tokio::time::sleep(TIMEOUT) => panic!("it is read forever"),
    };
    assert_eq!(read, Err(BodyError::TooLong { bytes_max: 10 }));
}

#[tokio::test(start_paused = true)]
async fn a_body_that_stops_or_trickles_is_refused() {
    let limits = limits(1000, 2000);
    let start = tokio::time::Instant::now();
    assert_eq!(
        limits.read(&mut HeaderMap::new(), unfinished("abc"), sender(1)).await,
        Err(BodyError::Silent { seconds: 10.0 })
    );
    assert!(start.elapsed() < 2 * BODY_SILENCE_MAX);
    let trickle = Body::from_stream(stream::unfold((), async |()| {
        tokio::time::sleep(BODY_SILENCE_MAX / 2).await;
        Some((Ok::<_, Infallible>("a"), ()))
    }));
    assert_eq!(limits.read(&mut HeaderMap::new(), trickle, sender(1)).await, Err(BodyError::Late { seconds: 60.0 }));
    assert_eq!(limits.room.n_bytes(), 0);
}

#[tokio::test(start_paused = true)]
async fn unfinished_bodies_take_bounded_memory_and_leave_some_to_others() {
    let limits = limits(10, 60);
    let read = async |sender| limits.read(&mut HeaderMap::new(), unfinished("0123456789"), sender).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut reading = Box::pin(read(sender(1)));
        assert!(futures::poll!(&mut reading).is_pending());
        held.push(reading);
    }
    assert_eq!(limits.room.n_bytes(), 20);
    assert_eq!(read(sender(1)).await, Err(BodyError::NoRoom), "one sender has a third");
    assert_eq!(
        limits.read(&mut HeaderMap::new(), pieces(["01234", "56789"]), sender(2)).await.expect("there is room"),
        "0123456789"
    );
    let mut second = pin!(read(sender(2)));
    assert!(futures::poll!(&mut second).is_pending());
    drop(held);
    assert_eq!(limits.room.n_bytes(), 10);
}

#[test]
fn hosts_of_one_ipv6_network_are_one_sender() {
    let at = |address: &str| Sender::at(address.parse().expect("an address"));
    assert_eq!(at("2001:db8:1:2::3"), at("2001:db8:1:2:ffff::4"));
    assert_ne!(at("2001:db8:1:2::3"), at("2001:db8:1:3::3"));
    assert_eq!(at("::ffff:10.0.0.1"), at("10.0.0.1"));
}

proptest! {
    #[test]
    fn memory_is_bounded_and_some_is_always_left_for_another_sender(
        steps in prop::collection::vec((0..6u8, 1..40usize, any::<bool>()), 1..100),
    ) {
        const ROOM: usize = 1000;
        let room = BodyRoom::new(ROOM);
        let mut claims: Vec<Claim> = Vec::new();
        for (who, n_bytes, is_new) in steps {
            let who = sender(who);
            if is_new || claims.is_empty() {
                claims.push(BodyRoom::claim(&room, who.clone()));
            } else if n_bytes % 7 == 0 {
                claims.swap_remove(n_bytes % claims.len());
                continue;
            }
            let idx = n_bytes % claims.len();
            let (who, before) = (claims[idx].sender.clone(), room.n_bytes());
            let of_sender: usize = claims.iter().filter(|claim| claim.sender == who).map(|claim| claim.n_bytes).sum();
            let is_allowed = 2 * (of_sender + n_bytes) <= ROOM.saturating_sub(before + n_bytes);
            prop_assert_eq!(claims[idx].grow(n_bytes).is_ok(), is_allowed);
            prop_assert_eq!(room.n_bytes(), claims.iter().map(|claim| claim.n_bytes).sum::<usize>());
            let n_senders = room.taken().by_sender.len() as i32;
            prop_assert!((ROOM - room.n_bytes()) as f64 >= ROOM as f64 * (2.0_f64 / 3.0).powi(n_senders) - 1e-6);
        }
        drop(claims);
        prop_assert_eq!(room.n_bytes(), 0);
        prop_assert!(room.taken().by_sender.is_empty());
    }
}
